"""The outputs of a multiple choice head, which scores each choice of a context. Loads no torch.

The model reads each choice as a pair with the context; a softmax over the choices gives their probabilities.
The number of choices may differ between contexts.

Shapes: N contexts, K choices, W windows of one choice.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from bothways.checkpoints.schema import Stored, StoredChoices
from bothways.choices import LabelRule
from bothways.confidence.confidence import Confidence
from bothways.confidence.fitting import stored_temperature, temperature_settings
from bothways.data import Example, Row, RowsWithoutLabel, Source, read_rows, value_at
from bothways.data.label_rows import lacks_label
from bothways.errors import InvalidInput, LabelsAmbiguous, shown
from bothways.evaluation.metrics.classification import class_outcomes
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.temperature import Temperature
from bothways.inference import Rows, TextRows
from bothways.tasks.backend import Backend
from bothways.tasks.columns import AnyColumns
from bothways.tasks.heads.targets import SingleLabel
from bothways.tasks.multiple_choice.spec import ChoiceColumns, ChoiceData, ChoicePrediction
from bothways.tasks.outputs import Outputs
from bothways.tasks.scores import Count, Probability, Scores, TaskPrediction, TokensRead, texts_read
from bothways.tasks.spec import options_of

Choices: TypeAlias = tuple[str, tuple[str, ...]]
"""A context and its choices."""

RightChoices: TypeAlias = NDArray[np.int64]
"""Indices of the right choices (N)."""

RULES: tuple[LabelRule, ...] = get_args(LabelRule)
_PLURALS: Mapping[LabelRule, str] = {"index": "indices", "text": "texts"}
_LONGEST_INDEX = 10

# Logit that stands for a missing choice, in contexts with fewer choices than others.
ABSENT = -1e6


@dataclass(frozen=True, slots=True)
class ChosenAnswer(TaskPrediction):
    """The most probable choice for a context.

    Attributes:
        choice: Text of the choice.
        index: Index of the choice, from 0.
        probability: Probability of the choice, calibrated if the model is.
        probabilities: The probability of each choice, in the order of the input.
        tokens_read: Maximum windows of a choice with its context, and total tokens dropped from them.
    """

    choice: str
    index: Count
    probability: Probability
    probabilities: tuple[Probability, ...]
    tokens_read: TokensRead


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceOutputs(Outputs[Choices, RightChoices, Choices, ChosenAnswer]):
    """The outputs of a multiple choice model, calibrated by a temperature.

    ``label_is`` says what the labels of the training were; so are those of other data that can be read in both ways.
    """

    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)
    label_is: LabelRule = "index"

    head: ClassVar = "multiple_choice"
    head_title: ClassVar = "multiple choice head"

    @property
    @override
    def row_target(self) -> SingleLabel:
        return SingleLabel(())  # choices have no names

    @override
    def read(self, data: Source, columns: AnyColumns, options: object = None) -> list[Example[int]]:
        given = options_of(ChoiceData, options)
        return read_choices(data, options_of(ChoiceColumns, columns), given, self.label_is)[0]

    @override
    def encode(self, examples: Sequence[Example[int]]) -> RightChoices:
        return np.array([example.label for example in examples], dtype=np.int64)

    @override
    def texts(self, value: Choices) -> tuple[tuple[str, str], ...]:
        return tuple((value[0], choice) for choice in value[1])

    @override
    def scores(self, value: Choices, rows: Sequence[Rows], options: object = None) -> Scores[Choices]:
        # The logit of a choice is the mean over its windows, weighted by their lengths.
        del options
        read = [each for each in rows if isinstance(each, TextRows)]
        logits = [np.average(each.rows_WK[:, 0].astype(np.float64), weights=each.lengths) for each in read]
        windows, dropped = max(len(each.lengths) for each in read), sum(each.dropped_tokens for each in read)
        return Scores(np.array([logits]), value, TokensRead(windows, dropped))

    @override
    def decide(self, scores: Sequence[Scores[Choices]], options: object = None) -> list[ChosenAnswer]:
        calibrated = options_of(ChoicePrediction, options).calibrated
        found = []
        for each in scores:
            probabilities_K = self._probabilities([each], calibrated)[0]
            best, probabilities = int(probabilities_K.argmax()), tuple(probabilities_K.tolist())
            found.append(ChosenAnswer(each.places[1][best], best, probabilities[best], probabilities, each.read))
        return found

    @override
    def outcomes(
        self, scores: Sequence[Scores[Choices]], truth: RightChoices, *, calibrated: bool | None = None
    ) -> Outcomes:
        probabilities_NK = self._probabilities(scores, calibrated)
        found = class_outcomes([str(place) for place in range(probabilities_NK.shape[1])], truth, probabilities_NK)
        return replace(found, tokens_read=texts_read(each.read for each in scores))

    @override
    def facts(self) -> dict[str, object]:
        return self.write(Path())

    @classmethod
    @override
    def open(cls, backend: Backend, size: int, *, ours: bool) -> Self:
        del size
        extras = backend.files.extras if ours else {}
        return cls(Confidence(stored_temperature(Stored.of(extras))), StoredChoices.of(extras).label_is)

    @override
    def write(self, folder: Path) -> dict[str, object]:
        del folder
        rule = {} if self.label_is == "index" else {"label_is": self.label_is}
        return {**temperature_settings(self.confidence.temperature), **rule}

    def _probabilities(self, scores: Sequence[Scores[Choices]], calibrated: bool | None) -> NDArray[np.float64]:
        calibration = None if calibrated is False else self.confidence.calibration
        return (calibration or Temperature(1.0)).apply(padded_logits(scores))


@dataclass(frozen=True, slots=True)
class ChoiceLabel:
    """The label of a row, and what it says by each rule.

    Attributes:
        by_rule: The index of the right choice by each rule that the label fits.
        twice: True if the label is the text of two equal choices.
    """

    value: Choices
    label: object
    row: Row
    by_rule: Mapping[LabelRule, int]
    twice: bool

    @classmethod
    def of(cls, row: Row, columns: ChoiceColumns) -> Self:
        """Read a row, and find the choices that its label may name."""
        value, label = columns.read(row), value_at(row, columns.label, "label")
        found: dict[LabelRule, int] = {}
        match label:
            case bool():
                index = -1
            case str(text) if text.strip().isdecimal() and len(text) < _LONGEST_INDEX:
                index = int(text)
            case int(index):
                pass
            case float(number) if number.is_integer():
                index = int(number)
            case _:
                index = -1
        if 0 <= index < len(value[1]):
            found["index"] = index
        places = [place for place, choice in enumerate(value[1]) if choice == label]
        if len(places) == 1:
            found["text"] = places[0]
        return cls(value, label, row, found, len(places) > 1)

    @property
    def is_missing(self) -> bool:
        """True if there is no label: it is null, blank, ``-`` or -1, and no text of a choice."""
        return not self.by_rule and not self.twice and (lacks_label(self.label) or self.label in ("-", "-1", -1))

    def error(self, column: str, rule: LabelRule | None, other: Self | None = None) -> InvalidInput:
        """Return the error for a label that does not fit the rule, as the label of the ``other`` row does."""
        last = len(self.value[1]) - 1
        expected = {
            "index": f"an index from 0 to {last}",
            "text": "one of the choices",
            None: f"one of the choices or an index from 0 to {last}",
        }[rule]
        advice = ""
        if other is not None:
            advice = (
                f" {other.row.where} has {shown(other.label)}: write all labels of a file in one way, as indices "
                "or as texts."
            )
        elif rule is not None and self.by_rule:
            way = next(iter(self.by_rule))
            advice = f" It fits label_is={way!r} (--label-is {way})."
        if self.twice and rule != "index":
            expected += ", which must differ"
            advice = " Two choices of the row are equal to it: drop the row, or write the indices of the right choices."
        return InvalidInput(
            f"{self.row.where}: the label in {column!r} must be {expected}, got {shown(self.label)}.{advice}"
        )


def read_choices(
    data: Source, columns: ChoiceColumns, options: ChoiceData, usual: LabelRule
) -> tuple[list[Example[int]], LabelRule]:
    """Return contexts with the index of the right choice, and the rule by which all labels of the source were read.

    Without a rule in the options, it is the one that all labels fit, and the ``usual`` one if they fit both.
    """
    given, labels, without = options.label_is, [], RowsWithoutLabel(columns.label, options.unlabelled)
    for row in read_rows(data):
        label = ChoiceLabel.of(row, columns)
        if label.is_missing:
            without.add(row.where, label.label)
        else:
            labels.append(label)
    without.check(len(labels))
    fitting: list[LabelRule] = [rule for rule in RULES if all(rule in each.by_rule for each in labels)]
    if given is None and not fitting:
        raise _contradiction(labels, columns.label)
    rule = given or (usual if usual in fitting else fitting[0])
    if rule not in fitting:
        raise next(each for each in labels if rule not in each.by_rule).error(columns.label, rule)
    unlike = next((each for each in labels if len(set(each.by_rule.values())) > 1), None)
    if given is None and len(fitting) > 1 and unlike is not None:
        other = next(each for each in RULES if each != rule)
        warnings.warn(
            f"{unlike.row.where}: the label in {columns.label!r}, {shown(unlike.label)}, can be an index or the text "
            f"of a choice, as those of all rows. They are read as {_PLURALS[rule]}; for {_PLURALS[other]}, pass "
            f"label_is={other!r} (--label-is {other}).",
            LabelsAmbiguous,
            stacklevel=2,
        )
    return [Example(each.value, each.by_rule[rule], each.row.number, each.row.where) for each in labels], rule


def _contradiction(labels: Sequence[ChoiceLabel], column: str) -> InvalidInput:
    """Return the error for labels that fit neither rule in all rows."""
    if (wrong := next((each for each in labels if not each.by_rule), None)) is not None:
        return wrong.error(column, None)
    first = next(each for each in labels if len(each.by_rule) == 1)
    (rule,) = first.by_rule
    return next(each for each in labels if rule not in each.by_rule).error(column, rule, first)


def padded_logits(scores: Sequence[Scores[Choices]]) -> NDArray[np.float64]:
    """Return the logits of all contexts (N, K), with `ABSENT` for missing choices."""
    longest = max(each.logits_RC.shape[1] for each in scores)
    rows = [
        np.pad(each.logits_RC[0], (0, longest - each.logits_RC.shape[1]), constant_values=ABSENT) for each in scores
    ]
    return np.stack(rows)
