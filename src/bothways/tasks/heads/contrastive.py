"""Contrastive warm-up of an encoder, before the head is trained: texts with the same label become similar.

It is used for up to 2,000 training texts. A linear model of the frozen encoder often fits a few texts perfectly, and a
head that starts from it has almost nothing left to learn; the similarities of the texts still carry information
(Tunstall et al. 2022, arXiv:2209.11055). The loss is that of Khosla et al. 2020 (arXiv:2004.11362, equation 2):

    L = mean over i of  -1/|P(i)| sum over p in P(i) of the log softmax over a != i of cos(i, a) / t, at p

where P(i) are the other texts of i's label in the batch, and t is a temperature.

Shapes: N texts, B texts in a batch, H width of the states that a head reads.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.checkpoints import PretrainedEncoder
from bothways.data.windows import WindowStore, digest_of
from bothways.devices import on_device
from bothways.encoder import Encoder
from bothways.encoder.head_kinds import Read
from bothways.encoder.heads import read_rows
from bothways.progress import Progress
from bothways.tasks.heads.objective import Batch
from bothways.training.objective import MicroBatch, Update
from bothways.training.options import TrainingOptions, recorded_options
from bothways.training.stages import TENSORS, Tensors, kept, train_within
from bothways.training.workers import copy_weights, restore_weights

FEW_TEXTS, MAX_TEXTS = 100, 2000
"""Maximum number of texts that counts as few, and maximum number for which the warm-up is known to help."""

# Number of updates with few texts (more do not help), and with more texts.
_UPDATES_OF_FEW, _UPDATES = 20, 40

# Maximum pairs and tokens in a batch, which must fit into memory at once; the temperature t.
_PAIRS, _TOKENS, _TEMPERATURE = 16, 2048, 0.05


class ContrastObjective:
    """Training objective that makes the vectors of texts with the same label similar.

    ``read`` selects the hidden states that the head will read, one row per text; only the first window of a long text
    is used. A batch has at most 2,048 tokens.
    """

    baseline: ClassVar = None
    min_updates: ClassVar = 0
    identity: ClassVar[Mapping[str, str | int | float | bool | None]] = {}

    def __init__(
        self,
        encoder: Encoder,
        read: Read,
        store: WindowStore,
        classes_N: NDArray[np.int64],
        seed: int,
        tokens: int = _TOKENS,
    ) -> None:
        self._encoder, self._read, self._store = encoder, read, store
        self._classes_N, self._seed, self._max_tokens = classes_N, seed, min(tokens, _TOKENS)
        self._first_N = np.array([store.windows_of([text])[0] for text in range(store.texts)])

    @property
    def module(self) -> nn.Module:
        """The encoder."""
        return self._encoder

    def updates_per_epoch(self) -> int:
        """Return the number of updates."""
        return contrast_updates(len(self._classes_N))

    def updates(self, epoch: int, start: int) -> Iterator[Update[Batch]]:
        """Yield batches of texts, in pairs with the same label."""
        for number in range(start, self.updates_per_epoch()):
            generator = np.random.default_rng([self._seed, epoch, number, 2])
            windows = self._first_N[self._drawn(generator)].tolist()
            packed = self._store.pack(windows).to(self._encoder.embedding.tokens.weight.device)
            tokens = int(self._store.lengths[windows].sum())
            yield Update((MicroBatch(Batch(packed, windows), float(len(windows)), tokens),))

    def _drawn(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw the indices of the texts in a batch: at least two pairs, and as many as fit.

        Pairs are drawn from each label in turn, so that a batch has several labels.
        """
        order = generator.permutation(len(self._classes_N))
        ranks_N = np.array(
            [np.count_nonzero(self._classes_N[order[:at]] == self._classes_N[each]) for at, each in enumerate(order)]
        )
        chosen: dict[int, None] = {}
        left = self._max_tokens
        for number, text in enumerate(order[np.argsort(ranks_N, kind="stable")][:_PAIRS].tolist()):
            others = np.flatnonzero(self._classes_N == self._classes_N[text])
            others = others[others != text]
            pair = [text, *([int(generator.choice(others))] if len(others) else [])]
            left -= int(self._store.lengths[self._first_N[pair]].sum())
            if left < 0 and number > 1:
                break
            chosen |= dict.fromkeys(pair)
        return np.array(list(chosen), np.int64)

    def loss(self, payload: Batch) -> Tensor:
        """Return the sum of the texts' losses; a text whose label occurs once in the batch has loss 0."""
        rows_BH = read_rows(self._read, self._encoder, payload.packed).float()
        classes_B = self._classes_N[self._store.text_of_window[payload.windows]]
        # Cosines near 1 need more digits than bfloat16 has.
        with torch.autocast(rows_BH.device.type, enabled=False):
            return supervised_contrastive(F.normalize(rows_BH, dim=1), on_device(classes_B, rows_BH.device)).sum()

    def validate(self) -> None:
        """Do nothing: the warm-up has no held-out texts."""


def contrast_updates(texts: int) -> int:
    """Return the number of contrastive updates for a number of texts."""
    return _UPDATES_OF_FEW if texts <= FEW_TEXTS else _UPDATES


def warm_up_tokens(store: WindowStore, updates: int) -> int:
    """Return the approximate number of tokens in the updates of a warm-up."""
    return updates * min(_TOKENS, int(2 * _PAIRS * store.lengths.mean()))


def supervised_contrastive(unit_BH: Tensor, classes_B: Tensor) -> Tensor:
    """Return the loss of each text (B) from unit vectors (B, H); 0 if no other text has the same label."""
    itself_BB = torch.eye(len(unit_BH), dtype=torch.bool, device=unit_BH.device)
    scores_BB = (unit_BH @ unit_BH.T / _TEMPERATURE).masked_fill(itself_BB, -math.inf)
    same_BB = (classes_B[:, None] == classes_B) & ~itself_BB
    logs_BB = scores_BB.log_softmax(1).masked_fill(~same_BB, 0.0)
    return -logs_BB.sum(1) / same_BB.sum(1).clamp(min=1)


def contrastive_warmup(
    model: PretrainedEncoder, read: Read, store: WindowStore, classes_N: NDArray[np.int64], options: TrainingOptions
) -> None:
    """Run the contrastive warm-up, in place; do nothing unless some label occurs twice."""
    if np.bincount(classes_N).max() < 2:
        return
    objective = ContrastObjective(model.encoder, read, store, classes_N, options.seed, options.max_tokens)
    once = replace(options, epochs=1, updates=None, total_tokens=None, patience=None)

    def compute(bar: Progress) -> Tensors:
        train_within(objective, once, model, bar)
        return copy_weights(model.encoder)

    settings = f"{read} {store.digest} {digest_of(classes_N)} {recorded_options(once)}"
    updates = objective.updates_per_epoch()
    weights = kept("contrastive warm-up", TENSORS, compute, model.encoder, settings, total=updates)
    restore_weights(model.encoder, dict(weights))
