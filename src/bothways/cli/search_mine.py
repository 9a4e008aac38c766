"""``bothways search mine``: passages that look like answers and are none, to train with."""

import itertools
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.choices import Format
from bothways.cli.options import HERE, File, Flag, ModelOptions, PositiveInt, bad_usage
from bothways.cli.reading import check_output
from bothways.cli.searching import open_search
from bothways.cli.terminal import counted, note, progress_beside

if TYPE_CHECKING:
    from bothways.retrieval import Mined

EXAMPLE = """\
A row of the data, and what becomes of it:
  {"anchor": "a question", "positive": "its answer"}
  {"anchor": "a question", "positive": "its answer",
   "negative_1": "another", "negative_2": "a third", "negative_3": "a fourth"}

Examples:
  bothways search mine index/ --data pairs.jsonl.gz --output mined.jsonl.gz
  bothways train embedding --train mined.jsonl.gz --output runs/embedder \\
    --model sentence-transformers/all-MiniLM-L6-v2
  bothways search mine index/ --data pairs.jsonl.gz --rows pairs \\
    --output labelled.jsonl.gz"""


def mine(
    index: Path,
    /,
    *,
    data: File,
    output: File = "-",
    anchor: str = "anchor",
    positive: str = "positive",
    rows: Literal["triplets", "pairs"] = "triplets",
    per_query: PositiveInt = 3,
    depth: PositiveInt = 100,
    share: Annotated[float, Parameter(validator=Number(gt=0, lte=1))] = 0.95,
    format: Format | None = None,  # noqa: A002 (the option's name)
    model: str | None = None,
    json: Flag = False,
    quiet: Flag = False,
    opening: ModelOptions = HERE,
) -> None:
    """Mine hard negatives from a search index.

    Hard negatives are passages that are near a query and do not answer it. 'bothways train embedding' and 'bothways
    train pairs' read the output as it is.

    Args:
        index: Folder of the index of all passages.
        data: Rows of a query and a passage that answers it; several rows may share a query.
        output: .jsonl, .csv or .tsv (also .gz), replaced if it is there; '-' is standard output.
        anchor: Column of the queries.
        positive: Column of the passages that answer.
        rows: Triplets (anchor, positive, and negative_1, negative_2, ... or, of one, negative) to train an embedder,
            or pairs (text_a, text_b) labelled yes and no to train a reranker.
        per_query: Negatives for each row. Where fewer are found, triplets repeat them and pairs leave them out; where
            none is found, there is no triplet.
        depth: Hits that are looked at.
        share: Passages above this share of the answer's cosine are passed over: they may be answers themselves.
        format: Of the data, where the name does not say it.
        model: Where the model of the index lies now, if it was moved.
        json: Print JSON Lines, which is what is printed anyway.
        quiet: Say nothing.
        opening: How the model is found and where it runs.
    """
    from bothways.data import read_rows, text_at, write_rows
    from bothways.retrieval import Mining, mine_negatives

    del json  # there is no other form on standard output
    check_output(data, output)
    with bad_usage():
        mining = Mining(per_query, depth, share)
    pairs = [(text_at(row, anchor), text_at(row, positive)) for row in read_rows(data, format=format)]
    show = progress_beside(output, quiet=quiet)
    search = open_search(index, model, opening)
    mined = mine_negatives(search, pairs, mining, show_progress=show)
    count = write_rows(output, _triplets(mined, per_query) if rows == "triplets" else _labelled(mined))
    if output != "-" and not quiet:
        note(f"{counted(count, 'row')} from {len(pairs):,} in {output}")
        if count:
            task, run = ("embedding", "runs/embedder") if rows == "triplets" else ("pairs", "runs/reranker")
            named = shlex.quote(model or search.index.encoder.name)
            note(f"next: bothways train {task} --model {named} --train {shlex.quote(output)} --output {run}")


def _triplets(mined: "Iterable[Mined]", per_query: int) -> Iterator[Mapping[str, object]]:
    """Rows under the names that an embedder reads by itself, each with as many negatives: a table has no gaps."""
    names = ["negative"] if per_query == 1 else [f"negative_{number}" for number in range(1, per_query + 1)]
    for each in mined:
        if each.negatives:
            negatives = dict(zip(names, itertools.cycle(each.negatives), strict=False))
            yield {"anchor": each.query, "positive": each.positive, **negatives}


def _labelled(mined: "Iterable[Mined]") -> Iterator[Mapping[str, object]]:
    for each in mined:
        yield {"text_a": each.query, "text_b": each.positive, "label": "yes"}
        for negative in each.negatives:
            yield {"text_a": each.query, "text_b": negative, "label": "no"}
