"""This machine as far as a model is concerned: memory that is free, cores, and a speed that is measured in a second.

Speed is measured on two layers of BERT-base's shape at random weights, and that of others follows from their counted
operations. Models like BERT come out close; narrow ones and those with relative positions take longer than estimated.

Shapes: B texts, n tokens of each, T = B x n packed tokens.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from bothways.advice.costs import find_config
from bothways.advice.dry import count_flops
from bothways.advice.ranking import BASELINE, TEXT_TOKENS
from bothways.advice.worker import random_texts, speed_of
from bothways.devices import pick_device
from bothways.encoder import Encoder
from bothways.threads import cgroup_folders, granted_cores

PROBE_LAYERS, PROBE_TEXTS, PROBE_VOCABULARY = 2, 8, 1000
PROBE_SECONDS = 0.4  # for each of the two figures


@dataclass(frozen=True, slots=True)
class Hardware:
    """The memory, cores and speed of a machine.

    Attributes:
        device: ``"cpu"``, or the name of the GPU.
        cores: CPU cores that this process may use.
        free_mb: Memory that is free, in MB of a million bytes: the machine's, or the GPU's if that is less; None where
            the system does not say.
        flops_one: Operations a second, measured on one text of 128 tokens.
        flops_batch: Operations a second, measured on a batch of 8 such texts.
    """

    device: str
    cores: int
    free_mb: float | None
    flops_one: float
    flops_batch: float


@cache
def this_machine() -> Hardware:
    """Measure this machine, on its GPU where it has one; about a second, once in a process."""
    device = pick_device("auto")
    free = [free_bytes()]
    if device.type == "cuda":
        free.append(torch.cuda.mem_get_info(device)[0])
    known = [each for each in free if each is not None]
    _, baseline = find_config(BASELINE)
    shape = replace(baseline, layers=PROBE_LAYERS, vocabulary=PROBE_VOCABULARY)
    encoder = Encoder(shape).eval().to(device)
    batch = random_texts(PROBE_TEXTS, TEXT_TOKENS, PROBE_VOCABULARY)
    speed = speed_of(encoder, TEXT_TOKENS, batch, PROBE_SECONDS, device)
    operations = count_flops(shape, 1, TEXT_TOKENS)
    return Hardware(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        cores=granted_cores(),
        free_mb=min(known) / 1e6 if known else None,
        flops_one=operations / speed["latency_ms"] * 1e3,
        flops_batch=operations / TEXT_TOKENS * speed["tokens_per_second"],
    )


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that this process may still take: what is available, and no more than its cgroups leave.

    Args:
        root: The folder that holds ``proc`` and ``sys``; where a system has neither, the answer is None.
    """
    listing = root / "proc/meminfo"
    lines = listing.read_text(encoding="ascii").splitlines() if listing.is_file() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for folder in cgroup_folders("memory", root):
        for limit, taken in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            if (folder / limit).is_file() and (folder / taken).is_file():
                most = (folder / limit).read_text(encoding="ascii").strip()
                if most.isdecimal():  # not "max"
                    used = int((folder / taken).read_text(encoding="ascii")) - _reclaimable(folder)
                    free.append(max(0, int(most) - used))
    return min(free, default=None)


def _reclaimable(folder: Path) -> int:
    """Bytes of files that the system keeps in memory for this cgroup and gives up when asked for room."""
    listing = folder / "memory.stat"
    lines = listing.read_text(encoding="ascii").splitlines() if listing.is_file() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
