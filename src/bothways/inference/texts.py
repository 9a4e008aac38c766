"""Texts in, rows of numbers out: in order, streamed, packed by token budget.

The engine reads texts from an iterator block by block, so its memory does not grow with their number. While one block
is computed the next is tokenised in a second thread. The windows of a block go through a
`bothways.inference.runner.Runner`; results leave in the order of the texts.

Shapes: B windows of a batch, T tokens of a batch, W windows of one text, n tokens of one window, K numbers that the
model gives for each window, or for each token.
"""

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.inference.batching import TokenBudget
from bothways.inference.windows import Rows, TokenIds
from bothways.progress import progress
from bothways.text import Cut, EncodedText, Overflow, Places, TextTokenizer, read_as_words
from bothways.text.texts import Text, check_text

# Texts of a block: this many, or as many as fill a batch if they have so few tokens each.
LEAST_BLOCK, SHORTEST = 1024, 4


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options for cutting texts into windows.

    Attributes:
        max_length: Maximum tokens per window, special ones included.
        on_overflow: Treatment of longer texts.
        stride: Tokens that neighbouring windows share; a quarter of a window's room when None.
        block_texts: Maximum texts of a block, which is tokenised at once; None for enough that short ones fill a batch.
        block_characters: Maximum characters of a block.
        as_words: Join the words of each text with single spaces first, as taggers do.
        cut: The text of a pair that is cut if the two are too long, see `bothways.text.overflow`.

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
        """Return a text, or two, as the tokenizer is to have it."""
        return read_as_words(text) if self.as_words else text


@dataclass(frozen=True, slots=True)
class TextRows:
    """The output of the model for one text.

    Attributes:
        rows_WK: One row for each window, float32.
        lengths: Tokens of each window.
        dropped_tokens: Tokens of the text that are in no window; above 0 only with ``"truncate"``.
    """

    rows_WK: NDArray[np.float32]
    lengths: tuple[int, ...]
    dropped_tokens: int


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """The output of the model for the tokens of one text.

    Attributes:
        rows: For each window one row for each of its tokens, special ones included: W arrays (n, K), float32.
        places: For each window where its tokens stand in the text.
        dropped_tokens: Tokens of the text that are in no window; above 0 only with ``"truncate"``.
    """

    rows: tuple[NDArray[np.float32], ...]
    places: tuple[Places, ...]
    dropped_tokens: int


@dataclass(frozen=True, slots=True)
class _Block:
    """Texts that are tokenised at once, and the number of the first of them."""

    first: int
    texts: list[Text]


class WindowRunner(Protocol):
    """Computes the rows of windows in batches."""

    def run(self, windows: Sequence[TokenIds]) -> list[Rows]:
        """Return the rows of each window, in order: (K) of each, or (n, K)."""


class TextEngine(ABC):
    """Runs windows over any number of texts, whatever computes them; several threads may use it at once.

    Args:
        tokenizer: Cuts texts into tokens and windows.
        options: How texts are cut into windows.
        budget: The most tokens of a batch.
    """

    def __init__(self, tokenizer: TextTokenizer, options: TextOptions, budget: TokenBudget) -> None:
        self.tokenizer = tokenizer
        self.options = options
        self.budget = budget
        self._block_texts = options.block_texts or max(LEAST_BLOCK, self.budget.tokens // SHORTEST)

    @abstractmethod
    def runner(self, *, per_token: bool) -> WindowRunner:
        """Return what computes the windows of a block.

        Args:
            per_token: Whether it gives numbers for each token.
        """

    def run(
        self,
        texts: Iterable[Text],
        *,
        total: int | None = None,
        description: str = "reading",
        show_progress: bool | None = None,
    ) -> Iterator[TextRows]:
        """One answer for each text, in order, as they become ready; the model gives a row for each window.

        Raises:
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
            OutOfMemory: A single window does not fit into memory.
        """
        for text, rows in self._answers(texts, False, total, description, show_progress):
            lengths = tuple(len(window.ids) for window in text.windows)
            yield TextRows(np.stack(rows), lengths, text.dropped_tokens)

    def run_tokens(
        self,
        texts: Iterable[Text],
        *,
        total: int | None = None,
        description: str = "reading",
        show_progress: bool | None = None,
    ) -> Iterator[TokenOutputs]:
        """Run like `run` a model that gives a row for each token."""
        for text, rows in self._answers(texts, True, total, description, show_progress):
            yield TokenOutputs(tuple(rows), tuple(map(Places.of, text.windows)), text.dropped_tokens)

    def _answers(
        self, texts: Iterable[Text], per_token: bool, total: int | None, description: str, show: bool | None
    ) -> Iterator[tuple[EncodedText, list[Rows]]]:
        """Each text with the rows of its windows: (K) of each, or (n, K)."""
        runner = self.runner(per_token=per_token)
        with progress(description, total, show=show) as bar:
            for encoded in self._tokenized(self._blocks(texts), offsets=per_token):
                rows = iter(runner.run([window for text in encoded for window in text.windows]))
                for text in encoded:
                    yield text, list(islice(rows, len(text.windows)))
                bar.advance(len(encoded))

    def _blocks(self, texts: Iterable[Text]) -> Iterator[_Block]:
        block, characters = _Block(0, []), 0
        for index, text in enumerate(texts):
            _check(index, text)
            block.texts.append(self.options.given(text))
            characters += sum(map(len, _parts(text)))
            if len(block.texts) == self._block_texts or characters >= self.options.block_characters:
                yield block
                block, characters = _Block(index + 1, []), 0
        if block.texts:
            yield block

    def _tokenized(self, blocks: Iterator[_Block], *, offsets: bool) -> Iterator[list[EncodedText]]:
        """Yield encoded blocks, one block ahead of the reader; a single block costs no thread."""
        first, second = next(blocks, None), next(blocks, None)
        if first is None:
            return
        if second is None:
            yield self._encode(first, offsets=offsets)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as pool:
            waiting: deque[Future[list[EncodedText]]] = deque(
                pool.submit(self._encode, block, offsets=offsets) for block in (first, second)
            )
            process = os.getpid()
            while waiting:
                if os.getpid() != process:
                    raise InvalidInput(
                        "expected these answers to be read on in the process that began to read them, but it was "
                        "forked: ask the model again in the forked one."
                    )
                encoded = waiting.popleft().result()
                block = next(blocks, None)
                if block is not None:
                    waiting.append(pool.submit(self._encode, block, offsets=offsets))
                yield encoded

    def _encode(self, block: _Block, *, offsets: bool) -> list[EncodedText]:
        options = self.options
        return self.tokenizer.encode(
            block.texts,
            max_length=options.max_length,
            on_overflow=options.on_overflow,
            stride=options.stride,
            offsets=offsets,
            first=block.first,
            cut=options.cut,
        )


def _check(index: int, text: Text) -> None:
    check_text(index, text)
    if not all(part.strip() for part in _parts(text)):
        raise InvalidInput(f"text {index + 1} is empty or only white space: drop it or fill it in.")


def _parts(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text
