"""The layout of a module's parameters over the processes of a run: whole in each, or divided among them.

Divided by FSDP2 (``torch.distributed.fsdp.fully_shard``; Zhao et al. 2023, arXiv:2304.11277), each process keeps its
part of every parameter, gradient and moment of the optimizer. A layer's weights are whole only while it computes,
those of embeddings and heads during a forward and backward pass, and all of them during a validation.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor, nn

from bothways.encoder.layer import PostNormLayer, PreNormLayer
from bothways.training.workers import Workers

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

Value = TypeVar("Value")


class ParameterLayout(Protocol):
    """A layout of parameters.

    Attributes:
        sharded: Whether the parameters are divided.
    """

    @property
    def sharded(self) -> bool: ...  # noqa: D102 (above)

    def run(self, compute: Callable[[], Value]) -> Value:
        """Return what ``compute`` does with the module in training; sharded, all processes call it alike often."""

    def run_whole(self, compute: Callable[[], Value]) -> Value:
        """Return what ``compute`` does without gradients; it runs the module at will, but reads no ``state_dict``."""

    def undo(self) -> None:
        """Give the module whole parameters again; sharded, all processes call it together."""


class WholeParameters:
    """Whole parameters in each process."""

    sharded = False

    def run(self, compute: Callable[[], Value]) -> Value:
        """Return what ``compute`` does."""
        return compute()

    run_whole = run

    def undo(self) -> None:
        """Leave the parameters as they are."""


class Sharded:
    """Parameters divided among the processes of torch's default group.

    Args:
        module: Holds the same whole parameters in each process; they are replaced by divided ones.
        workers: The processes.
    """

    sharded = True

    def __init__(self, module: nn.Module, workers: Workers) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        self._whole = [
            (owner, name, parameter)
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None
        ]
        self._layers = [each for each in module.modules() if isinstance(each, PostNormLayer | PreNormLayer)]
        # What FSDP adds to a layer: hooks, a state, and another class.
        self._before = [(each, type(each), _copied(each.__dict__)) for each in self._layers]
        mesh = init_device_mesh(self._whole[0][2].device.type, (workers.count,))
        self._root = _Root(module)
        self._parts: list[FSDPModule] = [fully_shard(each, mesh=mesh) for each in (*self._layers, self._root)]
        for layer in self._layers:
            register_fsdp_forward_method(layer, "two_streams")
        for _, _, parameter in self._whole:
            parameter.data = parameter.new_empty(0)

    def run(self, compute: Callable[[], Value]) -> Value:
        """Return what ``compute`` does, with the parameters outside layers whole until its backward pass ends."""
        result: Value = self._root(compute)
        return result

    def run_whole(self, compute: Callable[[], Value]) -> Value:
        """Return what ``compute`` does, with all parameters whole meanwhile."""

        def gathered() -> Value:
            for each in self._parts:
                each.unshard()
            return compute()

        self._reshard_after_forward(False)
        try:
            return self.run(gathered)
        finally:
            self._reshard()
            self._reshard_after_forward(True)

    def undo(self) -> None:
        """Give the module its former parameters back, with the values of now; a second call does nothing."""
        if not self._whole:
            return
        self._reshard()
        with torch.no_grad():
            for owner, name, parameter in self._whole:
                if not parameter.numel():  # a tied one has it already
                    parameter.data = whole(getattr(owner, name)).detach()
        for layer, kind, attributes in self._before:
            layer.__class__ = kind
            layer.__dict__.clear()
            layer.__dict__.update(attributes)
        for owner, name, parameter in self._whole:
            owner._parameters[name] = parameter
        self._whole = []

    def _reshard(self) -> None:
        for each in self._parts:
            each.reshard()

    def _reshard_after_forward(self, wanted: bool) -> None:
        for layer in self._parts[:-1]:
            layer.set_reshard_after_forward(wanted)


class _Root(nn.Module):
    """The module of a run, called with whatever is to be computed by it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, compute: Callable[[], Value]) -> Value:
        return compute()


def laid_out(module: nn.Module, workers: Workers, *, shard: bool) -> ParameterLayout:
    """Lay the parameters of a module out over the processes; there is nothing to divide in one."""
    return Sharded(module, workers) if shard and workers.count > 1 else WholeParameters()


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a process holds only a part of a tensor."""
    return hasattr(tensor, "placements")


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor; of a divided one, all processes call it together."""
    if not is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()


def divided_like(value: Tensor, like: Tensor) -> Tensor:
    """Return the part of a whole tensor that this process holds of another one of its shape."""
    if not is_sharded(like) or is_sharded(value):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    # Each process has the value: none is sent.
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _copied(attributes: dict[str, object]) -> dict[str, object]:
    """Return a module's attributes with its tables of hooks and parameters as they are now."""
    return {name: type(value)(value) if isinstance(value, dict) else value for name, value in attributes.items()}
