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
    dropped = round(rate * _LEVELS)
    if dropped == 0 or dropped == _LEVELS:
        return values if dropped == 0 else values * 0.0
    count = values.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    levels = draws.view(torch.int16)[:count].view(values.shape)
    # Compared straight into the type of the values: a boolean in between costs a third of the whole.
    kept = torch.empty(values.shape, dtype=values.dtype)
    torch.ge(levels, dropped - _LEVELS // 2, out=kept)
    return values * kept.mul_(_LEVELS / (_LEVELS - dropped))


class Dropout(nn.Module):
    """`dropout` while training, the identity otherwise."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        """The same shape."""
        return dropout(values, self.rate) if self.training and self.rate else values
