"""Pre-training as the training loop sees it: sequences of a source, what is hidden in them, and heads that tell it.

An objective is put together from a `SequenceSource` (windows of texts, pieces of documents, pairs of segments), a
`Masker`, and a `PretrainingModel`: an encoder with the heads that it is trained by, each of which is one part of the
loss. The loss of an update is the sum over the parts of weight times mean, each mean over all units of the update:
masked places, pairs of segments, tokens.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.errors import InvalidInput
from bothways.inference.batching import by_token_budget
from bothways.objectives.masking import Masker
from bothways.objectives.sequences import MaskedBatch, SequenceSource, TrainingSequence
from bothways.training.objective import MicroBatch, Update, Validation


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """What a head says of its units, and what is right.

    Attributes:
        scores: Logits of C classes (M, C), or of yes (M).
        truth: Numbers of the classes (M), or 0 and 1 of the type of the scores (M).
    """

    scores: Tensor
    truth: Tensor

    def loss(self) -> Tensor:
        """Return the sum of the units' cross-entropies."""
        scores = self.scores.float()
        if scores.dim() == 1:
            return nn.functional.binary_cross_entropy_with_logits(scores, self.truth.float(), reduction="sum")
        return nn.functional.cross_entropy(scores, self.truth, reduction="sum")

    def right(self) -> Tensor:
        """Return how many are told right."""
        said = (self.scores > 0).to(self.truth.dtype) if self.scores.dim() == 1 else self.scores.argmax(-1)
        return (said == self.truth).sum()


class PretrainingModel(Protocol):
    """An encoder with the heads that it is pre-trained by.

    Attributes:
        weights: What each head's mean loss counts, by its name; the first one's units are those of an update.
        device: Where the weights are.
    """

    @property
    def weights(self) -> Mapping[str, float]: ...  # noqa: D102 (above)

    @property
    def device(self) -> torch.device: ...  # noqa: D102 (above)

    @property
    def module(self) -> nn.Module:
        """Everything that is trained."""

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return how many units each head tells of a batch."""

    def outputs(self, batch: MaskedBatch) -> Mapping[str, HeadOutput]:
        """Return what each head says of a batch that is on the model's device."""


@dataclass(frozen=True, slots=True)
class PretrainingBatch:
    """One micro-batch, on the CPU until its loss is asked for.

    Attributes:
        batch: What the model reads.
        factors: What the sum of each head's losses is multiplied with; it depends on the whole update.
    """

    batch: MaskedBatch
    factors: Mapping[str, float]


class PretrainingObjective:
    """Pre-trains an encoder by the heads of a model.

    Args:
        model: What is trained.
        training: Sequences to learn from.
        validation: Sequences to choose the epoch to keep by, where there are some; their masks stay the same.
        masker: Draws the masks, and the order of the sequences by its seed.
        batch_size: Sequences in one update.
        tokens: Token budget of a micro-batch; what an update has beyond that is accumulated.

    Raises:
        InvalidInput: The batch size is below 1.
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
        if batch_size < 1:
            raise InvalidInput(f"batch_size must be at least 1, but it is {batch_size}.")
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
        """What decides the course of the run besides the settings."""
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
        """Number of batches of ``batch_size`` sequences, the last one smaller."""
        return -(-len(self.training) // self.batch_size)

    def updates(self, epoch: int, start: int) -> Iterator[Update[PretrainingBatch]]:
        """The epoch's sequences in an order of its own, with masks of its own where they are dynamic."""
        order = np.random.default_rng([self.masker.seed, epoch]).permutation(len(self.training))
        for number in range(start, self.updates_per_epoch()):
            yield self._update(order[number * self.batch_size : (number + 1) * self.batch_size], epoch)

    def loss(self, payload: PretrainingBatch) -> Tensor:
        """Sum of the losses of all heads, weighted so that an update's loss is that of their means."""
        outputs = self.model.outputs(payload.batch.to(self.model.device))
        return torch.stack([payload.factors[name] * output.loss() for name, output in outputs.items()]).sum()

    def validate(self) -> Validation | None:
        """Loss in nats and accuracy of each head, and the perplexity of masked tokens, on the validation sequences."""
        if self.validation is None:
            return None
        losses, right, units = Counter[str](), Counter[str](), Counter[str]()
        for batch in self._validation_batches(self.validation):
            units.update(self.model.units(batch))
            for name, output in self.model.outputs(batch.to(self.model.device)).items():
                losses[name] += float(output.loss())  # type: ignore[assignment]
                right[name] += int(output.right())
        means = {name: losses[name] / max(1, units[name]) for name in self.model.weights}
        metrics: dict[str, float] = {}
        for name, mean in means.items():
            prefix = "" if len(means) == 1 else f"{name} "
            metrics[f"{prefix}loss"] = mean
            if name == MASKED:
                metrics[f"{prefix}perplexity"] = math.exp(mean)
            metrics[f"{prefix}accuracy"] = right[name] / max(1, units[name])
        return Validation(metrics, -sum(weight * means[name] for name, weight in self.model.weights.items()))

    def _update(self, places: NDArray[np.int64], epoch: int) -> Update[PretrainingBatch]:
        sequences = self.training.read(places, epoch)
        masked = {each.number: self.masker.training(each.ids, epoch, each.number) for each in sequences}
        batches = [
            MaskedBatch.of(some, [masked[each.number] for each in some]) for some in self._micro_batches(sequences)
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

    def _validation_batches(self, source: SequenceSource) -> Iterator[MaskedBatch]:
        """The validation sequences, in blocks, so that memory does not grow with their number."""
        for start in range(0, len(source), _BLOCK):
            sequences = source.read(range(start, min(start + _BLOCK, len(source))), 0)
            for some in self._micro_batches(sequences):
                yield MaskedBatch.of(some, [self.masker.validation(each.ids, each.number) for each in some])

    def _micro_batches(self, sequences: Sequence[TrainingSequence]) -> Iterator[list[TrainingSequence]]:
        for batch in by_token_budget([len(each.ids) for each in sequences], self.tokens):
            yield [sequences[index] for index in batch]


MASKED = "masked tokens"
"""Name of the part of a loss that is masked language modelling's."""

_BLOCK = 4096
