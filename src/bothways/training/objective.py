"""The protocol between the training loop and a task or pre-training run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from bothways.evaluation.report import Validation

ON_CPU = 1024
"""Maximum tokens of a micro-batch on a CPU: more are no faster, and their activations take memory."""

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class MicroBatch(Generic[Payload]):
    """The data of one forward pass: `weight` is the number of units (examples or targets), `tokens` of input tokens."""

    payload: Payload
    weight: float
    tokens: int


def micro_batch_tokens(tokens: int, device: torch.device) -> int:
    """Return the token budget of a micro-batch on a device, at most ``tokens``."""
    return min(tokens, ON_CPU) if device.type == "cpu" else tokens


@dataclass(frozen=True, slots=True)
class Update(Generic[Payload]):
    """The data of one optimizer step.

    Its gradient is that of (sum of losses) / (sum of weights), so the division into micro-batches affects memory only.
    """

    micro_batches: tuple[MicroBatch[Payload], ...]

    @property
    def weight(self) -> float:
        return sum(micro_batch.weight for micro_batch in self.micro_batches)

    @property
    def tokens(self) -> int:
        return sum(micro_batch.tokens for micro_batch in self.micro_batches)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The model before the first update, validated as epoch 0 and kept unless a later epoch is good enough.

    A later epoch must score at least `margin` standard errors above the baseline. -1 accepts a score of one standard
    error below it, 0 is for initial models that training can harm, and 1 for small data, where the baseline is likely
    to be good. `validate` replaces `Objective.validate` if the baseline is not the initial module itself.
    """

    name: str
    margin: float = -1.0
    validate: Callable[[], Validation | None] | None = None


class Objective(Protocol[Payload]):
    """A model, its data and its loss."""

    @property
    def baseline(self) -> Baseline | None:
        """The model before the first update, to be validated; None to skip it."""

    @property
    def min_updates(self) -> int:
        """Minimum number of updates if neither epochs, updates nor tokens are given."""

    @property
    def module(self) -> nn.Module:
        """The module to train; the loop switches it between ``train()`` and ``eval()``."""

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        """Everything besides the options that determines the run: data digest, batch size, loss...

        Checkpoints store it; a run is resumed only with the same identity.
        """

    def updates_per_epoch(self) -> int:
        """Return the number of updates per epoch, which determines the length of the schedule."""

    def updates(self, epoch: int, start: int) -> Iterator[Update[Payload]]:
        """Yield the updates of ``epoch`` (from 0), starting with number ``start`` (from 0).

        Their order depends only on a seed and ``epoch``, not on the global random generators, so a resumed run equals
        an uninterrupted one.
        """

    def loss(self, payload: Payload) -> Tensor:
        """Return the sum (not the mean) of the losses of the micro-batch's units, a scalar."""

    def validate(self) -> Validation | None:
        """Validate after an epoch, in ``eval()`` mode without gradients; return None if nothing is held out."""


@runtime_checkable
class Recurrent(Protocol):
    """An `Objective` that carries tensors from each update to the next; checkpoints store them."""

    def carried(self) -> Mapping[str, Tensor]:
        """Return the tensors carried from the last update; names are unique over all processes."""

    def carry(self, carried: Mapping[str, Tensor]) -> None:
        """Restore carried tensors; ``carried`` has those of all processes."""


@runtime_checkable
class JointLoss(Protocol[Payload]):
    """An `Objective` whose loss depends on all units of an update together, such as a contrastive loss."""

    def joined(self, update: Update[Payload]) -> Update[Payload]:
        """Prepare an update before its losses are computed, in ``train()`` mode and the autocast of the run, if any.

        The sum of `loss` over the returned micro-batches has the value and gradient of the joint loss times the
        update's weight. Random numbers may be drawn here, since a resumed run repeats them exactly.
        """
