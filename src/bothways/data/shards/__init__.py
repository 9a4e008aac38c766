"""Raw text as shards of tokens on the disk, to pre-train on: written once, mapped into memory, checked."""

from bothways.data.shards.corpus import TokenCorpus
from bothways.data.shards.manifest import MANIFEST, Lengths, Manifest, ShardEntry
from bothways.data.shards.pieces import Pieces
from bothways.data.shards.writing import ShardSource, write_shards

__all__ = ["MANIFEST", "Lengths", "Manifest", "Pieces", "ShardEntry", "ShardSource", "TokenCorpus", "write_shards"]
