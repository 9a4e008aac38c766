"""Linear maps in int8: whole numbers for the weights, one scale for each output; rows are rounded as they come.

A row is brought to 255 steps of its own largest number, so its result depends on no other row. The steps lie on both
sides of zero, or all above it for what is never far below (behind a GELU). Before that each input number is shifted and
scaled: what is shifted goes into the bias, and scales move the rounding from inputs with few
large numbers to the weights (SmoothQuant, Xiao et al. 2022, arXiv:2211.10438; the shift: Wei et al. 2023,
arXiv:2304.09145). Sums are whole numbers, and exact.

The parameter of such a map holds the rounded weights in float32. All that is no inference in float32 on a CPU
(gradients, other devices and precisions) reads that, as do processors without the operators.

Shapes: T rows, I and O widths.
"""

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

LARGEST, _STEPS = 127, 255
BOTH_SIDES, ABOVE = 128, 0
"""The code of zero: with numbers on both sides, and with none below."""
# Added to a float32 of up to 2^22, this leaves its nearest whole number in the lowest bits.
_ROUNDING = 1.5 * 2**23
# Rows at a time, whose numbers stay in the processor's cache, and rows of a block, for each number of which oneDNN
# compiles code.
_ROWS, _BLOCK = 512, 16


@dataclass(frozen=True, eq=False)
class Int8Map:
    """A linear map in int8.

    Attributes:
        codes_OI: Weights, int8.
        scale_O: The step of each output's weights.
        shift_I: What is taken from each input number.
        stretch_I: What it is then multiplied by; above 0.
        zero: The code of an input of zero; with `ABOVE`, what is below the shift counts as the shift.
    """

    codes_OI: Tensor
    scale_O: Tensor
    shift_I: Tensor
    stretch_I: Tensor
    zero: int = BOTH_SIDES

    @classmethod
    def of(cls, weight_OI: Tensor, shift_I: Tensor, stretch_I: Tensor, zero: int = BOTH_SIDES) -> "Int8Map":
        """Round a weight, given how its inputs are shifted and stretched, and the code of zero."""
        stretched_OI = weight_OI.detach() / stretch_I
        scale_O = stretched_OI.abs().amax(1).div(LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
        codes_OI = (stretched_OI / scale_O[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)
        return cls(codes_OI, scale_O, shift_I, stretch_I, zero)

    def weight(self) -> Tensor:
        """Return the rounded weights in float32 (O, I)."""
        return self.codes_OI.float() * self.scale_O[:, None] * self.stretch_I

    def product(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return ``x W^T + b`` (T, O) of float32 rows."""
        whole_O = self._bias_O if bias_O is None else bias_O + self._bias_O
        y_TO = x_TI.new_empty(len(x_TI), len(self.scale_O))
        for start in range(0, len(x_TI), _ROWS):
            codes, steps = self._rounded(x_TI[start : start + _ROWS])
            torch.addcmul(whole_O, self._sums(codes), steps, out=y_TO[start : start + _ROWS])
        return y_TO

    def _rounded(self, x_TI: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows in 8 bits (T, I), and the step of each row (T, 1)."""
        most = _STEPS - self.zero
        x_TI = torch.addcmul(self._before_I, x_TI, self.stretch_I)
        sizes_TI = x_TI.clamp_min_(0.0) if self.zero == ABOVE else x_TI.abs()
        largest_T1 = sizes_TI.amax(1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny * _STEPS)
        codes_TI = torch.addcmul(self._rounding_I, x_TI, most / largest_T1).view(torch.int32).to(torch.uint8)
        return codes_TI, largest_T1.div_(most)

    def _sums(self, codes_TI: Tensor) -> Tensor:
        """Return the products of codes, times the step of each output's weights (T, O)."""
        if not has_int8():
            # Float64 holds every such sum exactly.
            exact_TO = (codes_TI.double() - self.zero) @ self.codes_OI.double().t()
            return exact_TO.float() * self.scale_O
        rows = len(codes_TI)
        if missing := -rows % _BLOCK:
            codes_TI = F.pad(codes_TI, (0, 0, 0, missing))
        sums_UO = _onednn(codes_TI, self.zero, self._packed, self.scale_O, self._zeros_O)
        return sums_UO[:rows] if missing else sums_UO

    @cached_property
    def _packed(self) -> Tensor:
        return cast("Tensor", torch.ops.onednn.qlinear_prepack(self.codes_OI, None))

    @cached_property
    def _zeros_O(self) -> Tensor:
        return torch.zeros(len(self.scale_O), dtype=torch.int32)

    @cached_property
    def _bias_O(self) -> Tensor:
        """Restores to each output what the shift has taken."""
        return (self.weight().double() @ self.shift_I.double()).float()

    @cached_property
    def _before_I(self) -> Tensor:
        return -self.shift_I * self.stretch_I

    @cached_property
    def _rounding_I(self) -> Tensor:
        return torch.full_like(self.shift_I, _ROUNDING + self.zero)


@dataclass(frozen=True, slots=True)
class _Held:
    """A map, and the state that the parameter had when it was given it."""

    map: Int8Map
    state: tuple[object, ...] = field(compare=False)


_held: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""By parameter: its map."""


def hold(weight_OI: nn.Parameter, as_int8: Int8Map) -> None:
    """Multiply by a map from now on, in inference, as long as the parameter stays as it is."""
    _held[weight_OI] = _Held(as_int8, _state(weight_OI))


def held(weight_OI: Tensor) -> Int8Map | None:
    """Return the map of a parameter, or None where it has none or was changed since."""
    if not _held.data or type(weight_OI) is not nn.Parameter:
        return None
    found: _Held | None = _held.get(weight_OI)  # type: ignore[no-untyped-call]
    return found.map if found is not None and found.state == _state(weight_OI) else None


def drop(weight_OI: nn.Parameter) -> None:
    """Multiply by the parameter itself again."""
    _held.pop(weight_OI, None)  # type: ignore[no-untyped-call]


def _state(weight_OI: Tensor) -> tuple[object, ...]:
    return weight_OI.data_ptr(), weight_OI._version


@cache
def has_int8() -> bool:
    """Return whether this build and processor multiply in int8 exactly: some saturate sums of two products.

    They are asked for the largest sum that there is.
    """
    if not all(hasattr(torch.ops.onednn, name) for name in ("qlinear_prepack", "qlinear_pointwise")):
        return False
    width = 64
    codes_TI = torch.full((_BLOCK, width), _STEPS, dtype=torch.uint8)
    weight_OI = torch.full((width, width), LARGEST, dtype=torch.int8)
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight_OI, None)
        found_TO = _onednn(codes_TI, ABOVE, packed, torch.ones(width), torch.zeros(width, dtype=torch.int32))
    except RuntimeError:  # an operator that is there in name only
        return False
    return bool((found_TO == _STEPS * LARGEST * width).all())


def _onednn(codes_TI: Tensor, zero: int, packed: Tensor, scale_O: Tensor, zeros_O: Tensor) -> Tensor:
    y_TO: Tensor = torch.ops.onednn.qlinear_pointwise(
        codes_TI, 1.0, zero, packed, scale_O, zeros_O, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return y_TO
