"""Parts used throughout an encoder: activations, dropout, norm, embedding tables, and recomputation.

Dropout (Srivastava et al. 2014, JMLR 15) must not slow down training on a CPU. torch draws one random float for each
element, which takes 9 ns and uses one core only. Sixteen random bits suffice, and one draw gives enough for four
elements: 2 ns each.

Recomputed activations are not kept for the backward pass. Gradients are the same bit for bit: the same operations run
on the same values, with the same random numbers.

Shapes: T rows, H hidden.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from bothways.encoder.config import Activation, EncoderConfig


def _gelu_tanh(values: Tensor) -> Tensor:
    return F.gelu(values, approximate="tanh")


def _gelu_tanh_in_place(values: Tensor) -> Tensor:
    overwritten: Tensor = torch.ops.aten.gelu_(values, approximate="tanh")
    return overwritten


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": Tensor.tanh,
}

IN_PLACE_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": _gelu_tanh_in_place,
    "relu": torch.ops.aten.relu_,
    "silu": torch.ops.aten.silu_,
    "tanh": torch.ops.aten.tanh_,
}

_LEVELS = 1 << 16


def dropout(values: Tensor, rate: float) -> Tensor:
    """Zero elements with probability ``rate`` and scale up the rest, so that the expectation is unchanged.

    On a CPU the rate is rounded to a multiple of 1 / 65,536, both for zeroing and for scaling.
    """
    if values.device.type != "cpu":
        return F.dropout(values, rate)
    return values * _kept(values, rate).mul_(kept_scale(values, rate)) if round(rate * _LEVELS) else values


def mark_dropped(values: Tensor, rate: float) -> Tensor:
    """Negate the dropped elements of a non-negative tensor in place; a dropped zero becomes a negative zero.

    One tensor thus holds the values and the dropout mask. Kept values are not scaled here, see `kept_scale`.
    """
    return torch.copysign(values, _kept(values, rate).sub_(0.5), out=values)


def kept_scale(values: Tensor, rate: float) -> float:
    """Return the factor that scales up the kept elements; 0 if none is kept."""
    rate = round(rate * _LEVELS) / _LEVELS if values.device.type == "cpu" else rate
    return 1.0 / (1.0 - rate) if rate < 1.0 else 0.0


def _kept(values: Tensor, rate: float) -> Tensor:
    """Return 0 for dropped and 1 for kept elements."""
    if values.device.type != "cpu":
        return (torch.rand_like(values, dtype=torch.float32) >= rate).to(values.dtype)
    dropped, count = round(rate * _LEVELS), values.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    levels = draws.view(torch.int16)[:count].view(values.shape)
    # Compare straight into the dtype of the values: an extra boolean tensor would take a third of the time.
    kept = torch.empty(values.shape, dtype=values.dtype)
    if dropped == _LEVELS:
        return kept.zero_()
    return torch.ge(levels, dropped - _LEVELS // 2, out=kept)


class Dropout(nn.Module):
    """`dropout` while training, the identity otherwise."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        return dropout(values, self.rate) if self.training and self.rate else values


class Norm(nn.LayerNorm):
    """`torch.nn.LayerNorm` without its checks of the arguments, which take as long as the norm of a short text."""

    def forward(self, hidden_TH: Tensor) -> Tensor:
        return torch.layer_norm(hidden_TH, self.normalized_shape, self.weight, self.bias, self.eps)


def norm(config: EncoderConfig) -> Norm:
    """Return a new layer norm of hidden states with the configured epsilon and bias."""
    return Norm(config.hidden, eps=config.norm.eps, bias=config.norm.bias)


class EmbeddingTable(nn.Embedding):
    """A `torch.nn.Embedding` with weights drawn by `bothways.encoder.encoder.initialize`."""

    def reset_parameters(self) -> None:
        pass


class FunctionContext(Protocol):
    """The context of a `torch.autograd.Function`, for which torch has no type."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for the backward pass."""


Value = TypeVar("Value")

# True inside a `checkpointed` function, whose activations are all recomputed anyway.
_AS_A_WHOLE: ContextVar[bool] = ContextVar("as_a_whole", default=False)


def checkpointed(function: Callable[[Tensor, Tensor | None], Value], first: Tensor, second: Tensor | None) -> Value:
    """Call a function and keep only its inputs for the backward pass, which calls the function once more.

    Activation checkpointing (Chen et al. 2016, arXiv:1604.06174). `torch.utils.checkpoint.checkpoint` does the same,
    but imports torch's compiler, which takes a second and 50 MB. The function may draw random numbers on the device of
    its inputs; everything else that it reads must not change.
    """
    region = _Region(function, (first, second))
    with _as_a_whole(), saved_tensors_hooks(region.pack, region.unpack):
        return function(first, second)


def computed_again(value: Tensor, again: Callable[[], Tensor], use: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``use(value)``, whose backward pass recomputes the value instead of keeping it.

    ``again`` recomputes it from tensors that are kept anyway.
    """
    if _AS_A_WHOLE.get() or not value.requires_grad:
        return use(value)
    storage, shape = value.untyped_storage()._cdata, value.shape

    def pack(each: Tensor) -> Tensor | Callable[[], Tensor]:
        return again if each.untyped_storage()._cdata == storage and each.shape == shape else each

    def unpack(packed: Tensor | Callable[[], Tensor]) -> Tensor:
        return packed if isinstance(packed, Tensor) else packed()

    with saved_tensors_hooks(pack, unpack):
        return use(value)


class _Region(Generic[Value]):
    """One run of a function, whose saved tensors are recomputed by a second run when the backward pass needs them.

    Each saved tensor is replaced by a placeholder: its index in the order in which the operations save tensors.
    """

    def __init__(
        self, function: Callable[[Tensor, Tensor | None], Value], inputs: tuple[Tensor, Tensor | None]
    ) -> None:
        self._function, self._inputs = function, inputs
        self._device = inputs[0].device
        self._random = _random_state(self._device)
        kind = self._device.type
        self._precision = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self._places = 0
        self._computed: dict[int, Tensor] = {}

    def pack(self, _: Tensor) -> int:
        self._places += 1
        return self._places - 1

    def unpack(self, place: int) -> Tensor:
        if place not in self._computed:  # the first one, or a second backward pass
            self._compute()
        return self._computed.pop(place)

    def _compute(self) -> None:
        first, second = self._inputs
        self._computed.clear()
        now = _random_state(self._device)
        _set_random_state(self._device, self._random)
        run = saved_tensors_hooks(self._keep, _nothing)
        try:
            with torch.enable_grad(), torch.autocast(*self._precision), _as_a_whole(), run:
                self._function(_alone(first), None if second is None else _alone(second))
        finally:
            _set_random_state(self._device, now)

    def _keep(self, value: Tensor) -> None:
        self._computed[len(self._computed)] = value.detach()


def _alone(value: Tensor) -> Tensor:
    """Return the tensor as a new leaf, so that the second run's gradients stop there."""
    return value.detach().requires_grad_(value.requires_grad)


def _nothing(_: None) -> Tensor:
    raise AssertionError("the second run has no backward pass of its own")


@contextmanager
def _as_a_whole() -> Iterator[None]:
    before = _AS_A_WHOLE.set(True)
    try:
        yield
    finally:
        _AS_A_WHOLE.reset(before)


def _random_state(device: torch.device) -> Tensor:
    match device.type:
        case "cuda":
            return torch.cuda.get_rng_state(device)
        case "mps":
            return torch.mps.get_rng_state()
        case _:
            return torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    match device.type:
        case "cuda":
            torch.cuda.set_rng_state(state, device)
        case "mps":
            torch.mps.set_rng_state(state)
        case _:
            torch.set_rng_state(state)
