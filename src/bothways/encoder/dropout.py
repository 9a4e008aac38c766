"""Dropout (Srivastava et al. 2014, JMLR 15) that does not hold up training on a CPU.

torch draws one random float for each element, which takes 9 ns on one core and is not spread over several. Sixteen
random bits are enough, and one draw gives four times as many: 2 ns in all.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn

_LEVELS = 1 << 16


def dropout(values: Tensor, rate: float) -> Tensor:
    """Zero elements with probability ``rate`` and scale the others up so that the expectation stays.

    On a CPU the rate is rounded to a multiple of 1 / 65,536, in zeroing and in scaling alike.
    """
    if values.device.type != "cpu":
        return F.dropout(values, rate)
    return values * kept_elements(values, rate) if round(rate * _LEVELS) else values


def kept_elements(values: Tensor, rate: float) -> Tensor:
    """What `dropout` multiplies values with: 0 where one goes, `kept_scale` where it stays."""
    if values.device.type != "cpu":
        return F.dropout(torch.ones_like(values), rate)
    dropped, count = round(rate * _LEVELS), values.numel()
    if dropped == _LEVELS:
        return torch.zeros_like(values)
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    levels = draws.view(torch.int16)[:count].view(values.shape)
    # Compared straight into the type of the values: a boolean in between costs a third of the whole.
    kept = torch.empty(values.shape, dtype=values.dtype)
    torch.ge(levels, dropped - _LEVELS // 2, out=kept)
    return kept.mul_(kept_scale(values, rate))


def kept_scale(values: Tensor, rate: float) -> float:
    """What elements that stay are multiplied by."""
    return _LEVELS / (_LEVELS - round(rate * _LEVELS)) if values.device.type == "cpu" else 1.0 / (1.0 - rate)


class Dropout(nn.Module):
    """`dropout` while training, the identity otherwise."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        """The same shape."""
        return dropout(values, self.rate) if self.training and self.rate else values
