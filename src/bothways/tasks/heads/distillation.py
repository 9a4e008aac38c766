"""Knowledge distillation for tasks: train a smaller model on the predictions of a trained one, without labels.

The loss is that of Hinton et al. (2015), "Distilling the knowledge in a neural network", arXiv:1503.02531, section 2,
the divergence from the teacher's probabilities at a temperature, plus the cosine distance of the hidden states that the
heads read, as in DistilBERT (Sanh et al. 2019, arXiv:1910.01108, section 3). The teacher reads each text once, before
the training.

Shapes: U loss units, R output rows of a batch, C outputs, H width of the states that the student's head reads, G width
of the states that the teacher's head reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bothways.choices import Shared
from bothways.data import Example, Row, Source, read_rows
from bothways.data.known_rows import KnownRows, normalised
from bothways.data.label_rows import BLANK, lacks_label
from bothways.data.labels import BLANKS
from bothways.encoder import ScoreHead, heads
from bothways.errors import EmptyInput, InvalidInput
from bothways.evaluation.report import Validation
from bothways.progress import shown
from bothways.tasks.card import VALIDATION
from bothways.tasks.columns import AnyColumns, batch_of
from bothways.tasks.heads.learner import AnyLearner
from bothways.tasks.heads.linear_start import STRENGTH, LinearStart, fitting_seconds, start_head, tokens_read
from bothways.tasks.heads.objective import StoredInputs, WindowObjective, announce_training, of_epoch
from bothways.tasks.heads.soft_targets import TAUGHT, SoftLoss, SoftTargets, StateModel, TeacherOutputs
from bothways.tasks.heads.splits import TrainingData, hold_out
from bothways.tasks.heads.target_training import standardize, standardized, unstandardize
from bothways.tasks.heads.training import HeadData, measured_head
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import TrainedHead
from bothways.tasks.spec import MeasuredData
from bothways.tasks.torch_backend import TorchBackend
from bothways.training.forecast import Reads
from bothways.training.objective import Baseline
from bothways.training.options import TrainingOptions, rows_in_update
from bothways.training.stages import kept
from bothways.training.state import TrainingRecord, seeded

COPIED, NEW = "copied layers", "linear model of frozen hidden states"

UNCALIBRATED = (
    "No labelled rows were given, so nothing was calibrated: the teacher's calibration, thresholds and coverage are "
    "not copied. Give labelled validation rows."
)
AGREEMENT, AGREES = (
    "held-out texts labelled by the teacher",
    "The metrics measure how often the model agrees with its teacher, not how often it is right.",
)
MET = (
    "The held-out rows were drawn from the given data: if the teacher was trained on them, the metrics of teacher and "
    "student are optimistic. Evaluate on rows that neither has seen."
)

# Approximate number of epochs if the number of updates is given.
_PARTS = 10


@dataclass(frozen=True, slots=True)
class DistillationData:
    """Inputs to train on, and held-out rows, with or without labels, to evaluate the student on.

    ``split`` is True if the held-out rows were drawn from the training data. ``known`` are the checksums of the rows
    that student and teacher were trained on, and ``notes`` say how many of them are held out.
    """

    inputs: Sequence[object]
    held_out: Sequence[Example[object]]
    split: bool
    known: KnownRows
    notes: list[str]

    @property
    def labelled(self) -> bool:
        """True if the held-out inputs have labels."""
        return self.held_out[0].label is not None

    @classmethod
    def of(
        cls,
        teacher: TrainedHead,
        columns: AnyColumns,
        data: Source | Iterable[object],
        validation: Source | None,
        seed: int,
        options: MeasuredData,
    ) -> DistillationData:
        """Read the data, without rows that have no text; ``options`` are those of the task for labelled rows.

        Without validation rows, a tenth of the data is held out; its labels are used if every row has one.
        """
        rows, outputs = _rows(columns, data), teacher.outputs
        # The student learns from the teacher, so it knows the teacher's training rows too.
        compared = partial(cls._compared, TrainingData([], validation, teacher.known.rows()), shared=options.shared)
        if validation is not None:
            stays = _inputs(columns, rows)
            if not stays:
                raise _too_few(1)
            return compared(stays, outputs.read(validation, columns, options))
        blank = BLANKS.get(outputs.row_target.convert, BLANK)
        labelled = [
            row for row in rows if isinstance(row, Row) and not lacks_label(row.values.get(columns.truth), blank)
        ]
        every = bool(rows) and len(labelled) == len(rows)
        given: Sequence[Example[object]] = outputs.read(labelled, columns, options) if every else _inputs(columns, rows)
        if len(given) < 2:
            raise _too_few(2)
        stays, held = hold_out(given, 0.1, seed, lambda _: (), group=_group)
        return compared(stays, held)

    @classmethod
    def _compared(
        cls,
        data: TrainingData,
        inputs: Sequence[Example[object]],
        held_out: Sequence[Example[object]],
        *,
        shared: Shared,
    ) -> DistillationData:
        """Compare the held-out rows with the inputs and with the rows that the teacher was trained on."""
        unlabelled = [replace(each, label=None) for each in inputs]
        kept = data.unshared(unlabelled, [*held_out], shared)
        known, notes = data.compared(unlabelled, kept)
        return cls([each.text for each in inputs], kept, data.validation is None, known, notes)


@dataclass(frozen=True, slots=True, eq=False)
class StudentTraining:
    """A student that is ready to be trained on a teacher's predictions.

    ``lesson`` has the inputs and held-out rows, ``data`` their tokens, and ``learner`` belongs to the student.
    ``reads`` has the tokens that the training reads besides those of its updates.
    """

    teacher: TrainedHead
    student: TorchBackend
    learner: AnyLearner
    columns: AnyColumns
    lesson: DistillationData
    data: HeadData
    held: StoredInputs
    objective: WindowObjective
    reads: Reads

    @classmethod
    def of(
        cls,
        teacher: TrainedHead,
        learner: AnyLearner,
        student: TorchBackend,
        lesson: DistillationData,
        columns: AnyColumns,
        loss: SoftLoss,
        training: TrainingOptions,
        identity: Mapping[str, str],
    ) -> StudentTraining:
        """Run the teacher on the texts, initialise the student's head and prepare the training.

        The student is trained in place. It starts with a copy of the teacher's head if both encoders have the same
        width and both heads are of the same kind. ``learner`` has the teacher's outputs and must support distillation.
        """
        own = learner.uncalibrated()
        taught_by = with_weights(teacher.backend, "distil")
        held = _held(teacher, learner, student, lesson)
        stored = _readable(own, student, lesson.inputs, held)
        units = own.loss_units(stored)
        with_scores, tokens = taught_by.with_layers(0).head_model, training.max_tokens
        again = own.rows_read_afterwards(stored.store.texts) / stored.store.texts
        reads = Reads.of(stored.store, held.store, again=again)
        if shown():
            reads = _announced(taught_by, student, own, stored, loss, training, reads)
        taught = kept(
            "reading the texts with the teacher",
            TAUGHT,
            lambda bar: TeacherOutputs.of(with_scores, stored.store, units, tokens, bar),
            *(with_scores, f"{stored.store.digest} tokens {tokens}"),
            total=len(stored.store.lengths),
        )
        stored = replace(stored, truth=learner.decided(stored.merged(own.outputs, list(taught.scores))))
        if own.outputs.row_target.kind == "regression":
            own = own.with_target(standardized(stored.truth))
        targets = SoftTargets(units, own.outputs.row_target, taught, loss)
        model, copied = _student(taught_by, student, own, training.seed)
        with_head = student.with_head(model.head)
        if not copied:
            start = LinearStart(own.start_strength or STRENGTH, training.seed, training.max_tokens)
            start_head(with_head.head_model, stored.store, targets, start, repr(dict(own.identity)), taught.logits_UC)

        def validate() -> Validation:
            scores = held.scores(own.outputs, with_head.head_model, training.max_tokens)
            return of_epoch(own.validate(scores, held.truth))

        labels = f" {own.loss(held).digest}" if lesson.labelled else ""
        identity = {**identity, "validation data": held.store.digest + labels}
        baseline = Baseline(COPIED if copied else NEW, margin=0.0)
        objective = _objective(model, stored, targets, validate, training, identity, baseline)
        data = HeadData(stored, held, [], lesson.held_out, lesson.split, lesson.known, lesson.notes)
        return cls(teacher, with_head, own, columns, lesson, data, held, objective, reads)

    def finish(self, record: TrainingRecord) -> TrainedHead:
        """Return the student with its confidence fitted on held-out rows; without labels, only the detector is kept."""
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
        trained = measured_head(
            spec, self.student, learner, self.columns, scores, self.data, self.held, record,
            notes=notes, limits=limits, of=of,
        )  # fmt: skip
        learnt = set(self.lesson.inputs)
        return replace(trained, golden_inputs=tuple(each for each in trained.golden_inputs if each not in learnt))


def _objective(
    model: StateModel,
    stored: StoredInputs,
    targets: SoftTargets,
    validate: Callable[[], Validation | None],
    training: TrainingOptions,
    identity: Mapping[str, str],
    baseline: Baseline | None = None,
) -> WindowObjective:
    """Return the training objective; an epoch is one pass, or about a tenth of ``updates`` if that is more."""
    size = rows_in_update(training, stored.store.texts)
    per_pass = -(-stored.store.texts // size)
    return WindowObjective(
        model,
        stored.store,
        targets,
        validate,
        batch_size=size,
        tokens=training.max_tokens,
        seed=training.seed,
        run_settings=identity,
        passes=1 if training.updates is None else max(1, training.updates // (_PARTS * per_pass)),
        baseline=baseline,
    )


def _announced(
    teacher: TorchBackend,
    student: TorchBackend,
    own: AnyLearner,
    stored: StoredInputs,
    loss: SoftLoss,
    training: TrainingOptions,
    reads: Reads,
) -> Reads:
    """Estimate the duration before the teacher reads the texts; return the reads with their measured cost."""
    (model, copied), units = _student(teacher, student, own, training.seed), own.loss_units(stored)
    blank = TeacherOutputs.blank(teacher.head_model, len(units.rows_U))
    targets = SoftTargets(units, own.outputs.row_target, blank, loss)
    objective = _objective(model, stored, targets, lambda: None, training, {})
    start = LinearStart(STRENGTH, training.seed, training.max_tokens)
    linear = 0 if copied else tokens_read(model, stored.store, start)
    reads = replace(reads, start=linear, passes=objective.passes)
    fitting = partial(fitting_seconds, model, stored.store, start)
    return announce_training(objective, training, student.model, reads, fitting, teacher.head_model)


def _readable(own: AnyLearner, student: TorchBackend, inputs: Sequence[object], held: StoredInputs) -> StoredInputs:
    """Tokenise the inputs, and leave out those that the learner cannot use."""
    stored = StoredInputs.unlabelled(student, own.outputs, inputs)
    left_out = set(own.check_data(stored, held))
    if not left_out:
        return stored
    kept = [value for number, value in enumerate(inputs) if number not in left_out]
    return StoredInputs.unlabelled(student, own.outputs, kept)


def _held(teacher: TrainedHead, learner: AnyLearner, student: TorchBackend, lesson: DistillationData) -> StoredInputs:
    """Return the held-out inputs; without labels, the teacher's predictions are used as labels."""
    outputs = teacher.outputs
    if lesson.labelled:
        return StoredInputs.of(student, outputs, lesson.held_out)
    held = StoredInputs.unlabelled(student, outputs, [each.text for each in lesson.held_out])
    backend = with_weights(teacher.backend, "distil")
    name = "reading the held-out rows with the teacher"
    scores = held.scores(outputs, backend.head_model, backend.budget.tokens, name)
    return replace(held, truth=learner.decided(scores))


def _student(teacher: TorchBackend, student: TorchBackend, learner: AnyLearner, seed: int) -> tuple[StateModel, bool]:
    """Return the student with its initial head, and True if this is a copy of the teacher's."""
    head, copied = _head(teacher, student, learner, seed)
    width = heads.read_width(teacher.head_model.head.kind.read, teacher.config.hidden)
    with seeded(seed):
        return StateModel(student.with_head(head).head_model, width), copied


def _head(teacher: TorchBackend, student: TorchBackend, learner: AnyLearner, seed: int) -> tuple[ScoreHead, bool]:
    """Return the student's initial head, and True if it is a copy of the teacher's."""
    model, taught, outputs = student.model, teacher.model, learner.outputs
    kind = model.family.head(outputs.head, model.settings).kind
    if kind == taught.family.head(outputs.head, taught.settings).kind and model.config.hidden == taught.config.hidden:
        head = deepcopy(teacher.head_model.head)
        standardize(outputs.row_target, head)
        return head, True
    with seeded(seed):
        match heads.new_head(model.config, kind, len(outputs.labels)):
            case ScoreHead() as drawn:
                return drawn, False
    raise TypeError(f"a {outputs.head!r} head has no scores to distill")


def _rows(columns: AnyColumns, data: Source | Iterable[object]) -> list[object]:
    """Return the rows of a file, or the Python values that are given, mappings as rows."""
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
    """Return the inputs in rows and Python values, without blank texts."""
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
    """Return the text, or the first text of a pair; rows with the same key are held out together."""
    match example.text:
        case tuple((first, *_)):
            return normalised(first)
        case text:
            return normalised(text)


def _too_few(minimum: int) -> InvalidInput:
    return InvalidInput(f"expected at least {minimum} texts to learn from, got fewer: check the text column.")
