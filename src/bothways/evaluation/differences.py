"""Differences between two models on the same rows, and between a model and its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from bothways.progress import figure

if TYPE_CHECKING:
    from bothways.evaluation.intervals import Estimate

LOWER_IS_BETTER = ("brier", "nll", "ece", "mce", "hamming_loss", "mse", "mae", "rmse", "loss", "perplexity")
_SIGNIFICANT = 0.05  # p-value


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The result of a significance test of two models on the same rows."""

    name: str  # ``mcnemar`` or ``permutation``
    of: str  # name of the compared quantity
    p_value: float  # two-sided p-value
    only_first: int | None = None  # rows that only the first model predicts correctly; None for a permutation test
    only_second: int | None = None  # rows that only the second model predicts correctly; None for a permutation test

    def summary(self) -> str:
        """Return the p-value with the name of the test."""
        p_value = f"p = {self.p_value:.4f}" if self.p_value >= 1e-4 else "p < 0.0001"
        return f"{p_value} ({self.name} test of {self.of})"


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """One metric of two models, and the difference of the two values."""

    first: Estimate
    second: Estimate
    difference: Estimate  # second minus first, with its paired interval

    def summary(self) -> str:
        """Return the difference with its interval."""
        each = self.difference
        return f"{figure(each.value, sign=True)} [{figure(each.low, sign=True)}, {figure(each.high, sign=True)}]"


@dataclass(frozen=True, slots=True)
class BaselineReport:
    """A baseline of a model, evaluated on the same rows.

    Attributes:
        name: The kind of baseline, such as "linear model of frozen hidden states".
        metrics: Each metric of the baseline (first) and of the model (second), and the model's minus the baseline's.
        tests: Significance tests of the difference.
        remark: A sentence, such as the reason why a better baseline was not evaluated; may be empty.
    """

    name: str
    metrics: Mapping[str, MetricDifference]
    tests: tuple[PairedTest, ...]
    remark: str = ""

    @property
    def better(self) -> Literal["model", "baseline"] | None:
        """The better of the two by the first metric; None if they are equal."""
        name, found = next(iter(self.metrics.items()))
        gain = -found.difference.value if name in LOWER_IS_BETTER else found.difference.value
        return None if gain == 0 else "model" if gain > 0 else "baseline"

    @property
    def comparison(self) -> str:
        """The model compared with the baseline by the first metric: better than, worse than, or as good as."""
        return {"model": "better than", "baseline": "worse than", None: "as good as"}[self.better]

    @property
    def may_be_chance(self) -> bool:
        """True if one is better, but its interval of the difference contains 0 or its first p-value is .05 or more."""
        found = next(iter(self.metrics.values())).difference
        unclear = found.low <= 0 <= found.high or any(test.p_value >= _SIGNIFICANT for test in self.tests[:1])
        return self.better is not None and unclear

    @property
    def verdict(self) -> str:
        """A sentence that compares the two by the first metric, and one if the difference may be chance."""
        name, found = next(iter(self.metrics.items()))
        figures = f"{name} {figure(found.second.value)} of the model, {figure(found.first.value)} of the baseline"
        difference = "; ".join([f"difference {found.summary()}", *(test.summary() for test in self.tests[:1])])
        chance = " The difference may be chance." if self.may_be_chance else ""
        sentence = f"On these rows, the model is {self.comparison} the baseline: {figures} ({self.name})"
        return f"{sentence}; {difference}.{chance}"

    def lines(self) -> list[str]:
        """Return a short table of the differences, the tests and the remark."""
        width = max(map(len, self.metrics))
        return [
            f"baseline on the same rows, {self.name}, and the difference of the model from it:",
            *(
                f"  {name:<{width}}  {figure(each.first.value):>8}  {each.summary()}"
                for name, each in self.metrics.items()
            ),
            *([f"  {'; '.join(test.summary() for test in self.tests)}"] if self.tests else []),
            *([self.remark] if self.remark else []),
        ]

    def to_dict(self) -> dict[str, object]:
        """Return JSON values: metrics of the baseline, differences such as ``accuracy_difference``, and the tests."""
        flat: dict[str, object] = {"name": self.name, "better": self.better}
        for name, each in self.metrics.items():
            flat |= each.first.named(name) | each.difference.named(f"{name}_difference")
        remark = {"remark": self.remark} if self.remark else {}
        return {**flat, "tests": [asdict(test) for test in self.tests], **remark}
