"""Raw text as shards of tokens on the disk, to pre-train on: written once, mapped into memory, checked."""

from bothways.data.shards.corpus import MANIFEST, Lengths, Manifest, Pieces, ShardEntry, TokenCorpus
from bothways.data.shards.writing import ShardSource, write_shards

__all__ = ["MANIFEST", "Lengths", "Manifest", "Pieces", "ShardEntry", "ShardSource", "TokenCorpus", "write_shards"]
