"""Rows of an index in the order of their scores.

Letters in names: K rows asked for, F candidates.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


class Ranking(NamedTuple):
    """Rows and their scores, best first; equal scores in the order of the rows."""

    rows_K: Rows
    scores_K: Scores


def best(rows_F: Rows, scores_F: Scores, k: int) -> Ranking:
    """Return the ``k`` rows with the highest scores."""
    order = np.lexsort((rows_F, -scores_F))[:k]
    return Ranking(rows_F[order], scores_F[order])
