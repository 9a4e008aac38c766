"""Search by meaning: an exact index of sentence embeddings, in memory and on disk, with or without its embedder."""

from bothways.retrieval.index import Hit, SearchIndex
from bothways.retrieval.index_files import EncoderIdentity
from bothways.retrieval.semantic import SemanticSearch, identity_of

__all__ = ["EncoderIdentity", "Hit", "SearchIndex", "SemanticSearch", "identity_of"]
