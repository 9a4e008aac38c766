"""Search by meaning, by words, or by both: an index of texts, in memory and on disk, and how well it finds."""

from bothways.retrieval.filters import Among, Between, Filter
from bothways.retrieval.gathering import Batch
from bothways.retrieval.hits import Hit
from bothways.retrieval.index import SearchIndex
from bothways.retrieval.index_files import updating
from bothways.retrieval.index_header import EncoderIdentity
from bothways.retrieval.judging import absent_documents, evaluate_search
from bothways.retrieval.modes import Dense, Fusion, Hybrid, Lexical, Mode, ReciprocalRank, Weighted
from bothways.retrieval.reranking import CrossEncoder, Rerank, Reranker, reranked
from bothways.retrieval.semantic import SemanticSearch, identity_of

__all__ = [
    "Among",
    "Batch",
    "Between",
    "CrossEncoder",
    "Dense",
    "EncoderIdentity",
    "Filter",
    "Fusion",
    "Hit",
    "Hybrid",
    "Lexical",
    "Mode",
    "ReciprocalRank",
    "Rerank",
    "Reranker",
    "SearchIndex",
    "SemanticSearch",
    "Weighted",
    "absent_documents",
    "evaluate_search",
    "identity_of",
    "reranked",
    "updating",
]
