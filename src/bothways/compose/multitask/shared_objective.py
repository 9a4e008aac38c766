"""Training of several heads on one shared encoder.

Each task has its own objective, with data, head, loss and validation; an update belongs to one task.

Shapes: B windows of a batch, T tokens of a batch, H hidden, K outputs of all heads together.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bothways.compose.multitask.data import Sampling, order, shares
from bothways.encoder import Encoder, ScoreHead
from bothways.encoder.head_kinds import EachToken
from bothways.encoder.heads import layer_rows, layer_states, read_rows
from bothways.evaluation.report import Validation
from bothways.packing import Packed
from bothways.tasks.heads.objective import Batch, WindowObjective
from bothways.training.objective import MicroBatch, Update


class SharedHeads(nn.Module):
    """An encoder and several heads, computed in one forward pass of the encoder.

    ``layers`` has for each head the number of layers, counted from the last, whose hidden states are appended to its
    scores as features: 0 (the default), 1, or all.
    """

    def __init__(self, encoder: Encoder, heads: Sequence[ScoreHead], layers: Sequence[int] = ()) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleList(heads)
        self.layers = tuple(layers) or (0,) * len(heads)

    @property
    def widths(self) -> list[int]:
        """Number of columns of each head in the output of `forward`: its scores and features."""
        hidden = self.encoder.config.hidden
        return [
            head.output.out_features + hidden * layers for head, layers in zip(self._heads(), self.layers, strict=True)
        ]

    @property
    def per_token(self) -> bool:
        """True if any head scores every token."""
        return any(isinstance(head.kind.read, EachToken) for head in self._heads())

    def forward(self, packed: Packed) -> Tensor:
        """Return the scores and features of all heads, concatenated, from one pass of the encoder (B, K).

        If any head scores every token, the shape is (T, K): other heads have their outputs at each sequence's first
        token, and zeros at the other tokens.
        """
        heads = self._heads()
        parts = [
            part if isinstance(head.kind.read, EachToken) or not self.per_token else _at_first_tokens(part, packed)
            for head, states, layers in zip(heads, self._read(heads, packed), self.layers, strict=True)
            for part in (head(states[0]), *(each[:, : self.encoder.config.hidden] for each in states[:layers]))
        ]
        return torch.cat(parts, dim=1)

    def _read(self, heads: Sequence[ScoreHead], packed: Packed) -> list[tuple[Tensor, ...]]:
        """Return the hidden states that each head reads: of the last layer, and of earlier layers if it needs them."""
        reads = {head.kind.read for head in heads}
        if max(self.layers) > 1:
            states = layer_states(self.encoder, packed)
            return [
                layer_rows(head.kind.read, self.encoder, states[: max(1, layers)], packed)
                for head, layers in zip(heads, self.layers, strict=True)
            ]
        if len(reads) == 1:
            # All heads read the same states of the last layer, so only these are computed.
            return [(read_rows(reads.pop(), self.encoder, packed),)] * len(heads)
        hidden_TH = self.encoder(packed)
        return [(read_rows(head.kind.read, self.encoder, packed, hidden_TH=hidden_TH),) for head in heads]

    def _heads(self) -> list[ScoreHead]:
        return [head for head in self.heads if isinstance(head, ScoreHead)]


@dataclass(frozen=True, slots=True)
class SharedPayload:
    """A micro-batch of one of the tasks."""

    task: str
    batch: Batch


class SharedObjective:
    """Trains an encoder on several tasks, each with its own objective.

    The seed and the epoch determine the order of the tasks. Each task's validation score is divided by its entry in
    ``units`` before the scores are averaged.
    """

    baseline: ClassVar = None  # no epoch 0: not every head starts from a linear model, the baseline

    def __init__(
        self,
        module: SharedHeads,
        objectives: Mapping[str, WindowObjective],
        sampling: Sampling,
        *,
        seed: int,
        units: Mapping[str, float],
    ) -> None:
        self._module = module
        self.objectives = dict(objectives)
        self.sampling = sampling
        self.seed = seed
        self.units = units
        self.names = list(objectives)
        self.shares = shares([each.updates_per_epoch() for each in objectives.values()], sampling)

    @property
    def min_updates(self) -> int:
        """The sum of the tasks' minimum numbers of updates."""
        return sum(each.min_updates for each in self.objectives.values())

    @property
    def module(self) -> nn.Module:
        """Encoder and heads."""
        return self._module

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        """Settings that determine the run: tasks, sampling, and the settings of each task."""
        own = {
            f"{name}: {key}": value for name, each in self.objectives.items() for key, value in each.identity.items()
        }
        return {"tasks": ", ".join(self.names), "sampling": repr(self.sampling), **own}

    def updates_per_epoch(self) -> int:
        """Return the total number of updates of all tasks."""
        return sum(self.shares)

    def updates(self, epoch: int, start: int) -> Iterator[Update[SharedPayload]]:
        """Yield updates in the epoch's order of tasks; each task's data continue where the last epoch stopped."""
        tasks_U = order(self.shares, self.seed, epoch)
        streams = [
            self._endless(name, epoch * self.shares[task] + int((tasks_U[:start] == task).sum()))
            for task, name in enumerate(self.names)
        ]
        for task in tasks_U[start:]:
            yield next(streams[task])

    def loss(self, payload: SharedPayload) -> Tensor:
        """Return the summed loss of a micro-batch, from the objective of its task."""
        return self.objectives[payload.task].loss(payload.batch)

    def validate(self) -> Validation | None:
        """Return the metrics of all tasks, with the mean of their scores as the score; None without held-out rows."""
        metrics: dict[str, float] = {}
        scores, errors = [], []
        for name, each in self.objectives.items():
            found = each.validate()
            if found is not None:
                metrics |= {f"{name}.{key}": value for key, value in found.metrics.items()}
                scores.append(found.score / self.units[name])
                errors.append(found.standard_error / self.units[name])
        if not scores:
            return None
        return Validation(metrics, sum(scores) / len(scores), math.hypot(*errors) / len(scores))

    def _endless(self, name: str, done: int) -> Iterator[Update[SharedPayload]]:
        """Yield a task's updates from number ``done`` on, repeating its data endlessly."""
        objective = self.objectives[name]
        round_, start = divmod(done, objective.updates_per_epoch())
        while True:
            for update in objective.updates(round_, start):
                yield Update(tuple(_named(name, part) for part in update.micro_batches))
            round_, start = round_ + 1, 0


def _at_first_tokens(rows_BK: Tensor, packed: Packed) -> Tensor:
    """Move each sequence's row to its first token (T, K), with zeros at the others."""
    rows_TK = rows_BK.new_zeros(len(packed.ids_T), rows_BK.shape[1])
    rows_TK[packed.first_tokens_B] = rows_BK
    return rows_TK


def _named(task: str, part: MicroBatch[Batch]) -> MicroBatch[SharedPayload]:
    return MicroBatch(SharedPayload(task, part.payload), part.weight, part.tokens)
