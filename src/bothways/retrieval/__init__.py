"""Search by meaning, by words, or by both: an index of texts, in memory and on disk, and its evaluation.

The names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.retrieval.address import is_database, shown_address
    from bothways.retrieval.contents import EncoderIdentity, RowBatch, SourceColumns
    from bothways.retrieval.evaluation import (
        CandidateRanking,
        Candidates,
        absent_documents,
        evaluate_reranker,
        pairs_of_training,
        read_candidates,
        search_outcomes,
    )
    from bothways.retrieval.evidence import QueryEvidence, evidence_of
    from bothways.retrieval.index import SearchIndex, VectorStore
    from bothways.retrieval.index_files import updating
    from bothways.retrieval.mining import Mined, Mining, mine_negatives
    from bothways.retrieval.postgres.index import PostgresIndex
    from bothways.retrieval.ranking import (
        Among,
        Between,
        Dense,
        Filter,
        Fusion,
        Hit,
        Hybrid,
        Lexical,
        Mode,
        ReciprocalRank,
        Retriever,
        Weighted,
        parse_filters,
    )
    from bothways.retrieval.reranking import BiEncoder, CrossEncoder, Rerank, Reranker, reranked
    from bothways.retrieval.search import SemanticSearch
    from bothways.retrieval.store import (
        build_index,
        building,
        changing,
        check_language,
        facts_of,
        open_index,
    )

_MODULES = {
    "evidence": ("QueryEvidence", "evidence_of"),
    "contents": ("EncoderIdentity", "RowBatch", "SourceColumns"),
    "evaluation": (
        "CandidateRanking",
        "Candidates",
        "absent_documents",
        "evaluate_reranker",
        "read_candidates",
        "pairs_of_training",
        "search_outcomes",
    ),
    "index": ("SearchIndex", "VectorStore"),
    "index_files": ("updating",),
    "mining": ("Mined", "Mining", "mine_negatives"),
    "address": ("is_database", "shown_address"),
    "postgres.index": ("PostgresIndex",),
    "ranking": (
        *("Among", "Between", "Dense", "Filter", "Fusion", "Hit", "Hybrid", "Lexical", "Mode"),
        *("ReciprocalRank", "Retriever", "Weighted", "parse_filters"),
    ),
    "reranking": ("BiEncoder", "CrossEncoder", "Rerank", "Reranker", "reranked"),
    "search": ("SemanticSearch",),
    "store": ("build_index", "building", "changing", "check_language", "facts_of", "open_index"),
}
__getattr__ = loader(__name__, _MODULES)

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
    "Lexical",
    "Mined",
    "Mining",
    "Mode",
    "PostgresIndex",
    "QueryEvidence",
    "ReciprocalRank",
    "Rerank",
    "Reranker",
    "Retriever",
    "RowBatch",
    "SearchIndex",
    "SemanticSearch",
    "SourceColumns",
    "VectorStore",
    "Weighted",
    "absent_documents",
    "build_index",
    "building",
    "changing",
    "check_language",
    "evaluate_reranker",
    "evidence_of",
    "facts_of",
    "is_database",
    "mine_negatives",
    "open_index",
    "pairs_of_training",
    "parse_filters",
    "read_candidates",
    "reranked",
    "search_outcomes",
    "shown_address",
    "updating",
]
