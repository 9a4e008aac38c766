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
from bothways.cli.terminal import note, one_line, plain_table, print_json, print_table, printable, six_digits

if TYPE_CHECKING:
    from bothways.retrieval import Hit
    from bothways.retrieval.passages import Passage

EXAMPLE = """\
Examples:
  bothways search query index/ "some words" --top 5 --json
  bothways search query index/ "some words" --mode lexical --filter 'year>=2020'"""

_TITLE = "title"  # a field that an index may keep


def query(
    index: Path,
    /,
    *words: str,
    top: PositiveInt = 5,
    mode: ModeName | None = None,
    filter: tuple[str, ...] = (),  # noqa: A002 (the option's name)
    json: Flag = False,
    model: str | None = None,
    hybrid: HybridOptions = AS_USUAL,
    reranking: RerankOptions = AS_FOUND,
    opening: ModelOptions = HERE,
) -> None:
    """Search an index with a query.

    Prints the best texts first, each with the passage that has most of the query's words. The title is shown too, where
    the index was built with --field title. With --json, texts are whole. Scores are cosine similarities (dense), BM25
    (lexical), both made one (hybrid), or the reranker's.

    Args:
        index: Folder of the index.
        words: What to search for; in quotes, so that the shell leaves it as it is.
        top: How many texts to show.
        mode: By both meaning and words (hybrid), by meaning (dense), or by words (lexical, also called bm25). Default:
            hybrid; dense for an index of an earlier format, without words that can be searched.
        filter: A field's value: field=value, field>=number or field<=number. Give it again for more conditions;
            several values of one field are alternatives.
        json: Print a JSON list of rank, id, score, text and fields.
        model: Where the model of the index lies now, if it was moved.
        hybrid: How two scores become one.
        reranking: A second look at the first hits.
        opening: How the model is found and where it runs.
    """
    asked = " ".join(words)
    if not asked.strip():
        raise usage_error('the words to search for are empty. Give some: bothways search query INDEX "some words".')
    if len(words) > 1:
        note(f'searching for "{asked}"; put several words in quotes, so that the shell leaves them as they are.')
    filters = filters_of(filter)
    rerank = rerank_of(reranking, opening)
    searcher = Searcher(index, [mode], model, opening)
    (hits,) = searcher.search([asked], top, searcher.mode, hybrid, filters=filters, rerank=rerank)
    if json:
        print_json(
            [
                {
                    "rank": hit.rank,
                    "id": hit.id,
                    "score": six_digits(hit.score),
                    "text": hit.text,
                    "fields": dict(hit.fields),
                }
                for hit in hits
            ]
        )
    else:
        _print_hits(hits, [searcher.index.passage(asked, hit.text) for hit in hits])


def _print_hits(hits: "list[Hit]", passages: "list[Passage]") -> None:
    """Return a table on a terminal.

    Elsewhere lines of score, id, title where the index keeps one, and passage, with tabs.
    """
    if not sys.stdout.isatty():
        for hit, passage in zip(hits, passages, strict=True):
            titles = [one_line(_title(hit))] if _TITLE in hit.fields else []
            print("\t".join([f"{hit.score:.4f}", one_line(hit.id), *titles, printable(passage.text)]))
        return
    from rich.text import Text

    table = plain_table()
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("id", overflow="fold")
    table.add_column("text", overflow="fold")
    for hit, passage in zip(hits, passages, strict=True):
        shown = Text(f"{one_line(title)}\n" if (title := _title(hit)) else "", "underline")
        for part, marked in passage.parts():
            shown.append(printable(part), "bold not underline" if marked else "not underline")
        table.add_row(f"{hit.score:.3f}", one_line(hit.id), shown)
    print_table(table)


def _title(hit: "Hit") -> str:
    title = hit.fields.get(_TITLE)
    return "" if title is None else str(title)
