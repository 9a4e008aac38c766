"""The backend of checkpoints with weights: the encoder on a device, a head on top of it, and a runner for both.

Shapes: B sequences of a batch, T tokens of a batch, C outputs, L layers, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor, nn
from typing_extensions import override

from bothways.checkpoints import Checkpoint, PretrainedEncoder, open_checkpoint
from bothways.checkpoints.hub import LocatedModel
from bothways.checkpoints.pretrained import pretrained
from bothways.checkpoints.sentence_transformers import embeds_mean, head_tensors, write_model
from bothways.choices import HeadName
from bothways.encoder import Encoder, EncoderConfig, Pooler, ScoreHead
from bothways.encoder.head_kinds import EachToken
from bothways.encoder.heads import layer_rows, layer_states, read_rows
from bothways.families.family import HEAD_POOLING, MEAN, beside_settings, head_beside, pair_settings
from bothways.inference import TextRunner, TokenBudget, text_runner
from bothways.packing import Packed, summing_type
from bothways.tasks.backend import Backend, OpenOptions, stored_reading, text_options
from bothways.text import TextTokenizer

# Modules, such as poolings with different prompts, whose runners are kept.
_MOST_RUNNERS = 64


class HeadModel(nn.Module):
    """An encoder and a head; the last layer computes only the rows that the head reads.

    ``layers`` is the number of layers, from the last, whose hidden states are appended to the scores for an
    out-of-domain detector: 0, 1, or all.
    """

    def __init__(self, encoder: Encoder, head: ScoreHead, layers: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.layers = layers

    def forward(self, packed: Packed) -> Tensor:
        """Return scores (B, C), or (T, C) for a head that reads each token; with layers (B, C + L H)."""
        read = self.head.kind.read
        if self.layers > 1:
            rows = layer_rows(read, self.encoder, layer_states(self.encoder, packed), packed)
        else:
            rows = (read_rows(read, self.encoder, packed),)
        scores: Tensor = self.head(rows[0])
        if not self.layers:
            return scores
        hidden = self.encoder.config.hidden
        return torch.cat([scores, *[each[:, :hidden] for each in rows]], dim=1)

    @property
    def per_token(self) -> bool:
        """True if the head reads each token."""
        return isinstance(self.head.kind.read, EachToken)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.head.output.weight.device


@dataclass(frozen=True)
class TorchBackend(Backend):
    """A checkpoint: its encoder on a device (``shared`` if several tasks have heads on it), and its head, if any."""

    files: Checkpoint
    model: PretrainedEncoder
    shared: bool = field(default=False, kw_only=True)
    network: HeadModel | None = field(default=None, kw_only=True)

    @classmethod
    def open(cls, name_or_path: str | Path | LocatedModel, task: str, **options: Unpack[OpenOptions]) -> TorchBackend:
        """Open a checkpoint for a task, see `bothways.tasks.opening.open_backend`."""
        checkpoint = open_checkpoint(
            name_or_path,
            revision=options.get("revision"),
            download=options.get("download", False),
            allow_pickle=options.get("allow_pickle", False),
        )
        model = pretrained(checkpoint, device=options.get("device", "auto"), dtype=options.get("dtype"))
        reading = text_options(checkpoint.extras, model.config, model.tokenizer, task, options)
        return cls(reading, TokenBudget.of(None, model.device), checkpoint, model)

    @property
    @override
    def name(self) -> str:
        return self.model.name

    @property
    @override
    def config(self) -> EncoderConfig:
        return self.model.config

    @property
    @override
    def tokenizer(self) -> TextTokenizer:
        return self.model.tokenizer

    @override
    def score_count(self, head: HeadName) -> int | None:
        return self.files.score_count(head)

    @property
    @override
    def arithmetic(self) -> tuple[str, str]:
        return self.model.precision, self.model.device.type

    @cached_property
    @override
    def runner(self) -> TextRunner:
        network = self.head_model
        return self.text_runner(network, per_token=network.per_token)

    def text_runner(
        self, forward: Callable[[Packed], Tensor], *, per_token: bool = False, kept_as: Hashable = None
    ) -> TextRunner:
        """Return a runner for another module on the encoder; see `bothways.inference.runner.text_runner`.

        With ``kept_as``, all calls with this value get the same runner, so that a queue computes their texts together.
        """
        kept = self._runners if kept_as is not None else {}
        if kept_as not in kept:
            if len(kept) == _MOST_RUNNERS:
                kept.clear()
            own = self.tokenizer, forward, self.model.device, self.reading, self.budget
            kept[kept_as] = text_runner(*own, per_token=per_token)
        return kept[kept_as]

    @cached_property
    def _runners(self) -> dict[Hashable, TextRunner]:
        return {}

    @property
    def head_model(self) -> HeadModel:
        """Encoder and head; raises `NotFitted` if there is no head."""
        if self.network is None:
            raise self.not_fitted("this task", "head")
        return self.network

    def with_head(self, head: ScoreHead, layers: int = 0) -> TorchBackend:
        """Return the backend with a head, moved to the encoder's device; see `HeadModel`."""
        head = head.to(self.model.device, head_dtype(self.model))
        return replace(self, network=HeadModel(self.model.encoder, head, layers).eval())

    @override
    def with_trained_head(self, task: str, head: HeadName, layers: int, *, per_token: bool) -> TorchBackend:
        del task, per_token
        return self.with_head(self.files.build_score_head(head), layers)

    def with_layers(self, layers: int) -> TorchBackend:
        """Return the backend with the hidden states of this number of layers appended to the scores of each window."""
        network = self.head_model
        if network.layers == layers:
            return self
        return replace(self, network=HeadModel(network.encoder, network.head, layers).eval())

    def write(self, folder: Path, head: HeadName, settings: Mapping[str, object], extras: Mapping[str, object]) -> None:
        """Write encoder and head in the layout of transformers into an existing folder.

        ``settings`` are the head's entries of ``config.json`` (None removes an entry), and ``extras`` the entries of
        ``bothways.json`` besides the text options.
        """
        model = self.model
        stored = {**model.settings, "architectures": [model.family.architecture([head], model.settings)], **settings}
        stored = {name: value for name, value in stored.items() if name not in settings or value is not None}
        tensors = model.encoder_tensors((head,)) | stored_head(self, head)
        write_model(folder, stored, tensors, {**extras, **stored_reading(self.reading)})
        model.tokenizer.save(folder, types=model.config.reads_types)

    def copy_for_training(self, *, resumed: bool) -> TorchBackend:
        """Return the backend with a copy of the encoder for training; the original is not changed."""
        model = self.model
        model.check_full("train")
        trainings = max(model.trainings, 1) if resumed else model.trainings + 1
        encoder = model.in_full(model.encoder) if model.rounded else deepcopy(model.encoder)
        # The pooler is saved, but not trained.
        pooler = model.in_full(model.pooler) if isinstance(model.pooler, Pooler) else model.pooler
        model = replace(
            model, encoder=encoder, pooler=pooler, rounded=False, multiplies_bfloat16=False, trainings=trainings
        )
        return replace(self, model=model, network=None)

    def with_settings(self, more: Mapping[str, object]) -> TorchBackend:
        """Return the backend with further settings for ``config.json``."""
        settings = {**self.model.settings, **more}
        files, model = replace(self.files, settings=settings), replace(self.model, settings=settings)
        return replace(self, files=files, model=model)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("runner", "_runners")}


def opened_beside(backend: TorchBackend, located: LocatedModel) -> TorchBackend:
    """Open another checkpoint to read the same texts, on the same device and in the same precision."""
    model = backend.model
    dtype = model.precision if model.precision in ("float32", "float64") else None
    opened = TorchBackend.open(located, backend.trained_for or "", device=model.device, dtype=dtype)
    return replace(opened, reading=backend.reading, shared=backend.shared)


def head_dtype(model: PretrainedEncoder) -> torch.dtype:
    """Return the precision of modules on top of an encoder: at least float32, since less precise scores would tie."""
    return summing_type(model.encoder.embedding.tokens.weight.dtype)


def stored_head(backend: TorchBackend, head: HeadName) -> dict[str, Tensor]:
    """Return the weights of a backend's head under the family's names."""
    model = backend.model
    return head_tensors(model.family.head(head, model.settings).rows, model.config, backend.head_model.head)


def head_config(backend: TorchBackend, head: HeadName, own: Mapping[str, object]) -> dict[str, object]:
    """Return the entries of ``config.json`` that describe a head; ``own`` are those of its outputs."""
    settings, family = backend.model.settings, backend.model.family
    beside = beside_settings(settings) if head_beside(head, settings) else {}
    return {"architectures": [family.architecture([head], settings)], **beside, **own}


# --- classifiers on top of sentence embedders; see `bothways.families.family` ---


def embeds_by_mean(backend: TorchBackend) -> bool:
    """Return True if the checkpoint is a sentence embedder with mean pooling."""
    stored = backend.files.extras.get("pooling")
    if stored is not None:
        return stored == "mean"
    return embeds_mean(backend.model.folder, hidden=backend.config.hidden, cls_is_last=backend.tokenizer.cls_is_last)


def reads_mean(backend: TorchBackend) -> bool:
    """Return True if a classifier reads mean-pooled token states, and its CLS token, if any, comes first."""
    return backend.model.settings.get(HEAD_POOLING) == MEAN and not backend.tokenizer.cls_is_last


def above_embedder(backend: TorchBackend, *, pairs: bool) -> TorchBackend:
    """Return the backend with settings for a head on mean-pooled vectors; ``pairs`` adds a vector of each text."""
    tokenizer = backend.tokenizer
    return backend.with_settings(pair_settings(tokenizer.cls_id, tokenizer.sep_id) if pairs else {HEAD_POOLING: MEAN})
