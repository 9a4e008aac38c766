"""Judges of retrieval-augmented generation, and rankings of systems.

A `Judge` is a cross-encoder for one of three dimensions: context relevance, answer faithfulness, answer relevance. With
a few human labels, `score_system` estimates the success rate of a system from the judge's probabilities, with a
confidence interval (prediction-powered inference). `rank_systems` ranks several systems. After ARES (Saad-Falcon et al.
2023, arXiv:2311.09476).

Names are imported on first use, so that the command line can use `TripleColumns` without importing NumPy or torch.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.judging.judge import Judge, judges_in
    from bothways.judging.labels import JudgeDisagreement, JudgeReport
    from bothways.judging.ranking import (
        NextRow,
        SystemComparison,
        SystemRanking,
        rank_systems,
        read_truth,
        truth_in_labels,
    )
    from bothways.judging.scoring import SystemScore, equivalent_labels, score_system
    from bothways.judging.triples import DIMENSIONS, Dimension, Triple, TripleColumns, label_of, read_triples

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
    "equivalent_labels",
    "judges_in",
    "label_of",
    "rank_systems",
    "read_triples",
    "read_truth",
    "score_system",
    "truth_in_labels",
]

_MODULES = {
    "judge": ("Judge", "judges_in"),
    "labels": ("JudgeDisagreement", "JudgeReport"),
    "ranking": ("NextRow", "SystemComparison", "SystemRanking", "rank_systems", "read_truth", "truth_in_labels"),
    "scoring": ("SystemScore", "equivalent_labels", "score_system"),
    "triples": ("DIMENSIONS", "Dimension", "Triple", "TripleColumns", "label_of", "read_triples"),
}
__getattr__ = loader(__name__, _MODULES)
