"""The training of a smaller model of a task on what a trained one says of inputs, which need no labels."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bothways.data import Example, Row, Source, read_rows
from bothways.encoder import ScoreHead
from bothways.encoder.heads import new_head, read_width
from bothways.errors import EmptyInput, InvalidInput
from bothways.progress import phase, reporting
from bothways.tasks.card import VALIDATION
from bothways.tasks.columns import batch_of
from bothways.tasks.head import StoredInputs, TrainedHead
from bothways.tasks.head_training import HeadData, measured_head
from bothways.tasks.learning import Preparation
from bothways.tasks.linear_start import STRENGTH, LinearStart, start_head
from bothways.tasks.objective import WindowObjective
from bothways.tasks.opening import OpenedModel
from bothways.tasks.outputs import HeadOutputs
from bothways.tasks.soft_targets import SoftAnswers, SoftLoss, StateModel, Taught
from bothways.tasks.splits import hold_out
from bothways.tasks.targets import Regression
from bothways.training.objective import Baseline, Validation
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
class Lesson:
    """Inputs to learn from, and rows to measure by.

    Attributes:
        inputs: What the teacher is asked.
        held_out: Held-out inputs, with labels or with None as theirs.
        split: Whether they were drawn from the data to learn from.
    """

    inputs: Sequence[Any]
    held_out: Sequence[Example[Any]]
    split: bool

    @property
    def labelled(self) -> bool:
        """True where the held-out inputs have labels."""
        return self.held_out[0].label is not None

    @classmethod
    def of(
        cls,
        outputs: HeadOutputs[Any, Any],
        columns: Any,  # noqa: ANN401 (the task's own)
        data: Source | Iterable[Any],
        validation: Source | None,
        seed: int,
    ) -> "Lesson":
        """Read the data; rows without a text are passed over.

        Without validation rows a tenth of the data is held out, and measured by its labels where every row has one.

        Raises:
            InvalidInput: There are no texts, or a row is not usable.
        """
        rows = _rows(columns, data)
        if validation is not None:
            held = outputs.read(validation, columns)
            given = _inputs(columns, rows)
            if not given:
                raise _nothing(1)
            return cls([each.text for each in given], held, split=False)
        labelled = bool(rows) and all(isinstance(row, Row) and columns.truth in row.values for row in rows)
        given = outputs.read(rows, columns) if labelled else _inputs(columns, rows)
        if len(given) < 2:
            raise _nothing(2)
        stays, held = hold_out(given, 0.1, seed, lambda _: (), group=_group)
        return cls([each.text for each in stays], held, split=True)


def prepare_distillation(
    teacher: TrainedHead,
    student: OpenedModel,
    lesson: Lesson,
    columns: object,
    loss: SoftLoss,
    training: TrainingOptions,
    identity: Mapping[str, str],
) -> Preparation[WindowObjective, TrainedHead]:
    """Let the teacher read the texts, begin a head and lay out the training.

    Args:
        teacher: The teacher, whose outputs are `DistillableOutputs`.
        student: The encoder to train, in place; with the teacher's head where it is as wide and reads the same.
        lesson: What to learn from.
        columns: Where the parts of a row stand.
        loss: Weights of what is learnt.
        training: Options of the training.
        identity: Who the teacher and the student are.

    Raises:
        InvalidInput: The data are not usable.
    """
    outputs: Any = teacher.outputs.unlearnt()
    stored = StoredInputs.unlabelled(student, outputs, lesson.inputs)
    held = _held(teacher, student, lesson)
    if left_out := set(outputs.check_data(stored, held)):
        kept = [value for number, value in enumerate(lesson.inputs) if number not in left_out]
        stored = StoredInputs.unlabelled(student, outputs, kept)
    with reporting(training.show_progress):
        phase("reading the texts with the teacher")
    units = outputs.units(stored)
    taught = Taught.by(teacher.model, stored.store, units, training.max_tokens)
    stored = replace(stored, truth=teacher.outputs.decided(stored.merged(outputs, list(taught.scores))))
    if isinstance(outputs.row_target, Regression):
        outputs = replace(outputs, target=Regression.standardized(stored.truth.tolist()))
    answers = SoftAnswers(units, outputs.row_target, taught, loss)
    head, copied = _head(teacher, student, outputs, training.seed)
    trained = TrainedHead.of(teacher.spec, student, head, outputs, columns)
    if not copied:
        start = LinearStart(outputs.start_strength or STRENGTH, training.seed, training.max_tokens)
        start_head(trained.model, stored.store, answers, start)
    width = read_width(teacher.model.head.kind.read, teacher.opened.model.config.hidden)
    with seeded(training.seed):
        model = StateModel(trained.model, width)

    def validate() -> Validation:
        found: Validation = outputs.validate(held.scores(outputs, trained.model, training.max_tokens), held.truth)
        return found

    def finish(record: TrainingRecord) -> TrainedHead:
        return _finished(trained, HeadData(stored, held, [], lesson.held_out, lesson.split), lesson, record)

    size = training.rows_in_update(stored.store.texts)
    per_pass = -(-stored.store.texts // size)
    labels = f" {outputs.answers(held).digest}" if lesson.labelled else ""
    objective = WindowObjective(
        model,
        stored.store,
        answers,
        validate,
        batch_size=size,
        tokens=training.max_tokens,
        seed=training.seed,
        identity={**identity, "validation data": held.digest + labels},
        passes=1 if training.updates is None else max(1, training.updates // (_PARTS * per_pass)),
        baseline=Baseline(COPIED if copied else NEW, margin=0.0),
    )
    return Preparation(objective, finish)


def _finished(trained: TrainedHead, data: HeadData, lesson: Lesson, record: TrainingRecord) -> TrainedHead:
    """Learn from held-out rows what they can teach: without labels, the out-of-domain detector alone."""
    outputs: Any = trained.outputs.unstandardize(trained.model.head)
    learnt, scores = outputs.learn(
        trained.model, data.stored, data.held, record.settings.seed, trained.opened.batch_tokens
    )
    if lesson.labelled:
        limits = [MET] if lesson.split else []
        return measured_head(trained, learnt, scores, data, record, limits=limits, of=VALIDATION)
    learnt = learnt.uncalibrated()
    return measured_head(trained, learnt, scores, data, record, notes=[UNCALIBRATED], limits=[AGREES], of=AGREEMENT)


def _held(teacher: TrainedHead, student: OpenedModel, lesson: Lesson) -> StoredInputs:
    """Return the held-out inputs; their truth is what the teacher says where there are no labels."""
    outputs: Any = teacher.outputs
    if lesson.labelled:
        return StoredInputs.of(student, outputs, lesson.held_out)
    held = StoredInputs.unlabelled(student, outputs, [each.text for each in lesson.held_out])
    return replace(held, truth=outputs.decided(held.scores(outputs, teacher.module, teacher.opened.batch_tokens)))


def _head(
    teacher: TrainedHead, student: OpenedModel, outputs: HeadOutputs[Any, Any], seed: int
) -> tuple[ScoreHead, bool]:
    """Return the head to begin with, and whether it is a copy of the teacher's."""
    model, taught = student.model, teacher.opened.model
    kind = model.family.head(outputs.head, model.settings).kind
    if kind == taught.family.head(outputs.head, taught.settings).kind and model.config.hidden == taught.config.hidden:
        head = deepcopy(teacher.model.head)
        outputs.standardize(head)
        return head, True
    with seeded(seed):
        drawn: Any = new_head(model.config, kind, outputs.size)
    return drawn, False


def _rows(columns: Any, data: Any) -> list[Any]:  # noqa: ANN401 (sources of rows)
    """Return rows, or inputs that came without."""
    if isinstance(data, str | Path):
        return list(read_rows(data))
    return [
        Row(number, dict(value), f"row {number} of the data") if isinstance(value, Mapping) else value
        for number, value in enumerate(data if isinstance(data, list) else batch_of(columns, data)[0], start=1)
    ]


def _inputs(columns: Any, rows: Sequence[Any]) -> list[Example[Any]]:  # noqa: ANN401 (the task's own)
    found = []
    for number, row in enumerate(rows):
        try:
            value = columns.read(row) if isinstance(row, Row) else columns.check(number, row)
        except EmptyInput:
            continue
        if isinstance(value, str) and not value.strip():
            continue
        found.append(Example(value, None, number + 1))
    return found


def _group(example: Example[Any]) -> object:
    """Return the key that keeps rows together when some are held out: the text, of pairs the first one."""
    return example.text[0] if isinstance(example.text, tuple) else getattr(example.text, "text", example.text)


def _nothing(least: int) -> InvalidInput:
    return InvalidInput(f"expected at least {least} texts to learn from, got fewer: is the text column right?")
