"""Training a smaller model of a task on the predictions of a trained one, without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

from bothways.data import Example, Row, Source, read_rows
from bothways.encoder import ScoreHead
from bothways.encoder.heads import new_head, read_width
from bothways.errors import EmptyInput, InvalidInput
from bothways.evaluation.report import Validation
from bothways.progress import phase, reporting
from bothways.tasks.card import VALIDATION
from bothways.tasks.columns import AnyColumns, batch_of
from bothways.tasks.heads.learner import AnyLearner
from bothways.tasks.heads.linear_start import STRENGTH, LinearStart, start_head
from bothways.tasks.heads.objective import StoredInputs, WindowObjective
from bothways.tasks.heads.soft_targets import SoftLoss, SoftTargets, StateModel, TeacherOutputs
from bothways.tasks.heads.target_training import standardize, standardized, unstandardize
from bothways.tasks.heads.targets import Regression
from bothways.tasks.heads.training import HeadData, measured_head
from bothways.tasks.outputs import AnyOutputs, FittedHead
from bothways.tasks.splits import hold_out
from bothways.tasks.torch_backend import TorchBackend
from bothways.text import Words
from bothways.training.objective import Baseline
from bothways.training.options import TrainingOptions
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

COPIED, NEW = "copied layers", "linear model of frozen hidden states"

UNCALIBRATED = (
    "No labelled rows were given, so nothing was calibrated: probabilities, thresholds and coverage are not those of "
    "the teacher either. Give labelled rows to validate on."
)
AGREEMENT, AGREES = (
    "held-out texts, whose truth is what the teacher says",
    "The metrics say how often the model agrees with its teacher, not how often it is right.",
)
MET = (
    "The held-out rows are some of those that were given to learn from: if the teacher was trained on them, the "
    "metrics of both are optimistic. Evaluate on rows that neither has met."
)

# An epoch is at least such a part of the updates.
_PARTS = 10


@dataclass(frozen=True, slots=True)
class DistillationData:
    """Inputs to train on, and rows that measure the student.

    Attributes:
        inputs: Inputs for the teacher.
        held_out: Held-out inputs, with labels or with None.
        split: Whether the held-out inputs were drawn from the training data.
    """

    inputs: Sequence[object]
    held_out: Sequence[Example[object]]
    split: bool

    @property
    def labelled(self) -> bool:
        """True where the held-out inputs have labels."""
        return self.held_out[0].label is not None

    @classmethod
    def of(
        cls,
        outputs: AnyOutputs,
        columns: AnyColumns,
        data: Source | Iterable[object],
        validation: Source | None,
        seed: int,
    ) -> DistillationData:
        """Read the data, without rows that have no text.

        Without validation rows a tenth of the data is held out; its labels measure the student if every row has one.

        Raises:
            InvalidInput: There are no texts, or a row is not usable.
        """
        rows = _rows(columns, data)
        if validation is not None:
            held = outputs.read(validation, columns)
            texts = [each.text for each in _inputs(columns, rows)]
            if not texts:
                raise _too_few(1)
            return cls(texts, held, split=False)
        labelled = [row for row in rows if isinstance(row, Row) and columns.truth in row.values]
        every = bool(rows) and len(labelled) == len(rows)
        given: Sequence[Example[object]] = outputs.read(labelled, columns) if every else _inputs(columns, rows)
        if len(given) < 2:
            raise _too_few(2)
        stays, held = hold_out(given, 0.1, seed, lambda _: (), group=_group)
        return cls([each.text for each in stays], held, split=True)


@dataclass(frozen=True, slots=True, eq=False)
class StudentTraining:
    """A student that is ready to be trained on a teacher's predictions.

    Attributes:
        teacher: The teacher.
        student: The student: encoder and head.
        learner: The learner of the student.
        columns: Columns of the parts of a row.
        lesson: The inputs, and rows that measure the student.
        data: Both, tokenised.
        held: The held-out inputs.
        objective: Encoder, head, soft targets and loss, for the training loop.
    """

    teacher: FittedHead
    student: TorchBackend
    learner: AnyLearner
    columns: AnyColumns
    lesson: DistillationData
    data: HeadData
    held: StoredInputs
    objective: WindowObjective

    @classmethod
    def of(
        cls,
        teacher: FittedHead,
        learner: AnyLearner,
        student: TorchBackend,
        lesson: DistillationData,
        columns: AnyColumns,
        loss: SoftLoss,
        training: TrainingOptions,
        identity: Mapping[str, str],
    ) -> StudentTraining:
        """Run the teacher on the texts, start a head and lay out the training.

        Args:
            teacher: The teacher.
            learner: A learner with the teacher's outputs that distills.
            student: The encoder to train, in place; it starts with the teacher's head if their widths and inputs agree.
            lesson: The inputs, and rows that measure the student.
            columns: Columns of the parts of a row.
            loss: Weights of the loss.
            training: Options of the training.
            identity: The identities of teacher and student.

        Raises:
            InvalidInput: The data are not usable.
        """
        own = learner.uncalibrated()
        taught_by = teacher.backend.weights("distil")
        held = _held(teacher, learner, student, lesson)
        stored = _readable(own, student, lesson.inputs, held)
        with reporting(training.show_progress):
            phase("reading the texts with the teacher")
        units = own.loss_units(stored)
        taught = TeacherOutputs.of(taught_by.with_layers(0).head_model, stored.store, units, training.max_tokens)
        stored = replace(stored, truth=learner.decided(stored.merged(own.outputs, list(taught.scores))))
        if isinstance(own.outputs.row_target, Regression):
            own = own.with_target(standardized(stored.truth))
        targets = SoftTargets(units, own.outputs.row_target, taught, loss)
        head, copied = _head(taught_by, student, own, training.seed)
        with_head = student.with_head(head)
        if not copied:
            start = LinearStart(own.start_strength or STRENGTH, training.seed, training.max_tokens)
            start_head(with_head.head_model, stored.store, targets, start)
        width = read_width(taught_by.head_model.head.kind.read, taught_by.config.hidden)
        with seeded(training.seed):
            model = StateModel(with_head.head_model, width)

        def validate() -> Validation:
            return own.validate(held.scores(own.outputs, with_head.head_model, training.max_tokens), held.truth)

        labels = f" {own.loss(held).digest}" if lesson.labelled else ""
        identity = {**identity, "validation data": held.store.digest + labels}
        baseline = Baseline(COPIED if copied else NEW, margin=0.0)
        objective = _objective(model, stored, targets, validate, training, identity, baseline)
        data = HeadData(stored, held, [], lesson.held_out, lesson.split)
        return cls(teacher, with_head, own, columns, lesson, data, held, objective)

    def finish(self, record: TrainingRecord) -> FittedHead:
        """Return the student with its confidence fitted on held-out rows: without labels, only the detector."""
        model = self.student.head_model
        learner = self.learner.with_target(unstandardize(self.learner.outputs.row_target, model.head))
        learner, scores = learner.fit_confidence(
            model, self.data.stored, self.held, record.settings.seed, self.student.budget.tokens
        )
        spec, labelled = self.teacher.spec, self.lesson.labelled
        if labelled:
            limits, notes, of = [MET] if self.lesson.split else [], [], VALIDATION
        else:
            learner, limits, notes, of = learner.uncalibrated(detects=True), [AGREES], [UNCALIBRATED], AGREEMENT
        return measured_head(
            spec, self.student, learner, self.columns, scores, self.data, self.held, record,
            notes=notes, limits=limits, of=of,
        )  # fmt: skip


def _objective(
    model: StateModel,
    stored: StoredInputs,
    targets: SoftTargets,
    validate: Callable[[], Validation],
    training: TrainingOptions,
    identity: Mapping[str, str],
    baseline: Baseline,
) -> WindowObjective:
    """Return the training objective of a student; an epoch has at least a tenth of the updates."""
    size = training.rows_in_update(stored.store.texts)
    per_pass = -(-stored.store.texts // size)
    return WindowObjective(
        model,
        stored.store,
        targets,
        validate,
        batch_size=size,
        tokens=training.max_tokens,
        seed=training.seed,
        identity=identity,
        passes=1 if training.updates is None else max(1, training.updates // (_PARTS * per_pass)),
        baseline=baseline,
    )


def _readable(own: AnyLearner, student: TorchBackend, inputs: Sequence[object], held: StoredInputs) -> StoredInputs:
    """Tokenise the inputs, and leave out those that give the learner nothing to learn from."""
    stored = StoredInputs.unlabelled(student, own.outputs, inputs)
    left_out = set(own.check_data(stored, held))
    if not left_out:
        return stored
    kept = [value for number, value in enumerate(inputs) if number not in left_out]
    return StoredInputs.unlabelled(student, own.outputs, kept)


def _held(teacher: FittedHead, learner: AnyLearner, student: TorchBackend, lesson: DistillationData) -> StoredInputs:
    """Return the held-out inputs; without labels, the teacher's decisions are the truth."""
    outputs = teacher.outputs
    if lesson.labelled:
        return StoredInputs.of(student, outputs, lesson.held_out)
    held = StoredInputs.unlabelled(student, outputs, [each.text for each in lesson.held_out])
    backend = teacher.backend.weights("distil")
    scores = held.scores(outputs, backend.head_model, backend.budget.tokens)
    return replace(held, truth=learner.decided(scores))


def _head(teacher: TorchBackend, student: TorchBackend, learner: AnyLearner, seed: int) -> tuple[ScoreHead, bool]:
    """Return the head to start with, and whether it is a copy of the teacher's."""
    model, taught, outputs = student.model, teacher.model, learner.outputs
    kind = model.family.head(outputs.head, model.settings).kind
    if kind == taught.family.head(outputs.head, taught.settings).kind and model.config.hidden == taught.config.hidden:
        head = deepcopy(teacher.head_model.head)
        standardize(outputs.row_target, head)
        return head, True
    with seeded(seed):
        match new_head(model.config, kind, outputs.size):
            case ScoreHead() as drawn:
                return drawn, False
    raise TypeError(f"{outputs.head!r} is no head with scores")


def _rows(columns: AnyColumns, data: Source | Iterable[object]) -> list[object]:
    """Return labelled rows, or inputs if they came without labels."""
    match data:
        case str() | Path():
            return [*read_rows(data)]
        case list():
            values = data
        case _:
            values = batch_of(columns, data)[0]
    return [
        Row(number, dict(value), f"row {number} of the data") if isinstance(value, Mapping) else value
        for number, value in enumerate(values, start=1)
    ]


def _inputs(columns: AnyColumns, rows: Sequence[object]) -> list[Example[object]]:
    """Return the inputs among rows and Python values, without blank texts."""
    found: list[Example[object]] = []
    for number, row in enumerate(rows):
        try:
            value = columns.read(row) if isinstance(row, Row) else columns.check(number, row)
        except EmptyInput:
            continue
        if str(value).strip():
            found.append(Example(value, None, number + 1))
    return found


def _group(example: Example[object]) -> object:
    """Return the key that keeps rows together when some are held out: the text, or the first text of a pair."""
    match example.text:
        case Words(text=text):
            return text
        case tuple((first, *_)):
            return first
        case text:
            return text


def _too_few(minimum: int) -> InvalidInput:
    return InvalidInput(f"expected at least {minimum} texts to learn from, got fewer: is the text column right?")
