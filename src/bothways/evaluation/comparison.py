"""Comparison of two models on the same rows: paired intervals of the differences, and significance tests.

A row that is hard for both models says nothing about their difference, so intervals resample rows together with both
models' outcomes (Efron and Tibshirani 1993, chapter 13). The null hypothesis of both tests is that the models' answers
to each row could be swapped. McNemar's exact test is for answers that are right or wrong (McNemar 1947), a sign-flip
permutation test for numeric values (Fisher 1935; Dror et al. 2018, "The hitchhiker's guide to testing statistical
significance in natural language processing").

Shape letters: N rows, R resamples or random sign flips, K metrics.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from bothways.data.known_rows import SharedRows
from bothways.data.label_rows import spelled
from bothways.errors import InvalidInput
from bothways.evaluation.differences import BaselineReport, MetricDifference, PairedTest
from bothways.evaluation.inputs import BoolArray, FloatArray, paired_vectors, real_array
from bothways.evaluation.intervals import bootstrap_values, percentile_estimates
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.report import flat_estimates

if TYPE_CHECKING:
    from bothways.text.windows import TextsRead

FLIPS = 10_000
_CHUNK_CELLS = 4_000_000


def mcnemar(first_right_N: ArrayLike, second_right_N: ArrayLike) -> PairedTest:
    """Test whether one model is right more often, by McNemar's exact test on the rows that only one predicts right."""
    first, second = _flags(first_right_N), _flags(second_right_N)
    if first.shape != second.shape:
        raise InvalidInput(f"second: expected {len(first)} rows, as many as for the first model, got {len(second)}")
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    p_value = _sign_test(min(only_first, only_second), only_first + only_second)
    return PairedTest("mcnemar", "right or wrong", p_value, only_first, only_second)


def _sign_test(fewer: int, trials: int) -> float:
    """Return the two-sided p-value of at most ``fewer`` successes in fair trials, or as few failures."""
    if 2 * fewer == trials:
        return 1.0
    # Logarithms of the binomial coefficients; a sum of powers of 2 is exact only for few trials.
    numbers = np.arange(1, fewer + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(trials + 1 - numbers) - np.log(numbers))])
    return min(1.0, 2 * float(np.exp(logs - trials * np.log(2)).sum()))


def permutation_test(
    first_N: ArrayLike, second_N: ArrayLike, *, of: str, flips: int = FLIPS, seed: int = 0
) -> PairedTest:
    """Test the mean difference of paired values by random sign flips; the smallest p-value is 1 / (flips + 1)."""
    first, second = paired_vectors(first_N, second_N)
    if flips < 1 or seed < 0:
        raise InvalidInput(f"flips: expected at least 1, and a seed of at least 0, got {flips} and {seed}")
    differences_N = second - first
    seen = abs(float(differences_N.sum()))
    # Sums that differ only by rounding count as equal.
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
        raise InvalidInput("right: expected 1 for each row with a right answer and 0 for the others, got other values")
    return array.astype(np.bool_)


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """A comparison of two models on the same rows."""

    n: int
    metrics: Mapping[str, MetricDifference]
    tests: tuple[PairedTest, ...]
    # Tokens read by the first and the second model; None for outcomes from bare arrays.
    tokens_read: "tuple[TextsRead | None, TextsRead | None]" = (None, None)
    # Counts of training rows of the first and the second model; None if these are not known.
    shared: tuple[SharedRows | None, SharedRows | None] = (None, None)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values: ``accuracy_a``, ``accuracy_b``, ``accuracy_difference`` and their intervals, and so on.

        The metrics are followed by ``tests``, ``tokens_read_a``, ``tokens_read_b``, and ``training_rows_a`` and
        ``training_rows_b`` if the training rows of the models are known.
        """
        flat: dict[str, float] = {}
        for name, each in self.metrics.items():
            flat |= flat_estimates(
                {f"{name}_a": each.first, f"{name}_b": each.second, f"{name}_difference": each.difference}
            )
        read = zip(("tokens_read_a", "tokens_read_b"), self.tokens_read, strict=True)
        shared = zip(("training_rows_a", "training_rows_b"), self.shared, strict=True)
        return {
            "n": self.n,
            **flat,
            "tests": [asdict(test) for test in self.tests],
            **{name: each.to_dict() for name, each in (*read, *shared) if each is not None},
        }


def compare(first: Outcomes, second: Outcomes, *, resamples: int = 1000, seed: int = 0) -> ComparisonReport:
    """Compare two models by their outcomes on the same rows, in the same order.

    Args:
        first: The first model's outcomes.
        second: The second model's outcomes, with the same labels in any order. Differences are second minus first.
        resamples: Bootstrap resamples for the paired intervals.
        seed: Seed of resamples and permutations.

    Raises:
        InvalidInput: The models differ in task, labels, metrics, rows or true labels.
    """
    _check_comparable(first, second)
    names = [
        name
        for name in first.compared
        if name in first.metrics and name in second.metrics and (name != "accuracy" or first.scheme == second.scheme)
    ]
    places = [[each.metrics.index(name) for name in names] for each in (first, second)]

    def statistic(counts_RN: FloatArray) -> FloatArray:
        first_RK, second_RK = (
            each.statistic(counts_RN)[:, place] for each, place in zip((first, second), places, strict=True)
        )
        return np.concatenate([first_RK, second_RK, second_RK - first_RK], axis=1)

    rows, count = len(first.truth), len(names)
    values_RK = bootstrap_values(statistic, rows, resamples=resamples, seed=seed)
    # A difference is not a share of rows, so there is no exact interval for it.
    own = [each.of_rows[at] for each, place in zip((first, second), places, strict=True) for at in place]
    estimates = percentile_estimates(statistic(np.ones((1, rows)))[0], values_RK, of_rows=[*own, *[0] * count])
    columns = estimates[:count], estimates[count : 2 * count], estimates[2 * count :]
    metrics = {name: MetricDifference(*each) for name, *each in zip(names, *columns, strict=True)}
    tests = []
    if first.right_N is not None and second.right_N is not None:
        tests.append(mcnemar(first.right_N, second.right_N))
    if first.tested is not None and second.tested is not None:
        tests.append(permutation_test(first.tested[1], second.tested[1], of=first.tested[0], seed=seed))
    return ComparisonReport(rows, metrics, tuple(tests), (first.tokens_read, second.tokens_read))


def baseline_report(
    name: str, baseline: Outcomes, model: Outcomes, *, remark: str = "", resamples: int = 1000, seed: int = 0
) -> BaselineReport | None:
    """Compare a model with its baseline; see `compare`. Return None if no metric of both is defined on these rows."""
    found = compare(baseline, model, resamples=resamples, seed=seed)
    return BaselineReport(name, found.metrics, found.tests, remark) if found.metrics else None


def check_labels(first: Iterable[str], second: Iterable[str]) -> None:
    """Check that two models have the same labels."""
    different = sorted(set(first) ^ set(second))
    if different:
        shown = ", ".join(spelled(each, different) for each in different[:5])
        raise InvalidInput(
            f"the models must have the same labels; only one of them has {shown}.{naming_hint(different)}"
        )


def naming_hint(labels: Iterable[str]) -> str:
    """Return advice if there are labels such as LABEL_0, as in a checkpoint without label names; else ``""``."""
    if not any(re.fullmatch(r"LABEL_\d+", each) for each in labels):
        return ""
    return (
        " A model with labels such as LABEL_0 was saved without label names: give the names when you open it, in "
        "the order of its outputs, with labels=[...], or --labels on the command line."
    )


def _check_comparable(first: Outcomes, second: Outcomes) -> None:
    if first.frame.kind != second.frame.kind:
        raise InvalidInput(
            f"expected two models of the same task, got one for {first.frame.kind} and one for {second.frame.kind}."
        )
    check_labels(first.labels, second.labels)
    if first.compared != second.compared:
        expected, actual = (", ".join(each.compared) or "none" for each in (first, second))
        raise InvalidInput(f"second: expected the metrics of the first model ({expected}), got {actual}")
    if first.truth.shape != second.truth.shape:
        raise InvalidInput(
            f"second: expected true values of shape {first.truth.shape}, as for the first model, got "
            f"{second.truth.shape}"
        )
    if not np.array_equal(first.truth, second.truth):
        differing_N = (first.truth != second.truth).reshape(len(first.truth), -1).any(axis=1)
        raise InvalidInput(
            f"the two models were evaluated on different labels in {int(differing_N.sum()):,} of {len(differing_N):,} "
            f"rows, first in row {int(differing_N.argmax()) + 1}: each model reads the columns that it was trained on. "
            "Name the columns to use for both (on the command line --label, --score or --tags)."
        )
