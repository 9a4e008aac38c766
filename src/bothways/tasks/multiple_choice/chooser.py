"""Multiple choice: which of several endings or answers goes with a context (SWAG, Zellers et al. 2018).

The head gives a score for each choice, read as a pair with the context; a softmax over the choices of one context makes
probabilities of them. There may be any number of choices, and another number for each context.

Shapes: N contexts, K choices, W windows of one choice, B windows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.schema import Stored
from bothways.confidence.confidence import Confidence
from bothways.confidence.files import stored_temperature
from bothways.confidence.options import TemperatureOptions
from bothways.data import Example, Source, read_rows, value_at
from bothways.data.windows import digest_of, digest_of_texts
from bothways.errors import InvalidInput, shown
from bothways.evaluation import (
    Outcomes,
    Temperature,
    apply_temperature,
    class_outcomes,
    fit_temperature,
    negative_log_likelihood,
    share_error,
)
from bothways.inference import TextRows
from bothways.tasks.head import StoredInputs, TrainingData
from bothways.tasks.head_task import HeadTask
from bothways.tasks.multiple_choice.spec import MULTIPLE_CHOICE, ChoiceColumns, ChoicePrediction
from bothways.tasks.opened import Opened
from bothways.tasks.outputs import Identity, Rows
from bothways.tasks.scores import Scores, TokensRead, texts_read
from bothways.tasks.splits import hold_out
from bothways.tasks.targets import SingleLabel
from bothways.tasks.together import TemperatureOutputs
from bothways.training.objective import Validation

if TYPE_CHECKING:
    from torch import Tensor

    from bothways.tasks.opening import OpenedModel

Choices: TypeAlias = tuple[str, tuple[str, ...]]
"""A context and its choices."""

# The logit of a choice that a context does not have, beside contexts with more.
ABSENT = -1e6


@dataclass(frozen=True, slots=True)
class ChosenAnswer:
    """The choice that goes with a context.

    Attributes:
        choice: Its text.
        index: Its number among the choices, from 0.
        probability: Its probability, calibrated where the model was.
        probabilities: Those of all choices, in their order.
        tokens_read: How much of context and choices was read.
    """

    choice: str
    index: int
    probability: float
    probabilities: tuple[float, ...]
    tokens_read: TokensRead

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, flat."""
        values = asdict(self)
        tokens_read = values.pop("tokens_read")
        return {**values, "probabilities": list(self.probabilities), **tokens_read}


class ChoiceAnswers:
    """The right choice of each context; its windows share its weight of 1.

    Args:
        stored: Contexts with their choices; the truth is the number of the right one.
    """

    joint: ClassVar[bool] = True

    def __init__(self, stored: StoredInputs) -> None:
        store = stored.store
        self._truth, self._input_W = np.asarray(stored.truth), store.text_of_window
        self._choice_W = np.zeros_like(self._input_W) if stored.text_of_window is None else stored.text_of_window
        self._lengths_W = store.lengths
        self._share_W = 1.0 / np.bincount(self._input_W)[self._input_W]

    @property
    def digest(self) -> str:
        """A checksum of the right choices."""
        return digest_of(self._truth)

    def weights(self, windows: Sequence[int]) -> NDArray[np.float64]:
        """Each window's share of its context (B)."""
        shares_B: NDArray[np.float64] = self._share_W[list(windows)]
        return shares_B

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Sum over contexts of the cross-entropy over their choices, given the windows' scores (B, 1)."""
        import torch

        from bothways.devices import on_device
        from bothways.packing import sum_rows

        inputs, input_B = np.unique(self._input_W[list(windows)], return_inverse=True)
        choice_B, length_B = self._choice_W[list(windows)], self._lengths_W[list(windows)].astype(np.float32)
        place_B = on_device(input_B * (choice_B.max() + 1) + choice_B, scores.device)
        cells = len(inputs) * int(choice_B.max() + 1)
        weight_B = on_device(length_B, scores.device)
        sums = sum_rows(weight_B, place_B, cells)
        merged = sum_rows(weight_B * scores[:, 0], place_B, cells)
        logits_NK = torch.where(sums > 0, merged / sums.clamp(min=1.0), ABSENT).view(len(inputs), -1)
        truth_N = on_device(self._truth[inputs], scores.device)
        return torch.nn.functional.cross_entropy(logits_NK, truth_N, reduction="sum")


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceOutputs(TemperatureOutputs[Choices, Choices]):
    """A score for each choice of a context.

    Attributes:
        confidence: The temperature that calibrates choices.
        calibrates: Whether a temperature is to be learnt.
    """

    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)
    calibrates: bool = True

    head: ClassVar = "multiple_choice"
    head_title: ClassVar = "multiple choice head"
    keeps_inputs: ClassVar = True
    stackable: ClassVar = False
    labels: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc]
    size: ClassVar[int] = 1

    @property
    def row_target(self) -> SingleLabel:
        """One of so many choices, which have no names."""
        return SingleLabel(())

    def texts(self, value: Choices) -> tuple[tuple[str, str], ...]:
        """Return a pair of the context and each choice."""
        return tuple((value[0], choice) for choice in value[1])

    def scores(self, value: Choices, rows: Sequence[Rows], options: object = None) -> Scores[Choices]:
        """Return the logits of the choices (1, K), each the mean of its windows' weighted with their lengths."""
        del options
        read = [each for each in rows if isinstance(each, TextRows)]
        logits = [np.average(each.rows_WK[:, 0].astype(np.float64), weights=each.lengths) for each in read]
        windows, dropped = max(len(each.lengths) for each in read), sum(each.dropped_tokens for each in read)
        return Scores(np.array([logits]), value, TokensRead(windows, dropped))

    def decide(
        self, scores: Iterable[Scores[Choices]], options: ChoicePrediction | None = None
    ) -> Iterator[ChosenAnswer]:
        """Yield the most probable choice of each context."""
        for each in scores:
            probabilities_K = self._probabilities([each], None if options is None else options.calibrated)[0]
            best = int(probabilities_K.argmax())
            yield ChosenAnswer(
                each.places[1][best], best, float(probabilities_K[best]), tuple(probabilities_K.tolist()), each.read
            )

    def outcomes(
        self, scores: Sequence[Scores[Choices]], truth: NDArray[np.int64], *, calibrated: bool | None = None
    ) -> Outcomes:
        """Return the outcomes of contexts; classes are the places of choices."""
        stated_NK = self._probabilities(scores, calibrated)
        found = class_outcomes([str(place) for place in range(stated_NK.shape[1])], truth, stated_NK)
        return replace(found, tokens_read=texts_read(each.read for each in scores))

    def names(self) -> dict[str, object]:
        """Return nothing: choices have no names of their own."""
        return {}

    @classmethod
    def begin(
        cls,
        opened: OpenedModel,
        data: TrainingData,
        columns: ChoiceColumns,
        options: TemperatureOptions,
        seed: int,
        before: Self | None,
    ) -> tuple[Self, list[Example[int]], list[Example[int]]]:
        """Read contexts with their choices; those with the same context are held out together."""
        del opened, before
        made = cls(calibrates=options.calibration is not None)
        examples = made.read(data.train, columns)
        if data.validation is not None:
            return made, examples, made.read(data.validation, columns)
        return made, *hold_out(examples, 0.1, seed, lambda _: (), group=lambda each: each.text[0])

    def read(self, data: Source, columns: ChoiceColumns, options: object = None) -> list[Example[int]]:
        """Return contexts with their choices and the number of the right one."""
        del options
        examples = []
        for row in read_rows(data):
            value, label = columns.read(row), value_at(row, columns.label)
            number = value[1].index(label) if label in value[1] else label
            if isinstance(number, str) and number.isdecimal():
                number = int(number)
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(value[1]):
                raise InvalidInput(
                    f"{row.where}: the label in {columns.label!r} must be one of the choices or its number from 0 to "
                    f"{len(value[1]) - 1}, but it is {shown(label)}."
                )
            examples.append(Example(value, number, row.number, row.where))
        return examples

    def encode(self, examples: Sequence[Example[int]]) -> NDArray[np.int64]:
        """Return the numbers of the right choices (N)."""
        return np.array([example.label for example in examples], dtype=np.int64)

    def continues(self, before: Self) -> bool:
        """Return a score means the same in every model."""
        del before
        return True

    def answers(self, stored: StoredInputs) -> ChoiceAnswers:
        """Return the right choices."""
        return ChoiceAnswers(stored)

    def validate(self, scores: Sequence[Scores[Choices]], truth: NDArray[np.int64]) -> Validation:
        """Return metrics on held-out contexts; the score is accuracy."""
        stated_NK = apply_temperature(_padded(scores), 1.0)
        right, nll = float((stated_NK.argmax(1) == truth).mean()), negative_log_likelihood(truth, stated_NK)
        return Validation({"accuracy": right, "nll": nll}, right, share_error(right, len(truth)))

    def calibrated_on(self, scores: Sequence[Scores[Choices]], truth: NDArray[np.int64]) -> Self:
        """Return the same with a temperature."""
        return replace(self, confidence=Confidence(Temperature(fit_temperature(_padded(scores), truth))))

    @property
    def identity(self) -> Identity:
        """The task."""
        return {"task": MULTIPLE_CHOICE.name}

    def part(self, stored: StoredInputs) -> dict[str, object]:
        """Return SHA-256 of the right choices."""
        return {"labels_sha256": digest_of(stored.truth)}

    def part_together(self, inputs: Sequence[Choices], truth: NDArray[np.int64]) -> dict[str, object]:
        """Return how many contexts, and SHA-256 of texts and right choices."""
        texts = digest_of_texts([context, *choices] for context, choices in inputs)
        return {"rows": len(inputs), "texts_sha256": texts, "labels_sha256": digest_of(truth)}

    @classmethod
    def open(cls, opened: Opened, options: object, size: int, *, ours: bool) -> Self:
        """Return the temperature of a trained head."""
        del options, size
        return cls(Confidence(stored_temperature(Stored.of(opened.extras if ours else {}))))

    def settings(self) -> Mapping[str, object]:
        """Take out what other heads had."""
        return dict.fromkeys(("id2label", "label2id", "num_labels", "problem_type"))

    def _probabilities(self, scores: Sequence[Scores[Choices]], calibrated: bool | None) -> NDArray[np.float64]:
        calibration = None if calibrated is False else self.confidence.calibration
        return (calibration or Temperature(1.0)).apply(_padded(scores))


class MultipleChoice(HeadTask[Any, ChosenAnswer]):
    """Chooses which of several endings or answers goes with a context, with calibrated probabilities.

    >>> chooser = MultipleChoice.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> chooser.fit("train.jsonl", validation="validation.jsonl")  # doctest: +SKIP
    >>> chooser.predict(("She opened the fridge and", ["took out the milk.", "flew away."])).index  # doctest: +SKIP
    0
    """

    spec = MULTIPLE_CHOICE
    outputs_type = ChoiceOutputs


def _padded(scores: Sequence[Scores[Choices]]) -> NDArray[np.float64]:
    """Return the logits of all contexts (N, K), with `ABSENT` for choices that a context does not have."""
    most = max(each.logits_RC.shape[1] for each in scores)
    rows = [np.pad(each.logits_RC[0], (0, most - each.logits_RC.shape[1]), constant_values=ABSENT) for each in scores]
    return np.stack(rows)
