"""Activations that are recomputed for the backward pass instead of being kept for it.

Gradients are the same bit for bit: the same operations run on the same numbers, with the same random numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

Value = TypeVar("Value")

# True while a function runs that is computed again as a whole.
_AS_A_WHOLE: ContextVar[bool] = ContextVar("as_a_whole", default=False)


def checkpointed(function: Callable[[Tensor, Tensor | None], Value], first: Tensor, second: Tensor | None) -> Value:
    """Call a function, keeping only its inputs for the backward pass, which calls it once more.

    Activation checkpointing (Chen et al. 2016, arXiv:1604.06174). `torch.utils.checkpoint.checkpoint` does the same,
    but imports torch's compiler, which takes a second and 50 MB.

    Args:
        function: Draws random numbers only on the device of its inputs. Everything else that it reads must not change.
        first: An input.
        second: Another input, if there is one.
    """
    region = _Region(function, (first, second))
    with _as_a_whole(), saved_tensors_hooks(region.pack, region.unpack):
        return function(first, second)


def computed_again(value: Tensor, again: Callable[[], Tensor], use: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``use(value)``, whose backward pass recomputes the value instead of keeping it.

    Args:
        value: A value that is cheap to compute.
        again: Recomputes it from tensors that are kept anyway.
        use: Computes the result from it.
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
    """One run of a function, whose operations get their saved values from a second run.

    Each tensor to keep is replaced by a placeholder: its number in the order in which the operations save tensors.
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
    """Return the same values as leaves, at which the gradients of a second run end."""
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
