"""Fine-tuning a head and the encoder below it on windows of texts, as the training loop sees it.

What the windows are to be answered with is the business of an `Answers`: a label for each text, a tag for each word, a
span. A long text is read in several windows, and none of it is cut off.

Shapes: N texts, W windows, B windows of a batch, T tokens of a batch, C outputs.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.data.windows import WindowStore, digest_of
from bothways.devices import on_device
from bothways.encoder import Encoder, ScoreHead
from bothways.encoder.head_kinds import EachToken
from bothways.encoder.heads import read_rows
from bothways.inference.batching import by_token_budget
from bothways.inference.runner import Runner, row_answers
from bothways.packing import Packed
from bothways.tasks.targets import Target, Truth
from bothways.training.objective import Baseline, MicroBatch, Update, Validation, micro_batch_tokens
from bothways.training.options import EPOCHS
from bothways.training.workers import current_workers

# Fewer do not teach a head, however few the rows are; and after how many it is worth while to validate.
LEAST_UPDATES, _LEAST_IN_EPOCH = 150, 15


class HeadModel(nn.Module):
    """An encoder and a head; of the last layer, only what the head reads is computed to the end."""

    def __init__(self, encoder: Encoder, head: ScoreHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, packed: Packed) -> Tensor:
        """Scores (B, C), or (T, C) of a head that reads each token."""
        scores: Tensor = self.head(read_rows(self.head.kind.read, self.encoder, packed))
        return scores

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.head.output.weight.device


class Answers(Protocol):
    """Targets of the windows of a store, and their loss.

    Attributes:
        joint: Whether the loss of an input needs the scores of all of its windows at once.
    """

    joint: ClassVar[bool]

    @property
    def digest(self) -> str:
        """A checksum of them."""

    def weights(self, windows: Sequence[int]) -> NDArray[np.float64]:
        """Return for how many units each window counts (B)."""

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Return the sum over the windows' units of their losses, given the model's scores."""


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Units that the losses of windows are summed over: the windows themselves, or the words in them.

    Attributes:
        rows_U: The row of each unit among those that the head gives for its window.
        shares_U: For how much each counts; what several windows hold shares a weight of 1.
        starts: Where the units of each window begin, and at last U; W + 1 long.
        heights_W: Rows that the head gives for each window.
    """

    rows_U: NDArray[np.int64]
    shares_U: NDArray[np.float64]
    starts: NDArray[np.int64]
    heights_W: NDArray[np.int64]

    @classmethod
    def of_texts(cls, store: WindowStore) -> "Units":
        """Return the windows of a store; those of a text share its weight."""
        shares_W = 1.0 / np.bincount(store.text_of_window)[store.text_of_window]
        ones_W = np.ones(len(shares_W), dtype=np.int64)
        return cls(np.zeros_like(ones_W), shares_W, np.arange(len(shares_W) + 1), ones_W)

    @property
    def weights_W(self) -> NDArray[np.float64]:
        """Weight of each window: the sum over its units."""
        return np.array([self.shares_U[start:end].sum() for start, end in itertools.pairwise(self.starts)])

    def of(self, windows: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of the units of some windows, and the row of each in a batch of them."""
        begins = np.cumsum([0, *self.heights_W[list(windows[:-1])]])
        numbers = [np.arange(self.starts[window], self.starts[window + 1]) for window in windows]
        rows = [begin + self.rows_U[each] for begin, each in zip(begins, numbers, strict=True)]
        return np.concatenate(numbers), np.concatenate(rows)


class TextAnswers:
    """Answers of the texts of a store; the windows of a text share the text's weight, which is 1 by default.

    A long text so counts as much as a short one.

    Args:
        target: What is predicted.
        truth: The encoded labels of the texts.
        store: The texts.
        weights_NK: How much each text counts, or each label of each text.
    """

    joint: ClassVar[bool] = False

    def __init__(
        self, target: Target, truth: Truth, store: WindowStore, weights_NK: NDArray[np.float64] | None = None
    ) -> None:
        self.target = target
        self.truth = truth
        self._text_of_window = store.text_of_window
        self._share_of_window = 1.0 / np.bincount(store.text_of_window)[store.text_of_window]
        self._weights_NK = weights_NK

    @property
    def digest(self) -> str:
        """A checksum of the labels."""
        return digest_of(self.truth)

    def weights(self, windows: Sequence[int]) -> NDArray[np.float64]:
        """Each window's share of the weight of its text (B)."""
        shares_B: NDArray[np.float64] = self._share_of_window[list(windows)]
        if self._weights_NK is not None:
            shares_B = shares_B * self._weights_NK[self._text_of_window[list(windows)]].mean(axis=1)
        return shares_B

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Sum of the windows' losses, each weighted with its share of its text."""
        texts_B = self._text_of_window[list(windows)]
        truth = on_device(self.truth[texts_B], scores.device)
        shares_B = on_device(self._share_of_window[list(windows)].astype(np.float32), scores.device)
        weights_BK = None
        if self._weights_NK is not None:
            weights_BK = on_device(self._weights_NK[texts_B].astype(np.float32), scores.device)
        return (self.target.losses(scores, truth, weights_BK) * shares_B).sum()


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: windows, and their numbers in the store."""

    packed: Packed
    windows: list[int]


def passes_in_epoch(texts: int, batch_size: int, least_updates: int = LEAST_UPDATES) -> int:
    """Return how often an epoch of default length passes through the texts: enough to be worth a validation.

    Args:
        texts: Number of texts.
        batch_size: Texts in one update.
        least_updates: Of the training, which has three epochs at least.
    """
    return max(1, -(-min(_LEAST_IN_EPOCH, least_updates // EPOCHS) // -(-texts // batch_size)))


class WindowObjective:
    """Trains a `HeadModel` to answer the windows of a store.

    Args:
        model: What to train.
        store: Windows to learn from.
        answers: Their answers.
        validate: Metrics on held-out data, computed after each epoch.
        batch_size: Texts in one update.
        tokens: Token budget of a micro-batch, on a CPU at most 1,024; what an update has beyond that is accumulated.
        seed: Orders the texts, together with the epoch.
        identity: What else decides the course of the run.
        passes: How often an epoch goes through the texts, see `passes_in_epoch`.
        baseline: What there is before the first update.
        least_updates: How many a training of default length takes at least.
    """

    def __init__(
        self,
        model: HeadModel,
        store: WindowStore,
        answers: Answers,
        validate: Callable[[], Validation | None],
        *,
        batch_size: int,
        tokens: int,
        seed: int,
        identity: Mapping[str, str | int | float | bool | None],
        passes: int = 1,
        baseline: Baseline | None = None,
        least_updates: int = LEAST_UPDATES,
    ) -> None:
        self.model = model
        self.store = store
        self.answers = answers
        self.validate = validate
        self.batch_size = batch_size
        self.tokens = tokens
        self.seed = seed
        self.passes = passes
        self._identity = identity
        self.baseline = baseline
        self.least_updates = least_updates

    @property
    def module(self) -> nn.Module:
        """Encoder and head."""
        return self.model

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        """Everything besides the settings that decides the course of the run."""
        return {
            "training data": f"{self.store.digest} {self.answers.digest}",
            "batch size": self.batch_size,
            "token budget": self.tokens,
            **({"passes": self.passes} if self.passes > 1 else {}),
            **self._identity,
        }

    def updates_per_epoch(self) -> int:
        """Return number of batches of ``batch_size`` texts, the last one of each pass smaller."""
        return self.passes * self._updates_per_pass()

    def updates(self, epoch: int, start: int) -> Iterator[Update[Batch]]:
        """Yield the epoch's texts, in each pass in an order of its own."""
        done, first = divmod(start, self._updates_per_pass())
        for number in range(epoch * self.passes + done, (epoch + 1) * self.passes):
            order = np.random.default_rng([self.seed, number]).permutation(self.store.texts)
            for place in range(first, self._updates_per_pass()):
                yield Update(tuple(self._micro_batches(order[place * self.batch_size :][: self.batch_size])))
            first = 0

    def _updates_per_pass(self) -> int:
        return -(-self.store.texts // self.batch_size)

    def loss(self, payload: Batch) -> Tensor:
        """Sum of the losses of the micro-batch's units."""
        return self.answers.loss(self.model(payload.packed).float(), payload.windows)

    def _micro_batches(self, texts: NDArray[np.int64]) -> Iterator[MicroBatch[Batch]]:
        """Batches of windows within the token budget; those of one input stay together where its loss is joint."""
        apart = [self.store.windows_of([text]) for text in texts]
        units = apart if self.answers.joint else [[window] for windows in apart for window in windows]
        lengths = [int(self.store.lengths[windows].sum()) for windows in units]
        at_most = micro_batch_tokens(self.tokens, self.model.device)
        # So that each process of a run has a part.
        at_most = min(at_most, max(-(-sum(lengths) // current_workers().count), *lengths))
        for batch in by_token_budget(lengths, at_most):
            chosen = [window for unit in batch for window in units[unit]]
            payload = Batch(self.store.pack(chosen).to(self.model.device), chosen)
            tokens = sum(lengths[unit] for unit in batch)
            yield MicroBatch(payload, float(self.answers.weights(chosen).sum()), tokens)


class Scoring(Protocol):
    """A module that gives numbers for windows."""

    @property
    def head(self) -> ScoreHead:
        """The head, which says what it reads."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""

    def __call__(self, packed: Packed) -> Tensor:
        """Return the numbers of each window (B, K), or of each token (T, K)."""


def window_scores(model: Scoring, store: WindowStore, tokens: int) -> list[NDArray[np.float64]]:
    """Return the model's scores of each stored window.

    (C) of a head that reads texts, (n, C) of one that reads tokens.
    """
    per_token = isinstance(model.head.kind.read, EachToken)
    rows = Runner(row_answers(model, per_token=per_token), model.device, tokens).run(store.windows())
    return [each.astype(np.float64) for each in rows]
