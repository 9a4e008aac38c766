"""The objective of pre-training: a source of sequences, their corruption, and heads that predict the original.

An objective is composed of a `SequenceStream` over a source (windows of texts, pieces of documents, pairs of
segments), a `Corruption`, and a `PretrainingModel`: an encoder with heads, each of which gives one part of the loss.
The loss of an update is the weighted sum of the heads' mean losses. A mean is taken over all units of the head in the
update, such as masked positions, pairs of segments, or tokens.

Shapes: N sequences, B sequences of a batch, M units of a head, C classes, P pairs of sequences, K numbers of a vector.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.evaluation.metrics.regression import spearman
from bothways.evaluation.report import Validation
from bothways.inference.runner import Runner, counted
from bothways.objectives.masking import Corruption
from bothways.objectives.sequences import EpochSequences, MaskedBatch, SequenceSource, TrainingSequence, micro_batches
from bothways.objectives.streams import EpochStream, SequenceStream
from bothways.packing import Packed, pack
from bothways.progress import Progress
from bothways.training.objective import Baseline, MicroBatch, Update, micro_batch_tokens
from bothways.training.workers import current_workers


@dataclass(frozen=True, slots=True)
class UnitLosses:
    """One part of the loss of a batch: the losses of its units, such as predicted tokens.

    `total` is their sum, which alone needs a gradient. `right_M` is 1 for a right prediction, 0 for a wrong one, NaN
    for units without a right answer; `rows_M` has the row of each unit in the packed batch.
    """

    total: Tensor
    losses_M: Tensor
    right_M: Tensor
    rows_M: Tensor

    @classmethod
    def of_classes(cls, scores: Tensor, truth_M: Tensor, rows_M: Tensor) -> "UnitLosses":
        """Return the cross-entropy of class logits (M, C) or binary logits (M), for the true classes (M)."""
        logits = scores.float()
        if scores.dim() == 1:
            losses_M = nn.functional.binary_cross_entropy_with_logits(logits, truth_M.float(), reduction="none")
            predicted_M = (scores > 0).to(truth_M.dtype)
        else:
            losses_M = nn.functional.cross_entropy(logits, truth_M, reduction="none")
            predicted_M = scores.argmax(-1)
        return cls(losses_M.sum(), losses_M, predicted_M == truth_M, rows_M)

    @classmethod
    def of_distances(cls, losses_M: Tensor, rows_M: Tensor) -> "UnitLosses":
        """Return distances (M) from a teacher's outputs as losses; `right_M` is NaN."""
        return cls(losses_M.sum(), losses_M, torch.full_like(losses_M, torch.nan), rows_M)

    def sums(self, packed: Packed) -> NDArray[np.float64]:
        """Return each sequence's sum of losses, number of right predictions, and number of units (B, 3)."""
        counted_M3 = torch.stack([self.losses_M, self.right_M.float(), torch.ones_like(self.losses_M)], dim=1)
        sums_B3 = np.zeros((packed.count, 3))
        np.add.at(sums_B3, packed.sequence_T[self.rows_M].cpu().numpy(), counted_M3.detach().cpu().double().numpy())
        return sums_B3


class PretrainingModel(nn.Module, ABC):
    """An encoder with the heads of its pre-training."""

    @property
    def identity(self) -> Mapping[str, str]:
        """Settings of the model that a resumed run must share with its checkpoint."""
        return {}

    @property
    @abstractmethod
    def weights(self) -> Mapping[str, float]:
        """Weight of each head's mean loss, by name; `Update.weight` is the first head's number of units."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def carried(self) -> Mapping[str, Tensor]:
        """Return the tensors carried from update to update, by name; empty for most models."""
        return {}

    def carry(self, carried: Mapping[str, Tensor]) -> None:
        """Restore the carried tensors that belong to this process."""

    @abstractmethod
    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return the number of units that each head predicts in a batch."""

    @abstractmethod
    def outputs(self, batch: MaskedBatch) -> Mapping[str, UnitLosses]:
        """Return each head's part of the loss of a batch on the model's device."""


@runtime_checkable
class ComparedVectors(Protocol):
    """A `PretrainingModel` that also learns the vectors of sequences from a teacher."""

    def vectors(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Return the model's vectors of sequences (B, K) and the teacher's, which may have another width."""


@dataclass(frozen=True, slots=True)
class PretrainingBatch:
    """A micro-batch, kept on the CPU until its loss is computed, and each head's factor in the update's loss."""

    batch: MaskedBatch
    factors: Mapping[str, float]


class PretrainingObjective:
    """Pre-trains an encoder with the losses of its heads.

    The loss on validation sequences, with targets that never change, determines the epoch to keep. An epoch may be a
    whole pass over small data, or part of a pass over large data. On a CPU the token budget of a micro-batch is at most
    1,024, unless the model compares vectors. With a ``baseline``, the model is also validated before the first update;
    give one only if no part of the model is newly initialised.
    """

    min_updates: ClassVar = 0

    def __init__(
        self,
        model: PretrainingModel,
        stream: SequenceStream,
        validation: SequenceSource | None,
        corruption: Corruption,
        *,
        updates_per_epoch: int,
        tokens: int,
        baseline: Baseline | None = None,
    ) -> None:
        self.model = model
        self.stream = stream
        self.validation = validation
        self.corruption = corruption
        # A loss that compares the vectors of a micro-batch depends on its size.
        self.tokens = tokens if isinstance(model, ComparedVectors) else micro_batch_tokens(tokens, model.device)
        self.baseline = baseline
        self._updates_per_epoch = updates_per_epoch

    @classmethod
    def in_epochs(
        cls,
        model: PretrainingModel,
        training: SequenceSource,
        validation: SequenceSource | None,
        corruption: Corruption,
        *,
        batch_size: int,
        tokens: int,
    ) -> "PretrainingObjective":
        """Return an objective whose epochs are whole passes over a source, ordered by the corruption's seed."""
        stream = EpochStream(training, batch_size, corruption.seed)
        return cls(model, stream, validation, corruption, updates_per_epoch=stream.updates_per_epoch, tokens=tokens)

    @property
    def module(self) -> nn.Module:
        return self.model

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        return {
            "training data": self.stream.digest,
            "validation data": None if self.validation is None else self.validation.digest,
            **self.stream.identity,
            "token budget": self.tokens,
            **self.corruption.identity,
            "losses": ", ".join(f"{name} {weight:g}" for name, weight in self.model.weights.items()),
            **self.model.identity,
        }

    def updates_per_epoch(self) -> int:
        return self._updates_per_epoch

    def updates(self, epoch: int, start: int) -> Iterator[Update[PretrainingBatch]]:
        for number in range(start, self._updates_per_epoch):
            yield self._update(self.stream.read(epoch * self._updates_per_epoch + number))

    def carried(self) -> Mapping[str, Tensor]:
        return self.model.carried()

    def carry(self, carried: Mapping[str, Tensor]) -> None:
        self.model.carry(carried)

    def loss(self, payload: PretrainingBatch) -> Tensor:
        """Return the sum of all heads' losses, each scaled by its factor in the update's loss."""
        outputs = self.model.outputs(payload.batch.to(self.model.device))
        return torch.stack([payload.factors[name] * output.total for name, output in outputs.items()]).sum()

    def validate(self) -> Validation | None:
        """Return each head's loss and, for predictions, accuracy and the perplexity of predicted tokens.

        For a model that learns vectors, also return Spearman's correlation of its cosines with the teacher's. Each
        process of a run computes the losses of its part of the sequences.
        """
        if self.validation is None:
            return None
        metrics: dict[str, float] = {}
        score = 0.0
        sums = self._validation_sums(self.validation)
        for (name, weight), (loss, right, units) in zip(self.model.weights.items(), sums, strict=True):
            prefix = "" if len(sums) == 1 else f"{name} "
            metrics[f"{prefix}loss"] = loss / max(1, units)
            if name in (MASKED, PREDICTED):
                metrics[f"{prefix}perplexity"] = math.exp(metrics[f"{prefix}loss"])
            if not math.isnan(right):
                metrics[f"{prefix}accuracy"] = right / max(1, units)
            score -= weight * metrics[f"{prefix}loss"]
        if isinstance(self.model, ComparedVectors):
            metrics["spearman_with_teacher"] = agreement(self.model, self.model.device, self.validation, self.tokens)
        return Validation(metrics, score)

    def _validation_sums(self, source: SequenceSource) -> NDArray[np.float64]:
        workers = current_workers()
        own = range(workers.rank, len(source), workers.count)
        sums_N = sequence_sums(self.model, source, self.corruption, self.tokens, own) if own else None
        sums = np.zeros((len(self.model.weights), 3)) if sums_N is None else sums_N.sum(axis=1)
        found: NDArray[np.float64] = np.sum(workers.gather(sums), axis=0)
        return found

    def _update(self, parts: Sequence[EpochSequences]) -> Update[PretrainingBatch]:
        drawn = [(part.epoch, each) for part in parts for each in part.sequences]
        masked = [self.corruption.training(each.ids, epoch, each.number) for epoch, each in drawn]
        sequences = [each for _, each in drawn]
        batches = []
        for places in micro_batches(sequences, self.tokens, current_workers().count):
            some = [sequences[place] for place in places]
            packed = pack([each.ids for each in some], [each.types for each in some])
            batches.append(MaskedBatch.of(packed, some, [masked[place] for place in places]))
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


def sequence_sums(
    model: PretrainingModel,
    source: SequenceSource,
    corruption: Corruption,
    tokens: int,
    places: Sequence[int] | None = None,
    bar: Progress | None = None,
) -> NDArray[np.float64]:
    """Return `UnitLosses.sums` (heads, N, 3) for all sequences of a source, or those with the indices ``places``.

    The model must be in evaluation mode. Sequences are read in blocks, so memory does not grow with their number.
    """

    def compute(packed: Packed, sequences: Sequence[TrainingSequence]) -> list[NDArray[np.float64]]:
        masked = [corruption.validation(each.ids, each.number) for each in sequences]
        batch = MaskedBatch.of(packed, sequences, masked)
        heads = [output.sums(batch.packed) for output in model.outputs(batch).values()]
        return [*np.stack(heads, axis=1)[: len(sequences)]]

    runner = Runner(counted(compute, bar), model.device, tokens)
    found: list[NDArray[np.float64]] = []
    places = range(len(source)) if places is None else places
    for start in range(0, len(places), _BLOCK):
        found += runner.run(source.read(places[start : start + _BLOCK], 0))
    return np.stack(found, axis=1)


def agreement(model: ComparedVectors, device: torch.device, source: SequenceSource, tokens: int) -> float:
    """Return Spearman's correlation between the model's and the teacher's cosines of all pairs of sequences.

    The model must be in evaluation mode. Only the first 512 sequences are used.
    """

    def compute(packed: Packed, sequences: Sequence[TrainingSequence]) -> list[list[Tensor]]:
        unit = [nn.functional.normalize(each.double(), dim=-1).cpu() for each in model.vectors(packed)]
        return [[each[number] for each in unit] for number in range(len(sequences))]

    drawn = source.read(range(min(len(source), _COMPARED)), 0)[:_COMPARED]
    ours, theirs = (torch.stack(each) for each in zip(*Runner(compute, device, tokens).run(drawn), strict=True))
    first_P, second_P = np.triu_indices(len(drawn), 1)
    if len(first_P) < _MIN_PAIRS:
        return 0.0
    return float(spearman(*((each @ each.T).numpy()[first_P, second_P] for each in (theirs, ours))))


MASKED = "masked tokens"
"""Name of the loss of masked language modelling."""

PREDICTED = "predicted tokens"
"""Name of the loss of permutation language modelling."""

_BLOCK = 4096
# Maximum number of compared sequences, and minimum number of pairs for a correlation.
_COMPARED, _MIN_PAIRS = 512, 3
