"""Optimizer steps: gradient accumulation, clipping, and learning rate and weight decay per parameter.

If a run has several processes, each computes some of the micro-batches, and gradients are summed before the step.

Weight decay is decoupled from the gradient (Loshchilov & Hutter 2017, arXiv:1711.05101, algorithm 2) and applies to
weight matrices and embeddings only. Tensors of fewer than two dimensions (biases, gains of norms) have no decay.

With layer-wise decay, a parameter's learning rate is the schedule's rate times decay ** distance, with the distance
from the head as in the published code of ELECTRA (Clark et al. 2020, arXiv:2003.10555; google-research/electra,
model/optimization.py):

    head                        0
    norm after the last layer   1
    layer l = 1 ... L           L + 2 - l, so 2 for the last one
    embedding                   L + 2

ELECTRA has nothing at distance 1. Position embeddings shared by all layers and a convolution beside the first layer
(DeBERTa) have the distance of the embedding. Weights shared by several layers (ALBERT) have that of the last layer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn

from bothways.devices import has_bfloat16
from bothways.encoder.encoder import Encoder
from bothways.errors import CorruptCheckpoint, InvalidInput, OutOfMemory
from bothways.inference.runner import is_out_of_memory
from bothways.training.objective import JointLoss, MicroBatch, Objective, Payload, Update
from bothways.training.options import AdamW, TrainingOptions, rate_fraction, warmup_updates
from bothways.training.workers import WholeParameters, Workers, divided_like, whole

# Device types with a fused AdamW in torch. A step over the 22.6 M parameters of a MiniLM on two CPU cores takes 11 ms,
# against 46 ms for foreach and 43 ms for the plain loop.
_FUSED = ("cpu", "cuda")
_STEP = "step"
_KINDS = {"exp_avg", "exp_avg_sq", _STEP}


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Names of parameters with the same weight decay and ``rate``, a factor of the scheduled learning rate."""

    names: tuple[str, ...]
    weight_decay: float
    rate: float = 1.0


def parameter_groups(
    module: nn.Module, weight_decay: float, layer_decay: float | None = None
) -> tuple[ParameterGroup, ...]:
    """Group the trainable parameters of a module: those with weight decay first, then by distance from the head.

    A parameter tied to two names appears once. ``layer_decay`` is the factor by which the learning rate falls from a
    layer to the one below it; None: the same rate everywhere.
    """
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not trained:
        raise InvalidInput("expected a parameter with requires_grad=True, got none: there is nothing to train.")
    found = distances(module) if layer_decay is not None else {}
    members: dict[tuple[bool, int], list[str]] = {}
    for name, parameter in trained:
        members.setdefault((parameter.ndim < 2, found.get(parameter, 0)), []).append(name)
    factor = 1.0 if layer_decay is None else layer_decay
    return tuple(
        ParameterGroup(tuple(members[is_small, distance]), 0.0 if is_small else weight_decay, factor**distance)
        for is_small, distance in sorted(members)
    )


def distances(module: nn.Module) -> Mapping[nn.Parameter, int]:
    """Return each encoder parameter's distance from the head; the smaller one if two encoders share it."""
    encoders = [each for each in module.modules() if isinstance(each, Encoder)]
    if not encoders:
        raise InvalidInput("layer_decay needs a module with an encoder, got none: leave layer_decay out.")
    found: dict[nn.Parameter, int] = {}
    for encoder in encoders:
        last = len(encoder.steps) // encoder.inner
        own = dict.fromkeys(encoder.parameters(), last + 2) | dict.fromkeys(encoder.final_norm.parameters(), 1)
        for step, place in enumerate(encoder.steps):
            own.update(dict.fromkeys(encoder.layers[place].parameters(), last + 1 - step // encoder.inner))
        found.update({parameter: min(each, found.get(parameter, each)) for parameter, each in own.items()})
    return found


class _AdamW(torch.optim.AdamW):
    found_inf: Tensor | None = None
    """The fused kernels skip the step if this is 1."""


class NamedOptimizer:
    """AdamW or LAMB over the parameter groups of a module; its state is a flat mapping of named tensors."""

    def __init__(self, module: nn.Module, options: TrainingOptions) -> None:
        named = dict(module.named_parameters())
        chosen = options.optimizer
        groups = parameter_groups(module, chosen.weight_decay, options.layer_decay)
        self.names = [name for group in groups for name in group.names]
        self.parameters: list[nn.Parameter] = [named[name] for name in self.names]
        self._rows = RowGradients(self.parameters)
        self._fused = isinstance(chosen, AdamW) and all(each.device.type in _FUSED for each in self.parameters)
        held: list[dict[str, Any]] = [
            {"params": [named[name] for name in group.names], "weight_decay": group.weight_decay} for group in groups
        ]
        self._rates = [group.rate for group in groups]
        self._optimizer: torch.optim.Optimizer = (
            _AdamW(held, betas=chosen.betas, eps=chosen.eps, fused=self._fused or None)
            if isinstance(chosen, AdamW)
            else _Lamb(held, chosen.betas, chosen.eps)
        )

    def clip(self, max_norm: float | None) -> Tensor:
        """Clip the joint 2-norm of the gradients to ``max_norm``; return the norm before clipping, on the device."""
        return clip_gradients(self._rows.compact(), max_norm)

    def step(self, learning_rate: float, finite: Tensor | None = None) -> None:
        """Take a step unless ``finite`` is False, and free the gradients; each group scales ``learning_rate``."""
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = learning_rate * rate
        if self._fused and isinstance(self._optimizer, _AdamW):
            # The fused kernels read this on the device, without synchronisation.
            self._optimizer.found_inf = None if finite is None else (~finite).float()
        if finite is None or self._fused or finite:
            self._rows.spread()
            self._optimizer.step()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Free the gradients."""
        self._rows.clear()
        self._optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return the state tensors (not copies) by ``"<kind>/<parameter name>"``."""
        return {
            f"{kind}/{name}": value
            for name, parameter in zip(self.names, self.parameters, strict=True)
            for kind, value in self._optimizer.state.get(parameter, {}).items()
        }

    def load(self, state: dict[str, Tensor], updates: int) -> None:
        """Load a `state` that was taken after ``updates`` updates."""
        loaded: dict[nn.Parameter, dict[str, Tensor]] = {}
        named = dict(zip(self.names, self.parameters, strict=True))
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if name not in named or (kind != _STEP and value.shape != named[name].shape):
                raise CorruptCheckpoint(
                    f"the optimizer state {key!r} of shape {tuple(value.shape)} matches no trained parameter. "
                    "Resume with the model that was checkpointed."
                )
            # Step counters stay on the CPU, except for the fused kernels.
            device = named[name].device if self._fused or kind != _STEP else torch.device("cpu")
            part = value if kind == _STEP else divided_like(value, named[name])
            loaded.setdefault(named[name], {})[kind] = part.to(device, copy=True)
        for parameter, values in loaded.items():
            step = values.get(_STEP)
            if values.keys() != _KINDS or step is None or step.numel() != 1 or float(step) not in range(updates + 1):
                raise CorruptCheckpoint(
                    f"the optimizer state of a parameter of shape {tuple(parameter.shape)} must have {sorted(_KINDS)}, "
                    f"with a step of at most {updates}, but it has {sorted(values)}, with step {step}. Remove the "
                    "checkpoint folder and train again."
                )
        self._optimizer.state.clear()
        for parameter, values in loaded.items():
            self._optimizer.state[parameter] = values


def clip_gradients(gradients: Sequence[Tensor], max_norm: float | None) -> Tensor:
    """Clip the joint 2-norm of gradients in place; return the norm before clipping, on their device."""
    norm = whole(torch.nn.utils.get_total_norm(gradients))
    if max_norm is not None:
        # As in torch.nn.utils.clip_grad_norm_, which takes parameters and would miss the rows of sparse gradients.
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(list(gradients), scale)  # one launch on a GPU
    return norm


class _Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2019, arXiv:1904.00962, algorithm 2): Adam's step, scaled per tensor by the norm of its weights.

    It allows a large learning rate with batches of thousands of sequences. Tensors of fewer than two dimensions (biases
    and gains of norms) are not scaled, as in the code of ALBERT, which was pre-trained with LAMB.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        value = None if closure is None else closure()
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            if parameters:
                self._move(parameters, group)
        return value

    def _move(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        (beta1, beta2), states = group["betas"], [self._state_of(each) for each in parameters]
        gradients = [each.grad for each in parameters if each.grad is not None]
        means, squares, steps = ([state[kind] for state in states] for kind in ("exp_avg", "exp_avg_sq", "step"))
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        done = [float(step) for step in steps]
        moves = torch._foreach_div(squares, [1 - beta2**step for step in done])
        torch._foreach_sqrt_(moves)
        torch._foreach_add_(moves, group["eps"])
        torch._foreach_reciprocal_(moves)
        torch._foreach_mul_(moves, means)
        torch._foreach_div_(moves, [1 - beta1**step for step in done])
        torch._foreach_add_(moves, parameters, alpha=group["weight_decay"])
        for parameter, move in zip(parameters, moves, strict=True):
            if parameter.ndim >= 2:  # |weights| / |step|, or 1 if either is zero
                weights, length = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(move)
                ratio = weights / length.clamp(min=1e-38)
                move.mul_(torch.where((weights > 0) & (length > 0), ratio, torch.ones_like(weights)))
        torch._foreach_add_(parameters, moves, alpha=-group["lr"])

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


@contextmanager
def sparse_tables(module: nn.Module) -> Iterator[None]:
    """Use sparse gradients for embedding tables on a CPU while the block runs.

    A batch uses a few hundred rows of a table of tens of thousands, but a dense gradient has all rows, and allocating
    and zeroing it takes 85 ms of a 690 ms step for MiniLM with 32 sentences.
    """
    tables = [
        part
        for part in module.modules()
        if isinstance(part, nn.Embedding) and part.weight.device.type == "cpu" and not part.sparse
    ]
    for table in tables:
        table.sparse = True
    try:
        yield
    finally:
        for table in tables:
            table.sparse = False


class RowGradients:
    """Turns sparse gradients into dense ones, in reused buffers of which only the filled rows are zeroed."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._buffers: dict[nn.Parameter, Tensor] = {}
        self._touched: dict[nn.Parameter, Tensor] = {}

    def compact(self) -> list[Tensor]:
        """Return views of all gradients; of sparse ones, only the filled rows, with duplicate rows summed."""
        for parameter in self._parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        return [gradient.values() if gradient.is_sparse else gradient for gradient in gradients]

    def spread(self) -> None:
        """Replace each sparse gradient by the equal dense one."""
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is None or not gradient.is_sparse:
                continue
            gradient = gradient.coalesce()
            rows = gradient.indices()[0]
            if parameter not in self._buffers:
                self._buffers[parameter] = torch.zeros_like(parameter)
            buffer = self._buffers[parameter]
            buffer.index_copy_(0, rows, gradient.values())
            # torch refuses to replace a sparse gradient by a dense one in one assignment.
            parameter.grad = None
            parameter.grad = buffer
            self._touched[parameter] = rows

    def clear(self) -> None:
        """Zero the rows that `spread` filled; call this before the gradients are freed."""
        for parameter, rows in self._touched.items():
            self._buffers[parameter].index_fill_(0, rows, 0.0)
        self._touched.clear()


@dataclass(frozen=True, slots=True)
class Step:
    """Statistics of one update, numbered from 1; `loss` (mean per unit) and `gradient_norm` stay on the device."""

    update: int
    loss: Tensor
    gradient_norm: Tensor
    learning_rate: float
    weight: float
    tokens: int


class Stepper:
    """Runs the optimizer steps of a training of ``total`` updates."""

    def __init__(
        self, optimizer: NamedOptimizer, options: TrainingOptions, total: int, workers: Workers, layout: WholeParameters
    ) -> None:
        if options.learning_rate is None or options.precision is None:
            raise InvalidInput(
                f"expected a learning rate and a precision, got {options.learning_rate} and {options.precision}: pass "
                "resolved(options, hidden, device)."
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
        """Run one optimizer step; ``done`` is the number of steps before it."""
        options, weight = self._options, update.weight
        if not weight > 0.0:
            raise InvalidInput(f"expected an update with a weight above 0, got {weight} in update {done + 1}.")
        learning_rate = self._peak_rate * rate_fraction(options.schedule, done, warmup=self._warmup, total=self._total)
        loss = self._backward(objective, update, weight)
        gradient_norm = self._optimizer.clip(options.max_gradient_norm)
        # Computed on the device, without synchronisation.
        finite = (gradient_norm + loss).isfinite() if options.skipped_updates else None
        self._optimizer.step(learning_rate, finite)
        return Step(done + 1, loss, gradient_norm, learning_rate, weight, update.tokens)

    def _backward(self, objective: Objective[Payload], update: Update[Payload], weight: float) -> Tensor:
        """Compute the gradients of the update's mean loss, one micro-batch at a time; return the loss on the device."""
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
        """Yield the micro-batches of this process, each with a factor for its loss.

        Sharded processes must run equally many, so a process with one fewer runs the update's last with factor 0.
        """
        own = update.micro_batches[self._workers.rank :: self._workers.count]
        yield from ((each, 1.0) for each in own)
        if self._layout.sharded and len(own) * self._workers.count < len(update.micro_batches):
            yield update.micro_batches[-1], 0.0

    def _add_up(self, total: Tensor) -> None:
        """Sum gradients and loss over the processes; a missing gradient counts as 0 if another process has one."""
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
                f"a training batch of {tokens:,} tokens does not fit into the memory of {self._device}. Lower the "
                f"token budget, for instance to max_tokens={max(1, tokens // 2)}, or lower max_length."
            ) from error
