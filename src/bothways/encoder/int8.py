"""Linear maps in int8: integer weights with one scale for each output; input rows are quantized on the fly.

A row is mapped to 255 steps between its own minimum and maximum, so its result depends on no other row. Before
that each input is shifted and scaled: the shift is moved into the bias, and the scales move rounding errors from
inputs with outliers to the weights (SmoothQuant, Xiao et al. 2022, arXiv:2211.10438; the shift: Wei et al.
2023, arXiv:2304.09145). Sums are exact integers: a processor without VNNI adds the products of two
neighbouring inputs in 16 bits, so it gets weights whose neighbours are small enough for their sum to fit.

The parameter of such a map holds the rounded weights in float32. It is used instead of the int8 weights for anything
but float32 inference on a CPU (gradients, other devices and precisions), and if a processor's int8 sums are not exact.

Shapes: T rows, I and O widths, P pairs of weights, C = I + 8.
"""

from dataclasses import dataclass
from functools import cache, cached_property

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor

from bothways.products import ROWS_AT_ONCE

LARGEST, STEPS = 127, 255
# Limits for the sum of two neighbouring weights of one sign: the largest possible, and the one that suits 16 bits.
ANY_PAIR, SMALL_PAIR = 2 * LARGEST, 128
# Rows of a block; oneDNN compiles code for each number of rows.
_BLOCK = 16
# Bytes after the codes of a row: its step and its minimum, two float32.
_BEHIND = 8


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """An int8 weight with one scale (step) per output, for inputs ``(x - shift) * stretch`` with stretch > 0."""

    codes_OI: Tensor
    scale_O: Tensor
    shift_I: Tensor
    stretch_I: Tensor

    @classmethod
    def of(cls, weight_OI: Tensor, shift_I: Tensor, stretch_I: Tensor, pair: int = ANY_PAIR) -> "Int8Weight":
        """Quantize a weight for inputs ``(x - shift) * stretch``; ``pair`` limits the sum of two neighbouring codes."""
        stretched_OI = weight_OI.detach() / stretch_I
        scale_O = steps(stretched_OI, pair // 2)
        codes_OI = (stretched_OI / scale_O[:, None]).round().to(torch.int8)
        return cls(codes_OI, scale_O, shift_I, stretch_I)

    def weight(self) -> Tensor:
        """Return the rounded weights in float32 (O, I)."""
        return self.codes_OI.float() * self.scale_O[:, None] * self.stretch_I

    def product(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return ``x W^T + b`` (T, O) for float32 rows."""
        whole_O = self._bias_O if bias_O is None else bias_O + self._bias_O
        rows = x_TI.shape[0]  # in torch, `len` of a tensor takes longer
        if rows <= ROWS_AT_ONCE:
            return self._of_some(x_TI, whole_O)
        y_TO = x_TI.new_empty(rows, len(self.scale_O))
        for start in range(0, rows, ROWS_AT_ONCE):
            self._of_some(x_TI[start : start + ROWS_AT_ONCE], whole_O, y_TO[start : start + ROWS_AT_ONCE])
        return y_TO

    def _of_some(self, x_TI: Tensor, whole_O: Tensor, y_TO: Tensor | None = None) -> Tensor:
        """Return the outputs for at most `ROWS_AT_ONCE` rows, written into ``y_TO`` if given."""
        if self._stretches:
            x_TI = torch.addcmul(self._before_I, x_TI, self.stretch_I)
        codes_TC = _rounded(x_TI)
        step_T, least_T = (
            codes_TC[:, -_BEHIND:].clone(memory_format=torch.contiguous_format).view(torch.float32).unbind(1)
        )
        sums_TO = self._sums(codes_TC)
        y_TO = torch.addcmul(whole_O, sums_TO, step_T[:, None], out=sums_TO if y_TO is None else y_TO)
        return y_TO.addr_(least_T, self._weights_O)

    def _sums(self, codes_TC: Tensor) -> Tensor:
        """Return the products of input and weight codes, times each output's step, (T, O)."""
        if not self.is_fast:
            # Float64 holds every such sum exactly.
            exact_TO = codes_TC[:, :-_BEHIND].double() @ self.codes_OI.double().t()
            return exact_TO.float() * self.scale_O
        rows = codes_TC.shape[0]
        if missing := -rows % _BLOCK:
            codes_TC = F.pad(codes_TC, (0, 0, 0, missing))
        sums_UO = _onednn(codes_TC, self._packed, self.scale_O, self._zeros_O)
        return sums_UO[:rows] if missing else sums_UO

    @property
    def is_fast(self) -> bool:
        """True if this processor can multiply the codes in int8 with exact sums."""
        return self.pair <= largest_pair()

    @cached_property
    def pair(self) -> int:
        """Largest sum of the codes of two neighbouring weights with the same sign."""
        evened_OI = F.pad(self.codes_OI, (0, self.codes_OI.shape[1] % 2)).short()
        first_P, second_P = evened_OI.reshape(-1, 2).unbind(1)
        above_P, below_P = first_P.clamp_min(0) + second_P.clamp_min(0), first_P.clamp_max(0) + second_P.clamp_max(0)
        return int(torch.maximum(above_P, -below_P).max()) if len(first_P) else 0

    @cached_property
    def _packed(self) -> Tensor:
        """Weights in oneDNN's layout, with zeros for the step and the minimum that follow a row's codes."""
        packed: Tensor = torch.ops.onednn.qlinear_prepack(F.pad(self.codes_OI, (0, _BEHIND)), None)
        return packed

    @cached_property
    def _zeros_O(self) -> Tensor:
        return torch.zeros(len(self.scale_O), dtype=torch.int32)

    @cached_property
    def _weights_O(self) -> Tensor:
        """Outputs for an input that is 1 everywhere after the shift and the stretch."""
        return (self.codes_OI.double().sum(1) * self.scale_O.double()).float()

    @cached_property
    def _bias_O(self) -> Tensor:
        """Correction of each output for the shift."""
        return (self.weight().double() @ self.shift_I.double()).float()

    @cached_property
    def _stretches(self) -> bool:
        return bool((self.stretch_I != 1).any() or (self.shift_I != 0).any())

    @cached_property
    def _before_I(self) -> Tensor:
        return -self.shift_I * self.stretch_I


def steps(stretched_OI: Tensor, largest: int) -> Tensor:
    """Return the positive quantization step of each output (O); its largest weight gets the code ``largest``."""
    return stretched_OI.abs().amax(1).div(largest).clamp_min(torch.finfo(torch.float32).tiny)


def _rounded(x_TI: Tensor) -> Tensor:
    """Quantize rows to uint8 (T, C), each followed by its step and its minimum.

    The torch operator was made to compress embedding tables.
    """
    codes_TC: Tensor = torch.ops.quantized.embedding_bag_byte_prepack(x_TI)
    return codes_TC


@cache
def largest_pair() -> int:
    """Return the largest sum of two neighbouring codes of one sign for which this machine's int8 products are exact.

    It is `ANY_PAIR`, or `SMALL_PAIR` if sums of two products are kept in 16 bits; 0 if this build of torch or this
    processor has no int8 products.
    """
    if not all(hasattr(torch.ops.onednn, name) for name in ("qlinear_prepack", "qlinear_pointwise")):
        return 0
    return next((pair for pair in (ANY_PAIR, SMALL_PAIR) if _adds_exactly(pair)), 0)


def _adds_exactly(pair: int) -> bool:
    """Test whether products with pairs of codes that sum to ``pair`` are exact."""
    width = 64
    codes_TI = torch.full((_BLOCK, width), STEPS, dtype=torch.uint8)
    # If the processor paired inputs other than 0 and 1, 2 and 3, the sums of the pairs would be larger.
    row_I = torch.tensor([LARGEST, pair - LARGEST, pair // 2, pair // 2]).repeat(width // 4)
    weight_OI = torch.stack([row_I, -row_I]).repeat(width // 2, 1).to(torch.int8)
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight_OI, None)
        found_TO = _onednn(codes_TI, packed, torch.ones(width), torch.zeros(width, dtype=torch.int32))
    except RuntimeError:  # the operator is declared, but not implemented
        return False
    return torch.equal(found_TO.double(), codes_TI.double() @ weight_OI.double().t())


def _onednn(codes_TI: Tensor, packed: Tensor, scale_O: Tensor, zeros_O: Tensor) -> Tensor:
    y_TO: Tensor = torch.ops.onednn.qlinear_pointwise(
        codes_TI, 1.0, 0, packed, scale_O, zeros_O, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return y_TO
