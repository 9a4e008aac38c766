"""Distillation: train a smaller encoder on the outputs of a larger one for raw text.

The kind of teacher, which is a sentence embedder, a masked language model or another encoder, determines the loss.

Shapes: T packed tokens, H hidden, B sequences, K numbers of a vector.
"""

import math
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Self, TypeAlias, Unpack

import torch
from torch import Tensor

from bothways.checkpoints.golden import write_golden
from bothways.checkpoints.pretrained import PretrainedEncoder
from bothways.checkpoints.vector_layers import DenseLayer
from bothways.choices import GoldenSource
from bothways.data.shards import TokenCorpus
from bothways.errors import InvalidInput, NotFitted
from bothways.families import HeadName
from bothways.objectives.corpus import CorpusPieces
from bothways.objectives.distillation import MaskedLMDistillation, Pool, StateDistillation, StateLoss, TripleLoss
from bothways.objectives.masked_lm import MaskedLM
from bothways.objectives.masking import Corruption, Masker, Masking, Unmasked
from bothways.objectives.pretraining import PretrainingModel
from bothways.packing import Packed
from bothways.pretraining.courses import BatchWarmup, Course, Phase
from bothways.pretraining.models import Student, masked_lm_head, shortened
from bothways.pretraining.pretrainer import Pretrained
from bothways.pretraining.runs import CorpusRun, card_of, check_no_epochs, course_options
from bothways.storage import MODEL, new_folder
from bothways.tasks.backend import USUAL_LENGTH, OpenOptions
from bothways.tasks.embedding.embedder import AnsweringEmbedder
from bothways.tasks.embedding.settings import EmbeddingSettings, reading_as_stored
from bothways.tasks.embedding.spec import EMBEDDING
from bothways.tasks.embedding.trained import TrainedEmbedder, open_embedder
from bothways.tasks.embedding.vector_model import placed_poolings, pool
from bothways.tasks.opening import with_weights
from bothways.tasks.torch_backend import TorchBackend
from bothways.training.objective import Baseline
from bothways.training.options import TrainingArguments
from bothways.training.stages import measured, stages_of
from bothways.training.state import TrainingRecord, seeded

_MASKED_LM: HeadName = "masked_lm"


@dataclass(frozen=True, slots=True)
class EmbedderTeacher:
    """A sentence embedder as a teacher; the student learns its vectors."""

    embedder: TrainedEmbedder
    loss: StateLoss = StateLoss(states=0.0, embeddings=0.0)  # noqa: RUF009 (frozen)
    sentences: ClassVar = True  # see `CorpusPieces`
    micro_batch: ClassVar = 8192
    batch: ClassVar = 16
    rate: ClassVar = 6e-4

    @property
    def model(self) -> PretrainedEncoder:
        return with_weights(self.embedder.backend, "learn from").model

    def distillation(self, student: Student) -> PretrainingModel:
        made = _pool_of(student.model, self.embedder)
        layers = student.learns_from(self.model.config)
        return StateDistillation(student.model.encoder, self.model.encoder, layers, made, self.loss)

    def corruption(self, seed: int) -> Corruption:
        del seed
        return Unmasked()

    def write(self, student: PretrainedEncoder, folder: Path, card: Mapping[str, object]) -> None:
        replace(self._with(student), card=card).write(folder)

    def write_golden(self, student: PretrainedEncoder, folder: Path, golden: GoldenSource | None) -> None:
        write_golden(folder, AnsweringEmbedder(EMBEDDING.name, self._with(student)), golden)

    def _with(self, student: PretrainedEncoder) -> TrainedEmbedder:
        """Return the student as an embedder with the teacher's settings."""
        backend = replace(with_weights(self.embedder.backend, "learn from"), model=student)
        settings = _within(self.embedder.settings, student)
        return replace(self.embedder, backend=backend, settings=settings, golden_inputs=())


@dataclass(frozen=True, slots=True)
class MaskedLMTeacher:
    """A masked language model as a teacher; students learn its predictions and last hidden states, and masked LM."""

    model: PretrainedEncoder
    loss: TripleLoss = TripleLoss()  # noqa: RUF009 (frozen)
    masking: Masking = Masking()  # noqa: RUF009 (frozen)
    sentences: ClassVar = False
    micro_batch: ClassVar = 2048  # logits of all tokens take memory
    batch: ClassVar = 32
    """Default batch size in sequences."""
    rate: ClassVar = 1e-4
    """Peak learning rate for this batch size."""

    def distillation(self, student: Student) -> PretrainingModel:
        """Return the model to train, made of the student and this teacher."""
        ours, theirs = (MaskedLM(each.encoder, masked_lm_head(each)) for each in (student.model, self.model))
        return MaskedLMDistillation(ours, theirs, self.loss)

    def corruption(self, seed: int) -> Corruption:
        """Return the corruption of the training sequences."""
        return Masker(self.model.tokenizer, self.masking, seed)

    def write(self, student: PretrainedEncoder, folder: Path, card: Mapping[str, object]) -> None:
        """Write a student in the format of its teacher."""
        student.write(folder, {"card": dict(card)})

    def write_golden(self, student: PretrainedEncoder, folder: Path, golden: GoldenSource | None) -> None:
        """Write the student's golden answers into its folder."""
        student.write_golden(folder, golden)


@dataclass(frozen=True, slots=True)
class EncoderTeacher:
    """An encoder without a head as a teacher; the student learns its hidden states."""

    model: PretrainedEncoder
    loss: StateLoss = StateLoss(vectors=0.0)  # noqa: RUF009 (frozen)
    sentences: ClassVar = False
    micro_batch: ClassVar = 8192
    batch: ClassVar = 32
    rate: ClassVar = 1e-4

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

    def write_golden(self, student: PretrainedEncoder, folder: Path, golden: GoldenSource | None) -> None:
        student.write_golden(folder, golden)


Teacher: TypeAlias = EmbedderTeacher | MaskedLMTeacher | EncoderTeacher


def open_teacher(name_or_path: str | Path, **options: Unpack[OpenOptions]) -> Teacher:
    """Open a teacher as a sentence embedder, else as a masked language model, else as an encoder without head."""
    options["dtype"] = "float32"
    backend = reading_as_stored(TorchBackend.open(name_or_path, EMBEDDING.name, **options), options)
    if backend.trained_for not in (None, EMBEDDING.name, _MASKED_LM):
        raise InvalidInput(
            "expected an encoder, a masked language model or a sentence embedder as a teacher, but "
            f"{backend.model.name!r} is a model for {backend.trained_for}: TaskDistiller distils classifiers and "
            "taggers."
        )
    if backend.trained_for == EMBEDDING.name or (backend.model.folder / "modules.json").is_file():
        return EmbedderTeacher(open_embedder(EMBEDDING, backend))
    if _MASKED_LM in backend.files.heads():
        head = backend.files.build_masked_lm_head().to(backend.model.device)
        return MaskedLMTeacher(replace(backend.model, heads={_MASKED_LM: head}))
    return EncoderTeacher(backend.model)


def check_vocabulary(student: PretrainedEncoder, teacher: PretrainedEncoder) -> None:
    """Raise InvalidInput unless student and teacher have the same vocabulary."""
    ours, theirs = (each.tokenizer.vocabulary() for each in (student, teacher))
    if len(ours) != len(theirs):
        raise InvalidInput(
            f"expected a student with its teacher's vocabulary of {len(theirs)} tokens, got {len(ours)}."
        )
    other = next((number for number in sorted(ours) if ours[number] != theirs.get(number)), None)
    if other is not None:
        raise InvalidInput(
            f"expected a student with its teacher's vocabulary, but the token with the id {other} is {ours[other]!r} "
            f"in the student and {theirs.get(other)!r} in the teacher."
        )


def _within(settings: EmbeddingSettings, student: PretrainedEncoder) -> EmbeddingSettings:
    """Return an embedder's settings, limited to the maximum length and hidden size of a student."""
    limit, hidden = student.config.max_length, student.config.hidden
    length = settings.max_length if limit is None else min(limit, settings.max_length)
    stride = None if length < settings.max_length else settings.stride
    width = settings.width if settings.layers else hidden * len(settings.poolings)
    kept = [None if each is None or each >= width else each for each in (settings.dimensions, settings.truncate_dim)]
    return replace(settings, max_length=length, stride=stride, width=width, dimensions=kept[0], truncate_dim=kept[1])


def _pool_of(model: PretrainedEncoder, embedder: TrainedEmbedder) -> Pool:
    """Return the pooling and layers of an embedder, without scaling at the end."""
    settings, layers = embedder.settings, deepcopy(embedder.layers)
    first = next((each.inputs for each in settings.layers if isinstance(each, DenseLayer)), None)
    if first not in (None, model.config.hidden * len(settings.poolings)):
        raise InvalidInput(
            f"expected a student whose pooled vectors have {first} dimensions, which the Dense layer of its teacher "
            f"reads, got a hidden size of {model.config.hidden}: give the student the teacher's hidden size."
        )
    poolings = placed_poolings(model, settings.poolings)
    kept = min((each for each in (settings.dimensions, settings.truncate_dim) if each is not None), default=None)

    def pooled(hidden_TH: Tensor, packed: Packed) -> Tensor:
        vectors_BH = torch.cat([pool(hidden_TH, packed, each) for each in poolings], dim=1)
        return (vectors_BH if layers is None else layers(vectors_BH))[:, :kept]

    return pooled


LENGTH = 128
"""Maximum tokens of a sequence, as in the training of all-MiniLM-L6-v2: a paragraph of prose.

Sequences end at the end of a sentence, so many are shorter. For embedders, seven of eight pieces are split into
sentences.
"""

UPDATES, WARMUP = 2000, 0.05

_COPIED = Baseline("copied layers", margin=0.0)


class Distiller:
    """Trains a student on a teacher's outputs for raw text.

    The kind of teacher determines the outputs: the vectors of a sentence embedder, the predictions of a masked language
    model, or the hidden states of another encoder. To train in several stages, pass the student of one distiller to the
    next, with other loss weights.

    >>> distiller = Distiller.from_pretrained("sentence-transformers/all-MiniLM-L6-v2", layers=3)
    >>> distiller.student.copied
    (0, 3, 5)

    Args:
        teacher: The teacher; it is not changed.
        student: The student, trained in place; any encoder with the teacher's vocabulary.
        length: Maximum tokens of a sequence. Default: 128, or the limit of either model if lower.

    Raises:
        InvalidInput: The student has another vocabulary, or the length is above the limit of a model.
    """

    def __init__(self, teacher: Teacher, student: Student, *, length: int | None = None) -> None:
        check_vocabulary(student.model, teacher.model)
        limit = min(each.config.max_length or USUAL_LENGTH for each in (teacher.model, student.model))
        if length is not None and not 1 <= length <= limit:
            raise InvalidInput(f"`length` must be from 1 to {limit} tokens, the limit of the two models, got {length}.")
        self.teacher = teacher
        self.student = student
        self.length = length or min(LENGTH, limit)
        self._card: Mapping[str, object] | None = None

    @classmethod
    def from_pretrained(
        cls,
        teacher: str | Path,
        *,
        layers: int | None = None,
        length: int | None = None,
        revision: str | None = None,
        device: str | torch.device = "auto",
        download: bool = False,
        allow_pickle: bool = False,
    ) -> Self:
        """Open a teacher and copy a student from it.

        Args:
            teacher: A folder or a name, see `bothways.load`.
            layers: Number of layers of the student. Default: half of the teacher's, as in DistilBERT.
            length: Maximum tokens of a sequence.
            revision: Commit of the teacher on the hub.
            device: Training device; ``"auto"`` takes a GPU if there is one.
            download: Allow a download from the hub.
            allow_pickle: Allow pickled weights (``.bin``), which are scanned before they are loaded.

        Raises:
            InvalidInput: The teacher has fewer layers, or its task cannot be distilled.
        """
        opened = open_teacher(teacher, revision=revision, device=device, download=download, allow_pickle=allow_pickle)
        layers = math.ceil(opened.model.config.layers / 2) if layers is None else layers
        return cls(opened, shortened(opened.model, layers), length=length)

    def fit(
        self, corpus: TokenCorpus, *, batch_warmup: BatchWarmup | None = None, **options: Unpack[TrainingArguments]
    ) -> TrainingRecord:
        """Train the student, by default for 2,000 updates.

        The default batch size and learning rate are 16 and 6e-4 if the teacher is a sentence embedder, else 32 and
        1e-4. The initial student is validated as epoch 0, and kept if no later epoch is better.

        Args:
            corpus: Training text. Some of its documents are held out for validation.
            batch_warmup: Growth of the batch at the beginning.
            options: Fields of `TrainingOptions`. The default learning rate scales with the square root of the batch
                size. Give the length in updates or tokens, not in epochs.

        Raises:
            InvalidInput: The corpus is empty or for another tokenizer, or an option is invalid.
        """
        check_no_epochs(options)
        batch = options.get("batch_size") or self.teacher.batch
        phase = Phase(options.get("updates") or UPDATES, batch, self.length)
        course = Course((phase,), self.teacher.rate * math.sqrt(batch / self.teacher.batch), WARMUP)
        usual: TrainingArguments = {"max_tokens": self.teacher.micro_batch}
        training = course_options(course, {**usual, **options})
        with stages_of(training) as times:
            run = self._run(course, batch_warmup, training.seed)
            record = measured(run.train(corpus, training, self.student.origin(self.teacher.model)), times)
        self._card = {
            "teacher": self.teacher.model.name,
            "loss": asdict(self.teacher.loss),
            "length": self.length,
            **card_of(corpus, record),
        }
        return record

    def _run(self, course: Course, warmup: BatchWarmup | None, seed: int) -> CorpusRun:
        model, teacher = self.student.model, self.teacher
        with seeded(seed):  # projections to another width are random
            trained = teacher.distillation(self.student)

        def source(corpus: TokenCorpus, length: int) -> CorpusPieces:
            return CorpusPieces.of(corpus, model.tokenizer, length, sentences=teacher.sentences)

        return CorpusRun(model, trained, teacher.corruption(seed), source, course, warmup=warmup, baseline=_COPIED)

    @property
    def fitted(self) -> Pretrained:
        """The trained student and its card."""
        if self._card is None:
            raise NotFitted("the student is not trained yet: call fit first.")
        return Pretrained(self.student.model, None, self._card)

    @property
    def embeds(self) -> bool:
        """True if the student is a sentence embedder, as its teacher is."""
        return isinstance(self.teacher, EmbedderTeacher)

    def _with_card(self, **entries: object) -> Self:
        """Return a copy with more entries in the card of the student, as JSON values."""
        made = copy(self)
        made._card = {**self.fitted.card, **entries}
        return made

    def facts(self) -> dict[str, object]:
        return self.student.facts(self.teacher.model)

    def save(self, folder: str | Path, *, overwrite: bool = False, golden: GoldenSource | None = "validation") -> None:
        """Write the student in its teacher's format: a sentence embedder, a model with its head, or a bare encoder.

        The inputs of the golden answers are neutral ones, since a corpus is not quoted; None saves no golden answers.

        Raises:
            NotFitted: The student is not trained yet.
            OutputExists: The folder exists and ``overwrite`` is false, or it is not a model.
            OutOfDisk: The disk is full; nothing is left behind.
        """
        fitted = self.fitted
        with new_folder(folder, overwrite=overwrite, kind=MODEL) as new:
            self.teacher.write(fitted.model, new, fitted.card)
            self.teacher.write_golden(fitted.model, new, golden and "neutral")
