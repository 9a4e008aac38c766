"""Task distillation: train a smaller classifier or tagger on a larger one's predictions for unlabelled texts."""

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from bothways import checkpoints
from bothways.checkpoints.hub import locate
from bothways.choices import GoldenSource
from bothways.data import Source
from bothways.errors import InvalidInput, NotFitted
from bothways.families.family import beside_settings
from bothways.lazy import imported
from bothways.pretraining.distiller import check_vocabulary
from bothways.pretraining.models import Student, shortened
from bothways.progress import stage
from bothways.tasks.backend import OpenOptions
from bothways.tasks.columns import column_names
from bothways.tasks.embedding.spec import EMBEDDING
from bothways.tasks.heads.distillation import DistillationData, StudentTraining
from bothways.tasks.heads.learner import AnyLearner
from bothways.tasks.heads.soft_targets import SoftLoss
from bothways.tasks.masked_lm.spec import MASKED_LM
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import TrainedHead
from bothways.tasks.registry import SPECS, models, stored_task, task_class, task_of_heads
from bothways.tasks.spec import MeasuredData, TaskSpec, chosen
from bothways.tasks.task import HeadTask
from bothways.tasks.torch_backend import TorchBackend
from bothways.training.loop import train
from bothways.training.options import TrainingOptions
from bothways.training.stages import measured, stages_of
from bothways.training.state import TrainingRecord

if TYPE_CHECKING:
    from bothways.tasks.spec import FitArguments

UPDATES, BATCH = 2000, 32


class TaskDistiller:
    """Distills a classifier or regressor of texts or pairs, or a tagger, into a smaller model.

    The student learns the teacher's predictions and the hidden states that its head reads. Calibration, coverage and
    out-of-domain detection are fitted anew on held-out rows if these have labels.

    >>> distiller = TaskDistiller.from_pretrained("runs/news", layers=3)  # doctest: +SKIP
    >>> distiller.fit("texts.txt.gz", validation="validation.jsonl")  # doctest: +SKIP
    >>> distiller.save("runs/small")  # doctest: +SKIP

    Args:
        teacher: A trained model; it is not changed.
        student: The encoder to train in place; any encoder with the teacher's vocabulary.
        loss: Weights of the parts of the loss.

    Raises:
        InvalidInput: The student has another vocabulary, or models of this task cannot be distilled.
        NotFitted: The teacher is not trained.
    """

    def __init__(self, teacher: HeadTask, student: Student, loss: SoftLoss | None = None) -> None:
        if not _distilled(teacher.spec):
            raise _not_distilled(teacher.name, teacher.spec.name)
        check_vocabulary(student.model, teacher.model)
        self.teacher = teacher
        self.student = student
        self.loss = loss or SoftLoss()
        self._trained: HeadTask | None = None

    @classmethod
    def from_pretrained(cls, teacher: str | Path, *, layers: int | None = None, **options: Unpack[OpenOptions]) -> Self:
        """Open a teacher and copy a student from it.

        Args:
            teacher: A folder or a name, see `bothways.load`.
            layers: Number of layers of the student. Default: half of the teacher's.
            options: Options to open the teacher, see `bothways.load`.

        Raises:
            InvalidInput: The teacher has fewer layers, or its task cannot be distilled.
        """
        found = locate(teacher, revision=options.get("revision"), download=options.get("download", False))
        name = task_to_distill(found.folder, str(teacher))
        if name is None:
            raise InvalidInput(
                f"expected a trained classifier or tagger, got {str(teacher)!r}: use Distiller for other encoders."
            )
        opened = task_class(SPECS[name]).from_pretrained(teacher, **{**options, "dtype": "float32"})
        model = opened.model
        return cls(opened, shortened(model, math.ceil(model.config.layers / 2) if layers is None else layers))

    def fit(
        self, data: Source | Iterable[object], *, validation: Source | None = None, **options: "Unpack[FitArguments]"
    ) -> TrainingRecord:
        """Train the student, by default for 2,000 updates of 32 texts.

        The initial student is validated as epoch 0, and kept if no later epoch is better.

        Args:
            data: Inputs of the teacher's task: a file, rows or a list. Labels are not used.
            validation: Labelled rows for metrics and calibration. Default: a tenth of the data, drawn with the seed;
                without calibration if a row has no label.
            options: Column names, by default those of the teacher, and fields of `TrainingOptions`; and to leave out
                validation rows, ``unlabelled="drop"`` those without a label, and ``shared="drop"`` those that the
                teacher or the student is trained on. Their labels are read with ``labels`` and ``normalise_labels`` as
                in `evaluate` of the teacher.

        Raises:
            InvalidInput: There are no texts, a row is invalid, or an option is out of range.
            TypeError: An option is unknown.
        """
        taught = self.teacher.fitted
        columns, given = self.teacher._columns_of(taught.columns, options)
        if not any(given.get(name) for name in ("epochs", "updates", "total_tokens")):
            given["updates"] = UPDATES
        given["batch_size"] = given.get("batch_size") or BATCH
        known = column_names(taught.spec.data_options)
        reading = {name: given.pop(name) for name in known if name in given}
        training = chosen(TrainingOptions, given, "TaskDistiller.fit()", known=known)
        own: MeasuredData = taught.spec.data_options(**reading)
        with stages_of(training) as times:
            with stage("reading the data"):
                lesson = DistillationData.of(taught, columns, data, validation, training.seed, own)
            student = self._student()
            origin = self.student.origin(self.teacher.model)
            learner = imported(taught.spec.learner)(taught.outputs)
            ready = StudentTraining.of(taught, learner, student, lesson, columns, self.loss, training, origin)
            record = train(ready.objective, training, student.model, reads=lambda: ready.reads)
            if not record.finished_no_epoch:
                trained = ready.finish(record)
                card = {**trained.card, "teacher": self.teacher.name, "loss": asdict(self.loss)}
                self._trained = type(self.teacher)(trained.backend, replace(trained, card=card))
        return measured(record, times, None if record.finished_no_epoch else self.model.fitted)

    def _student(self) -> TorchBackend:
        """Return the student's encoder with the teacher's text options, within the student's length limit."""
        teacher, model = with_weights(self.teacher.backend, "distil"), self.student.model
        reading, limit = teacher.reading, model.config.max_length
        if limit is not None and limit < reading.max_length:
            reading = replace(reading, max_length=limit, stride=None)
        settings = {**model.settings, **beside_settings(teacher.model.settings)}
        return replace(teacher, model=replace(model, settings=settings), reading=reading, shared=False, network=None)

    @property
    def model(self) -> HeadTask:
        """The trained student, a model of the same class as its teacher."""
        if self._trained is None:
            raise NotFitted("the student is not trained yet: call fit first.")
        return self._trained

    @property
    def fitted(self) -> TrainedHead:
        """The trained student's encoder, head and outputs."""
        return self.model.fitted

    def _with_card(self, **entries: object) -> Self:
        """Return a copy with more entries in the card of the student, as JSON values."""
        made = copy(self)
        made._trained = self.model._with_card(**entries)
        return made

    def facts(self) -> dict[str, object]:
        return {**self.student.facts(self.teacher.model), **self.model.facts()}

    def save(self, folder: str | Path, *, overwrite: bool = False, golden: GoldenSource | None = "validation") -> None:
        self.model.save(folder, overwrite=overwrite, golden=golden)


def task_to_distill(folder: Path, name: str) -> str | None:
    """Return the task of a teacher for `TaskDistiller`; None for an encoder, which `Distiller` takes."""
    task = stored_task(folder)
    if task is None and (not (folder / "modules.json").is_file() or checkpoints.is_cross_encoder(folder, {})):
        task = task_of_heads(folder)
    if task in (None, EMBEDDING.name, MASKED_LM.name):
        return None
    if task not in SPECS or not _distilled(SPECS[task]):
        raise _not_distilled(name, str(task))
    return task


def _distilled(spec: TaskSpec) -> bool:
    if not spec.learner:
        return False
    learner: type[AnyLearner] = imported(spec.learner)
    return learner.distills


def _not_distilled(name: str, task: str) -> InvalidInput:
    able = models(spec for spec in SPECS.values() if _distilled(spec) or spec in (EMBEDDING, MASKED_LM))
    return InvalidInput(f"{name!r} is a model for {task}, which cannot be distilled: expected an encoder, or {able}.")
