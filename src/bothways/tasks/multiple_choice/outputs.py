"""The outputs of a multiple choice head, which scores each choice of a context. Loads no torch.

The model reads each choice as a pair with the context; a softmax over the choices gives their probabilities.
The number of choices may differ between contexts.

Shapes: N contexts, K choices, W windows of one choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from bothways.checkpoints.schema import Stored
from bothways.confidence.confidence import Confidence
from bothways.confidence.fitting import stored_temperature, temperature_settings
from bothways.data import Example, Source, read_rows, value_at
from bothways.errors import InvalidInput, shown
from bothways.evaluation.metrics.classification import class_outcomes
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.temperature import Temperature
from bothways.inference import Rows, TextRows
from bothways.tasks.backend import Backend
from bothways.tasks.columns import AnyColumns
from bothways.tasks.heads.targets import SingleLabel
from bothways.tasks.multiple_choice.spec import ChoiceColumns, ChoicePrediction
from bothways.tasks.outputs import Outputs
from bothways.tasks.scores import Count, Probability, Scores, TaskPrediction, TokensRead, texts_read
from bothways.tasks.spec import options_of

Choices: TypeAlias = tuple[str, tuple[str, ...]]
"""A context and its choices."""

RightChoices: TypeAlias = NDArray[np.int64]
"""Indices of the right choices (N)."""

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
    """The outputs of a multiple choice model, calibrated by a temperature."""

    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)

    head: ClassVar = "multiple_choice"
    head_title: ClassVar = "multiple choice head"

    @property
    @override
    def row_target(self) -> SingleLabel:
        return SingleLabel(())  # choices have no names

    @override
    def read(self, data: Source, columns: AnyColumns, options: object = None) -> list[Example[int]]:
        del options
        examples, of = [], options_of(ChoiceColumns, columns)
        for row in read_rows(data):
            value, label = of.read(row), value_at(row, of.label)
            match value[1].index(label) if label in value[1] else label:
                case str(text) if text.isdecimal():
                    right = int(text)
                case int(number) if number is not True and number is not False:
                    right = number
                case _:
                    right = -1
            if not 0 <= right < len(value[1]):
                raise InvalidInput(
                    f"{row.where}: the label in {of.label!r} must be one of the choices or an index from 0 to "
                    f"{len(value[1]) - 1}, got {shown(label)}."
                )
            examples.append(Example(value, right, row.number, row.where))
        return examples

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
        return cls(Confidence(stored_temperature(Stored.of(backend.files.extras if ours else {}))))

    @override
    def write(self, folder: Path) -> dict[str, object]:
        del folder
        return temperature_settings(self.confidence.temperature)

    def _probabilities(self, scores: Sequence[Scores[Choices]], calibrated: bool | None) -> NDArray[np.float64]:
        calibration = None if calibrated is False else self.confidence.calibration
        return (calibration or Temperature(1.0)).apply(padded_logits(scores))


def padded_logits(scores: Sequence[Scores[Choices]]) -> NDArray[np.float64]:
    """Return the logits of all contexts (N, K), with `ABSENT` for missing choices."""
    longest = max(each.logits_RC.shape[1] for each in scores)
    rows = [
        np.pad(each.logits_RC[0], (0, longest - each.logits_RC.shape[1]), constant_values=ABSENT) for each in scores
    ]
    return np.stack(rows)
