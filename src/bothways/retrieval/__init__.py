"""Search by meaning, by words, or by both: an index of texts, in memory and on disk, and its evaluation.

The names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
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
    from bothways.retrieval.index import SearchIndex
    from bothways.retrieval.index_files import check_index_free, locked, read_header, updating
    from bothways.retrieval.lexical import check_available
    from bothways.retrieval.mining import Mined, Mining, mine_negatives
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
    "index": ("SearchIndex",),
    "index_files": ("check_index_free", "locked", "read_header", "updating"),
    "lexical": ("check_available",),
    "mining": ("Mined", "Mining", "mine_negatives"),
    "ranking": (
        *("Among", "Between", "Dense", "Filter", "Fusion", "Hit", "Hybrid", "Lexical", "Mode"),
        *("ReciprocalRank", "Retriever", "Weighted", "parse_filters"),
    ),
    "reranking": ("BiEncoder", "CrossEncoder", "Rerank", "Reranker", "reranked"),
    "search": ("SemanticSearch",),
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
    "QueryEvidence",
    "ReciprocalRank",
    "Rerank",
    "Reranker",
    "Retriever",
    "RowBatch",
    "SearchIndex",
    "SemanticSearch",
    "SourceColumns",
    "Weighted",
    "absent_documents",
    "check_available",
    "check_index_free",
    "evaluate_reranker",
    "evidence_of",
    "locked",
    "mine_negatives",
    "pairs_of_training",
    "parse_filters",
    "read_candidates",
    "read_header",
    "reranked",
    "search_outcomes",
    "updating",
]
