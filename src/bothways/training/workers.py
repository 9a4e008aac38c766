"""The processes of a run, each with a part of every update.

Each process holds the model and draws the whole update, which depends only on a seed and its number. It takes every
n-th micro-batch, and gradients are summed before the step. So the weights stay equal everywhere, and the course of a
run does not depend on the number of processes, except for rounding and dropout.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn

from bothways.errors import WorkerLost

Value = TypeVar("Value")

# Parts of torch's error messages when FSDP loses a process.
LOST = ("gloo/", "NCCL", "Connection ")

# One process may encode a corpus while the others wait. A dead process is noticed by its connections.
PATIENCE = timedelta(days=2)


class Workers:
    """The processes of a run; here a single one.

    Attributes:
        rank: Number of this process, from 0.
        count: Number of processes.
    """

    rank = 0
    count = 1

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over the processes.

        Raises:
            WorkerLost: Another process is gone.
        """

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank.

        Raises:
            WorkerLost: Another process is gone.
        """
        return [value]


class ProcessGroup(Workers):
    """The processes of torch's default group, which must be initialised; sums take one message per dtype."""

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
    """Give all processes the weights of the first; on other machines, their last bits may differ."""
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
    """Join the process group of ``torchrun``, if there is one, for the block.

    Raises:
        WorkerLost: Another process is missing or gone.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield current_workers()
        return
    # The first optimizer imports it. If imported while a group exists, it keeps that group's threads alive, and a
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
    """Turn torch's RuntimeError for a failed message into `WorkerLost`.

    Args:
        signs: Parts of the relevant messages, if the block does more than exchange messages.
    """
    try:
        yield
    except RuntimeError as error:
        if signs and not any(sign in str(error) for sign in signs):
            raise
        raise WorkerLost(
            f"another process of the run is gone ({str(error).splitlines()[0]}). Look at its output, and resume the "
            "run (resume=True, --resume)."
        ) from error
