"""The processes of a run, each with a part of every update; one process is the special case.

Each process holds the whole model and draws the whole update, which depends on nothing but a seed and its number; of
its micro-batches each takes every n-th one, and gradients are added up before the step. So the weights stay equal
everywhere, and the course of a run does not depend on the number of processes, but for rounding and for dropout.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar

import torch
from torch import Tensor, distributed, nn

from bothways.errors import WorkerLost

Value = TypeVar("Value")

# What errors of torch have in them where FSDP finds that a process is gone.
LOST = ("gloo/", "NCCL", "Connection ")

# One process may encode a corpus while the others wait. A process that dies is noticed at once, by its connections.
PATIENCE = timedelta(days=2)


class Workers(Protocol):
    """The processes of a run.

    Attributes:
        rank: Number of this process, from 0.
        count: How many there are.
    """

    @property
    def rank(self) -> int: ...  # noqa: D102 (above)

    @property
    def count(self) -> int: ...  # noqa: D102 (above)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of equal shapes everywhere by their sums over the processes."""

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank."""


class SingleProcess:
    """One process."""

    rank = 0
    count = 1

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Leave the sums of one process as they are."""

    def gather(self, value: Value) -> list[Value]:
        """Return the value."""
        return [value]


class ProcessGroup:
    """The processes of torch's default group, which must be there."""

    def __init__(self) -> None:
        self.rank = distributed.get_rank()
        self.count = distributed.get_world_size()

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums, all of one type in one message.

        Raises:
            WorkerLost: Another process is gone.
        """
        for kind in {each.dtype for each in tensors}:
            alike = [each for each in tensors if each.dtype == kind]
            flat = torch.cat([each.reshape(-1) for each in alike])
            with naming_losses():
                distributed.all_reduce(flat)
            parts = torch.split(flat, [each.numel() for each in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank.

        Raises:
            WorkerLost: Another process is gone.
        """
        found: list[Value | None] = [None] * self.count
        with naming_losses():
            distributed.all_gather_object(found, value)
        return [each for each in found if each is not None]


def share(module: nn.Module, workers: Workers) -> None:
    """Give all processes the weights of the first one, which another machine may have computed in other last bits."""
    if workers.count == 1:
        return
    with torch.no_grad():
        held = [each for each in (*module.parameters(), *module.buffers()) if each.is_floating_point()]
        if workers.rank:
            for each in held:
                each.zero_()
        workers.add(held)


def current_workers() -> Workers:
    """Return the processes that this one runs with: those of torch's default process group, where there is one."""
    if distributed.is_available() and distributed.is_initialized():
        return ProcessGroup()
    return SingleProcess()


@contextmanager
def joined() -> Iterator[Workers]:
    """Join the processes that ``torchrun`` has started, if it has, and leave them at the end.

    Raises:
        WorkerLost: Another process does not come, or is gone.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield current_workers()
        return
    # The first optimizer imports it. Imported while a group is there it keeps that group's threads alive, and a thread
    # that outlives the interpreter aborts the process at its exit.
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
    """Say that a process is gone where a message to the others fails.

    Args:
        signs: Parts of torch's errors that tell of it, where the block does more than exchange messages.

    Raises:
        WorkerLost: The block raised a RuntimeError, as torch does.
    """
    try:
        yield
    except RuntimeError as error:
        if signs and not any(sign in str(error) for sign in signs):
            raise
        raise WorkerLost(
            f"another process of the run is gone ({str(error).splitlines()[0]}). Look at what it said, and resume the "
            "run (resume=True, --resume)."
        ) from error
