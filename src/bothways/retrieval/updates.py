"""Contents of an index after rows were added or deleted. What is prepared for lexical search is then made anew."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from bothways.errors import InvalidInput
from bothways.retrieval.gathering import RowBatch, gather, several
from bothways.retrieval.index_files import IndexContents

T = TypeVar("T")


def with_rows(old: IndexContents, batches: Iterable[RowBatch]) -> IndexContents:
    """Return the contents with more rows behind.

    Rows without an id are numbered on from the highest number that is an id.

    Raises:
        InvalidInput: The rows are not usable, have an id that is there, or other fields.
    """
    numbers = (int(id_) for id_ in old.ids if id_.isascii() and id_.isdecimal() and len(id_) < 19)
    new = gather(batches, old.encoder.dimensions, first_number=max(numbers, default=-1) + 1)
    known = set(old.ids).intersection(new.ids)
    if known:
        raise InvalidInput(
            f"the index has texts with these ids already: {_some(known)}. Delete them first, or take other ids."
        )
    if new.columns.keys() != old.columns.keys():
        raise InvalidInput(
            f"the index has the fields {sorted(old.columns)}, got {sorted(new.columns)}. Give the same fields, "
            "with None where a value is missing."
        )
    return replace(
        old,
        vectors_ND=np.concatenate([old.vectors_ND, new.vectors_ND]),
        ids=old.ids + new.ids,
        texts=old.texts + new.texts,
        columns={name: column + new.columns[name] for name, column in old.columns.items()},
        lexical=None,
    )


def without_rows(old: IndexContents, ids: Iterable[str]) -> IndexContents:
    """Return the contents without the rows of these ids.

    Raises:
        InvalidInput: There is no such id, a string alone was given, or nothing would be left.
    """
    gone = set(several(ids, "ids"))
    unknown = gone.difference(old.ids)
    if unknown:
        raise InvalidInput(f"the index has no texts with these ids: {_some(unknown)}.")
    if len(gone) == len(old.ids):
        raise InvalidInput("an index needs at least one text: instead of deleting all, delete its folder.")
    kept = np.flatnonzero([id_ not in gone for id_ in old.ids])

    def of_kept(column: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(column[row] for row in kept)

    return replace(
        old,
        vectors_ND=old.vectors_ND[kept],
        ids=of_kept(old.ids),
        texts=of_kept(old.texts),
        columns={name: of_kept(column) for name, column in old.columns.items()},
        lexical=None,
    )


def _some(ids: set[str]) -> str:
    """Return the first of the ids, and how many more there are."""
    more = f" and {len(ids) - 3:,} more" if len(ids) > 3 else ""
    return ", ".join(map(repr, sorted(ids)[:3])) + more
