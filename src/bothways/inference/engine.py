"""Texts in, rows of numbers out: in order, streamed, packed by token budget.

The engine reads texts from an iterator block by block, so its memory does not grow with their number. While one block
is computed the next is tokenised in a second thread. Within a block, windows are sorted by length and computed in
packed batches; results leave in the order of the texts.

Shapes: B windows of a batch, T tokens of a batch, W windows of one text, n tokens of one window, K numbers that the
model gives for each window, or for each token.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import InvalidInput, OutOfMemory
from bothways.inference.batching import by_token_budget, pack_in_blocks
from bothways.packing import Packed, pack
from bothways.progress import progress
from bothways.text import Cut, EncodedText, Overflow, Places, TextTokenizer, Window, read_as_words
from bothways.text.texts import Text, check_text

# On a CPU a batch should stay near the caches; a GPU wants to be filled.
CPU_TOKENS = 2048
GPU_TOKENS = 32768

NOTHING = np.empty(0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Reading:
    """How texts are read.

    Attributes:
        max_length: Most tokens in a window, special ones included.
        on_overflow: What becomes of longer texts.
        stride: Tokens that neighbouring windows share; a quarter of a window's room when None.
        tokens: Token budget of a batch; None for what suits the device.
        block_texts: Texts that are read ahead at once.
        block_characters: And characters.
        as_words: Whether of each text its words are read with single spaces between them, as taggers do.
        cut: Which text of a pair is cut where the two are too long, see `bothways.text.overflow`.

    Raises:
        InvalidInput: The token budget or the size of a block is below 1.
    """

    max_length: int
    on_overflow: Overflow = "window"
    stride: int | None = None
    tokens: int | None = None
    block_texts: int = 1024
    block_characters: int = 4_000_000
    as_words: bool = False
    cut: Cut = "longer"

    def __post_init__(self) -> None:
        for name in ("tokens", "block_texts", "block_characters"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, but it is {value}.")

    def given(self, text: Text) -> Text:
        """A text, or two, as the tokenizer is to have it."""
        return read_as_words(text) if self.as_words else text


@dataclass(frozen=True, slots=True)
class TextRows:
    """What the model says of one text.

    Attributes:
        rows_WK: One row for each window, float32.
        lengths: Tokens of each window.
        dropped_tokens: Tokens of the text that are in no window; above 0 only with ``"truncate"``.
    """

    rows_WK: NDArray[np.float32]
    lengths: tuple[int, ...]
    dropped_tokens: int


@dataclass(frozen=True, slots=True)
class TokenRows:
    """What the model says of the tokens of one text.

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


class InferenceEngine:
    """Runs a function of packed batches over any number of texts.

    Args:
        tokenizer: Cuts texts into tokens and windows.
        forward: From a packed batch of B windows to (B, K), or to (T, K) for `run_tokens`.
        device: Where batches go.
        reading: How texts are read.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        forward: Callable[[Packed], Tensor],
        device: torch.device,
        reading: Reading,
    ) -> None:
        self.tokenizer = tokenizer
        self.forward = forward
        self.device = device
        self.reading = reading
        self.tokens = reading.tokens or (CPU_TOKENS if device.type == "cpu" else GPU_TOKENS)

    def run(
        self,
        texts: Iterable[Text],
        *,
        total: int | None = None,
        description: str = "reading",
        show_progress: bool | None = None,
    ) -> Iterator[TextRows]:
        """One answer for each text, in order, as they become ready; ``forward`` gives a row for each window.

        Raises:
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
            OutOfMemory: A single window does not fit into memory.
        """
        with progress(description, total, show=show_progress) as bar:
            for encoded in self._tokenized(self._blocks(texts), offsets=False):
                for text, rows in self._computed(encoded, per_token=False):
                    lengths = tuple(len(window.ids) for window in text.windows)
                    yield TextRows(np.stack(rows), lengths, text.dropped_tokens)
                bar.advance(len(encoded))

    def run_tokens(
        self,
        texts: Iterable[Text],
        *,
        total: int | None = None,
        description: str = "reading",
        show_progress: bool | None = None,
    ) -> Iterator[TokenRows]:
        """As `run`, for a ``forward`` that gives a row for each token: from B windows of T tokens to (T, K)."""
        with progress(description, total, show=show_progress) as bar:
            for encoded in self._tokenized(self._blocks(texts), offsets=True):
                for text, rows in self._computed(encoded, per_token=True):
                    yield TokenRows(tuple(rows), tuple(map(Places.of, text.windows)), text.dropped_tokens)
                bar.advance(len(encoded))

    def _blocks(self, texts: Iterable[Text]) -> Iterator[_Block]:
        block, characters = _Block(0, []), 0
        for index, text in enumerate(texts):
            _check(index, text)
            block.texts.append(self.reading.given(text))
            characters += sum(map(len, _parts(text)))
            if len(block.texts) == self.reading.block_texts or characters >= self.reading.block_characters:
                yield block
                block, characters = _Block(index + 1, []), 0
        if block.texts:
            yield block

    def _tokenized(self, blocks: Iterator[_Block], *, offsets: bool) -> Iterator[list[EncodedText]]:
        """Encoded blocks, one block ahead of the reader; a single block costs no thread."""
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
            while waiting:
                encoded = waiting.popleft().result()
                block = next(blocks, None)
                if block is not None:
                    waiting.append(pool.submit(self._encode, block, offsets=offsets))
                yield encoded

    def _encode(self, block: _Block, *, offsets: bool) -> list[EncodedText]:
        reading = self.reading
        return self.tokenizer.encode(
            block.texts,
            max_length=reading.max_length,
            on_overflow=reading.on_overflow,
            stride=reading.stride,
            offsets=offsets,
            first=block.first,
            cut=reading.cut,
        )

    def _computed(
        self, encoded: list[EncodedText], *, per_token: bool
    ) -> Iterator[tuple[EncodedText, list[NDArray[np.float32]]]]:
        """Each text with the rows of its windows: (K) of each, or (n, K)."""
        windows = [window for text in encoded for window in text.windows]
        rows: list[NDArray[np.float32]] = [NOTHING] * len(windows)
        for batch in self._batches([len(window.ids) for window in windows]):
            answers = self._forward([windows[index] for index in batch], per_token=per_token)
            for index, answer in zip(batch, answers, strict=True):
                rows[index] = answer
        start = 0
        for text in encoded:
            end = start + len(text.windows)
            yield text, rows[start:end]
            start = end

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        """Batches within the budget of the moment, which shrinks when memory runs out."""
        for planned in by_token_budget(lengths, self.tokens):
            for part in by_token_budget([lengths[index] for index in planned], self.tokens):
                yield [planned[index] for index in part]

    def _forward(self, windows: list[Window], *, per_token: bool) -> list[NDArray[np.float32]]:
        """Compute a batch; where it does not fit into memory, its halves, and smaller batches from then on."""
        packed = self._packed(windows)
        try:
            with torch.inference_mode():
                answers: NDArray[np.float32] = self.forward(packed.to(self.device)).float().cpu().numpy()
            # What fills up the last block stands behind the windows that were asked for.
            return _split(answers, [len(window.ids) for window in windows]) if per_token else [*answers[: len(windows)]]
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if len(windows) == 1:
                raise OutOfMemory(
                    f"a single window of {packed.max_length} tokens does not fit into the memory of {self.device}. "
                    f"Choose a smaller max_length (now {self.reading.max_length}), a smaller dtype or another device."
                ) from error
        self.tokens = min(self.tokens, sum(packed.lengths) // 2)
        middle = len(windows) // 2
        return [
            *self._forward(windows[:middle], per_token=per_token),
            *self._forward(windows[middle:], per_token=per_token),
        ]

    def _packed(self, windows: list[Window]) -> Packed:
        ids, types = [window.ids for window in windows], [window.types for window in windows]
        return pack_in_blocks(ids, types) if self.device.type == "cpu" else pack(ids, types)


def _split(answers_TK: NDArray[np.float32], lengths: list[int]) -> list[NDArray[np.float32]]:
    """The rows of each window's tokens."""
    ends = np.cumsum(lengths).tolist()
    return [answers_TK[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def _check(index: int, text: Text) -> None:
    check_text(index, text)
    if not all(part.strip() for part in _parts(text)):
        raise InvalidInput(f"text {index + 1} is empty or only white space: drop it or fill it in.")


def _parts(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch ran out of memory, which on a CPU has no error of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
