"""Choose torch devices and dtypes by their names."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import DeviceMismatch, InvalidInput

AUTO = "auto"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """Return the torch device with this name; ``"auto"`` selects a GPU if there is one, else the CPU."""
    if str(device) == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        there = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        raise DeviceMismatch(
            f"the device {str(device)!r} is not available here. Choose one of {', '.join(there)}, or 'auto'."
        ) from error
    return chosen


def has_bfloat16(device: torch.device) -> bool:
    """Return True for a GPU that computes in bfloat16 (compute capability 8.0 or higher); others only emulate it."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


def inference_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the dtype for inference; None and "auto" select bfloat16 on a GPU that computes in it, else float32."""
    return pick_dtype(fast_precision(device) if dtype in (None, AUTO) else dtype)


def fast_precision(device: torch.device) -> Literal["bfloat16", "float32"]:
    """Return "bfloat16" for a GPU that computes in it, else "float32"."""
    return "bfloat16" if has_bfloat16(device) else "float32"


def on_device(values: Tensor | NDArray[np.generic], device: torch.device | str) -> Tensor:
    """Copy values from the host to a device, without waiting for pending work of a GPU."""
    on_host = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    # Only pinned memory can be copied while the host continues.
    pinned = torch.device(device).type == "cuda" and on_host.device.type == "cpu"
    return on_host.pin_memory().to(device, non_blocking=True) if pinned else on_host.to(device)


def pick_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype with this name; a supported torch dtype is returned unchanged."""
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if dtype not in DTYPES:
        raise InvalidInput(f"dtype must be one of {', '.join(DTYPES)} or {AUTO}, got {dtype!r}.")
    return DTYPES[str(dtype)]
