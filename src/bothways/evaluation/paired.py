"""Tests of two models on the same rows.

They ask how often a difference at least as large would come about if it were chance which model gave which answer to a
row: McNemar's exact test for answers that are right or wrong (McNemar 1947), a sign-flip permutation test for numbers
(Fisher 1935; Dror et al. 2018, "The hitchhiker's guide to testing statistical significance in natural language
processing").

Shape letters: N rows, R random exchanges.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import BoolArray, paired_vectors, real_array
from bothways.lazy import missing

FLIPS = 10_000
_CHUNK_CELLS = 4_000_000


@dataclass(frozen=True, slots=True)
class PairedTest:
    """A test of two models on the same rows.

    Attributes:
        name: ``mcnemar`` or ``permutation``.
        of: What of each row is compared.
        p_value: How often chance alone would give a difference at least as large, from either side.
        only_first: Rows that only the first model has right; None for numbers.
        only_second: Rows that only the second model has right; None for numbers.
    """

    name: str
    of: str
    p_value: float
    only_first: int | None = None
    only_second: int | None = None


def mcnemar(first_right_N: ArrayLike, second_right_N: ArrayLike) -> PairedTest:
    """McNemar's exact test: of the rows that one model alone has right, how many are whose.

    If neither were better, each of those rows would be either's with the same probability.

    Raises:
        InvalidInput: not two vectors of 0 and 1 of one length.
    """
    try:
        from scipy.stats import binomtest
    except ModuleNotFoundError as error:
        raise missing(error, "comparing two models") from error

    first, second = _flags(first_right_N), _flags(second_right_N)
    if first.shape != second.shape:
        raise InvalidInput(f"second: expected {len(first)} rows, as of the first model, got {len(second)}")
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    trials = only_first + only_second
    p_value = float(binomtest(only_first, trials).pvalue) if trials else 1.0
    return PairedTest("mcnemar", "right or wrong", p_value, only_first, only_second)


def permutation_test(
    first_N: ArrayLike, second_N: ArrayLike, *, of: str, flips: int = FLIPS, seed: int = 0
) -> PairedTest:
    """Sign-flip permutation test of the mean difference of paired numbers.

    Args:
        first_N: the first model's number for each row.
        second_N: the second model's.
        of: what the numbers are.
        flips: random exchanges of the two models' answers; the smallest p-value is 1 / (flips + 1).
        seed: seed of the exchanges.

    Raises:
        InvalidInput: empty, not finite, of different lengths, fewer than one flip, or a seed below 0.
    """
    first, second = paired_vectors(first_N, second_N)
    if flips < 1 or seed < 0:
        raise InvalidInput(f"flips: expected at least 1, and a seed of at least 0, got {flips} and {seed}")
    differences_N = second - first
    seen = abs(float(differences_N.sum()))
    # What differs by rounding alone counts as equal.
    bound = seen - 1e-12 * float(np.abs(differences_N).sum())
    generator = np.random.default_rng(seed)
    as_large = 0
    step = max(1, _CHUNK_CELLS // len(differences_N))
    for start in range(0, flips, step):
        size = min(step, flips - start)
        signs_RN = generator.integers(0, 2, size=(size, len(differences_N)), dtype=np.int8) * 2 - 1
        as_large += int((np.abs(signs_RN @ differences_N) >= bound).sum())
    return PairedTest("permutation", of, (as_large + 1) / (flips + 1))


def _flags(values: ArrayLike) -> BoolArray:
    array = real_array(values, "right", dimensions=1)
    if not np.isin(array, (0.0, 1.0)).all():
        raise InvalidInput("right: expected only 0 and 1, whether a row was right")
    return array.astype(np.bool_)
