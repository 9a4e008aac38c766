"""Accelerators by name: their memory and peak rate as their makers state them, and how many of them a phrase means."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bothways.advice.hardware import this_machine
from bothways.errors import InvalidInput

HERE = "here"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device.

    Attributes:
        name: Its name.
        flops: Peak operations a second of dense matrix products, in bfloat16 (float16 where it has no bfloat16).
        memory: Bytes of its memory; None where the system does not say.
        measured: Whether the rate was measured here, on an encoder, and is no peak.
        kind: Kind of device, as torch names it.
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
    """Several devices of a kind.

    Attributes:
        count: How many.
        each: One of them.
    """

    count: int
    each: Accelerator

    def __str__(self) -> str:
        """Return how they are named on the command line."""
        return f"{self.count} x {self.each.name}"


def devices_of(phrase: str) -> Devices:
    """Return the devices that a phrase such as ``8 x H100`` means; ``here`` is this machine, which is measured.

    Raises:
        InvalidInput: No such device is known; the message lists those that are.
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
        raise InvalidInput(f"expected hardware such as '8 x H100', or {HERE!r}; got {phrase!r}. Known are: {known}.")
    return Devices(count, ACCELERATORS[name])
