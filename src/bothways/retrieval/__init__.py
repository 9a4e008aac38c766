"""Search by meaning, by words, or by both: an index of texts, in memory and on disk, and how well it finds."""

from bothways.retrieval.candidates import CandidateRanking, Candidates, evaluate_reranker, read_candidates
from bothways.retrieval.filters import Among, Between, Filter
from bothways.retrieval.gathering import RowBatch
from bothways.retrieval.hits import Hit
from bothways.retrieval.index import SearchIndex
from bothways.retrieval.index_files import locked, updating
from bothways.retrieval.index_header import EncoderIdentity, IndexTextOptions
from bothways.retrieval.judging import absent_documents, search_outcomes
from bothways.retrieval.mining import Mined, Mining, mine_negatives
from bothways.retrieval.modes import Dense, Fusion, Hybrid, Lexical, Mode, ReciprocalRank, Weighted
from bothways.retrieval.reranking import BiEncoder, CrossEncoder, Rerank, Reranker, reranked, search_reranked
from bothways.retrieval.semantic import SemanticSearch, identity_of

__all__ = [
    "Among",
    "Between",
    "BiEncoder",
    "CandidateRanking",
    "Candidates",
    "CrossEncoder",
    "Dense",
    "EncoderIdentity",
    "Filter",
    "Fusion",
    "Hit",
    "Hybrid",
    "IndexTextOptions",
    "Lexical",
    "Mined",
    "Mining",
    "Mode",
    "ReciprocalRank",
    "Rerank",
    "Reranker",
    "RowBatch",
    "SearchIndex",
    "SemanticSearch",
    "Weighted",
    "absent_documents",
    "evaluate_reranker",
    "identity_of",
    "locked",
    "mine_negatives",
    "read_candidates",
    "reranked",
    "search_outcomes",
    "search_reranked",
    "updating",
]
