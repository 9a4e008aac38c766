"""``bothways search``: an index of texts, and what in it is nearest to a query."""

import itertools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.cli.opening import AS_THE_MODEL_SAYS, EmbedderOptions, open_embedder
from bothways.cli.options import HERE, TEXT, Columns, File, Flag, Format, ModelOptions, PositiveInt, usage_error
from bothways.cli.reading import given_rows, texts_of
from bothways.cli.terminal import note, one_line, plain_table, print_json, print_table

if TYPE_CHECKING:
    from bothways.retrieval import Hit

BUILD_EXAMPLE = """\
Example:
  bothways search build --model sentence-transformers/all-MiniLM-L6-v2 \\
    --data corpus.jsonl.gz --output index/"""
QUERY_EXAMPLE = """\
Example:
  bothways search query index/ "some words" --top 5 --json"""

_BATCH = 1024
_SHOWN = 300  # characters of a text


def build(
    *,
    model: str,
    data: File,
    output: Path,
    text: Columns = TEXT,
    id: str | None = None,  # noqa: A002 (the option's name)
    format: Format | None = None,  # noqa: A002 (the option's name)
    overwrite: Flag = False,
    json: Flag = False,
    quiet: Flag = False,
    reading: EmbedderOptions = AS_THE_MODEL_SAYS,
    opening: ModelOptions = HERE,
) -> None:
    """Embed texts and keep them as an index to search.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        data: Rows: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the index.
        text: Column of the texts; give it again to join several.
        id: Column of the texts' names, each different; by default they are numbered from 0.
        format: Of the data, where the name does not say it.
        overwrite: Replace an index at the output.
        json: Print what was built as one JSON object.
        quiet: Show no progress.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    from bothways.data import class_label, value_at
    from bothways.retrieval import SemanticSearch
    from bothways.storage import check_folder_free

    check_folder_free(output, overwrite=overwrite)
    embedder = open_embedder(model, reading, opening)
    rows = given_rows((), data, text, format)
    ids = None
    if id is not None:
        rows, named = itertools.tee(rows)
        ids = (class_label(value_at(row, id)) for row in named)
    search = SemanticSearch.build(embedder, texts_of(rows, text), ids=ids, show_progress=False if quiet else None)
    search.save(output, overwrite=overwrite)
    if json:
        print_json({"texts": len(search.index), "dimensions": embedder.dimensions, "output": str(output)})
    elif not quiet:
        next_step = f"bothways search query {shlex.quote(str(output))} 'some words'"
        note(f"{len(search.index):,} texts in {output}\nnext: {next_step}")


def query(
    index: Path,
    words: str,
    /,
    *,
    top: PositiveInt = 5,
    json: Flag = False,
    model: str | None = None,
    opening: ModelOptions = HERE,
) -> None:
    """The texts of an index that are nearest in meaning, best first, with their cosine similarity.

    Args:
        index: Folder of the index.
        words: What to search for.
        top: How many texts to show.
        json: Print a JSON list of rank, id, score and text.
        model: Where the model of the index lies now, if it was moved.
        opening: How the model is found and where it runs.
    """
    from bothways.retrieval import SemanticSearch

    if not words.strip():
        raise usage_error("the words to search for are empty.")
    opened = SemanticSearch.open(
        index,
        model=model,
        revision=opening.revision,
        device=opening.device,
        dtype=opening.dtype,
        download=opening.download,
        allow_pickle=opening.allow_pickle,
    )
    hits = opened.search(words, top)
    if json:
        print_json([{"rank": hit.rank, "id": hit.id, "score": hit.score, "text": hit.text} for hit in hits])
    else:
        _print_hits(hits)


def _print_hits(hits: "list[Hit]") -> None:
    """A table on a terminal, long texts cut; elsewhere lines of score, id and whole text with tabs between them."""
    if not sys.stdout.isatty():
        for hit in hits:
            print(f"{hit.score:.4f}\t{one_line(hit.id)}\t{one_line(hit.text)}")
        return
    table = plain_table()
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("id", overflow="fold")
    table.add_column("text", overflow="fold")
    for hit in hits:
        text = one_line(hit.text)
        shown = text if len(text) <= _SHOWN else text[:_SHOWN].rstrip() + "…"
        table.add_row(f"{hit.score:.3f}", one_line(hit.id), shown)
    print_table(table)
