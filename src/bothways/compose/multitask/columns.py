"""The input columns of several tasks on one encoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bothways.data import Row
from bothways.errors import InvalidInput, UnreadColumn
from bothways.tasks.columns import AnyColumns, JointColumns, column_names, renamed
from bothways.tasks.outputs import TrainedHead
from bothways.text import Words


@dataclass(frozen=True, slots=True)
class SharedColumns(JointColumns):
    """Input columns of tasks that share one pass of the encoder.

    If tasks were trained on different columns, all tasks read the column that a row has. If a task reads lists of words
    and a row has such a list, all tasks read these words.
    """

    each: Mapping[str, AnyColumns]  # columns of each task by its name
    of_words: frozenset[str]  # names of the tasks that read texts as lists of words, such as tagging

    @classmethod
    def of(cls, parts: Mapping[str, TrainedHead]) -> "SharedColumns":
        """Return the columns of trained tasks."""
        of_words = frozenset(name for name, part in parts.items() if part.outputs.reads_words)
        return cls({name: part.columns for name, part in parts.items()}, of_words)

    @property
    def plain(self) -> list[AnyColumns]:
        """Columns of the tasks that do not read words."""
        return [own for name, own in self.each.items() if name not in self.of_words]

    @property
    def words(self) -> list[AnyColumns]:
        """Columns of the tasks that read words."""
        return [own for name, own in self.each.items() if name in self.of_words]

    @property
    def first(self) -> AnyColumns:
        """Columns of the first task that does not read words, else of the first task."""
        return (self.plain or self.words)[0]

    @property
    def reader(self) -> AnyColumns:
        """Columns of the task whose input all tasks share; refuse tasks that read words from different columns."""
        found = {own.input_columns for own in self.words}
        if len(found) > 1:
            raise InvalidInput(
                f"the tasks read words from several columns ({', '.join(sorted(map('+'.join, found)))}), but all tasks "
                "must read the same text. Use one task: part(name), or --task on the command line."
            )
        return (self.words or self.plain)[0]

    @property
    def one(self) -> str:
        """Noun phrase for a single input in messages, such as "a text"."""
        return self.first.one

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the column arguments for inputs, such as ``text``, of all tasks."""
        return tuple(dict.fromkeys(name for own in self.each.values() for name in _input_names(own)))

    @property
    def has_own_label_columns(self) -> bool:
        """True if the tasks have different label columns, so a row can have the labels of all tasks."""
        return len({own.truth for own in self.each.values()}) == len(self.each)

    def renamed(self, names: Mapping[str, object]) -> "SharedColumns":
        """Return the columns with new values of some column arguments, in all tasks that have these arguments."""
        for name in names:
            if name not in self.names:
                raise UnreadColumn(f"this model has no column argument {name!r}. It has: {', '.join(self.names)}.")
        each = {
            task: renamed(own, {name: value for name, value in names.items() if name in _input_names(own)})
            for task, own in self.each.items()
        }
        return replace(self, each=each)

    def read(self, row: Row) -> object:
        """Return the input of a row; refuse a row with several different texts."""
        reader = self.reader
        if self.words and (not self.plain or _holds(row, reader)):
            return reader.read(row)
        there = [own for own in self.plain if _holds(row, own)] or self.plain[:1]
        value, *others = (own.read(row) for own in there)
        if any(other != value for other in others):
            found = " and ".join(dict.fromkeys("+".join(own.input_columns) for own in there))
            raise InvalidInput(
                f"{row.where} has several texts, in the columns {found}, but all tasks must read the same text. Name "
                "one column for all tasks, remove the other columns, or use one task: part(name), or on the command "
                "line --task."
            )
        return reader.check(row.number - 1, value)

    def check(self, number: int, value: object) -> object:
        """Validate an input given by a caller."""
        return self.reader.check(number, value)

    def is_one(self, value: object) -> bool:
        """Return True for a single input, False for a batch."""
        return self.first.is_one(value)

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return rows for texts typed on a command line."""
        return self.first.rows_of(texts)

    def own_rows(self, name: str, rows: Sequence[Row], values: Sequence[object]) -> Sequence[Row]:
        """Return the rows with their inputs, ``values``, copied into the input columns of one task."""
        if name in self.of_words:
            return rows
        own, found = self.each[name], []
        for row, value in zip(rows, values, strict=True):
            made = own.labelled_row(as_given(value), None)
            found.append(replace(row, values={**row.values, **{part: made[part] for part in own.input_columns}}))
        return found


def as_given(value: object) -> object:
    """Return the text of `Words`, for tasks that do not read words; other inputs stay as they are."""
    return value.text if isinstance(value, Words) else value


def _input_names(columns: AnyColumns) -> list[str]:
    """Return the names of the input columns, without the label column."""
    return [name for name in column_names(columns) if getattr(columns, name) != columns.truth]


def _holds(row: Row, columns: AnyColumns) -> bool:
    """Return True if a row has these columns and at least one of them is not empty."""
    names = columns.input_columns
    return all(name in row.values for name in names) and any(row.values[name] not in (None, "") for name in names)
