"""Training of a multiple choice model: data, loss and temperature.

Shapes: N contexts, K choices, B windows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from bothways.confidence.confidence import Confidence
from bothways.data import Example
from bothways.data.known_rows import normalised
from bothways.data.windows import digest_of
from bothways.devices import on_device
from bothways.evaluation.intervals import share_error
from bothways.evaluation.metrics.classification import negative_log_likelihood
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import Temperature, apply_temperature, fit_temperature
from bothways.packing import sum_rows
from bothways.tasks.columns import AnyColumns
from bothways.tasks.heads.learner import Identity, Learner
from bothways.tasks.heads.objective import StoredInputs
from bothways.tasks.heads.splits import TrainingData, hold_out
from bothways.tasks.multiple_choice.outputs import (
    ABSENT,
    ChoiceOutputs,
    Choices,
    RightChoices,
    padded_logits,
    read_choices,
)
from bothways.tasks.multiple_choice.spec import MULTIPLE_CHOICE, ChoiceColumns, ChoiceFitting
from bothways.tasks.scores import Scores
from bothways.tasks.spec import options_of
from bothways.tasks.torch_backend import TorchBackend


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceLearner(Learner[ChoiceOutputs, RightChoices, Choices]):
    """Trains a multiple choice model; ``calibrates`` is True to fit a temperature."""

    calibrates: bool = True

    @classmethod
    def from_data(
        cls,
        backend: TorchBackend,
        data: TrainingData,
        columns: AnyColumns,
        options: object,
        before: ChoiceOutputs | None,
    ) -> tuple[Self, list[Example[int]], list[Example[int]]]:
        """Read contexts with their choices; without validation data, hold out about a tenth, grouped by context."""
        del backend
        given, usual = options_of(ChoiceFitting, options), before or ChoiceOutputs()
        examples, rule = read_choices(data.train, options_of(ChoiceColumns, columns), given.reading, usual.label_is)
        outputs = ChoiceOutputs(label_is=rule)
        made = cls(outputs, given.calibration is not None)
        if data.validation is not None:
            held_out = outputs.read(data.validation, columns, given.reading)
        else:
            examples, held_out = hold_out(
                examples, 0.1, data.seed, lambda _: (), group=lambda each: normalised(each.text[0])
            )
        return made, examples, data.unshared(examples, held_out, given.shared)

    @override
    def is_compatible_with(self, before: ChoiceOutputs) -> bool:
        del before  # scores mean the same in all models, so any head can be fine-tuned further
        return True

    @override
    def loss(self, stored: StoredInputs) -> ChoiceLoss:
        return ChoiceLoss(stored)

    def validate(self, scores: Sequence[Scores[Choices]], truth: RightChoices) -> Validation:
        """Return accuracy and negative log-likelihood on held-out contexts; the score is accuracy."""
        probabilities_NK = apply_temperature(padded_logits(scores), 1.0)
        accuracy = float((probabilities_NK.argmax(1) == truth).mean())
        nll = negative_log_likelihood(truth, probabilities_NK)
        return Validation({"accuracy": accuracy, "nll": nll}, accuracy, share_error(accuracy, len(truth)))

    @property
    def identity(self) -> Identity:
        """The name of the task."""
        return {"task": MULTIPLE_CHOICE.name}

    @override
    def calibrated(self, scores: Sequence[Scores[Choices]], truth: RightChoices) -> ChoiceOutputs:
        if not self.calibrates:
            return self.outputs
        return with_temperature(self.outputs, scores, truth)

    def data_facts(self, stored: StoredInputs) -> dict[str, object]:
        """Return SHA-256 of the right choices."""
        return {"labels_sha256": digest_of(stored.truth)}


def with_temperature(outputs: ChoiceOutputs, scores: Sequence[Scores[Choices]], truth: RightChoices) -> ChoiceOutputs:
    """Return outputs with a temperature fitted on held-out scores."""
    return replace(outputs, confidence=Confidence(Temperature(fit_temperature(padded_logits(scores), truth))))


class ChoiceLoss:
    """Cross-entropy over the choices of each context; the windows of a context share its weight of 1."""

    joint: ClassVar[bool] = True

    def __init__(self, stored: StoredInputs) -> None:
        store = stored.store
        self._truth, self._input_W = np.asarray(stored.truth), store.text_of_window
        self._choice_W = np.zeros_like(self._input_W) if stored.text_of_window is None else stored.text_of_window
        self._lengths_W = store.lengths
        self.weights_W = store.shares_W

    @property
    def digest(self) -> str:
        """A checksum of the right choices."""
        return digest_of(self._truth)

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Return the sum over contexts of the cross-entropy over their choices, given the windows' scores (B, 1)."""
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
