"""The protocol of the training loop, which a task (or a pre-training run) implements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

ON_CPU = 1024
"""Tokens of a micro-batch on a CPU, which computes more of them no faster and has to hold what they leave behind."""

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class MicroBatch(Generic[Payload]):
    """The units that go through the model at once.

    Attributes:
        payload: Whatever `Objective.loss` needs; the loop does not look inside.
        weight: Units whose losses `Objective.loss` sums: examples, or target tokens.
        tokens: Tokens that the model reads, for the speed in the log.
    """

    payload: Payload
    weight: float
    tokens: int


def micro_batch_tokens(tokens: int, device: torch.device) -> int:
    """Return the token budget of a micro-batch on a device where ``tokens`` are allowed."""
    return min(tokens, ON_CPU) if device.type == "cpu" else tokens


@dataclass(frozen=True, slots=True)
class Update(Generic[Payload]):
    """One optimizer step.

    Its gradient is that of (sum of the losses) / (sum of the weights), so how the units are split into micro-batches
    changes memory, not the result.
    """

    micro_batches: tuple[MicroBatch[Payload], ...]

    @property
    def weight(self) -> float:
        """Units in the whole update."""
        return sum(micro_batch.weight for micro_batch in self.micro_batches)

    @property
    def tokens(self) -> int:
        """Tokens in the whole update."""
        return sum(micro_batch.tokens for micro_batch in self.micro_batches)


@dataclass(frozen=True, slots=True)
class Validation:
    """The score of the model on held-out data.

    Attributes:
        metrics: By name, for the log and the record.
        score: What early stopping and the choice of the weights to keep go by; higher is better.
        standard_error: By how much the score could differ on as many other held-out rows; 0 where it is not known.
    """

    metrics: Mapping[str, float]
    score: float
    standard_error: float = 0.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """A model before the first update; it is validated as epoch 0, and kept where no later epoch is as good.

    Attributes:
        name: What it is, in words.
        margin: By how many standard errors a later epoch must be better: -1 where it may be as much worse, 0 where
            training can harm what was there, 1 where little data make the baseline likelier to be good.
        validate: Its metrics, where it is not the module as it came.
    """

    name: str
    margin: float = -1.0
    validate: Callable[[], Validation | None] | None = None


class Objective(Protocol[Payload]):
    """A model, its data and its loss.

    Attributes:
        baseline: What there is before the first update; None where the module has weights that say nothing.
        least_updates: How many a training takes at least where nobody chose its epochs.
    """

    @property
    def baseline(self) -> Baseline | None: ...  # noqa: D102 (above)

    @property
    def least_updates(self) -> int: ...  # noqa: D102 (above)

    @property
    def module(self) -> nn.Module:
        """Holds every parameter to train; the loop switches it between ``train()`` and ``eval()``."""

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        """Everything besides the settings that decides the course of the run: data digest, batch size, loss...

        Stored with each checkpoint; a run is resumed only under the same identity.
        """

    def updates_per_epoch(self) -> int:
        """Return number of updates in each epoch; the schedule is laid out by it."""

    def updates(self, epoch: int, start: int) -> Iterator[Update[Payload]]:
        """Return the updates of ``epoch`` (from 0), beginning with number ``start`` (from 0).

        The order may depend on nothing but a seed and ``epoch``, and drawing it may not touch the global random
        generators: that is what makes a resumed run equal to an uninterrupted one.
        """

    def loss(self, payload: Payload) -> Tensor:
        """Return the scalar SUM of the losses of the micro-batch's units."""

    def validate(self) -> Validation | None:
        """Score the validation rows after an epoch, in ``eval()`` mode without gradients; None without such rows."""


@runtime_checkable
class Recurrent(Protocol):
    """An `Objective` whose updates leave something for the next one, which checkpoints hold."""

    def carried(self) -> Mapping[str, Tensor]:
        """Return what the last update has left, by names that no other process of the run has."""

    def carry(self, carried: Mapping[str, Tensor]) -> None:
        """Take over what an update of an earlier run has left, in all of its processes."""


@runtime_checkable
class JointLoss(Protocol[Payload]):
    """Methods of an `Objective` whose loss joins all units of an update: no micro-batch has one of its own."""

    def joined(self, update: Update[Payload]) -> Update[Payload]:
        """Prepare an update, before its losses are asked for, in ``train()`` mode and the training's precision.

        The micro-batches that it gives back know their part: the sum of what `loss` then says of them has the value
        and the gradient of the joint loss times the update's weight. What is drawn from the global random generators
        here belongs to the update, so a run that is resumed between two updates stays exact.
        """
