"""Int8 weights for each linear layer of an encoder, fitted to the layer's inputs, and the choice of layers to quantize.

Shapes: T rows of a batch, R rows of a sample, I and O widths; N texts, H hidden.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.encoder.int8 import ANY_PAIR, LARGEST, SMALL_PAIR, STEPS, Int8Weight, steps
from bothways.encoder.linear import held, hold, release
from bothways.progress import Progress

# Strengths of smoothing (alpha in SmoothQuant): the share of the inputs' magnitude that moves to the weights.
_STRENGTHS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8)
# Rows sampled from each batch, rows in the sample, and rows in the sums for GPTQ.
_ROWS_OF_A_BATCH, _COMPARED, _FITTED = 64, 1024, 16_384
# Columns of weights in a block of GPTQ.
_AT_ONCE = 128
# Codes to try for an output's largest weight. The larger this code, the more pairs exceed a `SMALL_PAIR`.
_LARGEST = {ANY_PAIR: (127,), SMALL_PAIR: (127, 112, 100, 88, 80, 72, 64)}
_DAMPING = 0.01


class InputSample:
    """Statistics of a layer's inputs: extremes, a sample of rows, and count, sum and outer products of other rows."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        self._generator = generator
        self._rows: list[Tensor] = []
        self.low_I, self.high_I = torch.full((width,), torch.inf), torch.full((width,), -torch.inf)
        self.count, self.sum_I, self.products_II = 0, torch.zeros(width), torch.zeros(width, width)

    def add(self, x_TI: Tensor) -> None:
        """Add the input rows of a batch."""
        self.low_I, self.high_I = torch.minimum(self.low_I, x_TI.amin(0)), torch.maximum(self.high_I, x_TI.amax(0))
        if sum(map(len, self._rows)) < _COMPARED:
            x_TI = x_TI[torch.randperm(len(x_TI), generator=self._generator)]
            self._rows.append(x_TI[:_ROWS_OF_A_BATCH].clone())
            x_TI = x_TI[_ROWS_OF_A_BATCH:]
        if not self.is_enough:
            self.count += len(x_TI)
            self.sum_I += x_TI.sum(0)
            self.products_II.addmm_(x_TI.t(), x_TI)

    @property
    def is_enough(self) -> bool:
        """True once enough rows were added for GPTQ."""
        return self.count >= _FITTED

    @property
    def rows_RI(self) -> Tensor:
        """The sampled input rows of the layer."""
        return torch.cat(self._rows)


@contextmanager
def sampled(layers: Mapping[str, nn.Module], seed: int) -> Iterator[dict[str, InputSample]]:
    """Sample the inputs of layers within the block; a layer that gets no input has no sample."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, InputSample] = {}

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def add(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if inputs[0].dim() == 2 and len(inputs[0]):
                found.setdefault(name, InputSample(inputs[0].shape[1], generator)).add(inputs[0])

        return add

    handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def fitted(weight_OI: Tensor, sample: InputSample, pair: int) -> Int8Weight:
    """Return the int8 weight whose products with the sampled rows are nearest to those of the float weight.

    Smoothings are compared on independently rounded weights; the best and the one after it are then tried with GPTQ.
    ``pair`` limits the sum of two neighbouring codes; for `SMALL_PAIR`, each output takes the best of several steps.
    """
    rows_RI = sample.rows_RI
    expected_RO = rows_RI @ weight_OI.t()

    def errors(tried: Int8Weight) -> Tensor:
        return (tried.product(rows_RI, None) - expected_RO).square().sum(0)

    ways = list(_stretches(weight_OI, sample))
    found = [Int8Weight.of(weight_OI, *each, pair) for each in ways]
    totals = torch.stack([errors(each).sum() for each in found])
    best = int(totals.argmin())
    tried = [found[best]]
    for way in ways[best : best + 2]:
        maps = list(_compensated(weight_OI, *way, sample, pair))
        tried.append(_best_rows(maps, torch.stack([errors(each) for each in maps]).argmin(0)))
    return min(tried, key=lambda each: float(errors(each).sum()))


def _best_rows(maps: Sequence[Int8Weight], chosen_O: Tensor) -> Int8Weight:
    """Combine int8 weights with the same inputs: output o comes from ``maps[chosen_O[o]]``."""
    outputs_O = torch.arange(len(chosen_O))
    codes_OI = torch.stack([each.codes_OI for each in maps])[chosen_O, outputs_O]
    scale_O = torch.stack([each.scale_O for each in maps])[chosen_O, outputs_O]
    return Int8Weight(codes_OI, scale_O, maps[0].shift_I, maps[0].stretch_I)


def _compensated(
    weight_OI: Tensor, shift_I: Tensor, stretch_I: Tensor, sample: InputSample, pair: int
) -> Iterator[Int8Weight]:
    """Yield int8 weights with increasing steps, rounded column by column; later columns correct errors of earlier ones.

    GPTQ (Frantar et al. 2022, arXiv:2210.17323, algorithm 1), columns with the largest inputs first.
    """
    stretched_OI = weight_OI.detach() / stretch_I
    hessian_II = _hessian(shift_I, stretch_I, sample)
    order_I = hessian_II.diagonal().argsort(descending=True)
    inverse_II = torch.cholesky_inverse(torch.linalg.cholesky(hessian_II[order_I][:, order_I]))
    factor_II = torch.linalg.cholesky(inverse_II, upper=True)
    for largest in _LARGEST[pair]:
        scale_O = steps(stretched_OI, largest)
        codes_OI = _in_turn(stretched_OI[:, order_I].double(), scale_O.double(), order_I, factor_II, pair)
        yield Int8Weight(codes_OI[:, order_I.argsort()].to(torch.int8), scale_O, shift_I, stretch_I)


def _in_turn(left_OI: Tensor, step_O: Tensor, order_I: Tensor, factor_II: Tensor, pair: int) -> Tensor:
    """Return the codes (O, I) of weights whose columns are in ``order_I``, overwriting ``left_OI``.

    The code of a neighbouring pair's first column limits that of its second, so that their sum stays within ``pair``.
    """
    codes_OI = torch.zeros_like(left_OI)
    order = order_I.tolist()
    place = {column: number for number, column in enumerate(order)}
    for start in range(0, len(order), _AT_ONCE):
        block = slice(start, start + _AT_ONCE)
        errors_OI = torch.empty_like(left_OI[:, block])
        for column in range(start, start + errors_OI.shape[1]):
            neighbour = place.get(order[column] ^ 1)
            # Zero until the neighbour is rounded.
            other_O = codes_OI[:, neighbour] if neighbour is not None else torch.zeros_like(step_O)
            low_O = (-pair - other_O.clamp_max(0)).clamp_min(-LARGEST)
            high_O = (pair - other_O.clamp_min(0)).clamp_max(LARGEST)
            codes_OI[:, column] = (left_OI[:, column] / step_O).round().clamp(low_O, high_O)
            lost_O = left_OI[:, column] - codes_OI[:, column] * step_O
            errors_OI[:, column - start] = lost_O / factor_II[column, column]
            left_OI[:, column : block.stop].addr_(
                errors_OI[:, column - start], factor_II[column, column : block.stop], alpha=-1
            )
        left_OI[:, block.stop :] -= errors_OI @ factor_II[block, block.stop :]
    return codes_OI


def _hessian(shift_I: Tensor, stretch_I: Tensor, sample: InputSample) -> Tensor:
    """Return the sum of the outer products of the rounded inputs in float64."""
    shift_I, sum_I = shift_I.double(), sample.sum_I.double()
    shifted_II = sample.products_II.double() - shift_I[:, None] * sum_I - sum_I[:, None] * shift_I
    shifted_II += sample.count * shift_I[:, None] * shift_I
    hessian_II = shifted_II * stretch_I[:, None] * stretch_I
    stretched_RI = (sample.rows_RI - shift_I.float()) * stretch_I
    # A uniform error within a step has a variance of a twelfth of the squared step.
    noise = ((stretched_RI.amax(1) - stretched_RI.amin(1)) / STEPS).square().mean().double() / 12
    hessian_II.diagonal().add_(noise * max(sample.count, 1) + _DAMPING * hessian_II.diagonal().mean() + 1e-12)
    return hessian_II


def _stretches(weight_OI: Tensor, sample: InputSample) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of shift and stretch (I) to try: 0 and 1, then each smoothing strength without and with a shift."""
    none_I = torch.zeros_like(sample.low_I)
    yield none_I, torch.ones_like(none_I)
    weights_I = _above_zero(weight_OI.abs().amax(0))
    for shift_I in (none_I, sample.rows_RI.mean(0)):
        inputs_I = _above_zero(torch.maximum(sample.high_I - shift_I, shift_I - sample.low_I))
        for strength in _STRENGTHS:
            yield shift_I, weights_I.pow(1 - strength) / inputs_I.pow(strength)


def _above_zero(values_I: Tensor) -> Tensor:
    """Raise magnitudes to at least 1e-4 of the largest one; return ones if all are zero."""
    largest = values_I.max()
    return values_I.clamp_min(largest * 1e-4) if largest > 0 else torch.ones_like(values_I)


Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RoundedLayer:
    """The weight of a layer that may become int8, and its replacement."""

    weight: nn.Parameter
    as_int8: Int8Weight


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Layers in int8, and the cosine of each text's vector with its vector from the float32 model."""

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
    """Choose layers that keep the cosine of each text's vector with the float32 one (N, H) at ``min_cosine`` or above.

    The harm of a layer is the loss of mean cosine on the first ``few`` texts if only this layer is int8, divided by its
    number of weights. A bisection over all texts then finds how many of the least harmful layers can be int8 together.
    Each remaining layer is then tried too, because the mean says little about the most affected text.
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
    """Let layers compute in int8 within the block, and set their parameters to the rounded weights."""
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
