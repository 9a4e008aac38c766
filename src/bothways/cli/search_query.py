"""``bothways search query``: what in an index answers a query."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.cli.options import HERE, Flag, ModelOptions, PositiveInt, usage_error
from bothways.cli.searching import (
    AS_FOUND,
    AS_USUAL,
    HybridOptions,
    ModeName,
    RerankOptions,
    Searcher,
    filters_of,
    rerank_of,
)
from bothways.cli.terminal import one_line, plain_table, print_json, print_table

if TYPE_CHECKING:
    from bothways.retrieval import Hit

EXAMPLE = """\
Examples:
  bothways search query index/ "some words" --top 5 --json
  bothways search query index/ "some words" --mode hybrid --filter 'year>=2020'"""

_SHOWN = 300  # characters of a text


def query(
    index: Path,
    words: str,
    /,
    *,
    top: PositiveInt = 5,
    mode: ModeName = "dense",
    filter: tuple[str, ...] = (),  # noqa: A002 (the option's name)
    json: Flag = False,
    model: str | None = None,
    hybrid: HybridOptions = AS_USUAL,
    reranking: RerankOptions = AS_FOUND,
    opening: ModelOptions = HERE,
) -> None:
    """The texts of an index that answer a query, best first.

    Scores are cosine similarities (dense), BM25 (lexical), both made one (hybrid), or the reranker's.

    Args:
        index: Folder of the index.
        words: What to search for.
        top: How many texts to show.
        mode: By meaning, by words, or by both.
        filter: A field's value: field=value, field>=number or field<=number. Give it again for more conditions;
            several values of one field are alternatives.
        json: Print a JSON list of rank, id, score, text and fields.
        model: Where the model of the index lies now, if it was moved.
        hybrid: How two scores become one.
        reranking: A second look at the first hits.
        opening: How the model is found and where it runs.
    """
    if not words.strip():
        raise usage_error("the words to search for are empty.")
    filters = filters_of(filter)
    rerank = rerank_of(reranking, opening)
    searcher = Searcher(index, [mode], model, opening)
    (hits,) = searcher.search([words], top, mode, hybrid, filters=filters, rerank=rerank)
    if json:
        print_json(
            [
                {"rank": hit.rank, "id": hit.id, "score": hit.score, "text": hit.text, "fields": dict(hit.fields)}
                for hit in hits
            ]
        )
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
