"""The choice of the layers that become int8: as many as the vectors of texts allow.

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
from bothways.encoder.packed_weights import drop, held, hold
from bothways.progress import Progress

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RoundedLayer:
    """A layer that may become int8.

    Attributes:
        weight: Its weight.
        as_int8: The map that stands in for it.
    """

    weight: nn.Parameter
    as_int8: Int8Weight


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Layers in int8, and what they cost.

    Attributes:
        names: Theirs.
        cosines_N: Of each text's vector with that of the whole model in float32.
    """

    names: tuple[str, ...]
    cosines_N: NDArray[np.float64]


def choose_layers(
    candidates: Mapping[str, RoundedLayer],
    vectors: Callable[[Sequence[str]], Vectors],
    texts: Sequence[str],
    expected_NH: Vectors,
    few: int,
    least: float,
    bar: Progress,
) -> Choice:
    """Return as many layers as keep every text's cosine at ``least``; the most harmful stay as they are.

    The harm of a layer is what it takes from the mean cosine of the first texts when it alone is int8, for each of its
    weights. How many of the least harmful can be int8 is then searched for by halving, over all texts, and each of the
    others is tried beside them: what a layer takes from the mean says little of the text that it harms most.

    Args:
        candidates: Layers by their names.
        vectors: Computes the vectors of texts (N, H).
        texts: The texts.
        expected_NH: Their vectors in float32.
        few: How many of them are enough to compare layers.
        least: The smallest cosine that is allowed.
        bar: Is told of each layer and each search step.
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
    if best.cosines_N.min() >= least:
        return best
    best, most = Choice((), np.ones(len(texts))), len(ordered)
    while most - len(best.names) > 1:
        tried = with_these(ordered[: (most + len(best.names)) // 2])
        if tried.cosines_N.min() >= least:
            best = tried
        else:
            most = len(tried.names)
    for name in ordered[len(best.names) + 1 :]:
        tried = with_these((*best.names, name))
        if tried.cosines_N.min() >= least:
            best = tried
    return best


def cosines(vectors_NH: Vectors, expected_NH: Vectors) -> NDArray[np.float64]:
    """Return the cosine of each vector with the one that was expected, computed in float64; 1 where both are zero."""
    one, other = vectors_NH.astype(np.float64), expected_NH.astype(np.float64)
    lengths_N = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    same_N: NDArray[np.float64] = (one * other).sum(1)
    found_N: NDArray[np.float64] = (one == other).all(1).astype(np.float64)
    np.divide(same_N, lengths_N, out=found_N, where=lengths_N > 0)
    return found_N


@contextmanager
def _in_int8(candidates: Iterable[RoundedLayer]) -> Iterator[None]:
    """Let layers be int8 within the block, and their parameters the rounded weights, which some readers take."""
    chosen = list(candidates)
    before = [(each.weight.detach().clone(), held(each.weight)) for each in chosen]
    for each in chosen:
        _set(each.weight, each.as_int8.weight())
        hold(each.weight, each.as_int8)
    try:
        yield
    finally:
        for each, (weight_OI, form) in zip(chosen, before, strict=True):
            drop(each.weight)
            _set(each.weight, weight_OI)
            if form is not None:
                hold(each.weight, form)


@torch.no_grad()
def _set(weight_OI: nn.Parameter, value_OI: Tensor) -> None:
    weight_OI.copy_(value_OI)
