"""Inference: every forward pass without gradients runs here, in packed batches by token budget.

A CPU with several threads computes several batches at once, with one or a few threads for each: two batches, each on
its own core, take less time than one after the other on two cores, which wait for each other after every operation.

Shapes: B windows of a batch, T tokens of a batch, n tokens of one window, K outputs of the model for each window, or
for each token.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from bothways.encoder.linear import rows_to_fill
from bothways.errors import OutOfMemory
from bothways.inference.texts import SCHEDULE, Row, TextOptions, TextRunner, TokenBudget, TokenIds, by_token_budget
from bothways.packing import Ids, Packed, pack
from bothways.products import matrix_product
from bothways.progress import Progress
from bothways.text import TextTokenizer
from bothways.threads import can_limit_calling_thread, limit_calling_thread

WindowT = TypeVar("WindowT", bound=TokenIds)
AnswerT = TypeVar("AnswerT")

# Maximum batches at once (Python code runs in one thread at a time), and minimum tokens that justify a thread.
_AT_ONCE, _WORTH_A_THREAD = 4, 1024
# Parts of out-of-memory messages: of CUDA and MPS, of CUDA's libraries, and of the CPU allocator.
_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "can't allocate memory")


class Runner(Generic[WindowT, AnswerT]):
    """Computes one answer for each window, in packed batches within a token budget.

    Its only state is the budget, so any number of threads may use it at once.

    A GPU gets its next batch before the answers of the previous one are read. On a CPU with several threads, up to
    four batches are computed at once, in threads of their own, unless processes share the model.

    Args:
        compute: Maps a packed batch of B windows to B answers. On a CPU the batch may end with filler sequences of one
            token, which complete blocks of rows; they need no answer.
        device: Device of the batches.
        tokens: Token budget of a batch, or a `TokenBudget` to share; None for the default of the device.

    Attributes:
        budget: The token budget; lowered for good when a batch does not fit into memory.
    """

    def __init__(
        self,
        compute: Callable[[Packed, Sequence[WindowT]], Iterable[AnswerT]],
        device: torch.device,
        tokens: int | TokenBudget | None = None,
    ) -> None:
        self._compute = compute
        self._device = device
        self._unread = 0 if device.type == "cpu" else 1  # batches that are still computing while the next one is packed
        self.budget = TokenBudget.of(tokens, device)

    def run(self, windows: Sequence[WindowT]) -> list[AnswerT]:
        """Return one answer for each window, in order; windows of similar length are computed together.

        Raises:
            OutOfMemory: A single window does not fit into memory.
        """
        if (schedule := SCHEDULE.get()) is not None:
            return schedule.run(self, windows)
        lengths = [len(window.ids) for window in windows]
        if (at_once := self._at_once(sum(lengths))) > 1:
            return self._run_in_threads(windows, lengths, at_once)
        answers: dict[int, AnswerT] = {}
        unread: deque[tuple[list[int], Iterable[AnswerT]]] = deque()
        for batch in self._batches(lengths):
            unread.append((batch, self._answers([windows[index] for index in batch])))
            if len(unread) > self._unread:
                answers.update(zip(*unread.popleft(), strict=True))
        for computed in unread:
            answers.update(zip(*computed, strict=True))
        return [answers[index] for index in range(len(windows))]

    def _at_once(self, tokens: int) -> int:
        """Return the number of batches to compute at once for ``tokens`` tokens in all."""
        at_once = min(torch.get_num_threads(), _AT_ONCE, tokens // _WORTH_A_THREAD)
        if at_once <= 1 or self._device.type != "cpu" or not can_limit_calling_thread():
            return 1
        # Processes that share a model exchange its parts, all in the same order, which threads would not keep.
        shared = torch.distributed.is_available() and torch.distributed.is_initialized()
        return 1 if shared else at_once

    def _run_in_threads(self, windows: Sequence[WindowT], lengths: list[int], at_once: int) -> list[AnswerT]:
        """Compute batches of about equally many tokens, so that all threads stay busy."""
        matrix_product()  # its first call times the libraries, so nothing else may run
        tokens = sum(lengths)
        rounds = math.ceil(tokens / (self.budget.tokens * at_once))
        batches = [*by_token_budget(lengths, math.ceil(tokens / (rounds * at_once)))]
        threads = max(1, torch.get_num_threads() // at_once)
        answers: dict[int, AnswerT] = {}
        with ThreadPoolExecutor(at_once, "inference", limit_calling_thread, (threads,)) as pool:
            parts = ([windows[index] for index in batch] for batch in batches)
            for batch, computed in zip(batches, pool.map(self._answers, parts), strict=True):
                answers.update(zip(batch, computed, strict=True))
        return [answers[index] for index in range(len(windows))]

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        """Yield batches within the budget, which earlier batches and other threads may lower meanwhile."""
        for planned in by_token_budget(lengths, self.budget.tokens):
            for part in by_token_budget([lengths[index] for index in planned], self.budget.tokens):
                yield [planned[index] for index in part]

    def _answers(self, windows: Sequence[WindowT]) -> Iterable[AnswerT]:
        """Compute a batch; if memory runs out, lower the budget for all later batches and compute the two halves."""
        try:
            ids, types = [window.ids for window in windows], [window.types for window in windows]
            packed = pack_in_blocks(ids, types) if self._device.type == "cpu" else pack(ids, types, self._device)
            with torch.inference_mode():
                return self._compute(packed, windows)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(windows) == 1:
                raise OutOfMemory(
                    f"a single window of {len(windows[0].ids)} tokens does not fit into the memory of {self._device}. "
                    "Choose a smaller max_length, a smaller dtype or another device."
                ) from error
        self.budget.lower(sum(len(window.ids) for window in windows) // 2)
        middle = len(windows) // 2
        return [*self._answers(windows[:middle]), *self._answers(windows[middle:])]


def counted(
    compute: Callable[[Packed, Sequence[WindowT]], Iterable[AnswerT]], bar: Progress | None
) -> Callable[[Packed, Sequence[WindowT]], Iterable[AnswerT]]:
    """Return ``compute`` of a `Runner`, which then advances the progress bar by the windows of each batch."""
    if bar is None:
        return compute

    def shown(packed: Packed, windows: Sequence[WindowT]) -> Iterable[AnswerT]:
        answers = compute(packed, windows)
        bar.advance(len(windows))
        return answers

    return shown


def row_answers(
    forward: Callable[[Packed], Tensor], *, per_token: bool
) -> Callable[[Packed, Sequence[TokenIds]], Iterable[Row]]:
    """Return the ``compute`` function of a `Runner`, for a model that maps a batch to (B, K), or (T, K).

    With ``per_token`` an answer is (n, K) instead of (K).
    """

    def answers(rows: Row, windows: Sequence[TokenIds]) -> list[Row]:
        if not per_token:
            return [*rows[: len(windows)]]
        ends = np.cumsum([len(window.ids) for window in windows]).tolist()
        return [rows[end - len(window.ids) : end] for window, end in zip(windows, ends, strict=True)]

    def compute(packed: Packed, windows: Sequence[TokenIds]) -> Iterable[Row]:
        rows = forward(packed).float()
        if rows.device.type == "cuda":
            return _Copying(rows, partial(answers, windows=windows))
        return answers(rows.cpu().numpy(), windows)

    return compute


_new_event: Callable[[], torch.cuda.Event] = torch.cuda.Event


class _Copying:
    """Answers that are being copied from a GPU; iteration waits until the copy is complete."""

    def __init__(self, rows: Tensor, answers: Callable[[Row], list[Row]]) -> None:
        self._rows = rows.to("cpu", non_blocking=True)
        self._copied = _new_event()
        self._copied.record()
        self._answers = answers

    def __iter__(self) -> Iterator[Row]:
        self._copied.synchronize()
        # Copied, so that the pinned memory is free for other batches.
        return iter(self._answers(self._rows.numpy().copy()))


def pack_in_blocks(sequences: Sequence[Ids], types: Sequence[Ids]) -> Packed:
    """Pack token ids and, if that is faster (`rows_to_fill`), fill up whole blocks of rows with one-token sequences.

    The filler sequences come last; ignore their outputs.
    """
    filling = [(0,)] * rows_to_fill(sum(map(len, sequences)))
    return pack([*sequences, *filling], [*types, *filling])


def text_runner(
    tokenizer: TextTokenizer,
    forward: Callable[[Packed], Tensor],
    device: torch.device,
    options: TextOptions,
    tokens: int | TokenBudget | None = None,
    *,
    per_token: bool = False,
) -> TextRunner:
    """Return a runner of texts with a torch model.

    Args:
        tokenizer: Splits texts into windows of tokens.
        forward: Maps a packed batch of B windows to (B, K), or to (T, K) with ``per_token``.
        device: Device of the batches.
        options: Options for splitting texts into windows.
        tokens: Token budget of a batch, or a `TokenBudget` to share; None for the default of the device.
        per_token: True if the model gives a row for each token, False for one row for each window.

    Raises:
        InvalidInput: The token budget is below 1.
    """
    runner: Runner[TokenIds, Row] = Runner(row_answers(forward, per_token=per_token), device, tokens)
    return TextRunner(tokenizer, runner, options, per_token=per_token)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Test whether torch ran out of memory; only some of its allocators raise a specific error."""
    message = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(sign in message for sign in _OUT_OF_MEMORY)
