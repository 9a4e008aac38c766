"""Distances between a student's and its teacher's outputs for the same tokens.

Shapes: B sequences, T packed tokens, U compared positions, M units, V vocabulary, H hidden of the student, G hidden of
the teacher, K numbers of a vector.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.objectives.pretraining import sums_of
from bothways.packing import Packed


@dataclass(frozen=True, slots=True)
class Distances:
    """Distances of units from the teacher's outputs, as losses.

    Attributes:
        values: The loss of each unit (M).
        rows: Row of the packed batch of each unit (M).
    """

    values: Tensor
    rows: Tensor

    def loss(self) -> Tensor:
        """Return the sum of the units' losses."""
        return self.values.sum()

    def sums(self, packed: Packed) -> NDArray[np.float64]:
        """Return the sum of losses, NaN, and the number of units of each sequence (B, 3)."""
        return sums_of(packed, self.rows, self.values, torch.full_like(self.values, torch.nan))


def soft_divergence(logits_UV: Tensor, taught_UV: Tensor, temperature: float) -> Tensor:
    """Return ``t^2 KL(softmax(taught / t) || softmax(logits / t))`` at each position (U).

    The square keeps the gradient's size at any temperature (Hinton et al. 2015, arXiv:1503.02531,
    section 2).
    """
    log_student, log_teacher = ((each.float() / temperature).log_softmax(-1) for each in (logits_UV, taught_UV))
    return nn.functional.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(-1) * temperature**2


def cosine_distance(ours_UG: Tensor, theirs_UG: Tensor) -> Tensor:
    """Return 1 minus the cosine of each pair of rows (U)."""
    return 1 - nn.functional.cosine_similarity(ours_UG.float(), theirs_UG.float(), dim=-1)


def squared_error(ours_TG: Tensor, theirs_TG: Tensor) -> Tensor:
    """Return the mean squared error of each token (T)."""
    return (ours_TG.float() - theirs_TG.float()).square().mean(-1)


def vector_distance(ours_BK: Tensor, theirs_BK: Tensor, packed: Packed) -> Tensor:
    """Return the distance of each sequence's vector from its teacher's (B).

    For equal widths 1 minus their cosine, which is K / 2 times the mean squared error of unit vectors. For different
    widths the mean squared difference of a sequence's cosines with the others of the batch, student against teacher.
    """
    if ours_BK.shape[-1] == theirs_BK.shape[-1]:
        return cosine_distance(ours_BK, theirs_BK)
    unit = [nn.functional.normalize(each.float(), dim=-1) for each in (ours_BK, theirs_BK)]
    # Sequences of one token are fillers.
    real_B = torch.tensor([length > 1 for length in packed.lengths], device=ours_BK.device)
    counted_BB = real_B[:, None] & real_B & ~torch.eye(len(real_B), dtype=torch.bool, device=real_B.device)
    squared_BB = (unit[0] @ unit[0].T - unit[1] @ unit[1].T).square() * counted_BB
    return squared_BB.sum(-1) / counted_BB.sum(-1).clamp(min=1)
