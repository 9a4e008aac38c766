"""``bothways search build``, ``add``, ``delete`` and ``info``: an index, its changes and its facts."""

import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import bothways.data
from bothways import retrieval
from bothways.choices import Overflow
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import counted, note, print_json, print_table, printable
from bothways.cli.search.query import (
    PROMPT,
    PROMPT_TITLE,
    IndexAddress,
    IndexModel,
    note_left_out,
    open_search,
)
from bothways.errors import InvalidInput
from bothways.tasks.embedding.spec import PromptOptions, QueryPromptOptions

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.retrieval import VectorStore
    from bothways.retrieval.ranking import Fields
    from bothways.tasks import SentenceEmbedder

_BUILD_EXAMPLE = """\
Examples:
  bothways search build --model sentence-transformers/all-MiniLM-L6-v2 \\
    --data corpus.jsonl.gz --text text --id id --field year --output index/
  bothways search build --model sentence-transformers/all-MiniLM-L6-v2 \\
    --data corpus.jsonl.gz --store postgresql://localhost/demo --table docs"""
_ADD_EXAMPLE = """\
Example:
  bothways search add index/ --data more.jsonl.gz --text text --id id"""
_DELETE_EXAMPLE = """\
Example:
  bothways search delete index/ doc-17 doc-18"""
_INFO_EXAMPLE = """\
Example:
  bothways search info index/ --json"""

_ID = "id"
_PROMPTS = opt.group_of(PROMPT_TITLE, (*opt.options_of(PromptOptions), *opt.options_of(QueryPromptOptions)))


@opt.command(_BUILD_EXAMPLE, vectors=opt.vector_options(), prompting=_PROMPTS)
def build(
    model: str,
    *,
    data: opt.File,
    output: str | None = None,
    store: str | None = None,
    table: str | None = None,
    text: opt.TrainedTextColumns = None,
    id: str | None = None,  # noqa: A002 (the option's name)
    field: tuple[str, ...] = (),
    language: str = "english",
    file: opt.FileOptions = opt.ANY_FILE,
    overwrite: opt.Flag = False,
    json: opt.Json = False,
    vectors: object = None,
    prompting: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Build a search index from texts.

    The index keeps the texts, their vectors for dense search and their words for lexical search. It records the prompts
    of documents and queries, and every later search uses them.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        data: Rows: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the index.
        store: Database for the index instead of a folder: postgresql://user@host/database, with pgvector. Give the
            password in $PGPASSWORD or ~/.pgpass.
        table: Table for the index in the database of --store.
        id: Column of the texts' unique ids. Default: 'id' if the first row has it, else numbers from 0.
        field: Column to store with each text, for filters; repeat the option for several columns.
        language: Language of lexical search: english, french, german, ...; 'none' for no stemming.
        overwrite: Replace an existing index.
    """
    stemmer, address = None if language == "none" else language, _address(output, store, table)
    with opt.as_usage_error():
        shown = retrieval.shown_address(address)
        retrieval.check_language(address, stemmer)
    with retrieval.building(address, stemmer, overwrite=overwrite):
        embedder = inputs.open_embedder(model, opt.given_of(vectors), reading, opening)
        prompt, asking = _build_prompts(embedder, opt.given_of(prompting))
        source = retrieval.SourceColumns(inputs.text_columns(text, inputs.trained_columns(model, opening)), id)
        source, texts, ids, fields = _columns(inputs.given_rows((), data, source.text, file), source, field)
        source = replace(source, files=file.to_remember(data))
        search = retrieval.SemanticSearch.build(
            *(embedder, texts),
            ids=ids,
            fields=fields,
            language=stemmer,
            prompt=prompt,
            query_prompt=asking,
            source=source,
            store=address,
            overwrite=overwrite,
        )
    _report_build(search.index, shown, json=json)


@opt.command(_ADD_EXAMPLE, prompting=PROMPT)
def add(
    index: IndexAddress,
    /,
    *,
    data: opt.File,
    text: opt.TrainedTextColumns = None,
    id: str | None = None,  # noqa: A002 (the option's name)
    file: opt.FileOptions = opt.ANY_FILE,
    max_length: opt.PositiveInt | None = None,
    on_overflow: Overflow | None = None,
    json: opt.Json = False,
    model: IndexModel = None,
    prompting: object = None,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Add texts to a search index.

    The texts are embedded with the model of the index. If the command fails, the index stays unchanged.

    Args:
        data: File of rows, as for search build, with a column for each field that the index stores.
        id: Column of the texts' ids, which must be new to the index. Default: as for search build.
        max_length: Maximum tokens per window. Default: as when the index was built.
        on_overflow: Split longer texts into windows, fail, or truncate them. Default: as when the index was built.
    """
    with retrieval.changing(index) as opened:
        search = open_search(
            *(opened, model, opening, prompting), role="document", max_length=max_length, on_overflow=on_overflow
        )
        before, known = len(search.index), search.index.source
        usual = inputs.text_columns(text, search.embedder.columns) if known is None else text or known.text
        source = retrieval.SourceColumns(usual, id if known is None else id or known.id)
        rows = inputs.given_rows((), data, source.text, file)
        _, texts, ids, fields = _columns(rows, source, search.index.field_names)
        search.add(texts, ids=ids, fields=fields)
    _report_change("added", len(search.index) - before, search.index, json=json)


@opt.command(_DELETE_EXAMPLE)
def delete(
    index: IndexAddress,
    /,
    *ids: str,
    data: opt.File | None = None,
    id: str | None = None,  # noqa: A002 (the option's name)
    file: opt.FileOptions = opt.ANY_FILE,
    json: opt.Json = False,
) -> None:
    """Delete texts from a search index by their ids.

    If the command fails, the index stays unchanged.

    Args:
        ids: Ids of the texts to delete.
        data: Rows with the ids, instead of IDS: .jsonl, .csv, .txt and so on, or '-' for JSON Lines on standard input.
        id: Column of the ids in the data. Default: as for search build, else 'id'.
    """
    inputs.check_given(ids, data)
    with retrieval.changing(index) as opened:
        before = len(opened)
        column = id or (opened.source and opened.source.id) or _ID
        rows = inputs.given_rows(ids, data, (column,), file)
        opened.delete(bothways.data.class_label(bothways.data.value_at(row, column, "id")) for row in rows)
    _report_change("deleted", before - len(opened), opened, json=json)


@opt.command(_INFO_EXAMPLE)
def info(index: IndexAddress, /, *, json: opt.Json = False) -> None:
    """Show the model, similarity and prompts of an index."""
    found = retrieval.facts_of(index)
    encoder = found.encoder
    facts: dict[str, object] = {
        "texts": found.texts,
        "dimensions": encoder.dimensions,
        "model": encoder.name,
        "pooling": encoder.pooling,
        "similarity": encoder.similarity,
        "query_prompt": encoder.prompts.query,
        "document_prompt": encoder.prompts.document,
        "max_length": None if encoder.reading is None else encoder.reading.max_length,
        "precision": encoder.precision,
        "fields": list(found.fields),
        "language": found.language,
        "format_version": found.format_version,
    }
    if json:
        print_json({**facts, "notes": list(encoder.notes())})
        return
    prompts = {name: repr(facts[name]) if facts[name] else "none" for name in ("query_prompt", "document_prompt")}
    fields, language = ", ".join(found.fields) or "none", found.language or "no stemming"
    listed = {"texts": f"{found.texts:,}", "fields": fields, "language": language}
    rows = ((name.replace("_", " "), printable(str(value))) for name, value in {**facts, **prompts, **listed}.items())
    print_table(("<", "~"), [row for row in rows if row[1] != "None"], header=False)
    note_left_out(encoder)


def _address(output: str | None, store: str | None, table: str | None) -> str:
    """Return the address of a new index: a folder, or a table of a database."""
    if output is not None and store is None and table is None and not retrieval.is_database(output):
        return str(Path(output))
    if output is not None or store is None or table is None:
        raise opt.usage_error(
            "expected a place for the index, either --output FOLDER or --store postgresql://host/database --table NAME."
        )
    if not retrieval.is_database(store) or "#" in store:
        raise opt.usage_error(
            "--store must be the URL of a database, postgresql://user@host:port/database, without a table, which "
            "--table names."
        )
    return f"{store}#{table}"


def _report_build(index: "VectorStore", shown: str, *, json: bool) -> None:
    if json:
        print_json({"texts": len(index), "dimensions": index.encoder.dimensions, "output": shown})
    else:
        next_step = f"bothways search query {shlex.quote(shown)} 'some words'"
        note(f"{counted(len(index), 'text')} in {shown}\nnext: {next_step}")


def _build_prompts(embedder: "SentenceEmbedder", given: dict[str, str]) -> tuple[str, str]:
    """Return the prompts of the texts and of the queries of a new index."""
    settings = embedder.fitted.settings
    with opt.as_usage_error():
        return (
            settings.prompt_of(given.get("prompt"), given.get("prompt_name"), role="document"),
            settings.prompt_of(given.get("query_prompt"), given.get("query_prompt_name"), role="query"),
        )


def _columns(
    rows: "Iterable[Row]", source: "retrieval.SourceColumns", fields: Sequence[str]
) -> "tuple[retrieval.SourceColumns, Iterator[str], Iterator[str] | None, Iterator[Fields] | None]":
    """Return the columns that are read of rows, with the column ``id`` if there is one, and three streams of them.

    The streams are the texts, the ids and the fields of the same rows.
    """
    rows = iter(rows)
    first = list(itertools.islice(rows, 1))
    if source.id is None and first and _ID in first[0].values:
        source = replace(source, id=_ID)
    for_text, for_id, for_fields = itertools.tee(itertools.chain(first, rows), 3)
    field = partial(bothways.data.value_at, parameter="field")
    # The index checks the values of fields.
    kept: Iterator[Fields] = ({name: field(row, name) for name in fields} for row in for_fields)  # type: ignore[misc]
    ids = None if source.id is None else _different_ids(for_id, source.id)
    return source, inputs.texts_of(for_text, source.text), ids, kept if fields else None


def _different_ids(rows: "Iterable[Row]", column: str) -> Iterator[str]:
    """Yield the ids of texts; a repeated id is an error."""
    seen: dict[str, int] = {}
    for row in rows:
        name = bothways.data.class_label(bothways.data.value_at(row, column, "id"))
        before = seen.setdefault(name, row.number)
        if before != row.number:
            unit = "line" if "line" in row.where else "row"
            raise InvalidInput(
                f"{row.where}: the id {name!r} in {column!r} is also the id of {unit} {before}. "
                "Ids must be unique: drop one of the two."
            )
        yield name


def _report_change(verb: str, count: int, index: "VectorStore", *, json: bool) -> None:
    if json:
        print_json({verb: count, "texts": len(index)})
    else:
        note(f"{counted(count, 'text')} {verb}, {len(index):,} in the index")
