"""Judges of retrieval-augmented generation, and which of several systems is better.

A `Judge` is a cross-encoder for one of three dimensions: context relevance, answer faithfulness, answer relevance. With
a few human labels, prediction-powered inference makes of its answers the success rate of a system with an interval
(`score_system`), and `rank_systems` puts several systems in order. After ARES (Saad-Falcon et al. 2023,
arXiv:2311.09476).
"""

from bothways.judging.dimensions import DIMENSIONS, Dimension
from bothways.judging.judge import Judge, judges_in
from bothways.judging.pairing import NextRow
from bothways.judging.quality import Disagreement, JudgeReport
from bothways.judging.ranking import Comparison, Ranking, rank_systems
from bothways.judging.scoring import SystemScore, score_system
from bothways.judging.triples import Triple, TripleColumns, label_of, read_triples

__all__ = [
    "DIMENSIONS",
    "Comparison",
    "Dimension",
    "Disagreement",
    "Judge",
    "JudgeReport",
    "NextRow",
    "Ranking",
    "SystemScore",
    "Triple",
    "TripleColumns",
    "judges_in",
    "label_of",
    "rank_systems",
    "read_triples",
    "score_system",
]
