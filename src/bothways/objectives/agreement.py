"""Agreement of the vectors of a model in training with those of its teacher.

Shapes: B sequences of a batch, P pairs of sequences, K numbers of a vector.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from bothways.evaluation import spearman
from bothways.inference.runner import Runner
from bothways.objectives.sequences import SequenceSource, TrainingSequence
from bothways.packing import Packed


@runtime_checkable
class ComparedVectors(Protocol):
    """A `PretrainingModel` that also makes vectors of sequences, and learns them from a teacher."""

    def vectors(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Return the vectors of sequences that the model (B, K) and its teacher make; the widths may differ."""


def agreement(model: ComparedVectors, device: torch.device, source: SequenceSource, tokens: int) -> float:
    """Return Spearman's correlation of a model's cosines of all pairs of sequences with its teacher's.

    Args:
        model: The model, in evaluation mode.
        device: Where it is.
        source: Sequences; the first 512 are compared with each other.
        tokens: Token budget of a batch.
    """

    def compute(packed: Packed, sequences: Sequence[TrainingSequence]) -> list[list[Tensor]]:
        unit = [nn.functional.normalize(each.double(), dim=-1).cpu() for each in model.vectors(packed)]
        return [[each[number] for each in unit] for number in range(len(sequences))]

    drawn = source.read(range(min(len(source), _COMPARED)), 0)[:_COMPARED]
    ours, theirs = (torch.stack(each) for each in zip(*Runner(compute, device, tokens).run(drawn), strict=True))
    first_P, second_P = np.triu_indices(len(drawn), 1)
    if len(first_P) < _LEAST_PAIRS:
        return 0.0
    return float(spearman(*((each @ each.T).numpy()[first_P, second_P] for each in (theirs, ours))))


# Sequences that are compared with each other, and pairs that a correlation needs.
_COMPARED, _LEAST_PAIRS = 512, 3
