"""Where a model runs and in which precision."""

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
