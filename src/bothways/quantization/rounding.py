"""The int8 map of each linear layer of an encoder, fitted to the rows that the layer reads.

Shapes: T rows of a batch, R rows of a sample, I and O widths.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bothways.encoder.int8 import STEPS, Int8Weight, rounded, steps

# How much of the difficulty of large inputs goes to the weights: all of it at 1, none at 0.
_STRENGTHS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8)
# Rows that maps are compared on, so many of a batch, and rows that weights are rounded for.
_ROWS_OF_A_BATCH, _COMPARED, _FITTED = 64, 1024, 16_384
# Columns of weights that are rounded before the others learn of it.
_AT_ONCE = 128
_DAMPING = 0.01


class InputSample:
    """Rows that a layer reads: the extremes of all of them, a sample, and sums over others.

    Args:
        width: I.
        generator: Draws the sample.

    Attributes:
        low_I: The least numbers.
        high_I: The largest.
        count: Rows that are summed.
        sum_I: Their sum.
        products_II: The sum of their outer products.
    """

    def __init__(self, width: int, generator: torch.Generator) -> None:
        self._generator = generator
        self._rows: list[Tensor] = []
        self.low_I, self.high_I = torch.full((width,), torch.inf), torch.full((width,), -torch.inf)
        self.count, self.sum_I, self.products_II = 0, torch.zeros(width), torch.zeros(width, width)

    def add(self, x_TI: Tensor) -> None:
        """Take rows into account."""
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
        """True once further rows would say little."""
        return self.count >= _FITTED

    @property
    def rows_RI(self) -> Tensor:
        """The sample."""
        return torch.cat(self._rows)


@contextmanager
def sampled(layers: Mapping[str, nn.Module], seed: int) -> Iterator[dict[str, InputSample]]:
    """Collect what layers read within the block; those that read nothing have no sample."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, InputSample] = {}

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def add(_: nn.Module, inputs: tuple[Any, ...]) -> None:
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
def fitted(weight_OI: Tensor, sample: InputSample) -> Int8Weight:
    """Return the map whose products of the sampled rows are nearest to those of the weight.

    Of weights rounded each for itself the best stretch is taken; that one and the next stronger are then tried with
    weights that make up for one another.
    """
    rows_RI = sample.rows_RI
    expected_RO = rows_RI @ weight_OI.t()

    def error(tried: Int8Weight) -> float:
        return float((tried.product(rows_RI, None) - expected_RO).square().sum())

    ways = list(_stretches(weight_OI, sample))
    found = [Int8Weight.of(weight_OI, *each) for each in ways]
    errors = [error(each) for each in found]
    best = errors.index(min(errors))
    found = [found[best], *(_compensated(weight_OI, *each, sample) for each in ways[best : best + 2])]
    return min(found, key=error)


def _compensated(weight_OI: Tensor, shift_I: Tensor, stretch_I: Tensor, sample: InputSample) -> Int8Weight:
    """Round column by column; those to come make up for what rounding has taken from the outputs.

    GPTQ (Frantar et al. 2022, arXiv:2210.17323, algorithm 1), columns with the largest inputs first.
    """
    stretched_OI = weight_OI.detach() / stretch_I
    scale_O = steps(stretched_OI)
    hessian_II = _hessian(shift_I, stretch_I, sample)
    order_I = hessian_II.diagonal().argsort(descending=True)
    inverse_II = torch.cholesky_inverse(torch.linalg.cholesky(hessian_II[order_I][:, order_I]))
    factor_II = torch.linalg.cholesky(inverse_II, upper=True)
    left_OI, step_O = stretched_OI[:, order_I].double(), scale_O.double()
    codes_OI = torch.empty_like(left_OI)
    for start in range(0, len(order_I), _AT_ONCE):
        block = slice(start, start + _AT_ONCE)
        errors_OI = torch.empty_like(left_OI[:, block])
        for number in range(errors_OI.shape[1]):
            column = start + number
            codes_OI[:, column] = rounded(left_OI[:, column : column + 1], step_O)[:, 0]
            lost_O = left_OI[:, column] - codes_OI[:, column] * step_O
            errors_OI[:, number] = lost_O / factor_II[column, column]
            left_OI[:, column : block.stop].addr_(
                errors_OI[:, number], factor_II[column, column : block.stop], alpha=-1
            )
        left_OI[:, block.stop :] -= errors_OI @ factor_II[block, block.stop :]
    return Int8Weight(codes_OI[:, order_I.argsort()].to(torch.int8), scale_O, shift_I, stretch_I)


def _hessian(shift_I: Tensor, stretch_I: Tensor, sample: InputSample) -> Tensor:
    """Return the sum of the outer products of inputs as they are multiplied, rounded themselves, in float64."""
    shift_I, sum_I = shift_I.double(), sample.sum_I.double()
    shifted_II = sample.products_II.double() - shift_I[:, None] * sum_I - sum_I[:, None] * shift_I
    shifted_II += sample.count * shift_I[:, None] * shift_I
    hessian_II = shifted_II * stretch_I[:, None] * stretch_I
    stretched_RI = (sample.rows_RI - shift_I.float()) * stretch_I
    # An error that is equally likely anywhere within a step has a twelfth of its square as variance.
    noise = ((stretched_RI.amax(1) - stretched_RI.amin(1)) / STEPS).square().mean().double() / 12
    hessian_II.diagonal().add_(noise * max(sample.count, 1) + _DAMPING * hessian_II.diagonal().mean() + 1e-12)
    return hessian_II


def _stretches(weight_OI: Tensor, sample: InputSample) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shifts and stretches (I): first none at all, then more and more."""
    none_I = torch.zeros_like(sample.low_I)
    yield none_I, torch.ones_like(none_I)
    weights_I = _above_zero(weight_OI.abs().amax(0))
    for shift_I in (none_I, sample.rows_RI.mean(0)):
        inputs_I = _above_zero(torch.maximum(sample.high_I - shift_I, shift_I - sample.low_I))
        for strength in _STRENGTHS:
            yield shift_I, weights_I.pow(1 - strength) / inputs_I.pow(strength)


def _above_zero(values_I: Tensor) -> Tensor:
    """Return magnitudes with a floor far below the largest; ones where all are zero."""
    largest = values_I.max()
    return values_I.clamp_min(largest * 1e-4) if largest > 0 else torch.ones_like(values_I)
