"""How much better one of two models is on the same rows, and whether it could be chance.

Everything is paired: a row that is hard for both tells nothing about their difference. Intervals resample rows and take
both models' predictions of each (Efron and Tibshirani 1993, chapter 13).

Shape letters: N rows, R resamples, K statistics.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.evaluation.bootstrap import Estimate, Statistic, bootstrap_values, percentile_estimates
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.paired import PairedTest
from bothways.evaluation.reading import TextsRead
from bothways.evaluation.report import reading_values


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """One metric of two models.

    Attributes:
        first: The first model's, with its interval.
        second: The second model's.
        difference: Second minus first, with its paired interval.
    """

    first: Estimate
    second: Estimate
    difference: Estimate


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """Two models on the same rows.

    Attributes:
        n: Rows.
        metrics: By name.
        tests: What the differences are tested by.
        readings: How much of the texts the first model read, and how much the second; None where the report is of
            numbers alone.
    """

    n: int
    metrics: dict[str, MetricDifference]
    tests: tuple[PairedTest, ...]
    readings: tuple[TextsRead | None, TextsRead | None] = (None, None)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``accuracy_a``, ``accuracy_b`` and ``accuracy_difference``, each with its interval, and so on.

        Then the tests, and how the texts were read: ``reading_a`` and ``reading_b``.
        """
        flat: dict[str, float] = {}
        for name, each in self.metrics.items():
            flat |= each.first.named(f"{name}_a") | each.second.named(f"{name}_b")
            flat |= each.difference.named(f"{name}_difference")
        first, second = self.readings
        return {
            "n": self.n,
            **flat,
            "tests": [asdict(test) for test in self.tests],
            **reading_values(first, "reading_a"),
            **reading_values(second, "reading_b"),
        }


def paired_differences(
    names: tuple[str, ...],
    first: Statistic,
    second: Statistic,
    rows: int,
    resamples: int,
    seed: int,
    *,
    of_rows: tuple[Sequence[int], Sequence[int]] | None = None,
) -> dict[str, MetricDifference]:
    """Statistics of both models and their differences, from the same resamples of N rows.

    Args:
        names: What the statistics are called (K).
        first: The first model's statistics (R, K) of resamples.
        second: The second model's.
        rows: N.
        resamples: R.
        seed: Of the resamples.
        of_rows: Of how many rows each statistic (K) of the first and of the second model is a share, as
            `percentile_estimates` wants to know it; none is one when left out. A difference is none.
    """
    count = len(names)

    def both(counts_RN: FloatArray) -> FloatArray:
        first_RK, second_RK = first(counts_RN), second(counts_RN)
        return np.concatenate([first_RK, second_RK, second_RK - first_RK], axis=1)

    values_RK = bootstrap_values(both, rows, resamples=resamples, seed=seed)
    first_rows, second_rows = of_rows or ([0] * count, [0] * count)
    estimates = percentile_estimates(
        both(np.ones((1, rows)))[0], values_RK, of_rows=[*first_rows, *second_rows, *[0] * count]
    )
    return {
        name: MetricDifference(estimates[index], estimates[count + index], estimates[2 * count + index])
        for index, name in enumerate(names)
    }


def check_shapes(first_NC: NDArray[Any], second_NC: NDArray[Any]) -> None:
    """Refuse what two models said of different rows or labels.

    Raises:
        InvalidInput: the shapes differ.
    """
    if first_NC.shape != second_NC.shape:
        raise InvalidInput(f"second: expected the shape {first_NC.shape} of the first model's, got {second_NC.shape}")
