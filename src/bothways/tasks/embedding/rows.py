"""Rows of texts to train and evaluate embedders.

Shapes: R rows, K texts of a row, P texts (R times K).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways import data
from bothways.errors import InvalidInput
from bothways.tasks.embedding.spec import EmbeddingColumns, LabelledTexts, ScoredPairs, usual_kind

if TYPE_CHECKING:
    from bothways.data import Source

Truth: TypeAlias = NDArray[np.floating] | NDArray[np.int64]
"""Scores, numbers of labels, or a teacher's vectors."""


@dataclass(frozen=True, slots=True)
class EmbeddingRow:
    """One row.

    Attributes:
        text: Its texts.
        label: Its score or its label; None for rows without.
        where: Its place, for messages.
        columns: The columns of its parts, which tell the kind of row.
    """

    text: tuple[str, ...]
    label: float | str | None
    where: str
    columns: EmbeddingColumns


def with_usual_kind(source: Source) -> tuple[Source, EmbeddingColumns]:
    """Return a source and the kind of its rows, told from the columns of the first one.

    Standard input and open streams, which can be read only once, become lists of rows.

    Raises:
        InvalidInput: The source cannot be read, or has no rows.
    """
    piped = isinstance(source, str | os.PathLike) and str(source) == "-"
    kept: Source = list(data.read_rows(source)) if piped or hasattr(source, "readline") else source
    return kept, usual_kind(next(data.read_rows(kept)).values)


def read_embedding_rows(source: Source, columns: EmbeddingColumns) -> list[EmbeddingRow]:
    """Return all rows of a source.

    Raises:
        InvalidInput: A text is missing or empty, or a score or label is unusable; the message says where.
    """
    if len(set(columns.texts)) < len(columns.texts):
        raise InvalidInput(f"the texts of a row must be in different columns, got {columns.texts}.")
    rows, name = [], columns.truth
    for row in data.read_rows(source):
        texts = tuple(data.text_at(row, column) for column in columns.texts)
        label = data.value_at(row, name) if name else None
        try:
            label = columns.convert(label)
        except InvalidInput as error:
            raise InvalidInput(f"{row.where}: {name!r}: {error}") from error
        rows.append(EmbeddingRow(texts, label, row.where, columns))
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class RowTexts:
    """Texts of rows, with the labels or scores to learn.

    Attributes:
        columns: The kind of rows.
        texts_RK: Numbers of the texts of each row.
        identity_P: For each text, a number that equal texts share.
        truth_R: What is to be learnt; None for rows without.
    """

    columns: EmbeddingColumns
    texts_RK: NDArray[np.int64]
    identity_P: NDArray[np.int64]
    truth_R: Truth | None

    @classmethod
    def of(cls, rows: Sequence[EmbeddingRow]) -> RowTexts:
        """Return the texts of rows as numbers, row by row."""
        numbers: dict[str, int] = {}
        identity = [numbers.setdefault(text, len(numbers)) for row in rows for text in row.text]
        identity_P, labels = np.array(identity, dtype=np.int64), [row.label for row in rows]
        truth_R: Truth | None = None
        if isinstance(rows[0].columns, ScoredPairs):
            truth_R = np.array(labels, dtype=np.float64)
        elif isinstance(rows[0].columns, LabelledTexts):
            classes = {label: number for number, label in enumerate(sorted(set(map(str, labels))))}
            truth_R = np.array([classes[str(label)] for label in labels], dtype=np.int64)
        return RowTexts(rows[0].columns, np.arange(len(identity)).reshape(len(rows), -1), identity_P, truth_R)

    @property
    def truth(self) -> Truth:
        """The targets of the loss.

        Raises:
            InvalidInput: The rows have none.
        """
        if self.truth_R is None:
            raise InvalidInput("these rows have neither scores nor labels, so nothing can be measured.")
        return self.truth_R
