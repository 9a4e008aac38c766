"""The int8 map of each linear layer of an encoder, fitted to the rows that the layer reads.

Shapes: T rows of a batch, R rows of a sample, I and O widths.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bothways.encoder.int8 import Int8Weight

# How much of the difficulty of large inputs goes to the weights: all of it at 1, none at 0.
_STRENGTHS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8)
_ROWS_OF_A_BATCH, _ROWS = 64, 1024


class InputSample:
    """Rows that a layer reads: the extremes of all of them, and a sample.

    Args:
        generator: Draws the sample.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._rows: list[Tensor] = []
        self.low_I: Tensor | None = None
        self.high_I: Tensor | None = None

    def add(self, x_TI: Tensor) -> None:
        """Take rows into account."""
        low_I, high_I = x_TI.amin(0), x_TI.amax(0)
        self.low_I = low_I if self.low_I is None else torch.minimum(self.low_I, low_I)
        self.high_I = high_I if self.high_I is None else torch.maximum(self.high_I, high_I)
        if sum(map(len, self._rows)) < _ROWS:
            chosen = torch.randperm(len(x_TI), generator=self._generator)[:_ROWS_OF_A_BATCH]
            self._rows.append(x_TI[chosen].clone())

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
                found.setdefault(name, InputSample(generator)).add(inputs[0])

        return add

    handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def fitted(weight_OI: Tensor, sample: InputSample) -> Int8Weight:
    """Return the map whose products of the sampled rows are nearest to those of the weight."""
    rows_RI = sample.rows_RI
    expected_RO = rows_RI @ weight_OI.t()
    found = [Int8Weight.of(weight_OI, *each) for each in _stretches(weight_OI, sample)]
    errors = [float((each.product(rows_RI, None) - expected_RO).square().sum()) for each in found]
    return found[errors.index(min(errors))]


def _stretches(weight_OI: Tensor, sample: InputSample) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shifts and stretches (I): first none at all, then more and more."""
    assert sample.low_I is not None
    assert sample.high_I is not None
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
