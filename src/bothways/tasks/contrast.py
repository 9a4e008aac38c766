"""Texts of a label brought together before a head begins, where few texts are learnt from.

A linear model of the frozen encoder is often right on all of a few texts, and a head that begins there has next to
nothing to learn; how the texts lie to each other still tells something (Tunstall et al. 2022, arXiv:2209.11055). The
loss is that of Khosla et al. 2020 (arXiv:2004.11362, equation 2):

    L = mean over i of  -1/|P(i)| sum over p in P(i) of the log softmax over a != i of cos(i, a) / t, at p

where P(i) are the other texts of i's label in the batch, and t is a temperature.

Shapes: N texts, B texts of a batch, H width of the row that a head reads.
"""

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.data.windows import WindowStore
from bothways.devices import on_device
from bothways.encoder import Encoder
from bothways.encoder.heads import Read, read_rows
from bothways.tasks.objective import Batch
from bothways.training.interrupts import interruption
from bothways.training.loop import train
from bothways.training.objective import MicroBatch, Update
from bothways.training.options import TrainingOptions

UPDATES = 20
"""Updates of a training, however few the texts are: more gain nothing."""

# Pairs of a batch, and its tokens, for the loss sees all of it at once; the temperature t.
_PAIRS, _TOKENS, _TEMPERATURE = 16, 2048, 0.05


class ContrastObjective:
    """Trains an encoder so that texts of a label lie together, as the training loop sees it.

    Args:
        encoder: What is trained.
        read: Which of its hidden states a head will read, a row for each text.
        store: The texts; of a long one the first window is read.
        classes_N: Numbers of their labels.
        seed: Draws the batches.
    """

    baseline: ClassVar = None
    least_updates: ClassVar = 0
    identity: ClassVar[Mapping[str, str | int | float | bool | None]] = {}

    def __init__(
        self, encoder: Encoder, read: Read, store: WindowStore, classes_N: NDArray[np.int64], seed: int
    ) -> None:
        self._encoder, self._read, self._store = encoder, read, store
        self._classes_N, self._seed = classes_N, seed
        self._first_N = np.array([store.windows_of([text])[0] for text in range(store.texts)])

    @property
    def module(self) -> nn.Module:
        """The encoder."""
        return self._encoder

    def updates_per_epoch(self) -> int:
        """Number of updates."""
        return UPDATES

    def updates(self, epoch: int, start: int) -> Iterator[Update[Batch]]:
        """Batches of texts, each with another of its label."""
        for number in range(start, UPDATES):
            generator = np.random.default_rng([self._seed, epoch, number, 2])
            windows = self._first_N[self._drawn(generator)].tolist()
            packed = self._store.pack(windows).to(self._encoder.embedding.tokens.weight.device)
            tokens = int(self._store.lengths[windows].sum())
            yield Update((MicroBatch(Batch(packed, windows), float(len(windows)), tokens),))

    def _drawn(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Numbers of the texts of a batch: two at least, and as many pairs as there is room for."""
        chosen: dict[int, None] = {}
        room = _TOKENS
        for text in generator.permutation(len(self._classes_N))[:_PAIRS].tolist():
            others = np.flatnonzero(self._classes_N == self._classes_N[text])
            others = others[others != text]
            pair = [text, *([int(generator.choice(others))] if len(others) else [])]
            room -= int(self._store.lengths[self._first_N[pair]].sum())
            if room < 0 and len(chosen) > 1:
                break
            chosen |= dict.fromkeys(pair)
        return np.array(list(chosen), np.int64)

    def loss(self, payload: Batch) -> Tensor:
        """Sum of the losses of the batch's texts; those without another of their label have none."""
        rows_BH = F.normalize(read_rows(self._read, self._encoder, payload.packed).float(), dim=1)
        classes_B = self._classes_N[self._store.text_of_window[payload.windows]]
        return contrastive_losses(rows_BH, on_device(classes_B, rows_BH.device)).sum()

    def validate(self) -> None:
        """Nothing is held out for this."""


def contrastive_losses(unit_BH: Tensor, classes_B: Tensor) -> Tensor:
    """Return the loss of each text (B), given rows of length 1; 0 where no other has its label."""
    itself_BB = torch.eye(len(unit_BH), dtype=torch.bool, device=unit_BH.device)
    scores_BB = (unit_BH @ unit_BH.T / _TEMPERATURE).masked_fill(itself_BB, -math.inf)
    same_BB = (classes_B[:, None] == classes_B) & ~itself_BB
    logs_BB = scores_BB.log_softmax(1).masked_fill(~same_BB, 0.0)
    return -logs_BB.sum(1) / same_BB.sum(1).clamp(min=1)


def bring_together(
    encoder: Encoder, read: Read, store: WindowStore, classes_N: NDArray[np.int64], options: TrainingOptions
) -> None:
    """Train an encoder in place so that texts of a label lie together, where some share theirs.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM ended it.
    """
    if np.bincount(classes_N).max() < 2:
        return
    objective = ContrastObjective(encoder, read, store, classes_N, options.seed)
    own = TrainingOptions(
        epochs=1,
        learning_rate=options.learning_rate,
        seed=options.seed,
        precision=options.precision,
        show_progress=options.show_progress,
    )
    device = encoder.embedding.tokens.weight.device
    record = train(objective, own.resolved(encoder.config.hidden, device), undo_unfinished=True)
    if record.interrupted:
        raise interruption(record.signal)
