"""Devices and precisions: names, and what a device can do."""

import torch

from bothways.errors import DeviceMismatch, InvalidInput

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """The device that a name stands for; ``"auto"`` is a GPU where there is one, else the CPU.

    Raises:
        DeviceMismatch: There is no such device on this machine.
    """
    if str(device) == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        wanted = torch.device(device)
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        there = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        raise DeviceMismatch(
            f"the device {str(device)!r} cannot be used here; there are: {', '.join(there)}. Or say 'auto'."
        ) from error
    return wanted


def compute_capability(device: torch.device) -> int:
    """Return the major version of a CUDA device's compute capability; 0 for devices of other kinds."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a GPU computes in bfloat16 by itself, from compute capability 8.0 on; others only emulate it."""
    return compute_capability(device) >= 8


def pick_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The torch dtype that a name stands for.

    Raises:
        InvalidInput: It is none of float32, bfloat16, float16, float64.
    """
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if dtype not in DTYPES:
        raise InvalidInput(f"dtype must be one of {', '.join(DTYPES)}, but it is {dtype!r}.")
    return DTYPES[str(dtype)]
