"""Hardware: this machine's free memory, cores and measured speed, and published figures of accelerators.

Speed is measured on two layers of BERT-base's shape with random weights; the speed of other models follows from their
counted operations. The estimate is close for models like BERT; narrow models and models with relative positions are
slower than estimated.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from bothways.advice.cards import find_config
from bothways.advice.costs import count_flops
from bothways.advice.ranking import BASELINE, TEXT_TOKENS
from bothways.advice.worker import median_seconds, random_texts, speed_of, wait_for
from bothways.devices import fast_precision, pick_device
from bothways.encoder import Encoder
from bothways.encoder.config import EncoderConfig, LocalGlobalAttention
from bothways.errors import InvalidInput
from bothways.threads import cgroup_folders, granted_cores

PROBE_LAYERS, PROBE_TEXTS, PROBE_VOCABULARY = 2, 8, 1000
PROBE_TRAINED, PROBE_TRAINED_GPU = 4, 64  # texts in a training step
PROBE_SECONDS = 0.4  # for each of the two timings

HERE = "here"


@dataclass(frozen=True, slots=True)
class Hardware:
    """The memory, cores and speed of a machine.

    Attributes:
        device: ``"cpu"``, or the name of the GPU.
        cores: CPU cores that this process may use.
        free_mb: Free memory in MB (a million bytes): the machine's, or the GPU's if that is less; None if unknown.
        flops_one: Operations per second, measured on one text of 128 tokens.
        flops_batch: Operations per second, measured on a batch of 8 such texts.
        here: True for the machine that runs this process, on which layers of other shapes can be timed.
    """

    device: str
    cores: int
    free_mb: float | None
    flops_one: float
    flops_batch: float
    here: bool = False


@cache
def this_machine() -> Hardware:
    """Measure this machine, on its GPU if it has one. Takes about a second, once per process."""
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
        here=True,
    )


@cache
def training_flops(config: EncoderConfig) -> float:
    """Measure the operations per second of this machine in training, on two layers of an encoder's shape.

    Narrow layers and relative positions reach fewer than the layers of BERT-base that `this_machine` times.
    """
    device = pick_device("auto")
    pattern = config.pattern
    if isinstance(pattern, LocalGlobalAttention):
        pattern = replace(pattern, seen_whole=pattern.seen_whole[:PROBE_LAYERS])
    shape = replace(config, layers=PROBE_LAYERS, vocabulary=PROBE_VOCABULARY, pattern=pattern)
    encoder, length = Encoder(shape).train().to(device), min(TEXT_TOKENS, config.max_length or TEXT_TOKENS)
    texts = PROBE_TRAINED if device.type == "cpu" else PROBE_TRAINED_GPU
    batch = random_texts(texts, length, PROBE_VOCABULARY).to(device)
    half = fast_precision(device) == "bfloat16"

    def step() -> None:
        encoder.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = encoder(batch).sum()
        loss.backward()
        wait_for(device)

    operations = 3 * texts * count_flops(shape, 1, length)
    return operations / median_seconds(step, PROBE_SECONDS)


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process can still allocate: the available memory, limited by its cgroups.

    None if ``root`` holds neither ``proc`` nor ``sys``.
    """
    listing = root / "proc/meminfo"
    lines = listing.read_text(encoding="ascii").splitlines() if listing.is_file() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for folder in cgroup_folders("memory", root):
        for limit, taken in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            if (folder / limit).is_file() and (folder / taken).is_file():
                allowed = (folder / limit).read_text(encoding="ascii").strip()
                if allowed.isdecimal():  # not "max"
                    used = int((folder / taken).read_text(encoding="ascii")) - _reclaimable(folder)
                    free.append(max(0, int(allowed) - used))
    return min(free, default=None)


def _reclaimable(folder: Path) -> int:
    """Return the bytes of a cgroup's file cache, which the system frees on demand."""
    listing = folder / "memory.stat"
    lines = listing.read_text(encoding="ascii").splitlines() if listing.is_file() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A type of accelerator.

    Attributes:
        name: Its name.
        flops: Peak operations per second of dense matrix products in bfloat16 (float16 without bfloat16).
        memory: Its memory in bytes; None if the system does not report it.
        measured: True if ``flops`` was measured on this machine with an encoder, instead of a published peak.
        kind: Its device type in torch.
    """

    name: str
    flops: float
    memory: float | None
    measured: bool = False
    kind: str = "cuda"


ACCELERATORS: Mapping[str, Accelerator] = {
    each.name.lower(): each
    for each in (
        Accelerator("T4", 65e12, 16e9),
        Accelerator("V100", 125e12, 32e9),
        Accelerator("A10", 125e12, 24e9),
        Accelerator("A100", 312e12, 80e9),
        Accelerator("L4", 121e12, 24e9),
        Accelerator("L40S", 362e12, 48e9),
        Accelerator("RTX4090", 165e12, 24e9),
        Accelerator("H100", 989e12, 80e9),
        Accelerator("H200", 989e12, 141e9),
        Accelerator("B200", 2250e12, 180e9),
        Accelerator("MI250X", 383e12, 128e9),
        Accelerator("MI300X", 1307e12, 192e9),
    )
}


@dataclass(frozen=True, slots=True)
class Devices:
    """Several devices of one kind."""

    count: int
    each: Accelerator

    def __str__(self) -> str:
        """Return the devices as in ``8 x H100``."""
        return f"{self.count} x {self.each.name}"


def devices_of(phrase: str) -> Devices:
    """Parse a phrase such as ``8 x H100``; ``here`` measures this machine.

    Raises:
        InvalidInput: The device is unknown; the message lists the known ones.
    """
    found = re.fullmatch(r"\s*(?:(\d+)\s*[xX*]\s*)?([\w -]*\w)\s*", phrase)
    count, name = (int(found[1] or 1), re.sub(r"[ -]", "", found[2]).lower()) if found else (0, "")
    if name == HERE and count == 1:
        machine = this_machine()
        memory = None if machine.free_mb is None else machine.free_mb * 1e6
        kind = "cpu" if machine.device == "cpu" else "cuda"
        name = f"this machine ({machine.device})"
        return Devices(1, Accelerator(name, machine.flops_batch, memory, measured=True, kind=kind))
    if count < 1 or name not in ACCELERATORS:
        known = ", ".join(each.name for each in ACCELERATORS.values())
        raise InvalidInput(f"expected hardware such as '8 x H100', or {HERE!r}, got {phrase!r}. Devices: {known}.")
    return Devices(count, ACCELERATORS[name])
