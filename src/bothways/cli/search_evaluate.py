"""``bothways search evaluate``: how well an index finds what was judged relevant."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.choices import Format
from bothways.cli.options import HERE, TEXT, Columns, File, Flag, ModelOptions, PositiveInt, usage_error
from bothways.cli.reading import given_rows
from bothways.cli.searching import (
    AS_FOUND,
    AS_USUAL,
    HybridOptions,
    ModeName,
    RerankOptions,
    Searcher,
    by_its_name,
    rerank_of,
)
from bothways.cli.terminal import counted, note, plain_table, print_json, print_table

if TYPE_CHECKING:
    from bothways.evaluation import Estimate, Outcomes, Report
    from bothways.retrieval import Hit, Rerank

EXAMPLE = """\
Example:
  bothways search evaluate index/ --queries queries.jsonl.gz --qrels qrels.tsv \\
    --against dense --against lexical --json"""


def evaluate(
    index: Path,
    /,
    *,
    queries: File,
    qrels: Path,
    mode: ModeName | None = None,
    against: tuple[ModeName, ...] = (),
    text: Columns = TEXT,
    id: str = "id",  # noqa: A002 (the option's name)
    hits: PositiveInt = 1000,
    format: Format | None = None,  # noqa: A002 (the option's name)
    resamples: PositiveInt = 1000,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    json: Flag = False,
    quiet: Flag = False,
    model: str | None = None,
    hybrid: HybridOptions = AS_USUAL,
    reranking: RerankOptions = AS_FOUND,
    opening: ModelOptions = HERE,
) -> None:
    """Evaluate a search index on queries with relevance judgments.

    Prints nDCG@10, MAP, MRR and recall with 95 % intervals over queries.

    Args:
        index: Folder of the index.
        queries: Rows: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        qrels: Relevance judgments: TREC's four columns, or tab-separated query_id, doc_id, relevance under a header.
        mode: By both meaning and words (hybrid), by meaning (dense), or by words (lexical, also called bm25). Default:
            as for search query.
        against: Another mode to compare with, on the same queries; give it again for several. With a reranker it may be
            the mode itself, as it is without.
        text: Column of the queries' texts; give it again to join several.
        id: Column of the queries' names, as the judgments call them.
        hits: Taken of each query; MAP, MRR and recall see no further.
        format: Of the queries, where the name does not say it.
        resamples: Bootstrap resamples for the intervals.
        seed: Of the bootstrap.
        json: Print everything as one JSON object.
        quiet: Show no progress.
        model: Where the model of the index lies now, if it was moved.
        hybrid: How two scores become one.
        reranking: A second look at the first hits of the mode; those of --against stay as they were found.
        opening: How the model is found and where it runs.
    """
    from bothways.data import read_judgments
    from bothways.evaluation import ranking_differences
    from bothways.evaluation.report import flat_estimates
    from bothways.retrieval import absent_documents, search_outcomes

    _check_different(mode, against, reranking)
    judgments, show = read_judgments(qrels), False if quiet else None
    asked = _queries(queries, text, id, format)
    rerank = rerank_of(reranking, opening)
    searcher = Searcher(index, [mode, *against], model, opening)
    mode = searcher.mode
    _check_different(mode, against, reranking)
    with _said_of(index, qrels):
        absent = absent_documents(judgments, searcher.index.ids)

    def measured(by: ModeName, second_look: "Rerank | None") -> "Outcomes":
        def search(texts: Sequence[str]) -> "list[list[Hit]]":
            return searcher.search(texts, hits, by, hybrid, rerank=second_look, show_progress=show)

        with _said_of(queries, qrels):
            return search_outcomes(search, asked, judgments)

    found, found_by = measured(mode, rerank), {each: measured(each, None) for each in against}
    report = found.report(resamples=resamples, seed=seed)
    others = {each: other.report(resamples=resamples, seed=seed) for each, other in found_by.items()}
    differences = {
        each: ranking_differences(found, other, resamples=resamples, seed=seed) for each, other in found_by.items()
    }
    if json:
        compared = [
            {"mode": each, **flat_estimates(other.estimates), **flat_estimates(differences[each], "_difference")}
            for each, other in others.items()
        ]
        print_json({"mode": mode, **report.to_dict(), "absent_documents": absent, "against": compared})
        return
    if absent:
        note(f"not in the index: {counted(absent, 'relevant document')}")
    if report.counts["unjudged"]:
        note(f"left out, as no document is judged relevant: {report.counts['unjudged']:,} of {len(asked):,} queries")
    if report.counts["missing_queries"]:
        note(f"left out, as no query asks for them: {report.counts['missing_queries']:,} of the judged queries")
    _print_table(mode if rerank is None else f"{mode}, reranked", report, others, differences)


def _check_different(mode: ModeName | None, against: Sequence[ModeName], reranking: RerankOptions) -> None:
    """Refuse to compare a mode with itself.

    Raises:
        CycloptsError: It is among the others, and no reranker makes a difference.
    """
    if mode is not None and by_its_name(mode) in map(by_its_name, against) and reranking.reranker is None:
        raise usage_error(f"--against {mode} is the mode itself.")


@contextmanager
def _said_of(*files: str | Path) -> Iterator[None]:
    """Name the files whose ids are held against each other in an error about them."""
    from bothways.errors import InvalidInput

    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{' and '.join(repr(str(file)) for file in files)}: {error}") from error


def _queries(source: str, text: tuple[str, ...], id_: str, format_: Format | None) -> dict[str, str]:
    from bothways.data import class_label, text_at, value_at
    from bothways.errors import InvalidInput

    asked: dict[str, str] = {}
    for row in given_rows((), source, text, format_):
        name = class_label(value_at(row, id_))
        if name in asked:
            raise InvalidInput(f"{row.where}: the query {name!r} comes a second time. Drop one.")
        asked[name] = text_at(row, text)
    return asked


def _print_table(
    name: str,
    report: "Report",
    others: "dict[ModeName, Report]",
    differences: "dict[ModeName, dict[str, Estimate]]",
) -> None:
    table = plain_table()
    table.add_column(f"{report.n} queries; 95 % intervals")
    for heading in (name, *others, *(f"{name} - {each}" for each in others)):
        table.add_column(heading)
    for measure, estimate in report.estimates.items():
        cells = [estimate, *(other.estimates[measure] for other in others.values())]
        cells += [difference[measure] for difference in differences.values()]
        table.add_row(measure, *(f"{each.value:.4f} [{each.low:.4f}, {each.high:.4f}]" for each in cells))
    print_table(table)
