"""The interface of tasks to an opened model: tokenizer, text options and runner. Does not import torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypedDict

import numpy as np

from bothways import data
from bothways.checkpoints.schema import Extras, Stored, at_most
from bothways.encoder.config import EncoderConfig
from bothways.errors import InvalidInput, NotFitted
from bothways.inference import TextOptions, TextRunner, TokenBudget
from bothways.progress import stage
from bothways.tasks.scores import warn_of_cut
from bothways.text import EncodedText, Overflow, TextTokenizer, check_overflow
from bothways.text.windows import Text, TextsRead

if TYPE_CHECKING:
    import torch

    from bothways.checkpoints import Checkpoint
    from bothways.checkpoints.exported import ExportedModel
    from bothways.choices import HeadName
    from bothways.data import WindowStore

# Window length of models that have no limit of their own.
USUAL_LENGTH = 512

# Texts tokenised at a time; after each block, only the compact form of its windows stays in memory.
BLOCK = 1024


class OpenOptions(TypedDict, total=False):
    """Options for finding a checkpoint, for its device, and for reading texts.

    Attributes:
        max_length: Maximum tokens per window. Default: as trained, else the model's limit.
        on_overflow: Treatment of longer texts: split into overlapping windows (``"window"``, the default), refused
            (``"error"``), or truncated (``"truncate"`` keeps the start, ``"truncate_left"`` the end).
        stride: Tokens shared by neighbouring windows. Default: a quarter of a window without its special tokens.
        revision: Commit of a model on the hub. Default: the cached commit of the branch ``main``.
        device: Device of the model; ``"auto"`` takes a GPU if there is one.
        dtype: Precision of the encoder's weights: ``float32``, ``bfloat16``, ``float16`` or ``float64``. None (the
            default) is bfloat16 on a GPU that supports it, else float32. ``auto`` also computes the matrix products of
            inference in bfloat16 on a CPU with bfloat16 instructions, and reports the chosen precision. Models are
            always trained and saved in float32. ``torch.set_float32_matmul_precision`` decides whether a GPU uses TF32
            for float32.
        download: Whether the model may be downloaded from the hub.
        allow_pickle: Whether a ``.bin`` file may be read, after a scan.
        check: Compare the model with the golden answers in its folder, and raise `AnswersChanged` if it differs. Only
            options for finding the model, its device and its precision can be given then.
    """

    max_length: int | None
    on_overflow: Overflow | None
    stride: int | None
    revision: str | None
    device: str | torch.device
    dtype: str | torch.dtype | None
    download: bool
    allow_pickle: bool
    check: bool


# Options that do not change the model's default way of answering.
_NEUTRAL = ("revision", "device", "dtype", "download", "allow_pickle", "check")


def check_requested(options: Mapping[str, object]) -> bool:
    """Return the option ``check``; refuse it beside options that change the model's answers."""
    others = [name for name, value in options.items() if name not in _NEUTRAL and value is not None]
    if options.get("check") and others:
        raise InvalidInput(
            f"check=True compares the model's default answers, which {' and '.join(others)} may change: leave out "
            "one or the other."
        )
    return bool(options.get("check"))


@dataclass(frozen=True)
class Backend(ABC):
    """An opened model: weights in torch (`tasks.torch_backend`), or an ONNX graph (`tasks.onnx_backend`).

    ``options`` are the task's own options of `from_pretrained` (its ``spec.open_options``). ``budget``, the tokens per
    batch, is lowered when memory runs out.
    """

    reading: TextOptions
    budget: TokenBudget
    files: Checkpoint | ExportedModel
    options: object = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that the caller gave."""

    @property
    def export(self) -> ExportedModel | None:
        """The files of an ONNX export; None for a model with weights."""
        return None

    @property
    @abstractmethod
    def config(self) -> EncoderConfig:
        """The encoder's configuration."""

    @property
    @abstractmethod
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer."""

    @property
    @abstractmethod
    def arithmetic(self) -> tuple[str, str]:
        """The precision and the device of the matrix products, such as ``("float32", "cpu")``."""

    @property
    @abstractmethod
    def runner(self) -> TextRunner:
        """The runner, which tokenises texts and computes the head's outputs for their windows."""

    @abstractmethod
    def score_count(self, head: HeadName) -> int | None:
        """Return the number of outputs of the trained head with this name; None if there is no such head."""

    @abstractmethod
    def with_trained_head(self, task: str, head: HeadName, layers: int, *, per_token: bool) -> Self:
        """Return the model with its trained head of this name, ready for inference.

        ``layers`` is the number of layers whose hidden states are appended to the scores of each window. Raises
        `CorruptCheckpoint` if the head is damaged or the graph has the wrong number of outputs.
        """

    @property
    def trained_for(self) -> str | None:
        """The task that this package trained the model for, or None."""
        task = self.files.extras.get("task")
        return task if isinstance(task, str) else None

    def not_fitted(self, task: str, head: str) -> NotFitted:
        """Return the error for a model without the trained head that a task needs."""
        if self.trained_for not in (None, task):
            return NotFitted(
                f"{self.name!r} was trained for {self.trained_for} and not for {task}: open it with "
                f"bothways.open_trained, or call fit to train it for {task}."
            )
        return NotFitted(f"{self.name!r} has no trained {head} yet: call fit first.")


def stored_windows(backend: Backend, texts: Sequence[Text], *, offsets: bool = False) -> WindowStore:
    """Tokenise texts, block by block, into a compact store; ``offsets`` keeps the tokens' positions in the texts too.

    Warns:
        TextsTruncated: Texts were truncated (only if ``on_overflow`` truncates).
    """
    with stage("tokenising", len(texts)) as bar:

        def encoded() -> Iterator[EncodedText]:
            for start in range(0, len(texts), BLOCK):
                block = texts[start : start + BLOCK]
                yield from backend.reading.encode(backend.tokenizer, block, offsets=offsets, first=start)
                bar.advance(len(block))

        store = data.WindowStore.of(encoded())
    warn_of_cut(TextsRead.of(np.bincount(store.text_of_window).tolist(), store.dropped_tokens.tolist()))
    return store


def stored_reading(reading: TextOptions) -> dict[str, object]:
    """Return the text options as entries of ``bothways.json``."""
    return {
        "max_length": reading.max_length,
        "on_overflow": reading.on_overflow,
        "stride": reading.stride,
        "as_words": reading.as_words,
    }


def text_options(
    extras: Extras, config: EncoderConfig, tokenizer: TextTokenizer, task: str, options: OpenOptions
) -> TextOptions:
    """Return the text options of a task: the caller's ``options``, else those of the checkpoint, else the defaults."""
    limit = config.max_length or USUAL_LENGTH
    max_length, stride = options.get("max_length"), options.get("stride")
    if max_length is not None and not 1 <= max_length <= limit:
        raise InvalidInput(f"max_length must lie between 1 and the model's limit, {limit}, got {max_length}.")
    stored = Stored.of(extras)
    before = at_most("max_length", stored.max_length, limit) or limit
    length = max_length or before
    if stride is not None and not 0 <= stride < length:
        raise InvalidInput(f"stride must lie between 0 and {length - 1}, got {stride}.")
    overflow = check_overflow(options.get("on_overflow") or stored.on_overflow or "window")
    if stride is None:
        special = tokenizer.special_count(pair=True)  # a pair has the most special tokens
        stride = kept_stride(at_most("stride", stored.stride, before), length, before, special)
    # Another task may have stored ``as_words``, which joins words by single spaces: offsets would refer to the joined
    # text.
    return TextOptions(length, overflow, stride, as_words=stored.as_words and stored.task == task)


def kept_stride(stored: int | None, length: int, before: int, special: int) -> int | None:
    """Return the stored stride; None if it does not fit into windows that became shorter (``before``: old length)."""
    return None if stored is not None and length < before and stored >= length - special else stored
