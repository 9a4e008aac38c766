"""Retrieval by embeddings (rank of the first match), and agreement of an embedder with another.

Shape letters: N rows, P pairs of them, R bootstrap resamples.
"""

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.bootstrap import CHUNK_CELLS
from bothways.evaluation.inputs import FloatArray, real_array
from bothways.evaluation.outcomes import Outcomes, mean_outcomes
from bothways.evaluation.regression import correlated_vectors, weighted_spearman
from bothways.evaluation.report import Report


def rank_outcomes(reciprocal_ranks_N: ArrayLike) -> Outcomes:
    """Return the outcomes of ranks, given as 1 / rank of the first text that belongs to the one that looked.

    ``accuracy`` is the share at rank 1, ``mrr`` the mean reciprocal rank.

    Raises:
        InvalidInput: empty, or not above 0 and up to 1.
    """
    ranks = real_array(reciprocal_ranks_N, "reciprocal ranks", dimensions=1)
    if ranks.min() <= 0 or ranks.max() > 1:
        raise InvalidInput(
            f"reciprocal ranks: expected numbers above 0 and up to 1, got {ranks.min()} to {ranks.max()}"
        )
    frame = Report(kind="ranking", title=f"{len(ranks)} texts", counts={"n": len(ranks)})
    return mean_outcomes(frame, {"accuracy": ranks == 1, "mrr": ranks}, compared=("mrr", "accuracy"))


def agreement_outcomes(theirs_NN: FloatArray, ours_NN: FloatArray) -> Outcomes:
    """Return the rank correlation of the cosines of all pairs of texts with those of another embedder.

    Texts are resampled and not pairs, for the pairs of one text belong together; a text that is drawn twice makes no
    pair with itself. A resample takes 20 ms of 512 texts.

    Args:
        theirs_NN: Cosines of each text with each.
        ours_NN: Those of the other embedder.

    Raises:
        InvalidInput: Fewer than three pairs, or the cosines of either are all equal.
    """
    first_P, second_P = np.triu_indices(len(theirs_NN), 1)
    theirs_P, ours_P = correlated_vectors(theirs_NN[first_P, second_P], ours_NN[first_P, second_P])
    chunk = max(1, CHUNK_CELLS // len(theirs_P))

    def of_chunk(counts_RN: FloatArray) -> FloatArray:
        counts_RP = counts_RN[:, first_P] * counts_RN[:, second_P]
        # A resample of one text alone has no pairs and says nothing; it counts as the whole.
        counts_RP[~counts_RP.any(axis=1)] = 1.0
        return weighted_spearman(theirs_P, ours_P, counts_RP)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        chunks = [of_chunk(counts_RN[start : start + chunk]) for start in range(0, len(counts_RN), chunk)]
        return np.concatenate(chunks)[:, None]

    texts = len(theirs_NN)
    return Outcomes(
        frame=Report(kind="agreement", title=f"{texts} texts", counts={"n": texts}),
        truth=theirs_NN,
        metrics=("spearman_with_teacher",),
        statistic=statistic,
        of_rows=[0],
    )
