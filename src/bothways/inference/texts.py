"""Inference on texts: tokenised into windows, computed in packed batches, in the order of the texts.

Texts are read in blocks, so memory does not grow with their number. While one block is computed, the next
is tokenised in a second thread.

Shapes: B windows of a batch, T tokens of a batch, W windows of one text, n tokens of one window, K outputs of the model
for each window, or for each token.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.progress import progress
from bothways.text import Cut, EncodedText, Overflow, Places, TextTokenizer, read_as_words
from bothways.text.characters import VISIBLE
from bothways.text.windows import Text, check_text

if TYPE_CHECKING:
    import torch

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
WindowT = TypeVar("WindowT", bound="TokenIds", contravariant=True)
AnswerT = TypeVar("AnswerT")
OneT = TypeVar("OneT", bound="TokenIds")

# Minimum texts per block, and the length in tokens of short texts that should still fill a batch.
MIN_BLOCK, SHORTEST = 1024, 4


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options for splitting texts into windows.

    Attributes:
        max_length: Maximum tokens per window, special ones included.
        on_overflow: Policy for longer texts, see `bothways.text.windows`.
        stride: Tokens that neighbouring windows share; None for a quarter of a window's text tokens.
        block_texts: Maximum texts tokenised at once; None for a number that fills a batch even with short texts.
        block_characters: Maximum characters of a block.
        as_words: Join the words of each text with single spaces first, as taggers do.
        cut: For a pair that is too long, the text that is split or truncated, see `bothways.text.windows`.

    Raises:
        InvalidInput: The size of a block is below 1.
    """

    max_length: int
    on_overflow: Overflow = "window"
    stride: int | None = None
    block_texts: int | None = None
    block_characters: int = 4_000_000
    as_words: bool = False
    cut: Cut = "longer"

    def __post_init__(self) -> None:
        for name in ("block_texts", "block_characters"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise InvalidInput(f"{name} must be at least 1, but it is {size}.")

    def given(self, text: Text) -> Text:
        """Return a text, or a pair, as it is passed to the tokenizer: joined words with `as_words`, else unchanged."""
        return read_as_words(text) if self.as_words else text

    def encode(
        self, tokenizer: TextTokenizer, texts: Sequence[Text], *, offsets: bool = False, first: int = 0
    ) -> list[EncodedText]:
        """Return the windows of texts; ``first`` is the index of the first text in error messages, from 0."""
        return tokenizer.encode(
            [self.given(text) for text in texts] if self.as_words else list(texts),
            max_length=self.max_length,
            on_overflow=self.on_overflow,
            stride=self.stride,
            offsets=offsets,
            first=first,
            cut=self.cut,
        )

    def block_size(self, budget: TokenBudget) -> int:
        """Return the maximum number of texts of a block."""
        return self.block_texts or max(MIN_BLOCK, budget.tokens // SHORTEST)


@dataclass(frozen=True, slots=True)
class TextRows:
    """The output of the model for one text.

    Attributes:
        rows_WK: One row for each window: float32, or float64 during training.
        lengths: Tokens of each window.
        dropped_tokens: Tokens of the text that are in no window; above 0 only if it was truncated.
    """

    rows_WK: NDArray[np.floating]
    lengths: tuple[int, ...]
    dropped_tokens: int


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """The output of the model for the tokens of one text.

    Attributes:
        rows: For each window one row for each of its tokens, special ones included: W arrays (n, K).
        places: The positions of each window's tokens in the text, in characters.
        dropped_tokens: Tokens of the text that are in no window; above 0 only if it was truncated.
    """

    rows: tuple[NDArray[np.floating], ...]
    places: tuple[Places, ...]
    dropped_tokens: int


Rows: TypeAlias = TextRows | TokenOutputs
"""The output of the model for one text: a row for each window, or for each token of each window."""


class BatchRunner(Protocol[WindowT, AnswerT]):
    """Computes one answer for each window; any number of threads may use it at once."""

    @property
    def budget(self) -> TokenBudget:
        """Maximum tokens of a batch, lowered when memory runs out."""

    def run(self, windows: Sequence[WindowT]) -> list[AnswerT]:
        """Return one answer for each window, in order."""


class Schedule(Protocol):
    """Decides when the windows of a caller are computed, such as a server's queue, which many callers share."""

    @property
    def on_overflow(self) -> Overflow | None:
        """Policy for texts that are too long; None for that of the model."""

    def run(self, runner: BatchRunner[OneT, ResultT], windows: Sequence[OneT]) -> list[ResultT]:
        """Return the runner's answers for windows, in order."""


SCHEDULE: ContextVar[Schedule | None] = ContextVar("SCHEDULE", default=None)
"""The schedule of this thread or task; without one, windows are computed at once in the calling thread."""


def overflow_of(own: Overflow) -> Overflow:
    """Return the policy for long texts of this thread's schedule, or else a model's ``own``."""
    schedule = SCHEDULE.get()
    return own if schedule is None or schedule.on_overflow is None else schedule.on_overflow


@contextmanager
def scheduled(schedule: Schedule) -> Iterator[None]:
    """While the block runs, all runners that this thread calls hand their windows to a schedule."""
    token = SCHEDULE.set(schedule)
    try:
        yield
    finally:
        SCHEDULE.reset(token)


class WindowRunner(Protocol):
    """Computes a model's outputs for windows, in batches within a token budget."""

    @property
    def budget(self) -> TokenBudget:
        """Maximum tokens of a batch, lowered when memory runs out."""

    def run(self, windows: Sequence[TokenIds]) -> list[Row]:
        """Return the output for each window, in order: (K), or (n, K) with a row for each token."""


class TextRunner:
    """Tokenises texts and computes the outputs of their windows; several threads may use it at once.

    Args:
        tokenizer: Splits texts into windows of tokens.
        windows: Computes the outputs of windows.
        options: Options for splitting texts into windows.
        per_token: True if the model gives a row for each token, False for one row for each window.
    """

    def __init__(
        self, tokenizer: TextTokenizer, windows: WindowRunner, options: TextOptions, *, per_token: bool
    ) -> None:
        self.tokenizer = tokenizer
        self.windows = windows
        self.options = options
        self.per_token = per_token

    def tokenize(self, texts: Sequence[Text], first: int = 0) -> list[EncodedText]:
        """Return the windows of texts; ``first`` is the index of the first text in error messages, from 0.

        Raises:
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        for number, text in enumerate(texts, start=first):
            check_text(number, text)
            if not all(map(VISIBLE.search, (text,) if isinstance(text, str) else text)):
                raise InvalidInput(
                    f"text {number + 1} is empty or only white space and invisible characters: drop it or fill it in."
                )
        options = replace(self.options, on_overflow=overflow_of(self.options.on_overflow))
        return options.encode(self.tokenizer, texts, offsets=self.per_token, first=first)

    def rows(self, encoded: Sequence[EncodedText]) -> list[Rows]:
        """Return the model's outputs for tokenised texts, in order."""
        computed = iter(self.windows.run([window for text in encoded for window in text.windows]))
        found: list[Rows] = []
        for text in encoded:
            own = list(islice(computed, len(text.windows)))
            if self.per_token:
                found.append(TokenOutputs(tuple(own), tuple(map(Places.of, text.windows)), text.dropped_tokens))
            else:
                lengths = tuple([len(window.ids) for window in text.windows])
                found.append(TextRows(np.array(own), lengths, text.dropped_tokens))
        return found

    def run(
        self,
        texts: Iterable[Text],
        *,
        total: int | None = None,
        description: str = "reading",
        show_progress: bool | None = None,
    ) -> Iterator[Rows]:
        """Yield the outputs for texts, in order and in constant memory; raise the errors of `tokenize` and `rows`."""
        with progress(description, total, show=show_progress) as bar:
            for block in self.blocks(texts, lambda text: (text,)):
                yield from (rows for _, (rows,) in block)
                bar.advance(len(block))

    def blocks(
        self, items: Iterable[ItemT], texts_of: Callable[[ItemT], Sequence[Text]]
    ) -> Iterator[list[tuple[ItemT, list[Rows]]]]:
        """Yield items with the outputs for their texts, block by block; raise the errors of `tokenize` and `rows`."""

        def tokenize(block: list[tuple[ItemT, Sequence[Text]]], first: int) -> list[EncodedText]:
            return self.tokenize([text for _, texts in block for text in texts], first)

        size, characters = self.options.block_size(self.windows.budget), self.options.block_characters
        with_texts = ((item, texts_of(item)) for item in items)
        for block, encoded in ahead(tokenize, blocks(with_texts, size, characters, _text_size)):
            rows = iter(self.rows(encoded))
            yield [(item, [next(rows) for _ in texts]) for item, texts in block]


def blocks(
    items: Iterable[ItemT],
    at_most: int,
    characters: float = math.inf,
    size: Callable[[ItemT], int] = lambda _: 0,
) -> Iterator[list[ItemT]]:
    """Yield items in lists of at most ``at_most``; a list also ends once its sizes sum to ``characters``."""
    block: list[ItemT] = []
    filled = 0
    for item in items:
        block.append(item)
        filled += size(item)
        if len(block) == at_most or filled >= characters:
            yield block
            block, filled = [], 0
    if block:
        yield block


def ahead(
    prepare: Callable[[list[ItemT], int], ResultT], items: Iterator[list[ItemT]]
) -> Iterator[tuple[list[ItemT], ResultT]]:
    """Yield each block with the result of ``prepare``, which runs one block ahead of the reader in a second thread.

    ``prepare`` gets a block and the number of items before it. A single block starts no thread.
    """
    first, second = next(items, None), next(items, None)
    if first is None:
        return
    if second is None:
        yield first, prepare(first, 0)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as pool:
        waiting: deque[tuple[list[ItemT], Future[ResultT]]] = deque()
        read, process, block = 0, os.getpid(), first

        def submit(block: list[ItemT]) -> None:
            nonlocal read
            waiting.append((block, pool.submit(copy_context().run, prepare, block, read)))
            read += len(block)

        submit(first)
        submit(second)
        while waiting:
            if os.getpid() != process:
                raise InvalidInput(
                    "these predictions were begun in another process, before a fork: call the model again in the "
                    "forked process."
                )
            block, prepared = waiting.popleft()
            result = prepared.result()
            following = next(items, None)
            if following is not None:
                submit(following)
            yield block, result


def _text_size(item: tuple[object, Sequence[Text]]) -> int:
    """Return the number of characters of an item's texts; other types count 0 and are refused later."""
    parts = [part for text in item[1] for part in (text if isinstance(text, tuple) else (text,))]
    return sum([len(part) for part in parts if isinstance(part, str)])


# --- batches ---

# On a CPU a batch should not be much larger than the caches; a GPU needs large batches.
CPU_TOKENS = 2048
GPU_TOKENS = 32768


Row: TypeAlias = NDArray[np.float32]
"""The numbers that a model gives for one window: (K), or (n, K) with a row for each of its tokens."""


class TokenIds(Protocol):
    """The token ids and segment ids of one window: lists of int, or arrays."""

    @property
    def ids(self) -> Sequence[int] | NDArray[np.integer]:
        """Token ids (n)."""

    @property
    def types(self) -> Sequence[int] | NDArray[np.integer]:
        """Segment ids (n)."""


class TokenBudget:
    """The maximum tokens of a batch, lowered for good when memory runs out.

    Several runners and threads may share one, and it can be pickled.

    Args:
        tokens: The initial budget.

    Attributes:
        tokens: The current budget.

    Raises:
        InvalidInput: The budget is below 1.
    """

    def __init__(self, tokens: int) -> None:
        if tokens < 1:
            raise InvalidInput(f"tokens must be at least 1, but it is {tokens}.")
        self.tokens = tokens
        self._lock = Lock()

    @classmethod
    def of(cls, tokens: int | TokenBudget | None, device: torch.device) -> TokenBudget:
        """Return ``tokens`` if it is a budget, else a new budget of that many tokens, or of the device's default."""
        if isinstance(tokens, TokenBudget):
            return tokens
        return cls((CPU_TOKENS if device.type == "cpu" else GPU_TOKENS) if tokens is None else tokens)

    def lower(self, tokens: int) -> None:
        """Lower the budget to ``tokens``, unless it is lower already."""
        with self._lock:
            self.tokens = min(self.tokens, tokens)

    def __reduce__(self) -> tuple[type[TokenBudget], tuple[int]]:
        return TokenBudget, (self.tokens,)


def by_token_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield the indices of each batch of sequences: the longest first, similar lengths together, within the budget.

    A sequence that is longer than the budget forms a batch of its own.

    >>> list(by_token_budget([3, 9, 4, 2], budget=10))
    [[1], [2, 0, 3]]
    """
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch and tokens + lengths[index] > budget:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch


def by_padded_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield the indices of each batch of sequences: the longest first, within the budget when padded.

    A sequence that is longer than the budget forms a batch of its own.

    >>> list(by_padded_budget([3, 9, 4, 2], budget=10))
    [[1], [2, 0], [3]]
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
