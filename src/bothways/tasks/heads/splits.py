"""The arguments of a training, and splits of its data into training and held-out rows.

Training rows should not leak the labels of held-out rows, and held-out rows should be sufficient to compute metrics.
Hence rows are held out in one of three ways: one by one, in groups, or in pairs with the same label.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways import data as sources
from bothways.choices import Shared
from bothways.data.known_rows import KnownRows, RowT, compared
from bothways.errors import InvalidInput, RowsLeftOut, RowsShared
from bothways.tasks.columns import AnyColumns, batch_of, column_names, input_of
from bothways.tasks.spec import TaskSpec, chosen
from bothways.training.options import TrainingArguments, TrainingOptions

if TYPE_CHECKING:
    from bothways.data import Row, Source
    from bothways.training.forecast import Reads
    from bothways.training.objective import Objective
    from bothways.training.state import TrainingRecord

ResultT = TypeVar("ResultT", covariant=True)


def as_regression(spec: TaskSpec, options: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of `fit`; a column of numbers to predict becomes the label column of a regression."""
    given = dict(options)
    numbers = given.pop(spec.number_column, None) if spec.number_column else None
    if numbers is None:
        return given
    if given.get("label") is not None or given.get("target") == "multi":
        raise InvalidInput(
            f"{spec.number_column} predicts a number, so it cannot be combined with label or the target 'multi': "
            "drop one."
        )
    return given | {"label": numbers, "target": "regression"}


class Fittable(Protocol):
    """A model of a task, see `bothways.tasks.task.Task`."""

    spec: TaskSpec

    @property
    def columns(self) -> AnyColumns:
        """The columns that it reads by default."""

    @property
    def _columns_of(self) -> Callable[..., tuple[AnyColumns, dict[str, object]]]:
        """The function that returns the columns of a call and its other options."""


def split_fit_options(task: Fittable, options: Mapping[str, object]) -> tuple[AnyColumns, object, TrainingOptions]:
    """Split the arguments of ``task.fit`` into columns, the task's own options, and training options."""
    columns, rest = task._columns_of(task.columns, as_regression(task.spec, options))
    own, training = training_options(task.spec, columns, rest, f"{type(task).__name__}.fit()")
    return columns, own, training


def training_options(
    spec: TaskSpec, columns: AnyColumns, options: Mapping[str, object], call: str
) -> tuple[object, TrainingOptions]:
    """Split the arguments of `fit`, without columns, into the task's own options and the training options."""
    known = tuple(TrainingArguments.__annotations__)
    own = {name: value for name, value in options.items() if name not in known}
    training = {name: value for name, value in options.items() if name in known}
    own_options: object = chosen(spec.fit_options, own, call, known=(*column_names(columns), *known))
    return own_options, chosen(TrainingOptions, training, call)


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The training data and the validation data of a task; without the latter, training rows may be held out.

    ``known`` are the rows of an earlier training of the model; ``seed`` draws the rows that are held out.
    """

    train: "Source"
    validation: "Source | None" = None
    known: KnownRows | None = None
    seed: int = 0

    @classmethod
    def of(cls, columns: AnyColumns, data: Any, labels: object, validation: Any) -> "TrainingData":  # noqa: ANN401 (sources of rows)
        """Return the data from the arguments of `fit`: sources of rows, or inputs with their labels."""
        pair = isinstance(validation, tuple) and len(validation) == 2
        if pair and not isinstance(validation[0], Mapping | str):
            validation = _labelled_rows(columns, *validation)
        return cls(data if labels is None else _labelled_rows(columns, data, labels), validation)

    @property
    def held_out(self) -> str:
        """Noun phrase for the rows that the model is measured on."""
        return "held-out rows" if self.validation is None else "validation rows"

    def unshared(self, training: Sequence[RowT], held_out: list[RowT], shared: Shared) -> list[RowT]:
        """Return held-out rows; with ``shared="drop"``, without those that are training rows.

        Raises:
            InvalidInput: All are training rows, and to be dropped.

        Warns:
            RowsLeftOut: Rows were dropped.
        """
        if shared == "keep" or not held_out:
            return held_out
        kept, found = compared((KnownRows.of(training) | self.known).find(held_out), held_out, shared, self.held_out)
        if found.shared:
            warnings.warn(found.summary(self.held_out), RowsLeftOut, stacklevel=4)
        return kept

    def compared(self, training: Sequence[RowT], held_out: Sequence[RowT]) -> tuple[KnownRows, list[str]]:
        """Return the training rows, and a list with a note if held-out rows are among them.

        Warns:
            RowsShared: Held-out rows are training rows.
        """
        known = KnownRows.of(training) | self.known
        _, found = compared(known.find(held_out), held_out, "keep")
        if not found.shared:
            return known, []
        effect = "metrics and calibration look better than they are, and the epoch to keep is chosen on them"
        note = found.summary(self.held_out, effect)
        warnings.warn(note, RowsShared, stacklevel=3)
        return known, [note]


def _labelled_rows(columns: AnyColumns, inputs: object, labels: object) -> "list[Row]":
    rows = []
    for number, value in enumerate(batch_of(columns, inputs)[0]):
        input_of(columns, number, value)  # raise for a value that is not an input
        rows.append(value if isinstance(value, Mapping) else columns.labelled_row(value, None))
    return sources.labelled_rows(rows, labels, label=columns.truth, many="inputs")


class TaskTraining(Protocol[ResultT]):
    """A task that is ready for training, alone or with other tasks on one encoder."""

    @property
    def objective(self) -> "Objective[Any]":
        """The model, its data and its loss, for the training loop."""

    @property
    def unit(self) -> float:
        """Divisor that makes the validation score comparable with those of other tasks."""

    @property
    def reads(self) -> "Reads":
        """The tokens that the training reads besides those of its updates."""

    def finish(self, record: "TrainingRecord") -> ResultT:
        """Return the trained model after the training loop: calibrated, with its card."""


class Labelled(Protocol):
    """A row with a label."""

    @property
    def label(self) -> object:
        """The label, in the task's own representation."""


ExampleT = TypeVar("ExampleT", bound=Labelled)


FOLDS = 4

# Minimum rows to hold out two pairs, which are four rows.
FEWEST_FOR_PAIRS = 20


def hold_out(
    examples: Sequence[ExampleT],
    fraction: float,
    seed: int,
    names: Callable[[Any], tuple[str, ...]],
    what: str = "label",
    group: Callable[[ExampleT], Hashable] | None = None,
) -> tuple[list[ExampleT], list[ExampleT]]:
    """Split two or more examples at random into training and held-out examples, at least one each.

    A row is held out only if each of its labels still occurs in the training rows, so that every validated label was
    learnt.

    Rows of a group stay together. Groups are drawn as long as they bring the number of held-out rows nearer to the
    fraction; if all groups are too large for that, the smallest is held out. If no whole group can be held out, such as
    when there is only one, rows are drawn one by one.

    ``names`` returns the names in a row's label (none for a number), ``what`` is the noun for a label in messages, and
    ``group`` returns the key of a row's group.
    """
    size = min(max(1, round(fraction * len(examples))), len(examples) - 1)
    labels = [names(example.label) for example in examples]
    order = np.random.default_rng(seed).permutation(len(examples)).tolist()
    held = set[int]()
    if group is not None:
        held = _drawn(_grouped(order, [group(example) for example in examples]), labels, size)
    held = held or _drawn([[index] for index in order], labels, size)
    if not held:
        count = "1 row" if len(examples) == 1 else f"{len(examples)} rows, as no two share a {what}"
        needed = "rows" if len(examples) == 1 else f"rows with the same {what}"
        raise InvalidInput(
            f"no validation data were given, and none can be held out of {count}: "
            f"give at least two {needed}, or a validation file."
        )
    return _parts(examples, held)


def hold_out_pairs(
    examples: Sequence[ExampleT], fraction: float, seed: int, group: Callable[[ExampleT], Hashable] | None = None
) -> tuple[list[ExampleT], list[ExampleT]] | None:
    """Split at random, holding out pairs of rows with the same label, at most one pair per label.

    Return None for fewer than 20 rows, or if fewer than two labels occur twice. At least two pairs are held out. Labels
    with more than two rows are used first; then both rows of other labels are held out, so those labels do not occur in
    training, which suits embeddings. Rows with the same ``group`` key would leak labels, and are never held out.
    """
    if len(examples) < FEWEST_FOR_PAIRS:
        return None
    order = np.random.default_rng(seed).permutation(len(examples)).tolist()
    if group is not None:
        keys = [group(example) for example in examples]
        counts = Counter(keys)
        order = [index for index in order if counts[keys[index]] == 1]
    several = [rows for rows in _grouped(order, [example.label for example in examples]) if len(rows) > 1]
    chosen = sorted(several, key=lambda rows: len(rows) == 2)[: max(2, round(fraction * len(examples)) // 2)]
    if len(chosen) < 2:
        return None
    return _parts(examples, {index for rows in chosen for index in rows[:2]})


def folds(examples: Sequence[ExampleT], seed: int, group: Callable[[ExampleT], Hashable]) -> NDArray[np.int64]:
    """Return the fold of each row, from 0 to 3.

    Rows with the same ``group`` key stay together, and the groups of a label are distributed over the folds. If there
    is only one group, its rows are distributed one by one.
    """
    order = np.random.default_rng([seed, 1]).permutation(len(examples)).tolist()
    groups = _grouped(order, [group(example) for example in examples])
    groups = groups if len(groups) > 1 else [[index] for index in order]
    found_N = np.zeros(len(examples), np.int64)
    for number, rows in enumerate(sorted(groups, key=lambda rows: str(examples[rows[0]].label))):
        found_N[rows] = number % FOLDS
    return found_N


def _grouped(order: Sequence[int], keys: Sequence[Hashable]) -> list[list[int]]:
    """Group rows by equal keys, keeping the order of the rows."""
    groups: dict[Hashable, list[int]] = {}
    for index in order:
        groups.setdefault(keys[index], []).append(index)
    return list(groups.values())


def _drawn(groups: Sequence[list[int]], labels: Sequence[tuple[str, ...]], size: int) -> set[int]:
    """Return the indices of the rows to hold out: whole groups, about ``size`` rows in total, or none."""
    left = Counter(name for names in labels for name in names)
    held: set[int] = set()

    def spared(rows: Sequence[int]) -> bool:
        others_stay = len(held) + len(rows) < len(labels)
        return others_stay and all(left[name] > count for name, count in _counted(rows, labels).items())

    for rows in groups:
        # At most twice the missing rows, so that the excess is no larger than the shortfall was.
        if len(rows) <= 2 * (size - len(held)) and spared(rows):
            held.update(rows)
            left.subtract(_counted(rows, labels))
    if held:
        return held
    return set(next((rows for rows in sorted(groups, key=len) if spared(rows)), ()))


def _counted(rows: Sequence[int], labels: Sequence[tuple[str, ...]]) -> Counter[str]:
    return Counter(name for index in rows for name in labels[index])


def _parts(examples: Sequence[ExampleT], held: set[int]) -> tuple[list[ExampleT], list[ExampleT]]:
    """Return the training rows and the held-out rows, both in the order of the file."""
    stays = [example for index, example in enumerate(examples) if index not in held]
    return stays, [examples[index] for index in sorted(held)]
