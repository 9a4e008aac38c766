"""The contents of an index as an immutable value: checked rows, and the identity of the encoder.

Letters in names: N rows, D dimensions.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, tee
from typing import Generic, NamedTuple, TypeVar, cast

import numpy as np

from bothways.choices import SimilarityName
from bothways.data import Row, class_label, text_at, value_at
from bothways.data.columns import plain_scalar
from bothways.data.formats import FileSettings
from bothways.data.tables import DataFrameLike, items_of
from bothways.errors import InvalidInput
from bothways.retrieval.dense import Vectors, comparable_vectors
from bothways.retrieval.lexical import DEFAULT_LANGUAGE, LexicalIndex
from bothways.retrieval.ranking import Fields, Scalar
from bothways.tasks import embedding
from bothways.tasks.embedding.representation import DenseVectors, RepresentationT, Role
from bothways.text import Overflow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IndexTextOptions:
    """The options with which the texts of an index were split into windows and embedded."""

    max_length: int  # maximum tokens per window, special tokens included
    on_overflow: Overflow  # the treatment of longer texts
    stride: int | None  # overlap of neighbouring windows in tokens; None for a quarter of a window


@dataclass(frozen=True, slots=True)
class IndexVectorOptions:
    """The options with which the vectors of an index were scaled and truncated."""

    unit_length: bool  # vectors are scaled to unit length
    leading: int | None  # number of leading dimensions that are kept before vectors are scaled; all if None


@dataclass(frozen=True, slots=True)
class SearchPrompts:
    """The texts that an encoder reads before queries and before documents; empty for none."""

    query: str = ""
    document: str = ""

    def of(self, role: Role) -> str:
        """Return the prompt of a role."""
        return self.query if role == "query" else self.document

    def __str__(self) -> str:
        return f"{self.query!r} (queries) and {self.document!r} (documents)"


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The columns of the rows that an index was built from, for rows that are added.

    ``files`` are the format and the encoding of their files, by the kind of file, where they are not the usual ones.
    """

    text: tuple[str, ...]
    id: str | None  # None if the texts were numbered
    files: Mapping[str, FileSettings] = field(default_factory=dict)


# The similarities that an index can rank by; others are no inner product.
INDEXED: tuple[SimilarityName, ...] = ("cosine", "dot")


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """The identity of the encoder that made an index's vectors, and how it reads and compares texts."""

    name: str  # the user's name for the model; a label only
    fingerprint: str  # SHA-256 of the model's weights
    pooling: str  # how token vectors became one vector, such as ``mean``
    dimensions: int  # the width of the vectors
    vocabulary: str | None = None  # SHA-256 of the tokens in the order of their ids; None if unknown
    reading: IndexTextOptions | None = None  # the default text options; None if unknown
    # The precision of the encoder's matrix products, such as ``float32`` or ``int8``; None if unknown.
    precision: str | None = None
    similarity: SimilarityName = "cosine"  # of the vectors; for ``cosine`` they are scaled to unit length
    vectors: IndexVectorOptions | None = None  # None if unknown
    prompts: SearchPrompts = SearchPrompts()  # before the queries and documents of the index
    # The prompts that the model itself named when the index was built; None if unknown.
    model_prompts: SearchPrompts | None = None

    def notes(self) -> tuple[str, ...]:
        """Return a note for people if the model's card asks for prompts that the index does not have."""
        note = embedding.note_of_card(self.name, {"query": self.prompts.query, "document": self.prompts.document})
        return () if note is None else (note,)

    def check_similarity(self) -> None:
        """Raise InvalidInput if an index cannot rank by this similarity."""
        if self.similarity not in INDEXED:
            raise InvalidInput(
                f"expected a model whose similarity is {' or '.join(INDEXED)} to build an index, but that of "
                f"{self.name!r} is {self.similarity!r}. For vectors of unit length, cosine gives the same order as "
                "euclidean: change similarity_fn_name in config_sentence_transformers.json of a copy of the model."
            )

    def check_same(self, other: "EncoderIdentity") -> None:
        """Raise InvalidInput if ``other`` is not the encoder that the index was built with.

        Names are not compared, since the model may have been moved; nor are prompts and the similarity, since a search
        uses those of the index.

        Raises:
            InvalidInput: Weights, vocabulary, pooling or dimensions differ; for ``dot``, also the scaling of vectors.
        """
        differences = [
            f"{field} is {theirs!r} instead of {ours!r}"
            for field, ours, theirs in (
                ("weights fingerprint", self.fingerprint, other.fingerprint),
                ("pooling", self.pooling, other.pooling),
                ("dimensions", self.dimensions, other.dimensions),
                ("vocabulary", self.vocabulary, other.vocabulary),
                # A cosine does not depend on the lengths of vectors.
                *([("vector options", self.vectors, other.vectors)] if self.similarity == "dot" else []),
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
    """The rows of an index with their vectors, and the identity of the encoder."""

    documents: RepresentationT  # the representation of each text (N)
    ids: tuple[str, ...]  # the unique id of each row
    texts: tuple[str, ...]  # the text of each row
    encoder: EncoderIdentity  # the encoder that represented the texts
    # Values stored with the texts, N for each field name.
    columns: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    language: str | None = DEFAULT_LANGUAGE  # the language of the stemmer of lexical search
    lexical: LexicalIndex | None = None  # the lexical index of the texts; None until a search needs it
    source: SourceColumns | None = None  # None if unknown

    def next_number(self) -> int:
        """Return the highest numeric id plus 1, which is the id of the next row added without an id."""
        numbers = (int(id_) for id_ in self.ids if id_.isascii() and id_.isdecimal() and len(id_) < 19)
        return max(numbers, default=-1) + 1

    def without_rows(self, ids: Iterable[str]) -> "IndexContents[RepresentationT]":
        """Return the contents without the rows that have these ids."""
        gone = set(refuse_string(ids, "ids"))
        check_deletable(gone.difference(self.ids), len(self.ids) - len(gone))
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


def with_rows(old: IndexContents[DenseVectors], new: IndexContents[DenseVectors]) -> IndexContents[DenseVectors]:
    """Return the contents with more rows at the end."""
    check_addable(set(old.ids).intersection(new.ids), old.columns, new.columns)
    return replace(
        old,
        documents=DenseVectors.joined([old.documents, new.documents]),
        ids=old.ids + new.ids,
        texts=old.texts + new.texts,
        columns={name: column + new.columns[name] for name, column in old.columns.items()},
        lexical=None,
    )


def check_addable(known: set[str], old: Collection[str], new: Collection[str]) -> None:
    """Raise InvalidInput if new rows have ids that are ``known`` to the index, or other fields than the old rows."""
    if known:
        raise InvalidInput(
            f"the index has texts with these ids already: {_some(known)}. Delete them first, or use other ids."
        )
    if set(new) != set(old):
        raise InvalidInput(
            f"the index has the fields {sorted(old)}, got {sorted(new)}. Give the same fields, "
            "with None where a value is missing."
        )


def check_deletable(unknown: set[str], left: int) -> None:
    """Raise InvalidInput if ids to delete are ``unknown`` to the index, or if no row is ``left`` without them."""
    if unknown:
        raise InvalidInput(f"the index has no texts with these ids: {_some(unknown)}.")
    if left < 1:
        raise InvalidInput("an index needs at least one text: instead of deleting all texts, delete the index.")


def _some(ids: set[str]) -> str:
    more = f" and {len(ids) - 3:,} more" if len(ids) > 3 else ""
    return ", ".join(map(repr, sorted(ids)[:3])) + more


# --- rows ---

Documents = Iterable[str | Mapping[str, object] | Row] | DataFrameLike


class RowBatch(NamedTuple):
    """A batch of rows for an index."""

    vectors_ND: DenseVectors | Vectors  # one vector for each text, as an array or as returned by an embedder
    texts: Sequence[str]  # the texts, for lexical search and to be shown in hits
    ids: Sequence[str] | None = None  # a unique id for each text; None continues the numbering of the previous rows
    # Values to store with each text, with the same field names for all texts; None for no fields.
    fields: Sequence[Fields] | None = None


class CheckedBatch(NamedTuple):
    """A batch of rows that an index can store; all batches of a stream have the same fields."""

    vectors: DenseVectors
    texts: list[str]
    ids: list[str]
    columns: Mapping[str, list[Scalar]]  # the values of each field


def collect(
    batches: Iterable[RowBatch],
    encoder: EncoderIdentity,
    language: str | None,
    *,
    first_number: int = 0,
    source: SourceColumns | None = None,
) -> IndexContents[DenseVectors]:
    """Check and copy the rows of all batches, see `checked_batches`."""
    blocks: deque[DenseVectors] = deque()
    ids: list[str] = []
    texts: list[str] = []
    columns: dict[str, list[Scalar]] = {}
    for batch in checked_batches(batches, encoder, first_number=first_number):
        blocks.append(batch.vectors)
        texts += batch.texts
        ids += batch.ids
        for name, column in batch.columns.items():
            columns.setdefault(name, []).extend(column)
    kept = {name: tuple(column) for name, column in columns.items()}
    documents = _joined(blocks, len(texts), encoder.dimensions)
    return IndexContents(documents, tuple(ids), tuple(texts), encoder, kept, language, source=source)


def checked_batches(
    batches: Iterable[RowBatch], encoder: EncoderIdentity, *, first_number: int = 0
) -> Iterator[CheckedBatch]:
    """Check and copy the rows of each batch; a row without an id gets its index plus ``first_number``.

    Raises:
        InvalidInput: A row cannot be stored, an id occurs twice, or there are no rows.
    """
    first_row: dict[str, int] = {}
    names: tuple[str, ...] | None = None
    start = 0
    for vectors, batch_texts, batch_ids, batch_fields in batches:
        numbers = range(first_number + start, first_number + start + len(batch_texts))
        given = [str(number) for number in numbers] if batch_ids is None else refuse_string(batch_ids, "ids")
        fields = [{} for _ in batch_texts] if batch_fields is None else batch_fields
        block = comparable_vectors(vectors, encoder.dimensions, "vector", start, similarity=encoder.similarity)
        if not len(block) == len(batch_texts) == len(given) == len(fields):
            raise InvalidInput(
                f"expected as many vectors as texts, ids and fields, got {len(block)} vectors, {len(batch_texts)} "
                f"texts, {len(given)} ids and {len(fields)} fields."
            )
        given_texts = enumerate(refuse_string(batch_texts, "texts"), start=start)
        texts = [_checked_string(text, "text", place) for place, text in given_texts]
        ids = [_checked_string(id_, "id", place) for place, id_ in enumerate(given, start=start)]
        if not texts:
            continue
        names = tuple(fields[0]) if names is None else names
        columns = _checked_columns(names, fields, start)
        _refuse_duplicates(ids, start, first_row)
        yield CheckedBatch(block, texts, ids, columns)
        start += len(texts)
    if not start:
        raise InvalidInput("an index needs at least one text, got none.")


def document_streams(
    documents: Documents, ids: Iterable[str] | None, fields: Iterable[Fields] | None
) -> tuple[Iterator[str], Iterator[str] | None, Iterator[Fields] | None]:
    """Return the texts, ids and fields of documents as parallel iterators.

    Dicts and rows have a ``text``, maybe an ``id``, and fields: a dict in the column ``fields``, or all other columns.
    """
    items = _items(documents, "texts")
    first = next(items, None)
    items = items if first is None else chain([first], items)
    if not isinstance(first, Mapping | Row):
        names = None if ids is None else _items(ids, "ids")
        values = None if fields is None else _items(fields, "fields")
        # The embedder checks that texts are strings; `collect` checks ids and fields.
        return cast("Iterator[str]", items), names, values
    if ids is not None or fields is not None:
        raise InvalidInput(
            "expected ids and fields either in the dicts or as separate arguments, got both: leave one out."
        )
    for_text, for_id, for_fields = tee((_row(place, item) for place, item in enumerate(items)), 3)
    has_id = "id" in (first.values if isinstance(first, Row) else first)
    return (
        (text_at(row, "text", "") for row in for_text),
        (_id(row) for row in for_id) if has_id else None,
        (_fields(row, has_id=has_id) for row in for_fields),
    )


def refuse_string(strings: T, what: str) -> T:
    """Return ``strings``, or raise InvalidInput if it is a single string."""
    if isinstance(strings, str):
        raise InvalidInput(f"expected several {what}, got one string: write [{strings!r:.60}].")
    return strings


def _items(given: Iterable[T] | DataFrameLike, what: str) -> Iterator[T]:
    items = items_of(refuse_string(given, what))
    if items is None:
        raise InvalidInput(f"expected a list of {what}, got {type(given).__name__}: {given!r:.60}.")
    return cast("Iterator[T]", items)


def _row(place: int, item: object) -> Row:
    if isinstance(item, Row):
        return item
    where = f"row {place} (counted from 0)"
    if not isinstance(item, Mapping):
        raise InvalidInput(f"expected {where} to be a dict, like the rows before it, got {type(item).__name__}.")
    return Row(place, dict(item), where)


def _id(row: Row) -> str:
    value = value_at(row, "id")
    try:
        return class_label(value)
    except InvalidInput as error:
        raise InvalidInput(f"{row.where}: expected a string or a whole number as the id, got {value!r:.60}.") from error


def _fields(row: Row, *, has_id: bool) -> Fields:
    others = {name: value for name, value in row.values.items() if name != "text" and not (has_id and name == "id")}
    nested = others.get("fields")
    # `collect` checks the values.
    return cast("Fields", nested if len(others) == 1 and isinstance(nested, Mapping) else others)


def _checked_columns(names: Sequence[str], fields: Sequence[Fields], start: int) -> dict[str, list[Scalar]]:
    columns: dict[str, list[Scalar]] = {name: [] for name in names}
    for place, each in enumerate(fields, start=start):
        if each.keys() != columns.keys():
            raise InvalidInput(
                f"row {place} (counted from 0) has the fields {sorted(map(str, each))}; expected those of the first "
                f"row, {sorted(columns)}. Give None where a value is missing."
            )
        for name, column in columns.items():
            column.append(_checked_value(each[name], name, place))
    return columns


def _checked_value(value: object, name: str, place: int) -> Scalar:
    value = plain_scalar(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"the field {name!r} of row {place} (counted from 0) is {value!r}. Give None instead.")
    if value is None or isinstance(value, str | bool | int | float):
        return _checked_string(value, f"the field {name!r} of row", place) if isinstance(value, str) else value
    raise InvalidInput(
        f"the field {name!r} of row {place} (counted from 0) must be a string, a number, a boolean or None, got "
        f"{type(value).__name__}."
    )


def _checked_string(value: object, what: str, place: int) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} {place} (counted from 0) must be a string, got {type(value).__name__}.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{what} {place} (counted from 0) holds half of a surrogate pair, which UTF-8 cannot represent. "
            "Repair or drop it."
        ) from None
    return value


def _joined(blocks: deque[DenseVectors], rows: int, dimensions: int) -> DenseVectors:
    if len(blocks) == 1:
        return blocks.popleft()
    joined_ND = np.empty((rows, dimensions), dtype=np.float32)
    filled = 0
    while blocks:  # each block is freed as soon as it is copied
        block = blocks.popleft()
        joined_ND[filled : filled + len(block)] = block.vectors_ND
        filled += len(block)
    return DenseVectors(joined_ND)


def _refuse_duplicates(ids: list[str], start: int, first_row: dict[str, int]) -> None:
    """Raise InvalidInput if an id occurs twice; ``first_row`` has the rows of the ids before, and then of these too."""
    for row, id_ in enumerate(ids, start=start):
        before = first_row.setdefault(id_, row)
        if before != row:
            raise InvalidInput(
                f"the id {id_!r} occurs in rows {before} and {row} (counted from 0): ids must be unique."
            )
