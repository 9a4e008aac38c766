"""One optimizer step: gradients of all micro-batches, clipping, a step at the scheduled rate.

Each of several processes takes a part of the micro-batches; gradients are summed over all processes before the step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bothways.devices import has_bfloat16
from bothways.errors import InvalidInput, OutOfMemory
from bothways.inference.runner import is_out_of_memory
from bothways.training.objective import JointLoss, MicroBatch, Objective, Payload, Update
from bothways.training.optimizers import NamedOptimizer
from bothways.training.options import TrainingOptions, rate_fraction, warmup_updates
from bothways.training.parameters import WholeParameters
from bothways.training.workers import Workers


@dataclass(frozen=True, slots=True)
class Step:
    """Results of one step; the tensors are scalars on the device.

    Attributes:
        update: Number of the update, from 1.
        loss: Mean loss per unit.
        gradient_norm: 2-norm of the gradient before clipping.
        weight: Number of units.
    """

    update: int
    loss: Tensor
    gradient_norm: Tensor
    learning_rate: float
    weight: float
    tokens: int


class Stepper:
    """Takes the steps of a run of ``total`` updates.

    Raises:
        InvalidInput: Learning rate or precision are not chosen, or the device does not support the precision.
    """

    def __init__(
        self, optimizer: NamedOptimizer, options: TrainingOptions, total: int, workers: Workers, layout: WholeParameters
    ) -> None:
        if options.learning_rate is None or options.precision is None:
            raise InvalidInput(
                f"expected a learning rate and a precision, got {options.learning_rate} and {options.precision}: pass "
                "options.resolved(hidden, device)."
            )
        self._optimizer = optimizer
        self._options = options
        self._workers = workers
        self._layout = layout
        self._peak_rate = options.learning_rate
        self._total = total
        self._warmup = warmup_updates(total, options.warmup_fraction)
        self._device = optimizer.parameters[0].device
        if options.precision == "bfloat16" and self._device.type == "cuda" and not has_bfloat16(self._device):
            raise InvalidInput("this GPU only emulates bfloat16, which is slow: train with precision='float32'.")

    def step(self, objective: Objective[Payload], update: Update[Payload], done: int) -> Step:
        """Take step ``done + 1``.

        Raises:
            InvalidInput: The update has no units.
        """
        options, weight = self._options, update.weight
        if not weight > 0.0:
            raise InvalidInput(f"expected an update with a weight above 0, got {weight} in update {done + 1}.")
        learning_rate = self._peak_rate * rate_fraction(options.schedule, done, warmup=self._warmup, total=self._total)
        loss = self._backward(objective, update, weight)
        gradient_norm = self._optimizer.clip(options.max_gradient_norm)
        # Decided on the device, without synchronisation.
        finite = (gradient_norm + loss).isfinite() if options.skipped_updates else None
        self._optimizer.step(learning_rate, finite)
        return Step(done + 1, loss, gradient_norm, learning_rate, weight, update.tokens)

    def _backward(self, objective: Objective[Payload], update: Update[Payload], weight: float) -> Tensor:
        """Compute the gradients of the update's mean loss, by micro-batches; return the mean on its device."""
        total = torch.zeros((), device=self._device)
        if isinstance(objective, JointLoss):
            with self._fitting(max(micro_batch.tokens for micro_batch in update.micro_batches)), self._precision():
                update = self._layout.run(partial(objective.joined, update))
        for micro_batch, counted in self._own(update):
            with self._fitting(micro_batch.tokens):
                with self._precision():
                    loss = self._layout.run(partial(objective.loss, micro_batch.payload))
                mean = loss.float() / weight * counted
                # FSDP averages gradients over the processes.
                torch.autograd.backward(mean * self._workers.count if self._layout.sharded else mean)
            total += mean.detach()
        if self._layout.sharded:
            self._workers.add([total])
        elif self._workers.count > 1:
            self._add_up(total)
        return total

    def _own(self, update: Update[Payload]) -> Iterator[tuple[MicroBatch[Payload], float]]:
        """Yield the micro-batches of this process, each with the factor of its loss.

        Sharded processes must compute equally many, so one without a last micro-batch repeats another with factor 0.
        """
        own = update.micro_batches[self._workers.rank :: self._workers.count]
        yield from ((each, 1.0) for each in own)
        if self._layout.sharded and len(own) * self._workers.count < len(update.micro_batches):
            yield update.micro_batches[-1], 0.0

    def _add_up(self, total: Tensor) -> None:
        """Sum gradients and loss over the processes; a parameter has a gradient if it has one in any process."""
        parameters = self._optimizer.parameters
        known = torch.tensor([float(each.grad is not None) for each in parameters])
        self._workers.add([known])
        reached = [each for each, processes in zip(parameters, known.tolist(), strict=True) if processes]
        for each in reached:
            if each.grad is None:
                each.grad = torch.zeros_like(each)
        self._workers.add([total, *(each.grad for each in reached if each.grad is not None)])

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._options.precision == "bfloat16")

    @contextmanager
    def _fitting(self, tokens: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"a training batch of {tokens:,} tokens does not fit into the memory of {self._device}. Lower its "
                f"token budget, for instance max_tokens={max(1, tokens // 2)}, or max_length."
            ) from error
