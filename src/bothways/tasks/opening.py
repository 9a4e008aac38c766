"""Opening of checkpoints by tasks: encoder and tokenizer, and how texts are read."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from bothways.checkpoints import Checkpoint, PretrainedEncoder, open_checkpoint
from bothways.checkpoints.hub import LocatedModel
from bothways.checkpoints.pretrained import pretrained
from bothways.checkpoints.schema import Extras
from bothways.checkpoints.sentence_layout import embeds_mean
from bothways.choices import HeadName
from bothways.encoder import EncoderConfig, Pooler
from bothways.families import Family
from bothways.families.stored_heads import HEAD_POOLING, MEAN, pair_settings
from bothways.inference import InferenceEngine, TextOptions, TokenBudget
from bothways.packing import Packed, summing_type
from bothways.tasks.opened import Opened
from bothways.tasks.reading import OpenOptions, stored_reading
from bothways.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class OpenedModel(Opened):
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
    def name(self) -> str:
        """The name that the caller gave."""
        return self.model.name

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.checkpoint.folder

    @property
    def settings(self) -> Mapping[str, object]:
        """The contents of ``config.json``."""
        return self.checkpoint.settings

    @property
    def extras(self) -> Extras:
        """The contents of ``bothways.json``."""
        return self.checkpoint.extras

    @property
    def family(self) -> Family:
        """The family."""
        return self.model.family

    @property
    def config(self) -> EncoderConfig:
        """The encoder's configuration."""
        return self.model.config

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer."""
        return self.model.tokenizer

    def weights(self, verb: str) -> "OpenedModel":
        """Return itself."""
        del verb
        return self

    def score_count(self, head: HeadName) -> int | None:
        """Return how many scores its trained head of this name gives; None where it has none."""
        return self.checkpoint.score_count(head)

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


def open_model(name_or_path: str | Path | LocatedModel, task: str, **options: Unpack[OpenOptions]) -> OpenedModel:
    """Open a checkpoint; what is left out is as ``bothways.json`` says, or else as the model can.

    Args:
        name_or_path: A folder or a name, see `bothways.load`, or where it was found.
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
    reading = stored_reading(checkpoint.extras, model.config, model.tokenizer, task, options)
    return OpenedModel(checkpoint, model, reading, TokenBudget.of(None, model.device))
