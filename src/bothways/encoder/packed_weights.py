"""Weights in the forms that products of inference read: packed for oneDNN in float32 or bfloat16, or int8.

In inference mode a parameter is multiplied in the form that was chosen for it, else in oneDNN's own layout where that
is faster. A form belongs to its parameter, is kept as long as it, and serves while torch has not changed the parameter.
An edit through ``.data`` or a numpy view, of which torch keeps no count, is not seen.

Shapes: T rows, I and O widths.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import ref

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from bothways.products import has_bfloat16_product, in_parts, matrix_product, onednn_product, packed, packed_block


class WeightForm(Protocol):
    """A weight in the form that a product reads."""

    def product(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return ``x W^T + b`` (T, O) of float32 rows, in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight in float32 in oneDNN's own layout.

    Attributes:
        packed_OI: What `bothways.products.packed` gives.
    """

    packed_OI: Tensor

    def product(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return ``x W^T + b`` (T, O)."""
        return _filled_product(x_TI, self.packed_OI, bias_O)


@dataclass(frozen=True, slots=True, eq=False)
class BFloat16Weight:
    """A weight in bfloat16 for rows in bfloat16; sums are in float32, results rounded once.

    Attributes:
        weight_OI: The weight in oneDNN's own layout; where the processor has no such product, its rounded numbers in
            float32, which give the same but for the order of sums, and slower.
        outputs: O.
    """

    weight_OI: Tensor
    outputs: int

    @classmethod
    def of(cls, weight_OI: Tensor) -> "BFloat16Weight":
        """Round a weight."""
        rounded_OI = weight_OI.detach().bfloat16()
        return cls(packed(rounded_OI) if has_bfloat16_product() else rounded_OI.float(), len(weight_OI))

    def product(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return ``x W^T + b`` (T, O)."""
        return in_parts(lambda rows_TI: self._rounded(rows_TI.bfloat16(), bias_O), x_TI, self.outputs).float()

    def _rounded(self, x_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        if self.weight_OI.dtype == torch.float32:
            return F.linear(x_TI.float(), self.weight_OI, bias_O).bfloat16()
        return _filled_product(x_TI, self.weight_OI, bias_O)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A form of a parameter, with the parameter's state at that time, and True for a chosen form."""

    weight: "ref[Tensor]"
    state: tuple[int, int, torch.Size]
    form: WeightForm
    chosen: bool


_kept: dict[int, _Kept] = {}
"""By the parameter's `id`; a form goes with its parameter."""


def hold(weight_OI: nn.Parameter, form: WeightForm) -> None:
    """Multiply by a form in inference, as long as the parameter stays as it is."""
    _keep(weight_OI, form, chosen=True)


def hold_bfloat16(weights: Iterable[nn.Parameter]) -> None:
    """Multiply by weights in bfloat16 in inference, except those in int8."""
    for weight_OI in weights:
        if held(weight_OI) is None:
            hold(weight_OI, BFloat16Weight.of(weight_OI))


def held(weight_OI: Tensor) -> WeightForm | None:
    """Return the chosen form of a parameter; None without one, or if the parameter has changed since."""
    known = _known(weight_OI)
    return known.form if known is not None and known.chosen else None


def drop(weight_OI: nn.Parameter) -> None:
    """Multiply by the parameter itself again."""
    _kept.pop(id(weight_OI), None)


def drop_all(weights: Iterable[nn.Parameter]) -> None:
    """Multiply by the parameters themselves again."""
    for weight_OI in weights:
        drop(weight_OI)


def form_of(weight_OI: Tensor, rows: int) -> WeightForm | None:
    """Return the form that multiplies so many rows in inference; None for the plain weight."""
    known = _known(weight_OI)
    if known is not None and known.chosen:
        return known.form
    if rows > matrix_product().packed_rows:
        return None
    if known is not None:
        return known.form
    if type(weight_OI) is not nn.Parameter or weight_OI.is_inference():
        return None
    return _keep(weight_OI, PackedWeight(packed(weight_OI)), chosen=False)


def _keep(weight_OI: nn.Parameter, form: WeightForm, *, chosen: bool) -> WeightForm:
    key = id(weight_OI)
    _kept[key] = _Kept(ref(weight_OI, partial(_drop, _kept, key)), _state(weight_OI), form, chosen)
    return form


def _known(weight_OI: Tensor) -> _Kept | None:
    known = _kept.get(id(weight_OI))
    if known is None or known.weight() is not weight_OI or known.state != _state(weight_OI):
        return None
    return known


def _state(weight_OI: Tensor) -> tuple[int, int, torch.Size]:
    # Of what is made in inference mode torch counts no changes.
    return weight_OI.data_ptr(), 0 if weight_OI.is_inference() else weight_OI._version, weight_OI.shape


def _drop(kept: dict[int, _Kept], key: int, _: object) -> None:
    """Drop a form; given the dictionary, since modules go before parameters when a process ends."""
    kept.pop(key, None)


def _forget(*_: object) -> None:
    """Drop packed copies after a step of an optimizer: torch does not count what a fused one writes."""
    for key in [key for key, each in _kept.items() if not each.chosen]:
        del _kept[key]


register_optimizer_step_post_hook(_forget)


def _filled_product(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Return ``x W^T + b`` (T, O), with rows of zeros up to whole blocks."""
    rows = x_TI.shape[0]
    missing = -rows % packed_block(rows)
    if not missing:
        return onednn_product(x_TI, weight_OI, bias_O)
    return filled(x_TI, weight_OI, bias_O, missing)


def filled(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, missing: int) -> Tensor:
    """Return ``x W^T + b`` (T, O) by oneDNN, computed with so many rows of zeros behind the others."""
    filled_UO = onednn_product(F.pad(x_TI, (0, 0, 0, missing)), weight_OI, bias_O)
    return filled_UO.resize_(x_TI.shape[0], filled_UO.shape[1])  # no view of it, for others write into the result
