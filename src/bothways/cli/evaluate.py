"""``bothways evaluate``: metrics of a trained model on labelled data."""

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
from bothways.cli.reading import labelled_source, optional_source
from bothways.cli.terminal import note, print_json

if TYPE_CHECKING:
    from bothways.data import Source
    from bothways.evaluation import OutOfDomainReport
    from bothways.tasks.task import Report, Task

EXAMPLE = """\
Examples:
  bothways evaluate runs/news --data test.jsonl.gz --json
  bothways evaluate runs/news --data test.jsonl.gz \\
    --out-of-domain others.jsonl --report page.html
  bothways evaluate runs/mt --data topics.jsonl.gz --task topic
  bothways evaluate sentence-transformers/all-MiniLM-L6-v2 \\
    --data sts.jsonl.gz --task similarity
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
    reading: ClassifierOptions = AS_TRAINED,
    model: ModelOptions = HERE,
) -> None:
    """Metrics of a trained model on labelled data, with 95 % intervals; which ones, its task says.

    Args:
        run: Folder of a trained model.
        data: Labelled rows: .jsonl, .json, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
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
        reading: How texts are read.
        model: How the model is found and where it runs.
    """
    if data == out_of_domain == "-":
        raise usage_error("--data and --out-of-domain cannot both be standard input: give one of them as a file.")
    if report is not None:
        from bothways.report.drawing import require_altair

        require_altair("the page of an evaluation")  # before the model reads anything, not after
    if relevant is not None and task != RANKING:
        raise usage_error(f"--relevant names a label of candidates: it goes with --task {RANKING}.")
    source, show = labelled_source(data, format), False if quiet else None
    found: Report
    outside = None
    if task == RANKING:
        if out_of_domain is not None or report is not None:
            raise usage_error(f"--out-of-domain and --report do not go with --task {RANKING}.")
        ranking = open_ranking(run, reading, model, relevant)
        use_columns(ranking, columns)
        found = ranking.evaluate(source, resamples=resamples, seed=seed, show_progress=show)
    else:
        trained = open_task(run, reading, model, task)
        use_columns(trained, columns)
        others = optional_source(out_of_domain, format)
        if others is None and report is None:
            found = trained.evaluate(source, resamples=resamples, seed=seed, show_progress=show)
        else:
            found, outside = _in_full(run, trained, source, others, report, resamples=resamples, seed=seed, show=show)
    if json:
        print_json({**found.to_dict(), **({} if outside is None else {"out_of_domain": outside.to_dict()})})
    else:
        print(found.summary())
        if outside is not None:
            print(f"\n{outside.summary()}")


def _in_full(
    run: str,
    task: "Task",
    data: "Source",
    others: "Source | None",
    page: Path | None,
    *,
    resamples: int,
    seed: int,
    show: bool | None,
) -> "tuple[Report, OutOfDomainReport | None]":
    """Read the data once for everything that is asked of it."""
    from bothways.evaluation import RegressionReport
    from bothways.tasks.targets import Regression

    trusting = trusting_task(task, "--report" if others is None else "--out-of-domain")
    if page is not None and isinstance(trusting.trusted.target, Regression):
        raise usage_error("--report draws how far probabilities can be trusted; this model predicts numbers.")
    evidence, truth, read = trusting.evidence(data, show_progress=show)
    before, after = (
        replace(
            trusting.report(evidence.logits_NC, truth, calibrated=calibrated, resamples=resamples, seed=seed),
            reading=read,
        )
        for calibrated in (False, None)
    )
    outside = None
    if others is not None:
        outside = trusting.out_of_domain(evidence, others, resamples=resamples, seed=seed, show_progress=show)
    if page is not None and not isinstance(before, RegressionReport) and not isinstance(after, RegressionReport):
        from bothways.report import write
        from bothways.report.evaluation import evaluation_page

        write(evaluation_page(Path(run).name, after, before, card=trusting.card, out_of_domain=outside), page)
        note(f"wrote {page}")
    return after, outside
