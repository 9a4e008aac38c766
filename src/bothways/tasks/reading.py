"""Options of opening models, and how a model reads texts. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from bothways.checkpoints.schema import Extras, Stored, at_most
from bothways.data.windows import WindowStore
from bothways.encoder.config import EncoderConfig
from bothways.errors import InvalidInput
from bothways.evaluation import TextsRead
from bothways.inference import TextOptions
from bothways.tasks.predictions import warn_of_cut
from bothways.text import Overflow, TextTokenizer, check_overflow
from bothways.text.texts import Text

if TYPE_CHECKING:
    import torch

# What models read at once that know no limit of their own.
USUAL_LENGTH = 512

# Texts tokenised at a time, so that only the compact form of all of them is in memory.
BLOCK = 1024


class OpenOptions(TypedDict, total=False):
    """Options of finding a checkpoint, of its device, and of reading texts.

    Attributes:
        max_length: Maximum tokens per window. Default: as trained, else the model's limit.
        on_overflow: Longer texts are read in overlapping windows (``"window"``, the default), or refused
            (``"error"``), or cut (``"truncate"``).
        stride: Tokens that neighbouring windows share; a quarter of a window's room when left out.
        revision: The commit of a hub name; when None, the one that its download resolved.
        device: ``"auto"`` takes a GPU where there is one.
        dtype: Precision of the encoder's weights: ``float32``, ``bfloat16``, ``float16`` or ``float64``. None (the
            default) is bfloat16 on a GPU that has it, else float32. ``auto`` is the same, and takes bfloat16 for the
            matrix products of inference on a CPU that has instructions for it; it says what it took. What is trained or
            saved is in float32 all the same. Whether a GPU multiplies float32 in TF32 is torch's setting,
            ``torch.set_float32_matmul_precision``.
        download: Whether the hub may be asked for it.
        allow_pickle: Whether a ``.bin`` file may be read, after a scan.
    """

    max_length: int | None
    on_overflow: Overflow | None
    stride: int | None
    revision: str | None
    device: str | torch.device
    dtype: str | torch.dtype | None
    download: bool
    allow_pickle: bool


def stored_texts(
    tokenizer: TextTokenizer, texts: Sequence[Text], reading: TextOptions, *, offsets: bool = False
) -> WindowStore:
    """Texts, tokenised a block at a time and kept compactly; with ``offsets`` also where each token stands.

    Warns:
        TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
    """
    store = WindowStore.of(
        text
        for start in range(0, len(texts), BLOCK)
        for text in tokenizer.encode(
            list(map(reading.given, texts[start : start + BLOCK])),
            max_length=reading.max_length,
            on_overflow=reading.on_overflow,
            stride=reading.stride,
            offsets=offsets,
            first=start,
            cut=reading.cut,
        )
    )
    warn_of_cut(stored_texts_read(store))
    return store


def stored_texts_read(store: WindowStore) -> TextsRead:
    """Return how the texts of a store were read."""
    return TextsRead.of(np.bincount(store.text_of_window).tolist(), store.dropped_tokens.tolist())


def kept_stride(stored: int | None, length: int, before: int, special: int) -> int | None:
    """Return a stride that was stored, or None where windows have become too short for it.

    Args:
        stored: The stride.
        length: Tokens of a window now.
        before: Tokens of a window when it was stored.
        special: How many of them are special.
    """
    return None if stored is not None and length < before and stored >= length - special else stored


def stored_reading(
    extras: Extras, config: EncoderConfig, tokenizer: TextTokenizer, task: str, options: OpenOptions
) -> TextOptions:
    """Return how a model reads texts: as the options say, else as it was stored.

    Args:
        extras: Its ``bothways.json``.
        config: Its encoder.
        tokenizer: Its tokenizer.
        task: What it is opened for.
        options: See `OpenOptions`.

    Raises:
        InvalidInput: A setting is out of range.
        CorruptCheckpoint: What was stored cannot be.
    """
    limit = config.max_length or USUAL_LENGTH
    asked, stride = options.get("max_length"), options.get("stride")
    if asked is not None and not 1 <= asked <= limit:
        raise InvalidInput(f"max_length must lie between 1 and the model's {limit}, but it is {asked}.")
    stored = Stored.of(extras)
    before = at_most("max_length", stored.max_length, limit) or limit
    length = asked or before
    if stride is not None and not 0 <= stride < length:
        raise InvalidInput(f"stride must lie between 0 and {length - 1}, but it is {stride}.")
    overflow = check_overflow(options.get("on_overflow") or stored.on_overflow or "window")
    if stride is None:
        special = tokenizer.special_count(pair=True)  # which has the most
        stride = kept_stride(at_most("stride", stored.stride, before), length, before, special)
    as_words = stored.as_words and stored.task == task
    return TextOptions(length, overflow, stride, as_words=as_words)
