"""Teachers to distill from; the kind of teacher determines the loss.

Shapes: T packed tokens, H hidden, B sequences, K numbers of a vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeAlias, Unpack

from torch import Tensor

from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.errors import InvalidInput
from bothways.families import HeadName
from bothways.objectives.distillation import MaskedLMDistillation, Pool, StateDistillation, StateLoss, TripleLoss
from bothways.objectives.masked_lm import MaskedLM
from bothways.objectives.masking import Corruption, Masker, Masking, Unmasked
from bothways.objectives.pretraining import PretrainingModel
from bothways.packing import Packed
from bothways.pretraining.models import masked_lm_head
from bothways.pretraining.students import Student
from bothways.tasks.backend import OpenOptions
from bothways.tasks.embedding.sentence_layout import EmbeddingSettings, open_sentence_model
from bothways.tasks.embedding.spec import EMBEDDING
from bothways.tasks.embedding.trained import TrainedEmbedder, open_embedder
from bothways.tasks.embedding.vector_model import pool

_MASKED_LM: HeadName = "masked_lm"


@dataclass(frozen=True, slots=True)
class Usual:
    """Default batch (full sequences, or the same number of tokens in shorter ones) and the peak rate for it."""

    batch: int = 32
    rate: float = 1e-4


@dataclass(frozen=True, slots=True)
class EmbedderTeacher:
    """A sentence embedder, whose vectors the student learns."""

    embedder: TrainedEmbedder
    loss: StateLoss = StateLoss(states=0.0, embeddings=0.0)  # noqa: RUF009 (frozen)
    sentences: ClassVar = True  # see `CorpusPieces`
    micro_batch: ClassVar = 8192
    usual: ClassVar = Usual(batch=16, rate=6e-4)

    @property
    def model(self) -> PretrainedEncoder:
        return self.embedder.backend.weights("learn from").model

    def distillation(self, student: Student) -> PretrainingModel:
        made = _pool_of(student.model, self.embedder.settings)
        layers = student.learns_from(self.model.config)
        return StateDistillation(student.model.encoder, self.model.encoder, layers, made, self.loss)

    def corruption(self, seed: int) -> Corruption:
        del seed
        return Unmasked()

    def write(self, student: PretrainedEncoder, folder: Path, card: Mapping[str, object]) -> None:
        backend = replace(self.embedder.backend.weights("learn from"), model=student)
        settings = _within(self.embedder.settings, student)
        replace(self.embedder, backend=backend, settings=settings, card=card).write(folder)


@dataclass(frozen=True, slots=True)
class MaskedLMTeacher:
    """A masked language model; students learn its predictions, last hidden states and masked language modelling."""

    model: PretrainedEncoder
    loss: TripleLoss = TripleLoss()  # noqa: RUF009 (frozen)
    masking: Masking = Masking()  # noqa: RUF009 (frozen)
    sentences: ClassVar = False
    micro_batch: ClassVar = 2048  # logits of all tokens take memory
    usual: ClassVar = Usual()

    def distillation(self, student: Student) -> PretrainingModel:
        """Return the model that trains a student."""
        ours, theirs = (MaskedLM(each.encoder, masked_lm_head(each)) for each in (student.model, self.model))
        return MaskedLMDistillation(ours, theirs, self.loss)

    def corruption(self, seed: int) -> Corruption:
        """Return the corruption of the training's sequences."""
        return Masker(self.model.tokenizer, self.masking, seed)

    def write(self, student: PretrainedEncoder, folder: Path, card: Mapping[str, object]) -> None:
        """Write a student in the form of its teacher."""
        student.write(folder, {"card": dict(card)})


@dataclass(frozen=True, slots=True)
class EncoderTeacher:
    """An encoder without a head, whose hidden states the student learns."""

    model: PretrainedEncoder
    loss: StateLoss = StateLoss(vectors=0.0)  # noqa: RUF009 (frozen)
    sentences: ClassVar = False
    micro_batch: ClassVar = 8192
    usual: ClassVar = Usual()

    def distillation(self, student: Student) -> PretrainingModel:
        layers = student.learns_from(self.model.config)
        return StateDistillation(
            student.model.encoder, self.model.encoder, layers, partial(pool, pooling="mean"), self.loss
        )

    def corruption(self, seed: int) -> Corruption:
        del seed
        return Unmasked()

    def write(self, student: PretrainedEncoder, folder: Path, card: Mapping[str, object]) -> None:
        student.write(folder, {"card": dict(card)})


Teacher: TypeAlias = EmbedderTeacher | MaskedLMTeacher | EncoderTeacher


def open_teacher(name_or_path: str | Path, **options: Unpack[OpenOptions]) -> Teacher:
    """Open a teacher: a sentence embedder, a masked language model, or another encoder, in this order.

    Raises:
        InvalidInput: The task of the model cannot be distilled. Also raises everything that `bothways.load` raises.
    """
    options["dtype"] = "float32"
    backend = open_sentence_model(name_or_path, EMBEDDING.name, **options)
    if backend.trained_for not in (None, EMBEDDING.name, _MASKED_LM):
        raise InvalidInput(
            f"expected an encoder, a masked language model or a sentence embedder as a teacher, but "
            f"{backend.model.name!r} is a model for {backend.trained_for}: use TaskDistiller for models of a task."
        )
    if backend.trained_for == EMBEDDING.name or (backend.model.folder / "modules.json").is_file():
        return EmbedderTeacher(open_embedder(EMBEDDING, backend))
    if _MASKED_LM in backend.checkpoint.heads():
        head = backend.checkpoint.build_masked_lm_head().to(backend.model.device)
        return MaskedLMTeacher(replace(backend.model, heads={_MASKED_LM: head}))
    return EncoderTeacher(backend.model)


def check_vocabulary(student: PretrainedEncoder, teacher: PretrainedEncoder) -> None:
    """Raise InvalidInput for a student with another vocabulary than its teacher."""
    ours, theirs = (each.tokenizer.vocabulary() for each in (student, teacher))
    if len(ours) != len(theirs):
        raise InvalidInput(
            f"expected a student with its teacher's vocabulary, got {len(ours)} and {len(theirs)} tokens."
        )
    other = next((number for number in sorted(ours) if ours[number] != theirs.get(number)), None)
    if other is not None:
        raise InvalidInput(
            "expected a student with its teacher's vocabulary, but the token with the id "
            f"{other} is {ours[other]!r} in the student and {theirs.get(other)!r} in the teacher."
        )


def _within(settings: EmbeddingSettings, student: PretrainedEncoder) -> EmbeddingSettings:
    """Return an embedder's settings within the limits of a student of another size."""
    limit, dimensions = student.config.max_length, settings.dimensions
    length = settings.max_length if limit is None else min(limit, settings.max_length)
    narrower = dimensions is not None and dimensions >= student.config.hidden
    stride = None if length < settings.max_length else settings.stride
    return replace(settings, max_length=length, stride=stride, dimensions=None if narrower else dimensions)


def _pool_of(model: PretrainedEncoder, settings: EmbeddingSettings) -> Pool:
    """Return the pooling of an embedder, before the vectors are scaled."""

    def pooled(hidden_TH: Tensor, packed: Packed) -> Tensor:
        if settings.pooling == "cls" and model.tokenizer.cls_is_last:
            return hidden_TH[packed.last_tokens_B][:, : settings.dimensions]
        return pool(hidden_TH, packed, settings.pooling)[:, : settings.dimensions]

    return pooled
