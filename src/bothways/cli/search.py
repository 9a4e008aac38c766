"""``bothways search build``, ``add`` and ``delete``: an index of texts, and what becomes of it."""

import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.choices import Format, Overflow
from bothways.cli.declared import given_of, taking
from bothways.cli.opening import VECTORS, open_embedder
from bothways.cli.options import (
    AS_IT_CAN,
    HERE,
    TEXT,
    Columns,
    File,
    Flag,
    ModelOptions,
    PositiveInt,
    ReadingOptions,
    bad_usage,
)
from bothways.cli.reading import given_rows, texts_of
from bothways.cli.searching import open_search
from bothways.cli.terminal import counted, note, print_json
from bothways.progress import reporting

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.retrieval import SearchIndex
    from bothways.retrieval.filters import Fields

BUILD_EXAMPLE = """\
Example:
  bothways search build --model sentence-transformers/all-MiniLM-L6-v2 \\
    --data corpus.jsonl.gz --text text --id id --field year --output index/"""
ADD_EXAMPLE = """\
Example:
  bothways search add index/ --data more.jsonl.gz --text text --id id"""
DELETE_EXAMPLE = """\
Example:
  bothways search delete index/ doc-17 doc-18"""

_ID = "id"


@taking(vectors=VECTORS)
def build(
    *,
    model: str,
    data: File,
    output: Path,
    text: Columns = TEXT,
    id: str | None = None,  # noqa: A002 (the option's name)
    field: tuple[str, ...] = (),
    language: str = "english",
    format: Format | None = None,  # noqa: A002 (the option's name)
    overwrite: Flag = False,
    json: Flag = False,
    quiet: Flag = False,
    vectors: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> None:
    """Build a search index from texts.

    It keeps the vectors of the texts and the words in them.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        data: Rows: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the index.
        text: Column of the texts; give it again to join several.
        id: Column of the texts' names, each different; by default 'id' if the first row has it, else numbers from 0.
        field: Column to keep with each text and to filter by; give it again for several.
        language: Of the stemmer of lexical search: english, french, german, ...; none takes words as they are.
        format: Of the data, where the name does not say it.
        overwrite: Replace an index at the output.
        json: Print what was built as one JSON object.
        quiet: Show no progress.
        vectors: How texts become vectors.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    from bothways.retrieval import SemanticSearch
    from bothways.retrieval.index_files import check_index_free
    from bothways.retrieval.lexical import check_available

    stemmer = None if language == "none" else language
    with bad_usage():
        check_available(stemmer)
    check_index_free(output, overwrite=overwrite)
    with _replacing(output), reporting(False if quiet else None):
        embedder = open_embedder(model, given_of(vectors), reading, opening)
        texts, ids, fields = _columns(given_rows((), data, text, format), text, id, field)
        search = SemanticSearch.build(embedder, texts, ids=ids, fields=fields, language=stemmer)
        search.save(output, overwrite=overwrite)
    if json:
        print_json({"texts": len(search.index), "dimensions": embedder.dimensions, "output": str(output)})
    elif not quiet:
        next_step = f"bothways search query {shlex.quote(str(output))} 'some words'"
        note(f"{counted(len(search.index), 'text')} in {output}\nnext: {next_step}")


def add(
    index: Path,
    /,
    *,
    data: File,
    text: Columns = TEXT,
    id: str | None = None,  # noqa: A002 (the option's name)
    format: Format | None = None,  # noqa: A002 (the option's name)
    max_length: PositiveInt | None = None,
    on_overflow: Overflow | None = None,
    json: Flag = False,
    quiet: Flag = False,
    model: str | None = None,
    opening: ModelOptions = HERE,
) -> None:
    """Add texts to a search index.

    They are embedded with the model of the index. A crash leaves the index as it was.

    Args:
        index: Folder of the index.
        data: Rows as for search build, with a column for each field that the index keeps.
        text: Column of the texts; give it again to join several.
        id: Column of the texts' names, none of them in the index; by default as for search build.
        format: Of the data, where the name does not say it.
        max_length: Maximum tokens per window. Default: as when the index was built.
        on_overflow: What becomes of longer texts; by default as when the index was built.
        json: Print what was done as one JSON object.
        quiet: Show no progress.
        model: Where the model of the index lies now, if it was moved.
        opening: How the model is found and where it runs.
    """
    from bothways.retrieval import updating

    with updating(index), reporting(False if quiet else None):
        search = open_search(index, model, opening, max_length=max_length, on_overflow=on_overflow)
        before = len(search.index)
        texts, ids, fields = _columns(given_rows((), data, text, format), text, id, search.index.field_names)
        search.add(texts, ids=ids, fields=fields)
        search.save(index, overwrite=True)
    _tell({"added": len(search.index) - before}, search.index, json=json, quiet=quiet)


def delete(
    index: Path,
    /,
    *ids: str,
    data: File | None = None,
    id: str = _ID,  # noqa: A002 (the option's name)
    format: Format | None = None,  # noqa: A002 (the option's name)
    json: Flag = False,
    quiet: Flag = False,
) -> None:
    """Delete texts from a search index by their ids.

    A crash leaves the index as it was.

    Args:
        index: Folder of the index.
        ids: Names of the texts to delete.
        data: Rows with the names instead: .jsonl, .csv, .txt and so on, or '-' for JSON Lines on standard input.
        id: Column of the names in the data.
        format: Of the data, where the name does not say it.
        json: Print what was done as one JSON object.
        quiet: Say nothing.
    """
    from bothways.retrieval import SearchIndex, updating

    rows = given_rows(ids, data, (id,), format)
    with updating(index), reporting(False if quiet else None):
        opened = SearchIndex.open(index)
        before = len(opened)
        opened.delete(_names(rows, id))
        opened.save(index, overwrite=True)
    _tell({"deleted": before - len(opened)}, opened, json=json, quiet=quiet)


def _replacing(folder: Path) -> AbstractContextManager[None]:
    """Let no update of an index that is to be replaced begin: one of the two would undo the other."""
    from bothways.retrieval import locked

    return locked(folder) if folder.is_dir() else nullcontext()


def _columns(
    rows: "Iterable[Row]", text: tuple[str, ...], id_: str | None, fields: Sequence[str]
) -> "tuple[Iterator[str], Iterator[str] | None, Iterator[Fields] | None]":
    """Texts, ids and fields of rows as streams that are read together."""
    rows = iter(rows)
    first = list(itertools.islice(rows, 1))
    if id_ is None and first and _ID in first[0].values:
        id_ = _ID
    for_text, for_id, for_fields = itertools.tee(itertools.chain(first, rows), 3)
    return (
        texts_of(for_text, text),
        None if id_ is None else _different_names(for_id, id_),
        _kept(for_fields, fields) if fields else None,
    )


def _names(rows: "Iterable[Row]", column: str) -> Iterator[str]:
    from bothways.data import class_label, value_at

    return (class_label(value_at(row, column)) for row in rows)


def _different_names(rows: "Iterable[Row]", column: str) -> Iterator[str]:
    """Yield the names of texts, which have to differ."""
    from bothways.data import class_label, value_at
    from bothways.errors import InvalidInput

    seen: dict[str, int] = {}
    for row in rows:
        name = class_label(value_at(row, column))
        before = seen.setdefault(name, row.number)
        if before != row.number:
            unit = "line" if "line" in row.where else "row"
            raise InvalidInput(
                f"{row.where}: the id {name!r} in {column!r} is also that of {unit} {before}. "
                "Ids must differ: drop one."
            )
        yield name


def _kept(rows: "Iterable[Row]", columns: Sequence[str]) -> "Iterator[Fields]":
    from bothways.data import value_at

    # What may be kept, and what may not, the index says.
    return ({name: value_at(row, name) for name in columns} for row in rows)  # type: ignore[misc]


def _tell(done: dict[str, int], index: "SearchIndex", *, json: bool, quiet: bool) -> None:
    if json:
        print_json({**done, "texts": len(index)})
    elif not quiet:
        ((what, count),) = done.items()
        note(f"{counted(count, 'text')} {what}, {len(index):,} in the index")
