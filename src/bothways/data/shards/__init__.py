"""Token shards on disk for pre-training: raw text is encoded once, then memory-mapped and verified by checksums."""

from bothways.data.shards.corpus import MANIFEST, Lengths, Manifest, Pieces, ShardEntry, TokenCorpus
from bothways.data.shards.writing import ShardSource, write_shards

__all__ = ["MANIFEST", "Lengths", "Manifest", "Pieces", "ShardEntry", "ShardSource", "TokenCorpus", "write_shards"]
