"""Judges of retrieval-augmented generation, and which of several systems is better.

A `Judge` is a cross-encoder for one of three dimensions: context relevance, answer faithfulness, answer relevance. With
a few human labels, prediction-powered inference makes of its answers the success rate of a system with an interval
(`score_system`), and `rank_systems` puts several systems in order. After ARES (Saad-Falcon et al. 2023,
arXiv:2311.09476).

The names are loaded when they are first used, so that the command line reads columns without NumPy or torch.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.judging.dimensions import DIMENSIONS, Dimension
    from bothways.judging.judge import Judge, judges_in
    from bothways.judging.pairing import NextRow
    from bothways.judging.quality import JudgeDisagreement, JudgeReport
    from bothways.judging.ranking import SystemComparison, SystemRanking, rank_systems
    from bothways.judging.scoring import SystemScore, score_system
    from bothways.judging.triples import Triple, TripleColumns, label_of, read_triples

__all__ = [
    "DIMENSIONS",
    "Dimension",
    "Judge",
    "JudgeDisagreement",
    "JudgeReport",
    "NextRow",
    "SystemComparison",
    "SystemRanking",
    "SystemScore",
    "Triple",
    "TripleColumns",
    "judges_in",
    "label_of",
    "rank_systems",
    "read_triples",
    "score_system",
]

_HOMES = {
    "SystemComparison": "bothways.judging.ranking",
    "DIMENSIONS": "bothways.judging.dimensions",
    "Dimension": "bothways.judging.dimensions",
    "JudgeDisagreement": "bothways.judging.quality",
    "Judge": "bothways.judging.judge",
    "JudgeReport": "bothways.judging.quality",
    "NextRow": "bothways.judging.pairing",
    "SystemRanking": "bothways.judging.ranking",
    "SystemScore": "bothways.judging.scoring",
    "Triple": "bothways.judging.triples",
    "TripleColumns": "bothways.judging.triples",
    "judges_in": "bothways.judging.judge",
    "label_of": "bothways.judging.triples",
    "rank_systems": "bothways.judging.ranking",
    "read_triples": "bothways.judging.triples",
    "score_system": "bothways.judging.scoring",
}

__getattr__ = loader(__name__, _HOMES)
