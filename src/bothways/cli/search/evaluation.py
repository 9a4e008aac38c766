"""``bothways search evaluate`` and ``mine``: an index's metrics, and hard negatives from it; the app of ``search``."""

import itertools
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import App

import bothways.data
from bothways import retrieval
from bothways.choices import Shared
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import counted, note, print_json, print_table, progress_beside
from bothways.cli.search import indexing
from bothways.cli.search import query as searching
from bothways.errors import InvalidInput
from bothways.progress import figure
from bothways.tasks.embedding.spec import Pairs, Triplets

if TYPE_CHECKING:
    from bothways.data.known_rows import SharedRows
    from bothways.evaluation.intervals import Estimate
    from bothways.evaluation.outcomes import Outcomes
    from bothways.evaluation.report import Report
    from bothways.retrieval import Hit, Mined, Rerank, SemanticSearch
    from bothways.tasks.task import AnyTask

_EVALUATE_EXAMPLE = """\
Example:
  bothways search evaluate index/ --queries queries.jsonl.gz --qrels qrels.tsv \\
    --against dense --against lexical --json"""
_MINE_EXAMPLE = """\
A row of the data, and the row that is mined from it:
  {"anchor": "a question", "positive": "its answer"}
  {"anchor": "a question", "positive": "its answer",
   "negative_1": "another", "negative_2": "a third", "negative_3": "a fourth"}

Examples:
  bothways search mine index/ --data pairs.jsonl.gz --output mined.jsonl.gz
  bothways train embedding --train mined.jsonl.gz --output runs/embedder \\
    --model sentence-transformers/all-MiniLM-L6-v2
  bothways search mine index/ --data pairs.jsonl.gz --rows pairs \\
    --output labelled.jsonl.gz"""


@opt.command(_EVALUATE_EXAMPLE, prompting=searching.PROMPT)
def evaluate(
    index: searching.IndexAddress,
    /,
    *,
    queries: opt.File,
    qrels: Path,
    mode: searching.SearchMode = "hybrid",
    against: tuple[searching.ModeName, ...] = (),
    exact: searching.Exact = False,
    text: opt.TextColumns = opt.TEXT,
    id: str = "id",  # noqa: A002 (the option's name)
    hits: opt.PositiveInt = 1000,
    shared: opt.SharedRows = "keep",
    file: opt.FileOptions = opt.ANY_FILE,
    resamples: opt.Resamples = 1000,
    seed: opt.BootstrapSeed = 0,
    json: opt.Json = False,
    model: searching.IndexModel = None,
    hybrid: searching.HybridOptions = searching.WEIGHTED,
    reranking: searching.RerankOptions = searching.NO_RERANKER,
    prompting: object = None,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Evaluate a search index on queries with relevance judgments.

    Prints nDCG@10, MAP, MRR and recall with 95 % intervals over queries.

    Args:
        queries: Rows with an id and a query: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on stdin.
        qrels: Relevance judgments: TREC's four columns, or tab-separated query_id, doc_id, relevance under a header.
        against: Another mode to compare with; repeat it for several. With a reranker, --mode again is without it.
        id: Column of the queries' ids, as in the judgments.
        hits: Number of hits per query; MAP, MRR and recall are computed over these.
    """
    _check_against(mode, against, reranking)
    judgments, texts = bothways.data.read_judgments(qrels, encoding=file.encoding), _queries(queries, text, id, file)
    rerank = searching.rerank_of(reranking, opening)
    searcher = searching.open_search(index, model, opening, prompting, modes=[mode, *against], exact=exact)
    searching.note_left_out(searcher.index.encoder)
    with _naming(retrieval.shown_address(index), qrels):
        absent = retrieval.absent_documents(judgments, searcher.index.ids)
        left_out, learnt = _pairs_of_training(searcher, (mode, *against), rerank, texts, judgments, shared)
    modes = {each: searching.mode_of(each, hybrid, exact) for each in (mode, *against)}
    drawing = {"resamples": resamples, "seed": seed}

    def measured(name: searching.ModeName, reranker: "Rerank | None") -> "Outcomes":
        def search(batch: Sequence[str]) -> "list[list[Hit]]":
            return searcher.search(batch, hits, mode=modes[name], rerank=reranker)

        return retrieval.search_outcomes(search, texts, judgments, left_out)

    with _naming(queries, qrels):
        outcomes, compared = measured(mode, rerank), {each: measured(each, None) for each in against}
    report, others = replace(outcomes.report(**drawing), shared=learnt), _reports(compared, drawing)
    differences = _differences(outcomes, compared, drawing)
    if json:
        _print_as_json(mode, report, others, differences, absent)
        return
    _print_notes(report, len(texts), absent)
    _print_table(mode if rerank is None else f"{mode}, reranked", report, others, differences)


def _pairs_of_training(
    searcher: "SemanticSearch",
    modes: Collection[searching.ModeName],
    rerank: "Rerank | None",
    queries: Mapping[str, str],
    judgments: Mapping[str, Mapping[str, int]],
    shared: Shared,
) -> "tuple[set[tuple[str, str]], SharedRows | None]":
    """Compare judged pairs with the training rows of the embedder, unless all modes are lexical, and the reranker."""
    lexical = {*map(searching.mode_name, modes)} == {"lexical"}
    models: list[AnyTask] = [] if lexical else [searcher.embedder]
    match rerank:
        case retrieval.Rerank(by=retrieval.CrossEncoder(pairs=model)):
            models.append(model)
    return retrieval.pairs_of_training(models, queries, judgments, searcher.index, shared)


def _check_against(
    mode: searching.ModeName, against: Sequence[searching.ModeName], reranking: searching.RerankOptions
) -> None:
    """Raise a usage error if a mode would be compared with itself."""
    if searching.mode_name(mode) in map(searching.mode_name, against) and reranking.reranker is None:
        raise opt.usage_error(f"--against {mode} is the same as --mode: name another mode, or give a --reranker.")


def _reports(
    compared: "dict[searching.ModeName, Outcomes]", drawing: dict[str, int]
) -> "dict[searching.ModeName, Report]":
    return {each: other.report(**drawing) for each, other in compared.items()}


def _differences(
    outcomes: "Outcomes", compared: "dict[searching.ModeName, Outcomes]", drawing: dict[str, int]
) -> "dict[searching.ModeName, dict[str, Estimate]]":
    from bothways.evaluation.metrics.ranking import ranking_differences

    return {each: ranking_differences(outcomes, other, **drawing) for each, other in compared.items()}


@opt.command(_MINE_EXAMPLE, prompting=searching.PROMPT)
def mine(
    index: searching.IndexAddress,
    /,
    *,
    data: opt.File,
    output: opt.File = "-",
    overwrite: opt.Overwrite = False,
    anchor: str | None = None,
    positive: str | None = None,
    rows: Literal["triplets", "pairs"] = "triplets",
    per_query: opt.PositiveInt = 3,
    depth: opt.PositiveInt = 100,
    share: opt.Share = 0.95,
    exact: searching.Exact = False,
    file: opt.FileOptions = opt.ANY_FILE,
    model: searching.IndexModel = None,
    json: opt.Flag = False,
    prompting: object = None,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Mine hard negatives from a search index.

    Hard negatives are passages that are similar to a query but do not answer it. The output is training data for
    'bothways train embedding' or, with --rows pairs, 'bothways train pairs'.

    Args:
        data: Rows of a query and a passage that answers it; several rows may share a query.
        output: Output file: .jsonl, .csv or .tsv (also .gz); '-' is standard output.
        anchor: Column of the queries. Default: as in the embedder's training, else anchor.
        positive: Column of the passages that answer the queries. Default: as in the embedder's training, else positive.
        rows: Triplets (anchor, positive, negative_1, negative_2, ...; with --per-query 1, negative) to train an
            embedder, or pairs (text_a, text_b) labelled yes and no to train a reranker.
        per_query: Number of negatives per row. If fewer are found, triplets repeat them, and there are fewer pairs; a
            row without negatives gives no triplet.
        depth: Number of hits per query to choose negatives from.
        share: Skip passages whose similarity to the query exceeds this share of the answer's: they may be answers too.
        json: No effect: standard output is always JSON Lines.
    """
    del json
    inputs.check_output(output, overwrite, data)
    with opt.as_usage_error():
        mining = retrieval.Mining(per_query, depth, share, exact)
    show = progress_beside(output)
    search = searching.open_search(index, model, opening, prompting, exact=exact)
    usual = trained if isinstance(trained := search.embedder.columns, Pairs | Triplets) else Pairs()
    query, answer = anchor or usual.anchor, positive or usual.positive
    pairs = [
        (bothways.data.text_at(row, query, "anchor"), bothways.data.text_at(row, answer, "positive"))
        for row in inputs.file_rows(data, file)
    ]
    mined = retrieval.mine_negatives(search, pairs, mining, show_progress=show)
    written = _triplets(mined, per_query) if rows == "triplets" else _labelled(mined)
    count = bothways.data.write_rows(output, written, overwrite=True)
    if output != "-":
        note(f"{counted(count, 'row')} from {len(pairs):,} in {output}")
        if count:
            task, run = ("embedding", "runs/embedder") if rows == "triplets" else ("pairs", "runs/reranker")
            named = shlex.quote(model or search.index.encoder.name)
            note(f"next: bothways train {task} --model {named} --train {shlex.quote(output)} --output {run}")


def _print_as_json(
    mode: searching.ModeName,
    report: "Report",
    others: "dict[searching.ModeName, Report]",
    differences: "dict[searching.ModeName, dict[str, Estimate]]",
    absent: int,
) -> None:
    from bothways.evaluation.report import flat_estimates

    against = [
        {"mode": each, **flat_estimates(other.estimates), **flat_estimates(differences[each], "_difference")}
        for each, other in others.items()
    ]
    print_json({"mode": mode, **report.to_dict(), "absent_documents": absent, "against": against})


def _print_notes(report: "Report", queries: int, absent: int) -> None:
    if report.shared is not None and (remark := report.shared.summary("pairs of a query and a relevant document")):
        note(remark)
    if absent:
        note(f"relevant documents that are not in the index: {absent:,}")
    if report.counts["unjudged"]:
        note(f"queries left out, since no document is judged relevant: {report.counts['unjudged']:,} of {queries:,}")
    if report.counts["missing_queries"]:
        note(f"queries left out, since --queries lacks them: {report.counts['missing_queries']:,} of those in --qrels")


@contextmanager
def _naming(*files: str | Path) -> Iterator[None]:
    """Add the names of the files to an error about ids that do not match between them."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{' and '.join(repr(str(file)) for file in files)}: {error}") from error


def _queries(source: str, text: tuple[str, ...], id_: str, file: opt.FileOptions) -> dict[str, str]:
    texts: dict[str, str] = {}
    for row in inputs.given_rows((), source, text, file):
        name = bothways.data.class_label(bothways.data.value_at(row, id_, "id"))
        if name in texts:
            raise InvalidInput(f"{row.where}: the query id {name!r} appears twice. Drop one.")
        texts[name] = bothways.data.text_at(row, text)
    return texts


def _print_table(
    name: str,
    report: "Report",
    others: "dict[searching.ModeName, Report]",
    differences: "dict[searching.ModeName, dict[str, Estimate]]",
) -> None:
    rows = []
    for measure, estimate in report.estimates.items():
        cells = [estimate, *(other.estimates[measure] for other in others.values())]
        cells += [difference[measure] for difference in differences.values()]
        rows.append((measure, *(f"{figure(each.value)} [{figure(each.low)}, {figure(each.high)}]" for each in cells)))
    headings = (name, *others, *(f"{name} - {each}" for each in others))
    print_table((f"{report.n} queries; 95 % intervals", *headings), rows)


def _triplets(mined: "Iterable[Mined]", per_query: int) -> Iterator[Mapping[str, object]]:
    """Yield rows with the default columns of embedder training, all with the same number of negatives."""
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


search = App(name="search", help="Search texts by meaning and by words.")
for _command in (indexing.build, searching.query, indexing.info, evaluate, indexing.add, indexing.delete, mine):
    search.command(_command)
