"""Two models on the same rows: how much better one is, and whether it could be chance.

Everything is paired: a row that is hard for both tells nothing about their difference. Intervals resample rows and take
both models' outcomes of each (Efron and Tibshirani 1993, chapter 13); tests: `bothways.evaluation.paired`.

Shape letters: N rows, R resamples, K metrics.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from bothways.errors import InvalidInput
from bothways.evaluation.bootstrap import Estimate, bootstrap_values, percentile_estimates
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.paired import PairedTest, mcnemar, permutation_test
from bothways.evaluation.report import TextsRead, flat_estimates


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
        tests: Of the differences.
        tokens_read: How much of the texts the first model read, and how much the second; None for numbers alone.
    """

    n: int
    metrics: Mapping[str, MetricDifference]
    tests: tuple[PairedTest, ...]
    tokens_read: tuple[TextsRead | None, TextsRead | None] = (None, None)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values: ``accuracy_a``, ``accuracy_b`` and ``accuracy_difference``, each with its interval.

        Then the tests, and how the texts were read: ``tokens_read_a`` and ``tokens_read_b``.
        """
        flat: dict[str, float] = {}
        for name, each in self.metrics.items():
            flat |= flat_estimates(
                {f"{name}_a": each.first, f"{name}_b": each.second, f"{name}_difference": each.difference}
            )
        read = zip(("tokens_read_a", "tokens_read_b"), self.tokens_read, strict=True)
        return {
            "n": self.n,
            **flat,
            "tests": [asdict(test) for test in self.tests],
            **{name: each.to_dict() for name, each in read if each is not None},
        }


def compare(first: Outcomes, second: Outcomes, *, resamples: int = 1000, seed: int = 0) -> ComparisonReport:
    """Compare two models by their outcomes on the same rows, in the same order.

    Args:
        first: One model's.
        second: The other's, with the same labels in any order; differences are second minus first.
        resamples: Bootstrap resamples for the paired intervals.
        seed: Of resamples and permutations.

    Raises:
        InvalidInput: The kinds, labels, metrics, rows or true labels differ.
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
    # A difference is a share of no number of rows.
    own = [each.of_rows[at] for each, place in zip((first, second), places, strict=True) for at in place]
    found = percentile_estimates(statistic(np.ones((1, rows)))[0], values_RK, of_rows=[*own, *[0] * count])
    columns = found[:count], found[count : 2 * count], found[2 * count :]
    metrics = {name: MetricDifference(*each) for name, *each in zip(names, *columns, strict=True)}
    read = first.tokens_read, second.tokens_read
    return ComparisonReport(rows, metrics, _tests(first, second, seed), read)


def check_labels(first: Iterable[str], second: Iterable[str]) -> None:
    """Refuse two models that were trained on different labels.

    Raises:
        InvalidInput: They were; the message names some.
    """
    different = sorted(set(first) ^ set(second))
    if different:
        shown = ", ".join(map(repr, different[:5]))
        raise InvalidInput(
            f"the models were trained on different labels; only one of them knows {shown}.{naming_hint(different)}"
        )


def naming_hint(labels: Iterable[str]) -> str:
    """Return what to do where labels stand for no names, as those of a checkpoint whose author gave it none."""
    if not any(re.fullmatch(r"LABEL_\d+", each) for each in labels):
        return ""
    return (
        " A model whose labels are called LABEL_0 and so on was saved without their names: give them when it is "
        "opened, in the order of its outputs, with labels=[...], or --labels on the command line."
    )


def _tests(first: Outcomes, second: Outcomes, seed: int) -> tuple[PairedTest, ...]:
    tests = []
    if first.right_N is not None and second.right_N is not None:
        tests.append(mcnemar(first.right_N, second.right_N))
    if first.tested is not None and second.tested is not None:
        tests.append(permutation_test(first.tested[1], second.tested[1], of=first.tested[0], seed=seed))
    return tuple(tests)


def _check_comparable(first: Outcomes, second: Outcomes) -> None:
    if first.frame.kind != second.frame.kind:
        raise InvalidInput(
            f"expected two models that predict the same kind of thing, got one of {first.frame.kind} and one of "
            f"{second.frame.kind}: choose models of the same task."
        )
    check_labels(first.labels, second.labels)
    if first.compared != second.compared:
        wanted, given = (", ".join(each.compared) or "none" for each in (first, second))
        raise InvalidInput(f"second: expected scores of {wanted}, got {given}")
    if first.truth.shape != second.truth.shape:
        raise InvalidInput(
            f"second: expected results of the shape {first.truth.shape} of the first model's, got {second.truth.shape}"
        )
    if not np.array_equal(first.truth, second.truth):
        differing_N = (first.truth != second.truth).reshape(len(first.truth), -1).any(axis=1)
        raise InvalidInput(
            f"the two models were judged by different labels in {int(differing_N.sum()):,} of {len(differing_N):,} "
            f"rows, the first of them number {int(differing_N.argmax()) + 1}: each reads the columns of its training. "
            "Name those that both are to be judged by (on the command line --label, --score or --tags)."
        )
