"""Fine-tuning a sequence head and the encoder below it, as the training loop sees it.

A long text is read in several windows; each carries the text's label, and their losses share the text's weight of 1, so
that a long text counts as much as a short one and none of it is cut off.

Shapes: N texts, W windows, B windows of a batch, C outputs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.data.windows import WindowStore
from bothways.encoder import Encoder, ScoreHead
from bothways.encoder.heads import read_rows
from bothways.errors import InvalidInput
from bothways.inference.batching import by_token_budget
from bothways.packing import Packed
from bothways.tasks.targets import Logits, Target, Truth, as_tensor
from bothways.training.objective import MicroBatch, Update, Validation


class SequenceModel(nn.Module):
    """An encoder and a sequence head; of the last layer, only what the head reads is computed to the end."""

    def __init__(self, encoder: Encoder, head: ScoreHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, packed: Packed) -> Tensor:
        """Logits (B, C)."""
        logits_BC: Tensor = self.head(read_rows(self.head.kind.read, self.encoder, packed))
        return logits_BC


@dataclass(frozen=True, slots=True)
class LabelledWindows:
    """Tokenised texts and their encoded labels."""

    store: WindowStore
    truth: Truth

    @property
    def digest(self) -> str:
        """Identifies the data: a checksum of tokens and labels."""
        import hashlib

        content = hashlib.sha256()
        for array in (self.store.ids_T, self.store.starts, self.truth):
            content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: windows, their texts' labels, and each window's share of its text."""

    packed: Packed
    truth: Tensor
    weights_B: Tensor


class SequenceObjective:
    """Trains a `SequenceModel` on labelled windows.

    Args:
        model: What to train.
        target: What it predicts.
        training: Data to learn from.
        validation: Data to choose the best epoch by.
        batch_size: Texts in one update.
        tokens: Token budget of a micro-batch; what an update has beyond that is accumulated.
        seed: Orders the texts, together with the epoch.

    Raises:
        InvalidInput: The batch size is below 1.
    """

    def __init__(
        self,
        model: SequenceModel,
        target: Target,
        training: LabelledWindows,
        validation: LabelledWindows,
        *,
        batch_size: int,
        tokens: int,
        seed: int,
    ) -> None:
        if batch_size < 1:
            raise InvalidInput(f"batch_size must be at least 1, but it is {batch_size}.")
        self.model = model
        self.target = target
        self.training = training
        self.validation = validation
        self.batch_size = batch_size
        self.tokens = tokens
        self.seed = seed
        windows_of_text = np.bincount(training.store.text_of_window)
        self._weight_of_window = 1.0 / windows_of_text[training.store.text_of_window]

    @property
    def module(self) -> nn.Module:
        """Encoder and head."""
        return self.model

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        """What decides the course of the run besides the settings."""
        return {
            "training data": self.training.digest,
            "validation data": self.validation.digest,
            "batch size": self.batch_size,
            "token budget": self.tokens,
            "target": self.target.kind,
        }

    def updates_per_epoch(self) -> int:
        """Number of batches of ``batch_size`` texts, the last one smaller."""
        return -(-self.training.store.texts // self.batch_size)

    def updates(self, epoch: int, start: int) -> Iterator[Update[Batch]]:
        """The epoch's texts in an order of its own."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.training.store.texts)
        for number in range(start, self.updates_per_epoch()):
            texts = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield Update(tuple(self._micro_batches(self.training.store.windows_of(texts))))

    def loss(self, payload: Batch) -> Tensor:
        """Sum of the windows' losses, each weighted with its share of its text."""
        losses_B = self.target.losses(self.model(payload.packed).float(), payload.truth)
        return (losses_B * payload.weights_B).sum()

    def validate(self) -> Validation | None:
        """Metrics on the validation texts."""
        logits_NC = predict_logits(self.model, self.validation.store, self.tokens)
        metrics, score = self.target.validate(logits_NC, self.validation.truth)
        return Validation(metrics, score)

    def _micro_batches(self, windows: list[int]) -> Iterator[MicroBatch[Batch]]:
        store, device = self.training.store, device_of(self.model)
        lengths = store.lengths[windows].tolist()
        for batch in by_token_budget(lengths, self.tokens):
            chosen = [windows[index] for index in batch]
            texts = store.text_of_window[chosen].tolist()
            weights = self._weight_of_window[chosen]
            weights_B = torch.from_numpy(weights.astype(np.float32)).to(device)
            payload = Batch(store.pack(chosen).to(device), as_tensor(self.training.truth, texts, device), weights_B)
            yield MicroBatch(payload, float(weights.sum()), sum(lengths[index] for index in batch))


@torch.inference_mode()
def predict_logits(model: SequenceModel, store: WindowStore, tokens: int) -> Logits:
    """Logits of stored texts (N, C), those of several windows merged."""
    device = device_of(model)
    rows: list[NDArray[np.float64]] = [np.empty(0)] * len(store.lengths)
    for batch in by_token_budget(store.lengths.tolist(), tokens):
        logits_BC = model(store.pack(batch).to(device)).double().cpu().numpy()
        for window, logits_C in zip(batch, logits_BC, strict=True):
            rows[window] = logits_C
    return merge_windows(np.stack(rows), store.lengths, store.text_of_window)


def merge_windows(logits_WC: NDArray[np.floating], lengths_W: NDArray[np.int64], text_W: NDArray[np.int64]) -> Logits:
    """Logits of each text (N, C): the mean of its windows', weighted with their lengths."""
    totals_NC = np.zeros((int(text_W[-1]) + 1, logits_WC.shape[1]))
    np.add.at(totals_NC, text_W, logits_WC * lengths_W[:, None])
    merged_NC: Logits = totals_NC / np.bincount(text_W, weights=lengths_W)[:, None]
    return merged_NC


def device_of(model: SequenceModel) -> torch.device:
    """Where the weights are."""
    return model.head.output.weight.device
