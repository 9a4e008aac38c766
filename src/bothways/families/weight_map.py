"""Reversible maps between a family's tensor names on disk and this package's.

A map is a table of rows. In a row, ``{i}`` runs over the layers that own weights, ``{g}`` and ``{j}`` over the groups
and the layers inside a group of a model that shares them, and ``{wb}`` over ``weight`` and ``bias``. A prefix is what a
family writes before the encoder's names in a model with a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from bothways.encoder.config import EncoderConfig, OwnWeights
from bothways.errors import CorruptCheckpoint, IncompatibleWeights

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """Conversions of a tensor from the layout on disk to ours, and back."""

    read: Callable[[Tensor, EncoderConfig], Tensor]
    write: Callable[[Tensor, EncoderConfig], Tensor]


_BLOCK = 2**16  # numbers that stay in a processor's cache

AS_IT_IS = Layout(lambda theirs, _: theirs, lambda ours, _: ours)
# (..., heads, head width) there, heads side by side here.
BY_HEAD = Layout(
    lambda theirs, _: theirs.flatten(-2), lambda ours, config: ours.reshape(*ours.shape[:-1], config.heads, -1)
)
# A vector with two leading dimensions of one there.
IN_TWO_DIMENSIONS_MORE = Layout(lambda theirs, _: theirs.flatten(), lambda ours, _: ours[None, None])
# A projection (in, heads, head width) there, (out, in) here.
BY_HEAD_TRANSPOSED = Layout(
    lambda theirs, _: theirs.flatten(1).t(), lambda ours, config: ours.t().reshape(ours.shape[1], config.heads, -1)
)
# Query, key and value of the first head, then of the second there; all queries, all keys, all values here.
HEAD_AFTER_HEAD = Layout(
    lambda theirs, config: theirs.reshape(config.heads, 3, -1, theirs.shape[1]).transpose(0, 1).flatten(0, 2),
    lambda ours, config: ours.reshape(3, config.heads, -1, ours.shape[1]).transpose(0, 1).flatten(0, 2),
)


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor on disk that is one tensor here."""

    theirs: str
    ours: str
    layout: Layout = AS_IT_IS


@dataclass(frozen=True, slots=True)
class Fused:
    """Several tensors on disk that are one here, concatenated along the first dimension."""

    theirs: tuple[str, ...]
    ours: str
    layout: Layout = AS_IT_IS


@dataclass(frozen=True, slots=True)
class Ignored:
    """A tensor of some checkpoints that is not read, since it follows from others or is a buffer."""

    theirs: str


WeightRow = TensorRow | Fused | Ignored


@dataclass(frozen=True, slots=True)
class Mapped:
    """One row of a map for one layer: the tensors on disk that form one tensor here."""

    theirs: tuple[str, ...]
    ours: str
    layout: Layout


def expand(rows: Iterable[WeightRow], config: EncoderConfig, prefix: str = "") -> Iterator[Mapped]:
    """Write out the rows of a map for each layer of ``config``; ignored rows have an empty ``ours``."""
    inner = 1 if isinstance(config.sharing, OwnWeights) else config.sharing.inner
    distinct = config.layers if isinstance(config.sharing, OwnWeights) else config.sharing.groups * inner
    for row in rows:
        theirs = row.theirs if isinstance(row, Fused) else (row.theirs,)
        ours, layout = ("", AS_IT_IS) if isinstance(row, Ignored) else (row.ours, row.layout)
        indices = range(distinct) if any("{i}" in name or "{g}" in name for name in theirs) else range(1)
        kinds = ("weight", "bias") if any("{wb}" in name for name in theirs) else ("",)
        for index in indices:
            for kind in kinds:
                places = {"i": index, "g": index // inner, "j": index % inner, "wb": kind}
                yield Mapped(tuple(prefix + name.format(**places) for name in theirs), ours.format(**places), layout)


def read_weights(
    rows: Iterable[WeightRow], config: EncoderConfig, tensors: Mapping[str, Tensor], prefix: str = ""
) -> dict[str, Tensor]:
    """Return copies of the tensors under our names, as far as given; a fused tensor needs all of its parts."""
    import torch

    ours: dict[str, Tensor] = {}
    for mapped in expand(rows, config, prefix):
        present = [name for name in mapped.theirs if name in tensors]
        if not mapped.ours or not present:
            continue
        if len(present) != len(mapped.theirs):
            absent = ", ".join(sorted(set(mapped.theirs) - set(present)))
            raise IncompatibleWeights(
                f"the checkpoint has {present[0]} but not {absent}; both belong to {mapped.ours}."
            )
        parts = [tensors[name] for name in mapped.theirs]
        if len({(part.shape, part.dtype) for part in parts}) > 1:
            kinds = (
                f"{name} {tuple(part.shape)} {part.dtype}" for name, part in zip(mapped.theirs, parts, strict=True)
            )
            raise IncompatibleWeights(
                f"the parts of {mapped.ours} must have the same shape and type, but they are: {', '.join(kinds)}."
            )
        for name, part in zip(mapped.theirs, parts, strict=True):
            check_numbers(name, part)
        ours[mapped.ours] = torch.cat([mapped.layout.read(part.reshape(part.shape or (1,)), config) for part in parts])
    return ours


def check_numbers(name: str, value: Tensor) -> None:
    """Refuse a stored tensor that holds anything but finite floating point numbers.

    All bits are checked, rather than sums, which can overflow and would start torch's threads.
    """
    import torch

    exponents = _exponents()
    if value.dtype not in exponents or value.layout != torch.strided:
        raise IncompatibleWeights(
            f"expected floating point weights in {name}, but they are {value.dtype}. Quantised weights are not read."
        )
    kind, exponent = exponents[value.dtype]
    bits = value.detach().cpu().reshape(-1).view(kind).numpy()
    for start in range(0, len(bits), _BLOCK):
        if ((bits[start : start + _BLOCK] & exponent) == exponent).any():
            raise CorruptCheckpoint(
                f"expected finite numbers in {name}, but one is infinite or NaN: the file is damaged, or its training "
                "diverged. Get the model again from where it came."
            )


@cache
def _exponents() -> dict[torch.dtype, tuple[torch.dtype, int]]:
    """Return for each type of weights the integer type of its size, and the bits of its exponent (IEEE 754).

    Only infinities and NaN have all of these bits set.
    """
    import torch

    return {
        torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
        torch.float32: (torch.int32, 0x7F80_0000),
        torch.float16: (torch.int16, 0x7C00),
        torch.bfloat16: (torch.int16, 0x7F80),
    }


def write_weights(
    rows: Iterable[WeightRow], config: EncoderConfig, tensors: Mapping[str, Tensor], prefix: str = ""
) -> dict[str, Tensor]:
    """Return tensors under the family's names, for all rows whose tensor is among ``tensors``."""
    theirs: dict[str, Tensor] = {}
    for mapped in expand(rows, config, prefix):
        if mapped.ours in tensors:
            parts = tensors[mapped.ours].detach().chunk(len(mapped.theirs))
            stored = (mapped.layout.write(part, config).contiguous() for part in parts)
            theirs.update(zip(mapped.theirs, stored, strict=True))
    return theirs


def known_names(rows: Iterable[WeightRow], config: EncoderConfig, prefix: str = "") -> set[str]:
    """Return every name of the family in the rows."""
    return {name for mapped in expand(rows, config, prefix) for name in mapped.theirs}
