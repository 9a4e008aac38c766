"""Opening of checkpoints by tasks: the options, and the opened checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from bothways.checkpoints import Checkpoint, PretrainedEncoder, open_checkpoint, pretrained
from bothways.checkpoints.schema import Extras, Stored, at_most
from bothways.checkpoints.sentence_layout import embeds_mean
from bothways.data.windows import WindowStore
from bothways.encoder import Pooler
from bothways.errors import InvalidInput, NotFitted
from bothways.evaluation import TextsRead
from bothways.families.stored_heads import HEAD_POOLING, MEAN, pair_settings
from bothways.inference import InferenceEngine, TextOptions, TokenBudget
from bothways.packing import Packed, summing_type
from bothways.tasks.predictions import warn_of_cut
from bothways.text import Overflow, TextTokenizer, check_overflow
from bothways.text.texts import Text

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


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A checkpoint, its encoder on a device, and how it is to read texts.

    Attributes:
        checkpoint: The files.
        model: The encoder and its tokenizer.
        reading: How texts are read.
        budget: Tokens of a batch, lowered where memory runs out.
        options: What the task was opened with besides: the ``open_options`` of its spec.
        shared: Whether heads of several tasks stand above the encoder, and are trained together.
    """

    checkpoint: Checkpoint
    model: PretrainedEncoder
    reading: TextOptions
    budget: TokenBudget
    options: Any = None
    shared: bool = False

    @property
    def extras(self) -> Extras:
        """The contents of ``bothways.json``."""
        return self.checkpoint.extras

    @property
    def trained_for(self) -> str | None:
        """The task that it was trained for here; None where it was not."""
        task = self.extras.get("task")
        return task if isinstance(task, str) else None

    def not_fitted(self, task: str, head: str) -> NotFitted:
        """Return the error of asking it for what it was not trained for.

        Args:
            task: What it is asked to do.
            head: What would do that.
        """
        if self.trained_for not in (None, task):
            return NotFitted(
                f"{self.model.name!r} was trained for {self.trained_for} and not for {task}: open it as that "
                "(bothways.open_trained opens any), or call fit to train it for this."
            )
        return NotFitted(f"{self.model.name!r} has no trained {head} yet: call fit first.")

    @property
    def head_dtype(self) -> torch.dtype:
        """Precision of what stands above the encoder: at least float32, since answers that are rounded tie."""
        return summing_type(self.model.encoder.embedding.tokens.weight.dtype)

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch that suit the device, or as many as have turned out to fit."""
        return self.budget.tokens

    def for_training(self, *, resumed: bool) -> "OpenedModel":
        """Return the same with a copy of the encoder, to be trained while this one stays as it is."""
        model = self.model
        model.check_full("train")
        trainings = max(model.trainings, 1) if resumed else model.trainings + 1
        encoder = model.in_full(model.encoder) if model.rounded else deepcopy(model.encoder)
        # The pooler is not trained, but is saved.
        pooler = model.in_full(model.pooler) if isinstance(model.pooler, Pooler) else model.pooler
        model = replace(
            model, encoder=encoder, pooler=pooler, rounded=False, multiplies_bfloat16=False, trainings=trainings
        )
        return replace(self, model=model)

    @property
    def embeds_mean(self) -> bool:
        """True where the checkpoint makes vectors of texts, of the mean of the tokens."""
        stored = self.extras.get("pooling")
        if stored is not None:
            return stored == "mean"
        return embeds_mean(self.model.folder, cls_is_last=self.model.tokenizer.cls_is_last)

    @property
    def reads_mean(self) -> bool:
        """True where a classifier above it reads the mean of the tokens, and could read the texts of a pair apart."""
        return self.model.settings.get(HEAD_POOLING) == MEAN and not self.model.tokenizer.cls_is_last

    def above_embedder(self, *, pairs: bool) -> "OpenedModel":
        """Return the same, with a classifier that reads what a sentence embedder does; see `families.stored_heads`.

        Args:
            pairs: Whether it reads pairs, whose texts are then read by themselves, too.
        """
        tokenizer = self.model.tokenizer
        return self.with_settings(pair_settings(tokenizer.cls_id, tokenizer.sep_id) if pairs else {HEAD_POOLING: MEAN})

    def with_settings(self, more: Mapping[str, object]) -> "OpenedModel":
        """Return the same with further settings of ``config.json``."""
        settings = {**self.model.settings, **more}
        checkpoint, model = replace(self.checkpoint, settings=settings), replace(self.model, settings=settings)
        return replace(self, checkpoint=checkpoint, model=model)

    def engine(self, forward: Callable[[Packed], Tensor]) -> InferenceEngine:
        """Return an engine that reads texts in this way and applies ``forward``, see `InferenceEngine`."""
        return InferenceEngine(self.model.tokenizer, forward, self.model.device, self.reading, self.budget)

    def stored(self, texts: Sequence[Text], *, offsets: bool = False) -> WindowStore:
        """Texts, tokenised and kept compactly; with ``offsets`` also where each token stands."""
        return stored_texts(self.model.tokenizer, texts, self.reading, offsets=offsets)

    def stored_reading(self) -> dict[str, object]:
        """Return how texts are read, for ``bothways.json``."""
        reading = self.reading
        return {
            "max_length": reading.max_length,
            "on_overflow": reading.on_overflow,
            "stride": reading.stride,
            "as_words": reading.as_words,
        }


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


def open_model(name_or_path: str | Path, task: str, **options: Unpack[OpenOptions]) -> OpenedModel:
    """Open a checkpoint; what is left out is as ``bothways.json`` says, or else as the model can.

    Args:
        name_or_path: A folder or a name, see `bothways.load`.
        task: What it is opened for. A model of another task may have read the words of a text with single spaces
            between them, which is nothing to this one: its offsets would be those of another text.
        options: See `OpenOptions`.

    Raises:
        InvalidInput: A setting is out of range.
        CorruptCheckpoint: A file is damaged. And everything that `bothways.load` raises.
    """
    checkpoint = open_checkpoint(
        name_or_path,
        revision=options.get("revision"),
        download=options.get("download", False),
        allow_pickle=options.get("allow_pickle", False),
    )
    model = pretrained(checkpoint, device=options.get("device", "auto"), dtype=options.get("dtype"))
    reading = _reading(checkpoint, model, task, options)
    return OpenedModel(checkpoint, model, reading, TokenBudget.of(None, model.device))


def kept_stride(stored: int | None, length: int, before: int, special: int) -> int | None:
    """Return a stride that was stored, or None where windows have become too short for it.

    Args:
        stored: The stride.
        length: Tokens of a window now.
        before: Tokens of a window when it was stored.
        special: How many of them are special.
    """
    return None if stored is not None and length < before and stored >= length - special else stored


def _reading(checkpoint: Checkpoint, model: PretrainedEncoder, task: str, options: OpenOptions) -> TextOptions:
    limit = model.config.max_length or USUAL_LENGTH
    asked, stride = options.get("max_length"), options.get("stride")
    if asked is not None and not 1 <= asked <= limit:
        raise InvalidInput(f"max_length must lie between 1 and the model's {limit}, but it is {asked}.")
    stored = Stored.of(checkpoint.extras)
    before = at_most("max_length", stored.max_length, limit) or limit
    length = asked or before
    if stride is not None and not 0 <= stride < length:
        raise InvalidInput(f"stride must lie between 0 and {length - 1}, but it is {stride}.")
    overflow = check_overflow(options.get("on_overflow") or stored.on_overflow or "window")
    if stride is None:
        special = model.tokenizer.special_count(pair=True)  # which has the most
        stride = kept_stride(at_most("stride", stored.stride, before), length, before, special)
    as_words = stored.as_words and stored.task == task
    return TextOptions(length, overflow, stride, as_words=as_words)
