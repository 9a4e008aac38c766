"""Search by meaning: an exact index of sentence embeddings, in memory and on disk."""

from bothways.retrieval.index import Hit, SearchIndex
from bothways.retrieval.index_files import EncoderIdentity

__all__ = ["EncoderIdentity", "Hit", "SearchIndex"]
