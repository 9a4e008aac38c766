"""Learned weights of the windows of a long text: the hierarchical alternative to a fixed way of merging.

A long text is read in windows by an encoder that is fine-tuned first and then stays as it is, and a small second stage
learns from their vectors: the two stages of Pappagari et al. (2019), "Hierarchical transformers for long document
classification", arXiv:1910.10781. The second stage is the attention of Yang et al. (2016), "Hierarchical attention
networks for document classification", N16-1174, equations 8 to 10: the weight of a window is the softmax over its text
of v . tanh(W h + b), with h the hidden state that the head reads. What the weights are applied to are the windows'
logits, so a text of one window is answered as it would be without attention. v begins at zero, where all windows count
alike, and of all steps the one with the least loss on held-out texts is kept: there, it is never worse than the mean.

Shapes: N texts, W windows, B windows of a batch, H hidden, A attention width, C outputs.
"""

import copyreg
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bothways.checkpoints.files import read_safetensors
from bothways.checkpoints.pickling import reduce_module
from bothways.checkpoints.save import write_tensors
from bothways.data.windows import StoredWindow, WindowStore
from bothways.devices import on_device
from bothways.encoder.heads import ScoreHead, read_rows
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.families.weight_map import check_numbers
from bothways.inference import Runner
from bothways.packing import Packed, sum_rows
from bothways.tasks.head import StoredInputs
from bothways.tasks.objective import HeadModel
from bothways.tasks.opening import OpenedModel
from bothways.tasks.targets import Target
from bothways.training.seeding import seeded

FILE = "window_attention.safetensors"

WIDTH = 64
STEPS = 200
RATE = 3e-3
DECAY = 0.01


class WindowAttention(nn.Module):
    """The logarithm of a window's weight, up to a constant of its text.

    Args:
        hidden: H.
        width: A.
    """

    def __init__(self, hidden: int, width: int = WIDTH) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, width)
        self.score = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, hidden_BH: Tensor) -> Tensor:
        """Scores (B, 1) of the hidden states that the head reads."""
        scores_B1: Tensor = self.score(torch.tanh(self.dense(hidden_BH.to(self.dense.weight.dtype))))
        return scores_B1


copyreg.pickle(WindowAttention, reduce_module)


class AttentiveModel(nn.Module):
    """A `HeadModel` that also says how much each window counts.

    Args:
        model: Encoder and head; what it gives behind its scores, if anything, begins with what the head reads.
        attention: How much windows count.
    """

    def __init__(self, model: HeadModel, attention: WindowAttention) -> None:
        super().__init__()
        self.model = model
        self.attention = attention

    @property
    def head(self) -> ScoreHead:
        """The model's head."""
        return self.model.head

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.model.device

    def forward(self, packed: Packed) -> Tensor:
        """Return the scores of each window (and its features), and behind them that of the attention: (B, K + 1)."""
        classes, hidden = self.head.output.out_features, self.model.encoder.config.hidden
        said_BK = self.model(packed)
        if said_BK.shape[1] > classes:
            return torch.cat([said_BK, self.attention(said_BK[:, classes : classes + hidden])], dim=1)
        rows_BK = read_rows(self.head.kind.read, self.model.encoder, packed)
        return torch.cat([self.head(rows_BK), self.attention(rows_BK[:, :hidden])], dim=1)


@dataclass(frozen=True, slots=True)
class LongTexts:
    """Outputs of the frozen encoder and head for the windows of texts that have several.

    Attributes:
        hidden_WH: The hidden states that the head reads.
        logits_WC: Its logits.
        text_W: The text of each window, ascending from 0.
        truth: The texts' encoded labels.
    """

    hidden_WH: Tensor
    logits_WC: Tensor
    text_W: Tensor
    truth: Tensor

    def loss(self, attention: WindowAttention, target: Target) -> Tensor:
        """Mean loss of the texts' merged logits."""
        scores_W = attention(self.hidden_WH)[:, 0]
        greatest_N = torch.full((len(self.truth),), -torch.inf).to(scores_W)
        greatest_N = greatest_N.scatter_reduce(0, self.text_W, scores_W.detach(), "amax")
        weights_W = (scores_W - greatest_N[self.text_W]).exp()
        share_W = weights_W / sum_rows(weights_W, self.text_W, len(self.truth))[self.text_W]
        merged_NC = sum_rows(share_W[:, None] * self.logits_WC, self.text_W, len(self.truth))
        return target.losses(merged_NC, self.truth).mean()


def check_long(store: WindowStore, what: str) -> None:
    """Refuse texts of which none is read in several windows: there is nothing to learn attention from.

    Raises:
        InvalidInput: There is none.
    """
    if len(store.lengths) == store.texts:
        raise InvalidInput(
            f"attention over windows is learnt from texts that are read in several, but every one of the {what} fits "
            "into a single window. Choose another merge, or a smaller max_length."
        )


def fit_attention(
    model: HeadModel, target: Target, training: StoredInputs, held: StoredInputs, *, tokens: int, seed: int
) -> WindowAttention:
    """Learn how much windows count, from texts of several windows; encoder and head stay as they are.

    Args:
        model: The fine-tuned encoder and head.
        target: What is predicted, and its loss.
        training: Texts to learn from.
        held: Held-out texts; the step of least loss on these is kept.
        tokens: Token budget of a batch.
        seed: Of the attention's first weights.
    """
    attention = learn_attention(_long_texts(model, training, tokens), _long_texts(model, held, tokens), target, seed)
    return attention.to(model.head.output.weight.dtype).eval()


def learn_attention(learnt: LongTexts, held: LongTexts, target: Target, seed: int) -> WindowAttention:
    """Learn which windows count from what encoder and head say of them; see `fit_attention`."""
    with seeded(seed):
        attention = WindowAttention(learnt.hidden_WH.shape[1]).to(learnt.hidden_WH.device)
    optimizer = torch.optim.AdamW(attention.parameters(), lr=RATE, weight_decay=DECAY)
    best_loss, best = float("inf"), attention.state_dict()
    for _ in range(STEPS):
        with torch.no_grad():
            held_loss = held.loss(attention, target).item()
        if held_loss < best_loss:
            best_loss, best = held_loss, {name: value.clone() for name, value in attention.state_dict().items()}
        optimizer.zero_grad()
        learnt.loss(attention, target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    attention.load_state_dict(best)
    return attention


def _long_texts(model: HeadModel, texts: StoredInputs, tokens: int) -> LongTexts:
    """Vectors and logits of the texts that are read in several windows, in float32."""
    store = texts.store
    windows_of_text = np.bincount(store.text_of_window)
    chosen = np.flatnonzero(windows_of_text[store.text_of_window] > 1)
    long_texts, text_of_chosen = np.unique(store.text_of_window[chosen], return_inverse=True)

    def compute(packed: Packed, windows: Sequence[StoredWindow]) -> list[tuple[Tensor, Tensor]]:
        rows_BK = read_rows(model.head.kind.read, model.encoder, packed)[: len(windows)]
        hidden_BH = rows_BK[:, : model.encoder.config.hidden]
        return list(zip(hidden_BH.float(), model.head(rows_BK).float(), strict=True))

    rows, logits = zip(*Runner(compute, model.device, tokens).run(store.windows(chosen)), strict=True)
    return LongTexts(
        torch.stack(rows),
        torch.stack(logits),
        on_device(text_of_chosen.reshape(-1), model.device),
        on_device(texts.truth[long_texts], model.device),
    )


def write_attention(folder: Path, attention: WindowAttention) -> None:
    """Write the attention's weights beside the model.

    Raises:
        OSError: The disk is full, or the folder cannot be written to.
    """
    write_tensors(folder / FILE, attention.state_dict())


def read_attention(path: Path, opened: OpenedModel) -> WindowAttention:
    """Return the attention that was saved with a model.

    Raises:
        CorruptCheckpoint: Its file is not what was saved.
    """
    stored = read_safetensors(path)
    for name, value in stored.items():
        check_numbers(f"{name} of {path.name}", value)
    try:
        attention = WindowAttention(opened.model.config.hidden, len(stored["dense.bias"]))
        attention.load_state_dict(stored)
    except (KeyError, RuntimeError) as error:
        raise CorruptCheckpoint(
            f"{str(path)!r} must hold attention over windows of {opened.model.config.hidden} numbers each, but it does "
            "not: the file was altered or is another model's."
        ) from error
    return attention.to(opened.model.device, opened.head_dtype).eval()
