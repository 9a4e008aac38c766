"""Devices and precisions: names, and what a device can do."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import DeviceMismatch, InvalidInput

AUTO = "auto"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device that a name stands for; ``"auto"`` is a GPU where there is one, else the CPU.

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
    """Test whether a GPU computes in bfloat16 by itself, from compute capability 8.0 on; others only emulate it."""
    return compute_capability(device) >= 8


def inference_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the precision of weights that are not trained: the chosen one, else bfloat16 on a GPU that has it.

    Where a GPU has none, and on other devices, it is float32.

    Raises:
        InvalidInput: What is chosen is no precision, see `pick_dtype`.
    """
    return pick_dtype(fast_precision(device) if dtype in (None, AUTO) else dtype)


def fast_precision(device: torch.device) -> Literal["bfloat16", "float32"]:
    """Return bfloat16 for a GPU that has it, else float32."""
    return "bfloat16" if has_bfloat16(device) else "float32"


def on_device(values: Tensor | NDArray[np.generic], device: torch.device | str) -> Tensor:
    """Return numbers of the host on a device, copied there without a wait for what a GPU has still to do."""
    on_host = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    # Only memory that the system will not move can be copied while the host goes on.
    pinned = torch.device(device).type == "cuda" and on_host.device.type == "cpu"
    return on_host.pin_memory().to(device, non_blocking=True) if pinned else on_host.to(device)


def pick_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype that a name stands for.

    Raises:
        InvalidInput: It is none of float32, bfloat16, float16, float64.
    """
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if dtype not in DTYPES:
        raise InvalidInput(f"dtype must be one of {', '.join(DTYPES)} or {AUTO}, but it is {dtype!r}.")
    return DTYPES[str(dtype)]
