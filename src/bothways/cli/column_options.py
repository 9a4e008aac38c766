"""Columns that a trained model reads, where they are not those of its training."""

from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from cyclopts import Parameter

from bothways.cli.options import given_of, usage_error


@Parameter(name="*", group="Columns (by default as in training)")
@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Where the parts of a row stand."""

    text: tuple[str, ...] | None = None
    """Of the texts; give it again to join several."""
    text_a: str | None = None
    """Of the first texts of pairs."""
    text_b: str | None = None
    """Of the second texts of pairs."""
    label: str | None = None
    """Of the labels, or of the scores."""
    score: str | None = None
    """Of the scores of an embedder's pairs."""
    anchor: str | None = None
    """Of the texts that an embedder looks up."""
    positive: str | None = None
    """Of the texts that belong to them."""
    negative: tuple[str, ...] | None = None
    """Of texts that do not; give it again for several."""
    tokens: str | None = None
    """Of the words to tag."""
    tags: str | None = None
    """Of their tags."""
    question: str | None = None
    """Of the questions."""
    context: str | None = None
    """Of the contexts that they are asked of."""
    answers: str | None = None
    """Of their answers."""


AS_IN_TRAINING = ColumnOptions()


class ReadsColumns(Protocol):
    """What reads rows.

    Attributes:
        columns: Where the parts of a row stand, a frozen dataclass of column names.
    """

    columns: Any


def use_columns(task: ReadsColumns, options: ColumnOptions) -> None:
    """Let a task read the columns that were asked for.

    Raises:
        CycloptsError: It reads no such part of a row.
    """
    from bothways.tasks import Ensemble

    given = given_of(options)
    known = [each.name for each in fields(task.columns)]
    for name in given:
        if name not in known:
            options_there = ", ".join(f"--{each.replace('_', '-')}" for each in known)
            raise usage_error(f"this model reads no --{name.replace('_', '-')}. Its columns are: {options_there}.")
    if isinstance(task, Ensemble):
        task.read_from(**given)
    else:
        task.columns = replace(task.columns, **given)
