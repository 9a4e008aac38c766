"""Masked language modelling as the training loop sees it.

Shapes: N texts, B windows of a batch, T packed tokens, M chosen places, H hidden, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.data.windows import StoredWindow, WindowStore
from bothways.devices import on_device
from bothways.encoder import Encoder, MaskedLMHead
from bothways.encoder.rows import SelectedRows
from bothways.errors import InvalidInput
from bothways.evaluation.masked_lm import TokenLosses, masked_lm_metrics
from bothways.inference.batching import by_token_budget
from bothways.inference.runner import Runner
from bothways.objectives.masking import MaskedTokens, Masker
from bothways.packing import Packed
from bothways.training.objective import MicroBatch, Update, Validation


class MaskedLM(nn.Module):
    """An encoder and its masked language modelling head; logits are computed at the chosen places only."""

    def __init__(self, encoder: Encoder, head: MaskedLMHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, packed: Packed, rows_M: Tensor) -> Tensor:
        """Logits (M, V) of some rows of the packed batch."""
        hidden_MH = self.encoder(packed, rows=SelectedRows(rows_M))
        logits_MV: Tensor = self.head(hidden_MH, self.encoder.embedding.tokens.weight)
        return logits_MV

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.encoder.embedding.tokens.weight.device


@dataclass(frozen=True, slots=True)
class MaskedBatch:
    """One micro-batch: windows with masks, the rows of the chosen places, and what stood there."""

    packed: Packed
    rows_M: Tensor
    targets_M: Tensor


class MaskedLMObjective:
    """Trains a `MaskedLM` on windows of raw text, with new masks in each epoch.

    Args:
        model: What to train.
        training: Windows to learn from.
        validation: Windows to choose the epoch to keep by; their masks stay the same.
        masker: Draws the masks, and the order of the windows by its seed.
        batch_size: Windows in one update.
        tokens: Token budget of a micro-batch; what an update has beyond that is accumulated.

    Raises:
        InvalidInput: The batch size is below 1, or there is nothing to mask in the training windows or in the
            validation windows.
    """

    baseline: ClassVar = None  # its head may be a new one
    least_updates: ClassVar = 0

    def __init__(
        self,
        model: MaskedLM,
        training: WindowStore,
        validation: WindowStore,
        masker: Masker,
        *,
        batch_size: int,
        tokens: int,
    ) -> None:
        if batch_size < 1:
            raise InvalidInput(f"batch_size must be at least 1, but it is {batch_size}.")
        self.model = model
        self.training = training
        self.validation = validation
        self.masker = masker
        self.batch_size = batch_size
        self.tokens = tokens
        self._windows = maskable(training, masker, "training")
        maskable(validation, masker, "validation")

    @property
    def module(self) -> nn.Module:
        """Encoder and head."""
        return self.model

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        """What decides the course of the run besides the settings."""
        masking = self.masker.masking
        return {
            "training data": self.training.digest,
            "validation data": self.validation.digest,
            "batch size": self.batch_size,
            "token budget": self.tokens,
            "chosen tokens": masking.fraction,
            "masked": masking.masked,
            "random": masking.random,
            "mask seed": self.masker.seed,
        }

    def updates_per_epoch(self) -> int:
        """Number of batches of ``batch_size`` windows, the last one smaller."""
        return -(-len(self._windows) // self.batch_size)

    def updates(self, epoch: int, start: int) -> Iterator[Update[MaskedBatch]]:
        """The epoch's windows in an order of its own, with masks of its own."""
        order = np.random.default_rng([self.masker.seed, epoch]).permutation(self._windows)

        for number in range(start, self.updates_per_epoch()):
            windows = order[number * self.batch_size : (number + 1) * self.batch_size].tolist()
            yield Update(tuple(self._micro_batches(windows, epoch)))

    def loss(self, payload: MaskedBatch) -> Tensor:
        """Sum of the chosen places' losses."""
        logits_MV = self.model(payload.packed, payload.rows_M).float()
        return nn.functional.cross_entropy(logits_MV, payload.targets_M, reduction="sum")

    def validate(self) -> Validation:
        """Loss in nats, perplexity and accuracy on the chosen places of the validation windows."""
        metrics = masked_lm_metrics(masked_losses(self.model, self.validation, self.masker, self.tokens))
        return Validation(metrics, -metrics["loss"])

    def _micro_batches(self, windows: list[int], epoch: int) -> Iterator[MicroBatch[MaskedBatch]]:
        lengths = self.training.lengths[windows].tolist()
        for batch in by_token_budget(lengths, self.tokens):
            chosen = [windows[index] for index in batch]
            stored = self.training.windows(chosen)
            masked = [self.masker.training(window.ids, epoch, window.number) for window in stored]
            payload = _masked_batch(self.training.pack(chosen).to(self.model.device), masked)
            yield MicroBatch(payload, float(len(payload.targets_M)), sum(lengths[index] for index in batch))


def maskable(store: WindowStore, masker: Masker, what: str) -> NDArray[np.int64]:
    """The windows that have a token to mask.

    Raises:
        InvalidInput: None has.
    """
    windows = np.flatnonzero(masker.ordinary_tokens(store))
    if not len(windows):
        raise InvalidInput(
            f"there is nothing to mask in the {what} texts: all of their tokens are special ones, such as the one for "
            "unknown words. Check that the model's tokenizer is for this language."
        )
    return windows


def masked_losses(model: MaskedLM, store: WindowStore, masker: Masker, tokens: int) -> TokenLosses:
    """The losses of a model that is in evaluation mode, at the places that are chosen for validation.

    Args:
        model: The model.
        store: The texts.
        masker: Draws the places.
        tokens: Token budget of a batch.
    """

    def compute(packed: Packed, windows: Sequence[StoredWindow]) -> list[NDArray[np.float64]]:
        """Of each window the sum of the losses, and how many places are right and chosen (B, 3)."""
        masked = [masker.validation(window.ids, window.number) for window in windows]
        batch = _masked_batch(packed, masked)
        logits_MV = model(batch.packed, batch.rows_M).float()
        losses_M = nn.functional.cross_entropy(logits_MV, batch.targets_M, reduction="none")
        right_M = (logits_MV.argmax(-1) == batch.targets_M).float()
        counted_M3 = torch.stack([losses_M, right_M, torch.ones_like(right_M)], dim=1).cpu().double().numpy()
        begins_B = np.cumsum([0, *(len(one.places_M) for one in masked[:-1])])
        return [*np.add.reduceat(counted_M3, begins_B)]

    chosen = maskable(store, masker, "given")
    sums_N3 = np.zeros((store.texts, 3))
    np.add.at(sums_N3, store.text_of_window[chosen], Runner(compute, model.device, tokens).run(store.windows(chosen)))
    return TokenLosses(losses_N=sums_N3[:, 0], right_N=sums_N3[:, 1], tokens_N=sums_N3[:, 2])


def _masked_batch(packed: Packed, masked: Sequence[MaskedTokens]) -> MaskedBatch:
    """A packed batch of windows, each with its masks."""
    device = packed.ids_T.device
    read_T = on_device(np.concatenate([one.ids_n for one in masked]).astype(np.int64), device)
    ids_T = torch.cat([read_T, packed.ids_T[len(read_T) :]])
    starts = np.cumsum([0, *packed.lengths[:-1]])[: len(masked)]
    rows_M = np.concatenate([start + one.places_M for start, one in zip(starts, masked, strict=True)])
    targets_M = np.concatenate([one.targets_M for one in masked]).astype(np.int64)
    return MaskedBatch(replace(packed, ids_T=ids_T), on_device(rows_M, device), on_device(targets_M, device))
