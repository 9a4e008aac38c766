"""The scores of an input: the outputs of a head, before any decision.

Predictions, reports, comparisons, ensembles, multi-task models and out-of-domain detection are computed from scores.

Shapes: R rows of an input (1 for a whole text, else one per word, candidate span or choice), C outputs, L layers, H
hidden.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from bothways.choices import LabelValue
from bothways.data.known_rows import SharedRows
from bothways.errors import InvalidInput, TextsTruncated
from bothways.text.windows import TextsRead

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from bothways.data import Example
    from bothways.evaluation.outcomes import Outcomes
    from bothways.evaluation.report import Report

PlacesT = TypeVar("PlacesT", covariant=True)

Count: TypeAlias = Annotated[int, Ge(0)]
Probability: TypeAlias = Annotated[float, Ge(0), Le(1)]

Shares: TypeAlias = Mapping[str, SharedRows]
"""Counts of rows that a model was trained on, by task; the name is ``""`` for a model of one task."""

JSON_NAME = "json_name"
"""Metadata key for the JSON name of a field, if it differs from the field's own name."""


@dataclass(frozen=True, slots=True)
class TokensRead:
    """The windows that a text was read in, and the tokens that were not read.

    Attributes:
        windows: Number of overlapping windows that the text was read in.
        dropped_tokens: Tokens of the text that were not read; above 0 only if ``on_overflow`` truncates.
    """

    windows: Count
    dropped_tokens: Count


@dataclass(frozen=True, slots=True)
class TaskPrediction:
    """Base class of predictions and of their parts; subclasses are frozen dataclasses.

    `to_dict` adds the fields of `TokensRead` to those of the prediction, and omits optional fields that are None.
    """

    def to_dict(self) -> dict[str, object]:
        """Return the prediction as JSON values."""
        return _json_object(self)


@runtime_checkable
class Classified(Protocol):
    """A prediction with a probability for each label (``probabilities``)."""

    @property
    def probabilities(self) -> Mapping[LabelValue, float]: ...


def label_probabilities(predictions: Iterable[object], labels: Sequence[LabelValue], model: str) -> NDArray[np.float64]:
    """Return the label probabilities of predictions (N, C); refuse predictions without them, of a class ``model``."""
    rows: list[list[float]] = []
    for each in predictions:
        match each:
            case Classified(probabilities={**found}):
                rows.append([found[label] for label in labels])
            case _:
                raise InvalidInput(f"expected a model with label probabilities, got a {model}: use predict.")
    return np.array(rows).reshape(-1, len(labels))


def _json_object(part: "DataclassInstance") -> dict[str, object]:
    found, read = dict[str, object](), dict[str, object]()
    for each in fields(part):
        match getattr(part, each.name):
            case TokensRead() as tokens:
                read = _json_object(tokens)
            case None if each.default is None:
                pass
            case value:
                found[each.metadata.get(JSON_NAME, each.name)] = _json_value(value)
    return found | read


def _json_value(value: object) -> object:
    match value:
        case dict():
            return {str(name): _json_value(each) for name, each in value.items()}
        case tuple() | list():
            return [_json_value(each) for each in value]
        case TaskPrediction():
            return _json_object(value)
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Scores(Generic[PlacesT]):
    """A head's scores for one input.

    Attributes:
        logits_RC: Uncalibrated logits, float64.
        places: The parts of the input that the rows belong to, such as words or spans; None for a whole text.
        read: Windows in which the input was read, and tokens that were not read.
        features_LH: Hidden states for an out-of-domain detector, the last layer first; None without a detector.
        votes: Share of an ensemble's detectors that call the input out of domain; None if no member has a detector.
    """

    logits_RC: NDArray[np.float64]
    places: PlacesT
    read: TokensRead
    features_LH: NDArray[np.float64] | None = None
    votes: float | None = None

    @property
    def numbers(self) -> NDArray[np.float64]:
        """The logits of all rows as one row, for golden answers."""
        return self.logits_RC.ravel()


@dataclass(frozen=True, slots=True, eq=False)
class BaselineScores:
    """A baseline that has scored labelled rows.

    ``name`` is the kind of baseline, ``outcomes(calibrated=...)`` returns its results, and ``remark`` is a sentence for
    the report.
    """

    name: str
    outcomes: "Callable[..., Outcomes]"
    remark: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """The scores of labelled rows, and their truth as encoded by the task's outputs.

    ``inputs`` are the scored inputs, ``examples`` the inputs with their labels, and ``baseline`` has the scores of the
    baseline of each task, by its name (``""`` for a single task).
    """

    scores: tuple[Scores[object], ...]
    truth: Any
    inputs: tuple[object, ...] = ()
    examples: "tuple[Example[object], ...]" = ()
    baseline: Mapping[str, BaselineScores] = field(default_factory=dict)
    shared: Shares = field(default_factory=dict)

    def report(
        self, outcomes: "Outcomes", calibrated: bool | None, resamples: int, seed: int, task: str = ""
    ) -> "Report":
        """Return the report of a model's outcomes on the rows, with its comparison with the baseline of the task."""
        from bothways.evaluation.comparison import baseline_report  # only evaluations need it

        report = replace(outcomes.report(resamples=resamples, seed=seed), shared=self.shared.get(task))
        if (baseline := self.baseline.get(task)) is None:
            return report
        own, remark = baseline.outcomes(calibrated=calibrated), baseline.remark
        found = baseline_report(baseline.name, own, outcomes, remark=remark, resamples=resamples, seed=seed)
        return replace(report, baseline=found)

    @property
    def logits(self) -> NDArray[np.float64]:
        """Uncalibrated logits of all rows, concatenated."""
        return np.concatenate([each.logits_RC for each in self.scores])


def texts_read(reads: Iterable[TokensRead]) -> TextsRead:
    """Return the counts of windows and dropped tokens for a report."""
    listed = list(reads)
    return TextsRead.of([each.windows for each in listed], [each.dropped_tokens for each in listed])


def most_read(reads: Iterable[TokensRead]) -> TokensRead:
    """Return the maximum of windows and of dropped tokens over models that read the same input."""
    listed = list(reads)
    return TokensRead(max(each.windows for each in listed), max(each.dropped_tokens for each in listed))


def warn_of_cut(read: TextsRead) -> None:
    """Warn with `TextsTruncated` if texts were truncated; for functions whose results do not count dropped tokens."""
    if read.cut:
        message = f"{read.cut:,} of {read.texts:,} texts were truncated: {read.dropped_tokens:,} tokens were not read."
        warnings.warn(TextsTruncated(message), stacklevel=3)
