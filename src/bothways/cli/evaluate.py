"""``bothways evaluate``: metrics of a trained model on labelled data."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.cli.column_options import AS_IN_TRAINING, ColumnOptions, use_columns
from bothways.cli.opening import (
    AS_TRAINED,
    RANKING,
    ClassifierOptions,
    open_ranking,
    open_task,
    trusting_task,
)
from bothways.cli.options import HERE, File, Flag, Format, ModelOptions, usage_error
from bothways.cli.reading import labelled_source
from bothways.cli.terminal import note, print_json
from bothways.cli.vector_options import AS_THE_MODEL_SAYS, VectorOptions, use_vectors

if TYPE_CHECKING:
    from bothways.data import Row, Source
    from bothways.evaluation import Report
    from bothways.tasks.labelling.trusting import TrustingTask
    from bothways.tasks.task import Report as AnyReport
    from bothways.tasks.task import Task

EXAMPLE = """\
Examples:
  bothways evaluate runs/news --data test.jsonl.gz --json
  bothways evaluate runs/news --data test.jsonl.gz \\
    --out-of-domain others.jsonl --report page.html
  bothways evaluate runs/mt --data topics.jsonl.gz --task topic
  bothways evaluate sentence-transformers/all-MiniLM-L6-v2 \\
    --data sts.jsonl.gz --task similarity
  bothways evaluate runs/emb --data sts.jsonl.gz --dimensions 64
  bothways evaluate runs/reranker --data candidates.jsonl.gz --task ranking"""


def evaluate(
    run: str,
    /,
    *,
    data: File,
    out_of_domain: File | None = None,
    report: Path | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    resamples: Annotated[int, Parameter(validator=Number(gte=1))] = 1000,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    json: Flag = False,
    quiet: Flag = False,
    task: str | None = None,
    relevant: str | None = None,
    columns: ColumnOptions = AS_IN_TRAINING,
    vectors: VectorOptions = AS_THE_MODEL_SAYS,
    reading: ClassifierOptions = AS_TRAINED,
    model: ModelOptions = HERE,
) -> None:
    """Metrics of a trained model on labelled data, with 95 % intervals; which ones, its task says.

    Args:
        run: Folder of a trained model.
        data: Labelled rows: .jsonl, .json, .csv, .tsv, .conll (also .gz), .parquet, or '-' for JSON Lines on standard
            input.
        out_of_domain: Rows from elsewhere, without labels: also say how well the model tells them from the data.
        report: Also write an HTML page to this file: metrics, reliability before and after calibration, classes.
        format: Of the data, where the name does not say it.
        resamples: Bootstrap resamples for the intervals.
        seed: Of the bootstrap.
        json: Print everything as one JSON object: metrics, intervals, tables per class and the like.
        quiet: Show no progress.
        task: Which of its tasks, for a model of several; all of them when left out. 'similarity' takes any encoder for
            an embedder, and correlates the cosines of pairs with scores (columns text_a, text_b, score). 'ranking' puts
            the candidates of each query in order, by a model of pairs or by cosines (text_a, text_b, label, or what
            they were called in the training of a model of labels).
        relevant: Of candidates to rank: the label of those that answer; where left out, the one that is usually called
            so, or labels are grades from 0 on.
        columns: Where the parts of a row stand.
        vectors: How texts become vectors, for a model that compares them.
        reading: How texts are read.
        model: How the model is found and where it runs.
    """
    if data == out_of_domain == "-":
        raise usage_error("--data and --out-of-domain cannot both be standard input: give one of them as a file.")
    if relevant is not None and task != RANKING:
        raise usage_error(f"--relevant names a label of candidates: it goes with --task {RANKING}.")
    if task == RANKING and not (out_of_domain is None and report is None):
        raise usage_error(f"--out-of-domain and --report do not go with --task {RANKING}.")
    if report is not None:
        _check_page(report)
    show = False if quiet else None
    if task == RANKING:
        ranking = open_ranking(run, reading, model, relevant)
        use_columns(ranking, columns)
        use_vectors(ranking, vectors)
        source = labelled_source(data, format)
        ranked = ranking.evaluate(source, resamples=resamples, seed=seed, show_progress=show)
        if json:
            print_json({"ranked_by": ranking.ranked_by, **ranked.to_dict()})
        else:
            print(f"ranked by: {ranking.ranked_by}\n{ranked.summary()}")
        return
    trained = open_task(run, reading, model, task)
    use_columns(trained, columns)
    use_vectors(trained, vectors)
    if out_of_domain is None and report is None:
        source = labelled_source(data, format)
        _print(trained.evaluate(source, resamples=resamples, seed=seed, show_progress=show), None, json=json)
        return
    trusting = _trusting(trained, report, out_of_domain)
    others = None if out_of_domain is None else _others(trusting, out_of_domain, format)
    source = labelled_source(data, format)
    before, after, outside = _in_full(trusting, source, others, resamples=resamples, seed=seed, show=show)
    # Before the page, so that they are not lost if it cannot be written after all.
    _print(after, outside, json=json)
    if report is not None:
        _write_page(Path(run).name, trusting.card, before, after, outside, report)


def _check_page(page: Path) -> None:
    """Refuse a page that cannot be made or written, before the model reads anything and not after."""
    from bothways.report.drawing import require_extra
    from bothways.storage import check_file_writable

    require_extra("the page of an evaluation")
    check_file_writable(page)


def _trusting(task: "Task", page: Path | None, out_of_domain: str | None) -> "TrustingTask":
    """The task as one that can answer what is asked of it beside its metrics.

    Raises:
        CycloptsError: It is of another kind.
        NotCalibrated: It is to tell texts from elsewhere and has no detector.
    """
    from bothways.tasks.targets import Regression

    trusting = trusting_task(task, "--report" if out_of_domain is None else "--out-of-domain")
    if page is not None and isinstance(trusting.trusted.target, Regression):
        raise usage_error("--report draws how far probabilities can be trusted; this model predicts numbers.")
    if out_of_domain is not None:
        trusting.trusted.border()
    return trusting


def _others(task: "TrustingTask", source: str, format_: Format | None) -> "list[Row]":
    """Rows from elsewhere, read before the data are.

    Raises:
        InvalidInput: They cannot be read, or one lacks what the model reads.
    """
    from bothways.data import read_rows

    rows = list(read_rows(source, format=format_))
    task.inputs(rows)
    return rows


def _in_full(
    task: "TrustingTask",
    data: "Source",
    others: "list[Row] | None",
    *,
    resamples: int,
    seed: int,
    show: bool | None,
) -> "tuple[Report, Report, Report | None]":
    """Metrics without calibration and with it, and how others are told: the data are read once for everything."""
    evidence, truth, read = task.evidence(data, show_progress=show)
    before, after = (
        replace(
            task.report(evidence.logits_NC, truth, calibrated=calibrated, resamples=resamples, seed=seed),
            tokens_read=read,
        )
        for calibrated in (False, None)
    )
    if others is None:
        return before, after, None
    outside = task.out_of_domain(evidence, others, resamples=resamples, seed=seed, show_progress=show)
    return before, after, outside


def _print(found: "AnyReport", outside: "Report | None", *, json: bool) -> None:
    if json:
        print_json({**found.to_dict(), **({} if outside is None else {"out_of_domain": outside.to_dict()})})
        return
    print(found.summary())
    if outside is not None:
        print(f"\n{outside.summary()}")


def _write_page(
    name: str,
    card: Mapping[str, object],
    before: "Report",
    after: "Report",
    outside: "Report | None",
    page: Path,
) -> None:
    from bothways.report import write
    from bothways.report.evaluation import evaluation_page

    write(evaluation_page(name, after, before, card=card, out_of_domain=outside), page)
    note(f"wrote {page}")
