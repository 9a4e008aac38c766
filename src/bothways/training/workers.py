"""Data parallelism: the processes of a run, and the sharding of a module's parameters over them.

Each of n processes holds the model and builds the whole update, which depends only on the seed and the update's number.
It computes every n-th micro-batch, and gradients are summed before the step, so the weights stay equal in all
processes. Results do not depend on the number of processes, except for rounding and dropout.

With FSDP2 (``torch.distributed.fsdp.fully_shard``; Zhao et al. 2023, arXiv:2304.11277), each process keeps its shard of
every parameter, gradient and moment. The weights of a layer are gathered while it computes, those of embeddings and
heads for a forward and backward pass, and all of them for a validation.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, distributed, nn

from bothways.encoder.encoder import PostNormLayer, PreNormLayer
from bothways.errors import PROCESS_ENDED, IncompatibleWeights, WorkerLost

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


Value = TypeVar("Value")
Weights = dict[str, Tensor]

# Parts of torch's error messages if FSDP loses a process.
LOST = ("gloo/", "NCCL", "Connection ")

# Long enough for one process to encode a corpus while the others wait; a dead process closes its connections anyway.
PATIENCE = timedelta(days=2)


class Workers:
    """The processes of a run; this base class is a single process. ``rank`` counts from 0."""

    rank = 0
    count = 1

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over the processes."""

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank."""
        return [value]


class ProcessGroup(Workers):
    """The processes of torch's default group, which must be initialised."""

    def __init__(self) -> None:
        self.rank = distributed.get_rank()
        self.count = distributed.get_world_size()

    def add(self, tensors: Sequence[Tensor]) -> None:
        for kind in {each.dtype for each in tensors}:
            alike = [each for each in tensors if each.dtype == kind]
            flat = torch.cat([each.reshape(-1) for each in alike])
            with naming_losses():
                distributed.all_reduce(flat)
            parts = torch.split(flat, [each.numel() for each in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def gather(self, value: Value) -> list[Value]:
        found: list[Value | None] = [None] * self.count
        with naming_losses():
            distributed.all_gather_object(found, value)
        return [each for each in found if each is not None]


def share(module: nn.Module, workers: Workers) -> None:
    """Copy the weights of the first process to all; initial weights may differ in rounding between machines."""
    if workers.count == 1:
        return
    with torch.no_grad():
        held = [each for each in (*module.parameters(), *module.buffers()) if each.is_floating_point()]
        if workers.rank:
            for each in held:
                each.zero_()
        workers.add(held)


def current_workers() -> Workers:
    """Return the processes of torch's default group, or a single process."""
    if distributed.is_available() and distributed.is_initialized():
        return ProcessGroup()
    return Workers()


@contextmanager
def joined() -> Iterator[Workers]:
    """Join the process group of ``torchrun`` for the block, if the program was started by it.

    Raises:
        WorkerLost: Another process is missing or has ended.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield current_workers()
        return
    # The first optimizer imports this. If imported while a group exists, it keeps that group's threads alive, and a
    # thread that outlives the interpreter aborts the process at exit.
    import torch._dynamo

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with naming_losses():
        distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=PATIENCE)
    try:
        yield ProcessGroup()
    finally:
        distributed.destroy_process_group()


@contextmanager
def naming_losses(*signs: str) -> Iterator[None]:
    """Raise `WorkerLost` for a RuntimeError in the block; with ``signs``, only if its message contains one of them."""
    try:
        yield
    except RuntimeError as error:
        if signs and not any(sign in str(error) for sign in signs):
            raise
        raise WorkerLost(
            f"{PROCESS_ENDED} ({str(error).splitlines()[0]}). Look for the cause in its output, "
            "then resume the run (resume=True, --resume)."
        ) from error


class WholeParameters:
    """The unsharded layout: each process holds all parameters."""

    sharded = False
    """True if each process holds only a shard of the parameters."""

    def run(self, compute: Callable[[], Value]) -> Value:
        """Call ``compute`` for training; if parameters are sharded, all processes must call this equally often."""
        return compute()

    def run_whole(self, compute: Callable[[], Value]) -> Value:
        """Call ``compute`` without gradients, with all parameters gathered; it must not read the ``state_dict``."""
        return compute()

    def undo(self) -> None:
        """Restore unsharded parameters; if they are sharded, all processes must call this together."""


class Sharded(WholeParameters):
    """The layout of FSDP2: parameters are sharded over the processes of torch's default group."""

    sharded = True

    def __init__(self, module: nn.Module, workers: Workers) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self._whole = [
            (owner, name, parameter)
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None
        ]
        self._layers = [each for each in module.modules() if isinstance(each, PostNormLayer | PreNormLayer)]
        # FSDP changes the class of a layer and adds hooks and a state; keep the originals for `undo`.
        self._before = [
            (
                each,
                type(each),
                {name: type(one)(one) if isinstance(one, dict) else one for name, one in vars(each).items()},
            )
            for each in self._layers
        ]
        mesh = init_device_mesh(self._whole[0][2].device.type, (workers.count,))
        self._root = _Root(module)
        self._parts: list[FSDPModule] = [fully_shard(each, mesh=mesh) for each in (*self._layers, self._root)]
        for _, _, parameter in self._whole:
            parameter.data = parameter.new_empty(0)

    def run(self, compute: Callable[[], Value]) -> Value:
        """Call ``compute``; parameters outside the layers stay gathered until its backward pass ends."""
        result: Value = self._root(compute)
        return result

    def run_whole(self, compute: Callable[[], Value]) -> Value:
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
        """Restore the module's own parameters with the current values; a second call does nothing."""
        if not self._whole:
            return
        self._reshard()
        with torch.no_grad():
            for owner, name, parameter in self._whole:
                if not parameter.numel():  # tied parameters are restored already
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

    def _reshard_after_forward(self, enabled: bool) -> None:
        for layer in self._parts[:-1]:
            layer.set_reshard_after_forward(enabled)


class _Root(nn.Module):
    """Wraps the module of a run; its forward pass calls a function."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, compute: Callable[[], Value]) -> Value:
        return compute()


def laid_out(module: nn.Module, workers: Workers, *, shard: bool) -> WholeParameters:
    """Return the layout of a module's parameters; ``shard`` has no effect in a single process."""
    return Sharded(module, workers) if shard and workers.count > 1 else WholeParameters()


def is_sharded(tensor: Tensor) -> bool:
    """Return True if this process holds a shard of the tensor."""
    return hasattr(tensor, "placements")


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor; if it is sharded, all processes must call this together."""
    if not is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()


def divided_like(value: Tensor, like: Tensor) -> Tensor:
    """Return the shard of a whole tensor that corresponds to the shard ``like``."""
    if not is_sharded(like) or is_sharded(value):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    # Each process has the whole value, so nothing is sent.
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def live_weights(module: nn.Module) -> Weights:
    """Return parameters and persistent buffers (not copies) by name; tied tensors have their first name only."""
    first = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    return {name: value for name, value in module.state_dict().items() if name in first}


def copy_weights(module: nn.Module, over: Weights | None = None) -> Weights:
    """Copy the weights to the CPU, reusing the memory of an older copy ``over`` where possible."""
    return {name: _copied_over(value.detach(), (over or {}).get(name)) for name, value in live_weights(module).items()}


def _copied_over(value: Tensor, over: Tensor | None) -> Tensor:
    if over is None or is_sharded(value) or is_sharded(over) or (over.shape, over.dtype) != (value.shape, value.dtype):
        return value.to("cpu", copy=True)
    return over.copy_(value)


def restore_weights(module: nn.Module, weights: Weights) -> None:
    """Copy ``weights`` into ``module`` in place."""
    live = live_weights(module)
    differing = sorted(
        name
        for name in live.keys() | weights.keys()
        if name not in live or name not in weights or live[name].shape != weights[name].shape
    )
    if differing:
        raise IncompatibleWeights(
            f"the stored weights belong to another model: {len(differing)} tensors are missing, unexpected or of "
            f"another shape, such as {differing[0]!r}. Build the model with the settings of the stored weights."
        )
    with torch.no_grad():
        for name, value in live.items():
            value.copy_(divided_like(weights[name], value))
