"""The contents of an index as an immutable value, and the identity of the encoder that made it.

Letters in names: N rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np

from bothways.errors import InvalidInput
from bothways.retrieval.lexical import DEFAULT_LANGUAGE, LexicalIndex
from bothways.retrieval.ranking import Scalar
from bothways.retrieval.rows import CheckedRows, refuse_string
from bothways.tasks.embedding.representation import DenseVectors, RepresentationT
from bothways.text import Overflow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IndexTextOptions:
    """Options that texts were read with when they were embedded.

    Attributes:
        max_length: Maximum tokens per window, special tokens included.
        on_overflow: The treatment of longer texts.
        stride: Tokens that neighbouring windows shared; a quarter of a window's room when None.
    """

    max_length: int
    on_overflow: Overflow
    stride: int | None


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """The identity of the encoder that made an index's vectors.

    Attributes:
        name: The user's name for the model; a label only.
        fingerprint: SHA-256 of the model's weights.
        pooling: How token vectors became one vector, such as ``mean``.
        dimensions: The width of the vectors.
        vocabulary: SHA-256 of the tokens in the order of their ids; None if unknown.
        reading: The default text options; None if unknown.
        precision: The precision of the encoder's products, such as ``float32`` or ``int8``; None if unknown.
    """

    name: str
    fingerprint: str
    pooling: str
    dimensions: int
    vocabulary: str | None = None
    reading: IndexTextOptions | None = None
    precision: str | None = None

    def check_same(self, other: "EncoderIdentity") -> None:
        """Refuse another encoder than the one that an index was built with.

        The name is not compared: a model that was moved is still the same model.

        Raises:
            InvalidInput: Weights, vocabulary, pooling or dimensions differ.
        """
        differences = [
            f"{field} is {theirs!r} instead of {ours!r}"
            for field, ours, theirs in (
                ("weights fingerprint", self.fingerprint, other.fingerprint),
                ("pooling", self.pooling, other.pooling),
                ("dimensions", self.dimensions, other.dimensions),
                ("vocabulary", self.vocabulary, other.vocabulary),
            )
            if ours != theirs and None not in (ours, theirs)
        ]
        if differences:
            raise InvalidInput(
                f"the index was built with the model {self.name!r}; {other.name!r} is another one: its "
                f"{', its '.join(differences)}. Search with the model of the index, or build the index again."
            )


@dataclass(frozen=True, slots=True)
class IndexContents(Generic[RepresentationT]):
    """Everything that an index holds.

    Attributes:
        documents: The representation of each text (N).
        ids: The id of each row, all different.
        texts: The text of each row.
        encoder: The encoder that represented the texts.
        columns: Values kept with the texts, N for each field name.
        language: The language of the stemmer of lexical search.
        lexical: The words of the texts, indexed; None until a search needs them.
    """

    documents: RepresentationT
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    encoder: EncoderIdentity
    columns: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    language: str | None = DEFAULT_LANGUAGE
    lexical: LexicalIndex | None = None

    def next_number(self) -> int:
        """Return the number after the highest id that is a number; it names the next row without an id."""
        numbers = (int(id_) for id_ in self.ids if id_.isascii() and id_.isdecimal() and len(id_) < 19)
        return max(numbers, default=-1) + 1

    def without_rows(self, ids: Iterable[str]) -> "IndexContents[RepresentationT]":
        """Return the contents without the rows of these ids.

        Raises:
            InvalidInput: An id is unknown, one string is given, or no row would be left.
        """
        gone = set(refuse_string(ids, "ids"))
        unknown = gone.difference(self.ids)
        if unknown:
            raise InvalidInput(f"the index has no texts with these ids: {_some(unknown)}.")
        if len(gone) == len(self.ids):
            raise InvalidInput("an index needs at least one text: instead of deleting all, delete its folder.")
        kept = np.flatnonzero([id_ not in gone for id_ in self.ids])

        def of_kept(column: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(column[row] for row in kept)

        return replace(
            self,
            documents=self.documents[kept],
            ids=of_kept(self.ids),
            texts=of_kept(self.texts),
            columns={name: of_kept(column) for name, column in self.columns.items()},
            lexical=None,
        )


def with_rows(old: IndexContents[DenseVectors], new: CheckedRows) -> IndexContents[DenseVectors]:
    """Return the contents with more rows at the end.

    Raises:
        InvalidInput: The index has one of the ids already, or the rows have other fields.
    """
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
        documents=DenseVectors.joined([old.documents, new.documents]),
        ids=old.ids + new.ids,
        texts=old.texts + new.texts,
        columns={name: column + new.columns[name] for name, column in old.columns.items()},
        lexical=None,
    )


def _some(ids: set[str]) -> str:
    more = f" and {len(ids) - 3:,} more" if len(ids) > 3 else ""
    return ", ".join(map(repr, sorted(ids)[:3])) + more
