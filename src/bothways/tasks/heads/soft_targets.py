"""Soft targets: a student learns a teacher's predictions for each text or word, instead of labels.

The loss is that of Hinton et al. (2015), "Distilling the knowledge in a neural network", arXiv:1503.02531, section 2:
the divergence from the teacher's probabilities at a temperature, and beside it, as in DistilBERT (Sanh et al. 2019,
arXiv:1910.01108, section 3), the cosine distance of the hidden states that the heads read. The teacher reads each text
once, before the training.

Shapes: W windows, U units, R rows that a head gives for a batch, C outputs, H width that the student's head reads,
G width that the teacher's reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.data.windows import WindowStore
from bothways.encoder.heads import read_rows, read_width
from bothways.errors import InvalidInput
from bothways.inference.runner import Runner, row_answers
from bothways.objectives.distillation import cosine_distance, soft_divergence
from bothways.packing import Packed
from bothways.tasks.heads.objective import LossUnits
from bothways.tasks.heads.target_training import losses
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel, Target
from bothways.tasks.torch_backend import HeadModel

_BLOCK = 1024  # windows whose hidden states are in memory at once


@dataclass(frozen=True, slots=True)
class SoftLoss:
    """Weights of the parts of the loss; a part of weight 0 is left out.

    Attributes:
        soft: Weight of the divergence from the teacher's predictions.
        states: Weight of the cosine distance of the hidden states that the heads read.
        temperature: Divides the logits of both; the divergence is multiplied by its square. Regression has none.

    Raises:
        InvalidInput: A weight is below 0, the first is 0, or the temperature is not above 0.
    """

    soft: float = 1.0
    states: float = 1.0
    temperature: float = 2.0

    def __post_init__(self) -> None:
        if not (self.soft > 0 and self.states >= 0):
            raise InvalidInput(f"expected soft above 0 and states of 0 or more, got {self.soft} and {self.states}.")
        if not self.temperature > 0:
            raise InvalidInput(f"expected a temperature above 0, got {self.temperature}.")


class StateModel(HeadModel):
    """A model that gives the hidden states that its head reads beside the scores.

    Args:
        model: Encoder and head.
        width: Width G of the teacher's states, to which others are projected by a learned map.
    """

    def __init__(self, model: HeadModel, width: int | None = None) -> None:
        super().__init__(model.encoder, model.head)
        own = read_width(model.head.kind.read, model.encoder.config.hidden)
        alike = width in (None, own)
        self.projection = nn.Identity() if alike else nn.Linear(own, width or own).to(model.device)

    def forward(self, packed: Packed) -> Tensor:
        """Return scores and states (R, C + G)."""
        states_RH = read_rows(self.head.kind.read, self.encoder, packed)
        return torch.cat([self.head(states_RH), self.projection(states_RH)], dim=1)


@dataclass(frozen=True, slots=True, eq=False)
class TeacherOutputs:
    """Logits and hidden states of a teacher for some texts.

    Attributes:
        logits_UC: Logits of each unit.
        states_UG: Hidden states, in half precision.
        scores: Logits of each window: (C), or (n, C) of a head that reads tokens.
    """

    logits_UC: Tensor
    states_UG: Tensor
    scores: list[NDArray[np.float64]]

    @classmethod
    def of(cls, teacher: HeadModel, store: WindowStore, units: LossUnits, tokens: int) -> "TeacherOutputs":
        """Run a teacher on texts, in batches of at most ``tokens`` tokens."""
        module, per_token = StateModel(teacher).eval(), teacher.per_token
        runner = Runner(row_answers(module, per_token=per_token), module.device, tokens)
        outputs = teacher.head.output.out_features
        logits: list[Tensor] = []
        states: list[Tensor] = []
        scores: list[NDArray[np.float64]] = []
        for start in range(0, len(store.lengths), _BLOCK):
            block = range(start, min(start + _BLOCK, len(store.lengths)))
            found = runner.run(store.windows(block))
            _, rows_U = units.of(block)
            made_U = torch.from_numpy(np.concatenate(found if per_token else [each[None] for each in found])[rows_U])
            logits.append(made_U[:, :outputs].clone())
            states.append(made_U[:, outputs:].half())
            scores += [each[..., :outputs].astype(np.float64) for each in found]
        return cls(torch.cat(logits), torch.cat(states), scores)


class SoftTargets:
    """A teacher's predictions and hidden states as the targets of windows; see `LabelLoss`.

    Args:
        units: The loss units of each window.
        target: The target of a unit.
        taught: The teacher's outputs for the units.
        loss: Weights of the parts of the loss.
    """

    joint: ClassVar[bool] = False

    def __init__(self, units: LossUnits, target: Target, taught: TeacherOutputs, loss: SoftLoss) -> None:
        self.units, self.target, self.taught, self.weighting = units, target, taught, loss
        self._weights_W = units.weights_W

    @property
    def digest(self) -> str:
        """Temperature and weights; the teacher's outputs follow from the texts and its weights."""
        loss = self.weighting
        return f"soft {loss.soft:g} states {loss.states:g} temperature {loss.temperature:g}"

    def weights(self, windows: Sequence[int]) -> NDArray[np.float64]:
        """Return the weight of each window (B)."""
        weights_B: NDArray[np.float64] = self._weights_W[list(windows)]
        return weights_B

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Return the sum of the units' losses, given logits and states (R, C + G), or logits alone (R, C)."""
        loss, outputs = self.weighting, self.target.outputs
        numbers_U, rows_U = (torch.from_numpy(each) for each in self.units.of(windows))
        ours_U = scores[rows_U.to(scores.device)]
        taught_UC = self.taught.logits_UC[numbers_U].to(scores.device)
        losses_U = loss.soft * divergences(self.target, ours_U[:, :outputs], taught_UC, loss.temperature)
        if loss.states and ours_U.shape[1] > outputs:
            states_UG = self.taught.states_UG[numbers_U].to(scores.device)
            losses_U = losses_U + loss.states * cosine_distance(ours_U[:, outputs:], states_UG)
        shares_U = torch.from_numpy(self.units.shares_U)[numbers_U].to(scores.device, torch.float32)
        return (losses_U * shares_U).sum()


def divergences(target: Target, logits_UC: Tensor, taught_UC: Tensor, temperature: float) -> Tensor:
    """Return the divergence of each row from a teacher's prediction (U).

    One label has `soft_divergence`, several labels its mean, and a number the squared loss, without a temperature.
    """
    match target:
        case SingleLabel():
            return soft_divergence(logits_UC, taught_UC, temperature)
        case MultiLabel():
            ours_UC, theirs_UC = logits_UC / temperature, taught_UC / temperature
            soft_UC = theirs_UC.sigmoid()
            cross_UC, least_UC = (
                F.binary_cross_entropy_with_logits(each, soft_UC, reduction="none") for each in (ours_UC, theirs_UC)
            )
            return (cross_UC - least_UC).mean(1) * temperature**2
        case Regression():
            return losses(target, logits_UC, taught_UC[:, 0])
