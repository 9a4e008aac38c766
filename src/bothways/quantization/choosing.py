"""The choice of layers to round to int8: as many as the vectors of texts allow.

Shapes: N texts, H hidden.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.encoder.int8 import Int8Weight
from bothways.encoder.linear import held, hold, release
from bothways.progress import Progress

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RoundedLayer:
    """The weight of a layer that may become int8, and its replacement."""

    weight: nn.Parameter
    as_int8: Int8Weight


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Layers in int8, and the cosine of each text's vector with that of the model in float32."""

    names: tuple[str, ...]
    cosines_N: NDArray[np.float64]


def choose_layers(
    candidates: Mapping[str, RoundedLayer],
    vectors: Callable[[Sequence[str]], Vectors],
    texts: Sequence[str],
    expected_NH: Vectors,
    few: int,
    min_cosine: float,
    bar: Progress,
) -> Choice:
    """Choose as many layers as keep every text's cosine with its vector in float32 (N, H) at ``min_cosine`` or above.

    The harm of a layer is its loss of mean cosine on the first ``few`` texts when it alone is int8, divided by its
    weights. The number of the least harmful layers that can be int8 is then found by bisection over all texts, and each
    other layer is tried beside them, because the mean says little about the most affected text.
    """
    harm: dict[str, float] = {}
    for name, each in candidates.items():
        with _in_int8([each]):
            lost = 1 - cosines(vectors(texts[:few]), expected_NH[:few]).mean()
        harm[name] = float(lost) / each.weight.numel()
        bar.advance()
    ordered = sorted(candidates, key=lambda name: harm[name])

    def with_these(names: Sequence[str]) -> Choice:
        with _in_int8(candidates[name] for name in names):
            found = cosines(vectors(texts), expected_NH)
        bar.advance(0, f"{len(names)} layers: smallest cosine {found.min():.5f}")
        return Choice(tuple(names), found)

    best = with_these(ordered)
    if best.cosines_N.min() >= min_cosine:
        return best
    best, most = Choice((), np.ones(len(texts))), len(ordered)
    while most - len(best.names) > 1:
        tried = with_these(ordered[: (most + len(best.names)) // 2])
        if tried.cosines_N.min() >= min_cosine:
            best = tried
        else:
            most = len(tried.names)
    for name in ordered[len(best.names) + 1 :]:
        tried = with_these((*best.names, name))
        if tried.cosines_N.min() >= min_cosine:
            best = tried
    return best


def cosines(vectors_NH: Vectors, expected_NH: Vectors) -> NDArray[np.float64]:
    """Return the cosine of each vector with the expected one, computed in float64; 1 if both are zero."""
    one, other = vectors_NH.astype(np.float64), expected_NH.astype(np.float64)
    lengths_N = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    same_N: NDArray[np.float64] = (one * other).sum(1)
    found_N: NDArray[np.float64] = (one == other).all(1).astype(np.float64)
    np.divide(same_N, lengths_N, out=found_N, where=lengths_N > 0)
    return found_N


@contextmanager
def _in_int8(candidates: Iterable[RoundedLayer]) -> Iterator[None]:
    """Replace layers by int8 within the block, and their parameters by the rounded weights."""
    chosen = list(candidates)
    before = [(each.weight.detach().clone(), held(each.weight)) for each in chosen]
    for each in chosen:
        _set(each.weight, each.as_int8.weight())
        hold(each.weight, each.as_int8)
    try:
        yield
    finally:
        for each, (weight_OI, form) in zip(chosen, before, strict=True):
            release([each.weight])
            _set(each.weight, weight_OI)
            if form is not None:
                hold(each.weight, form)


@torch.no_grad()
def _set(weight_OI: nn.Parameter, value_OI: Tensor) -> None:
    weight_OI.copy_(value_OI)
