"""Pre-training for the training loop: a source of sequences, a corruption of them, and heads that undo it.

An objective is composed of a `SequenceSource` (windows of texts, pieces of documents, pairs of segments), a `Masker`,
and a `PretrainingModel`: an encoder with the heads that it is trained by, each of which is one part of the loss. The
loss of an update is the weighted sum of the heads' means, each over all of its units in the update: masked places,
pairs of segments, tokens.

Shapes: N sequences, B sequences of a batch, M units of a head, C classes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.inference.batching import by_token_budget
from bothways.inference.runner import Runner
from bothways.objectives.masking import Masker
from bothways.objectives.sequences import MaskedBatch, SequenceSource, TrainingSequence
from bothways.packing import Packed, pack
from bothways.training.objective import MicroBatch, Update, Validation


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """A head's predictions for its units, and their targets.

    Attributes:
        scores: Logits of C classes (M, C), or of yes (M).
        truth: Class numbers (M), or 0 and 1 (M).
        rows: Rows of the packed batch that each unit is read from (M).
    """

    scores: Tensor
    truth: Tensor
    rows: Tensor

    def losses(self) -> Tensor:
        """Return the cross-entropy of each unit (M)."""
        scores = self.scores.float()
        if scores.dim() == 1:
            return nn.functional.binary_cross_entropy_with_logits(scores, self.truth.float(), reduction="none")
        return nn.functional.cross_entropy(scores, self.truth, reduction="none")

    def right(self) -> Tensor:
        """Return where the prediction is the target (M)."""
        said = (self.scores > 0).to(self.truth.dtype) if self.scores.dim() == 1 else self.scores.argmax(-1)
        return said == self.truth

    def sums(self, packed: Packed) -> NDArray[np.float64]:
        """Return the sum of losses, the number of right predictions and of units of each sequence (B, 3)."""
        counted_M3 = torch.stack([self.losses(), self.right().float(), torch.ones_like(self.rows).float()], dim=1)
        sums_B3 = np.zeros((packed.count, 3))
        np.add.at(sums_B3, packed.sequence_T[self.rows].cpu().numpy(), counted_M3.cpu().double().numpy())
        return sums_B3


class PretrainingModel(Protocol):
    """An encoder with the heads that it is pre-trained by.

    Attributes:
        weights: Weight of each head's mean loss, by its name; an update's weight counts the first one's units.
        device: Device of the parameters.
    """

    @property
    def weights(self) -> Mapping[str, float]: ...  # noqa: D102 (above)

    @property
    def device(self) -> torch.device: ...  # noqa: D102 (above)

    @property
    def module(self) -> nn.Module:
        """The trained module."""

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return the number of units that each head predicts in a batch."""

    def outputs(self, batch: MaskedBatch) -> Mapping[str, HeadOutput]:
        """Return each head's predictions for a batch on the model's device."""


@dataclass(frozen=True, slots=True)
class PretrainingBatch:
    """One micro-batch, on the CPU until its loss is asked for.

    Attributes:
        batch: The model's input.
        factors: Factor of each head's summed loss; it depends on the whole update.
    """

    batch: MaskedBatch
    factors: Mapping[str, float]


class PretrainingObjective:
    """Pre-trains an encoder by the heads of a model.

    Args:
        model: The model to train.
        training: Training sequences.
        validation: Validation sequences, which choose the epoch to keep; their masks stay the same.
        masker: Draws the masks; its seed also orders the sequences.
        batch_size: Sequences in one update, at least 1.
        tokens: Token budget of a micro-batch; what an update has beyond that is accumulated.
    """

    baseline: ClassVar = None  # a head may be a new one
    least_updates: ClassVar = 0

    def __init__(
        self,
        model: PretrainingModel,
        training: SequenceSource,
        validation: SequenceSource | None,
        masker: Masker,
        *,
        batch_size: int,
        tokens: int,
    ) -> None:
        self.model = model
        self.training = training
        self.validation = validation
        self.masker = masker
        self.batch_size = batch_size
        self.tokens = tokens

    @property
    def module(self) -> nn.Module:
        """Encoder and heads."""
        return self.model.module

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        """Settings of the run that a resumed one must share."""
        masking = self.masker.masking
        return {
            "training data": self.training.digest,
            "validation data": None if self.validation is None else self.validation.digest,
            "batch size": self.batch_size,
            "token budget": self.tokens,
            "chosen tokens": masking.fraction,
            "masked": masking.masked,
            "random": masking.random,
            "masked unit": str(masking.unit),
            "dynamic masks": masking.dynamic,
            "mask seed": self.masker.seed,
            "losses": ", ".join(f"{name} {weight:g}" for name, weight in self.model.weights.items()),
        }

    def updates_per_epoch(self) -> int:
        """Return the number of batches of ``batch_size`` sequences, the last one smaller."""
        return -(-len(self.training) // self.batch_size)

    def updates(self, epoch: int, start: int) -> Iterator[Update[PretrainingBatch]]:
        """Yield the epoch's sequences in an order of its own, with masks of its own where they are dynamic."""
        order = np.random.default_rng([self.masker.seed, epoch]).permutation(len(self.training))
        for number in range(start, self.updates_per_epoch()):
            yield self._update(order[number * self.batch_size : (number + 1) * self.batch_size], epoch)

    def loss(self, payload: PretrainingBatch) -> Tensor:
        """Return the sum of all heads' losses, weighted so that an update's loss is the weighted sum of their means."""
        outputs = self.model.outputs(payload.batch.to(self.model.device))
        return torch.stack([payload.factors[name] * output.losses().sum() for name, output in outputs.items()]).sum()

    def validate(self) -> Validation | None:
        """Return each head's loss in nats and accuracy, and the perplexity of masked tokens, on the validation data."""
        if self.validation is None:
            return None
        sums_N = sequence_sums(self.model, self.validation, self.masker, self.tokens)
        metrics: dict[str, float] = {}
        score = 0.0
        for (name, weight), sums_N3 in zip(self.model.weights.items(), sums_N, strict=True):
            loss, right, units = sums_N3.sum(axis=0)
            prefix = "" if len(sums_N) == 1 else f"{name} "
            metrics[f"{prefix}loss"] = loss / max(1, units)
            if name == MASKED:
                metrics[f"{prefix}perplexity"] = math.exp(metrics[f"{prefix}loss"])
            metrics[f"{prefix}accuracy"] = right / max(1, units)
            score -= weight * metrics[f"{prefix}loss"]
        return Validation(metrics, score)

    def _update(self, places: NDArray[np.int64], epoch: int) -> Update[PretrainingBatch]:
        sequences = self.training.read(places, epoch)
        masked = {each.number: self.masker.training(each.ids, epoch, each.number) for each in sequences}
        batches = [
            MaskedBatch.of(_packed(some), some, [masked[each.number] for each in some])
            for some in self._micro_batches(sequences)
        ]
        counted = [self.model.units(batch) for batch in batches]
        totals = {name: sum(units[name] for units in counted) for name in self.model.weights}
        first = next(iter(self.model.weights))
        factors = {name: weight * totals[first] / max(1, totals[name]) for name, weight in self.model.weights.items()}
        return Update(
            tuple(
                MicroBatch(PretrainingBatch(batch, factors), float(units[first]), len(batch.packed.ids_T))
                for batch, units in zip(batches, counted, strict=True)
            )
        )

    def _micro_batches(self, sequences: Sequence[TrainingSequence]) -> Iterator[list[TrainingSequence]]:
        for batch in by_token_budget([len(each.ids) for each in sequences], self.tokens):
            yield [sequences[index] for index in batch]


def sequence_sums(model: PretrainingModel, source: SequenceSource, masker: Masker, tokens: int) -> NDArray[np.float64]:
    """Return the sums of each head over held-out sequences (heads, N, 3), see `HeadOutput.sums`.

    Args:
        model: The model, in evaluation mode.
        source: The N sequences; they are read in blocks, so that memory does not grow with their number.
        masker: Draws the places, which are always the same.
        tokens: Token budget of a batch.

    Raises:
        OutOfMemory: A single sequence does not fit into memory.
    """

    def compute(packed: Packed, sequences: Sequence[TrainingSequence]) -> list[NDArray[np.float64]]:
        masked = [masker.validation(each.ids, each.number) for each in sequences]
        batch = MaskedBatch.of(packed, sequences, masked)
        heads = [output.sums(batch.packed) for output in model.outputs(batch).values()]
        return [*np.stack(heads, axis=1)[: len(sequences)]]

    runner = Runner(compute, model.device, tokens)
    found: list[NDArray[np.float64]] = []
    for start in range(0, len(source), _BLOCK):
        found += runner.run(source.read(range(start, min(start + _BLOCK, len(source))), 0))
    return np.stack(found, axis=1)


def _packed(sequences: Sequence[TrainingSequence]) -> Packed:
    return pack([each.ids for each in sequences], [each.types for each in sequences])


MASKED = "masked tokens"
"""Name of the part of a loss that is masked language modelling's."""

_BLOCK = 4096
