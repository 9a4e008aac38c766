"""The loss of task distillation: a teacher's logits and hidden states as targets of a student.

Shapes: U loss units, C outputs of the head, G width of the teacher's states, R rows that a head reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.data.windows import WindowStore
from bothways.encoder import heads
from bothways.errors import InvalidInput
from bothways.inference.runner import Runner, counted, row_answers
from bothways.objectives.distillation import cosine_distance, soft_divergence
from bothways.packing import Packed
from bothways.progress import Progress
from bothways.tasks.heads.objective import LossUnits
from bothways.tasks.heads.target_training import losses
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel, Target
from bothways.tasks.torch_backend import HeadModel
from bothways.training.stages import ROWS, Kind

# Number of windows in memory at once.
_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class SoftLoss:
    """Weights of the parts of the distillation loss; a part with weight 0 is left out.

    Attributes:
        soft: Weight of the divergence from the teacher's predictions.
        states: Weight of the cosine distance of the hidden states that the heads read.
        temperature: Divisor of the logits of teacher and student; the divergence is multiplied by its square. Unused in
            regression.

    Raises:
        InvalidInput: A weight is below 0, ``soft`` is 0, or the temperature is not above 0.
    """

    soft: float = 1.0
    states: float = 1.0
    temperature: float = 2.0

    def __post_init__(self) -> None:
        if not (self.soft > 0 and self.states >= 0):
            raise InvalidInput(f"soft must be above 0 and states at least 0, got {self.soft} and {self.states}.")
        if not self.temperature > 0:
            raise InvalidInput(f"expected a temperature above 0, got {self.temperature}.")


class StateModel(HeadModel):
    """A model that returns scores and the hidden states that its head reads.

    If their width differs from ``width``, that of the teacher's states (G), a learned linear map projects the states.
    """

    def __init__(self, model: HeadModel, width: int | None = None) -> None:
        super().__init__(model.encoder, model.head)
        own = heads.read_width(model.head.kind.read, model.encoder.config.hidden)
        alike = width in (None, own)
        self.projection = nn.Identity() if alike else nn.Linear(own, width or own).to(model.device)

    def forward(self, packed: Packed) -> Tensor:
        """Return scores and states (R, C + G)."""
        states_RH = heads.read_rows(self.head.kind.read, self.encoder, packed)
        return torch.cat([self.head(states_RH), self.projection(states_RH)], dim=1)


@dataclass(frozen=True, slots=True, eq=False)
class TeacherOutputs:
    """A teacher's logits and half-precision hidden states for each loss unit, and its scores for each window.

    The scores of a window have the shape (C), or (n, C) for a head that reads each of the n tokens.
    """

    logits_UC: Tensor
    states_UG: Tensor
    scores: list[NDArray[np.float64]]

    @classmethod
    def blank(cls, teacher: HeadModel, units: int) -> TeacherOutputs:
        """Return zeros in the place of a teacher's outputs, to measure the time of an update."""
        width = heads.read_width(teacher.head.kind.read, teacher.encoder.config.hidden)
        return cls(torch.zeros(units, teacher.head.output.out_features), torch.zeros(units, width).half(), [])

    @classmethod
    def of(
        cls, teacher: HeadModel, store: WindowStore, units: LossUnits, tokens: int, bar: Progress | None = None
    ) -> TeacherOutputs:
        """Run a teacher on texts, in batches of at most ``tokens`` tokens."""
        module, per_token = StateModel(teacher).eval(), teacher.per_token
        runner = Runner(counted(row_answers(module, per_token=per_token), bar), module.device, tokens)
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


TAUGHT: Kind[TeacherOutputs] = Kind(
    lambda taught: {"logits": taught.logits_UC, "states": taught.states_UG, **ROWS.stored(taught.scores)},
    lambda tensors: TeacherOutputs(tensors["logits"], tensors["states"], ROWS.restored(tensors)),
)


class SoftTargets:
    """A `LabelLoss` whose targets are a teacher's predictions and hidden states."""

    joint: ClassVar[bool] = False

    def __init__(self, units: LossUnits, target: Target, taught: TeacherOutputs, loss: SoftLoss) -> None:
        self.units, self.target, self.taught, self.weighting = units, target, taught, loss
        self.weights_W = units.weights_W

    @property
    def digest(self) -> str:
        """The temperature and weights of the loss; texts and teacher determine everything else."""
        loss = self.weighting
        return f"soft {loss.soft:g} states {loss.states:g} temperature {loss.temperature:g}"

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Return the sum of the units' losses, given logits and states (R, C + G), or only logits (R, C)."""
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

    This is `soft_divergence` for a single label, the mean of the labels' binary divergences for multi-label targets,
    and the squared error, without a temperature, for regression.
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
