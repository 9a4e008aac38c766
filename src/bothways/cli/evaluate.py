"""``bothways evaluate``: metrics of a trained model on labelled data."""

import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import CycloptsError

from bothways.choices import Format
from bothways.cli.declared import check_known, given_of, group_of, of_all_tasks, taking
from bothways.cli.opening import COLUMNS, EVALUATING, RANKING, open_ranking, open_task, reading_columns
from bothways.cli.options import (
    AS_IT_CAN,
    HERE,
    File,
    Flag,
    ModelOptions,
    PositiveInt,
    ReadingOptions,
    Share,
    WholeNumber,
    bad_usage,
    usage_error,
)
from bothways.cli.reading import labelled_source
from bothways.cli.terminal import note, one_line, plain_table, print_json, print_table, shortened
from bothways.errors import nearest
from bothways.tasks.classification.options import LabelPrediction
from bothways.tasks.registry import SPECS, models

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.evaluation import Report
    from bothways.report.evaluation import Evaluated

EXAMPLE = """\
Examples:
  bothways evaluate runs/news --data test.jsonl.gz --json
  bothways evaluate runs/news --data test.jsonl.gz \\
    --out-of-domain others.jsonl --report page.html
  bothways evaluate runs/spam --data test.jsonl --at-precision 0.99
  bothways evaluate runs/mt --data topics.jsonl.gz --task topic
  bothways evaluate sentence-transformers/all-MiniLM-L6-v2 \\
    --data sts.jsonl.gz --task similarity
  bothways evaluate runs/emb --data sts.jsonl.gz --dimensions 64
  bothways evaluate runs/reranker --data candidates.jsonl.gz --task ranking"""


_MOST_CLASSES, _LONGEST_LABEL = 20, 40
_MEANINGS = {
    "mcc": "correlation of labels and predictions",
    "brier": "squared error of the probabilities",
    "nll": "negative log-likelihood",
    "ece": "calibration error, mean distance of confidence and accuracy",
    "mce": "the largest such distance",
}


@contextmanager
def _nearest_task(task: str | None) -> Iterator[None]:
    """Name the evaluation that was perhaps meant where a model has no such task."""
    try:
        yield
    except CycloptsError as error:
        near = nearest(task or "", (RANKING, "similarity"))
        if near in (None, task) or repr(task) not in str(error):
            raise
        raise usage_error(f"{error} Did you mean --task {near}?") from error


@taking(own=group_of("Data", of_all_tasks(lambda spec: [spec.data_options])), columns=COLUMNS, opened=EVALUATING)
def evaluate(
    run: str,
    /,
    *,
    data: File,
    out_of_domain: File | None = None,
    report: Path | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    resamples: PositiveInt = 1000,
    seed: WholeNumber = 0,
    json: Flag = False,
    quiet: Flag = False,
    task: str | None = None,
    relevant: str | None = None,
    at_precision: Share | None = None,
    at_recall: Share | None = None,
    at_label: str | None = None,
    own: object = None,
    columns: object = None,
    opened: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    model: ModelOptions = HERE,
) -> None:
    """Evaluate a trained model on labelled data.

    Prints metrics with 95 % intervals.

    Args:
        run: Folder of a trained model.
        data: Labelled rows: .jsonl, .json, .csv, .tsv, .conll (also .gz), .parquet, or '-' for JSON Lines on standard
            input.
        out_of_domain: Rows from elsewhere, without labels: also say how well the model tells them from the data.
        report: Also write an HTML page to this file: metrics, reliability before and after calibration, classes and
            the pairs that are confused, the members of an ensemble, the model's card.
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
        at_precision: Of two classes: also the highest recall with at least this precision, and from which probability
            on that is.
        at_recall: The same for the highest precision with at least this recall.
        at_label: The class that these are of; where left out, the one with fewer rows.
        own: How the data are read.
        columns: Where the parts of a row stand.
        opened: How the model is opened.
        reading: How texts are read.
        model: How the model is found and where it runs.
    """
    if data == out_of_domain == "-":
        raise usage_error("--data and --out-of-domain cannot both be standard input: give one of them as a file.")
    if relevant is not None and task != RANKING:
        raise usage_error(f"--relevant names a label of candidates: it goes with --task {RANKING}.")
    at = {"at_precision": at_precision, "at_recall": at_recall}
    points = any(value is not None for value in at.values())
    if at_label is not None and not points:
        raise usage_error("--at-label names the class of --at-precision or --at-recall: give one of them.")
    if task == RANKING and points:
        raise usage_error(f"--at-precision and --at-recall do not go with --task {RANKING}.")
    if task == RANKING and not (out_of_domain is None and report is None):
        raise usage_error(f"--out-of-domain and --report do not go with --task {RANKING}.")
    if report is not None:
        _check_page(report)
    show = False if quiet else None
    from bothways.tasks.evaluate import check_class, operating_points
    from bothways.tasks.evaluate import out_of_domain as evaluate_out_of_domain

    if task == RANKING:
        ranking = reading_columns(open_ranking(run, given_of(opened), reading, model, relevant), given_of(columns))
        source = labelled_source(data, format)
        ranked = ranking.evaluate(source, resamples=resamples, seed=seed, show_progress=show)
        if json:
            print_json({"ranked_by": ranking.ranked_by, **ranked.to_dict()})
        else:
            print(f"ranked by: {ranking.ranked_by}\n{ranked.summary()}")
        return
    with _nearest_task(task):
        trained = reading_columns(open_task(run, given_of(opened), reading, model, task), given_of(columns))
    wanted = given_of(own)
    check_known(trained.spec, "data_options", wanted)
    if points:
        with bad_usage():
            check_class(trained, at_label)
    if out_of_domain is not None:
        _check_detector(trained)
    others = None if out_of_domain is None else _others(trained, out_of_domain, format)
    rows = trained.score(labelled_source(data, format), seed=seed, show_progress=show, **wanted)
    found = trained.report(rows, resamples=resamples, seed=seed)
    if points:
        those = operating_points(trained, rows, **at, label=at_label, resamples=resamples, seed=seed)
        found = replace(found, operating_points=those)
    outside = (
        None
        if others is None
        else evaluate_out_of_domain(trained, rows, others, resamples=resamples, seed=seed, show_progress=show)
    )
    # Before the page, so that they are not lost if it cannot be written after all.
    _print(found, outside, json=json)
    if report is not None:
        before = trained.report(rows, calibrated=False, resamples=resamples, seed=seed)
        _write_page(Path(run).name, _parts(trained, rows, found, before), outside, report)


def _check_page(page: Path) -> None:
    """Refuse a page that cannot be made or written, before the model reads anything and not after."""
    from bothways.report.drawing import require_extra
    from bothways.storage import check_file_writable

    require_extra("the page of an evaluation")
    check_file_writable(page)


def _check_detector(model: Any) -> None:  # noqa: ANN401 (a trained model)
    """Refuse rows from elsewhere of a model that cannot tell them.

    Raises:
        CycloptsError: It is a model of another kind of task.
        NotCalibrated: It has no detector.
    """
    if not issubclass(model.spec.predict_options, LabelPrediction):
        those = models(spec for spec in SPECS.values() if issubclass(spec.predict_options, LabelPrediction))
        raise usage_error(f"--out-of-domain can be given for {those}, but this one does not.")
    model.confidence.detector(model.name)


def _others(model: Any, source: str, format_: Format | None) -> "list[Row]":  # noqa: ANN401 (a trained model)
    """Rows from elsewhere, read before the data are.

    Raises:
        InvalidInput: They cannot be read, or one lacks what the model reads.
    """
    from bothways.data import read_rows

    rows = list(read_rows(source, format=format_))
    for row in rows:
        model.fitted.columns.read(row)
    return rows


def _print(found: Any, outside: "Report | None", *, json: bool) -> None:  # noqa: ANN401 (of one task or several)
    if json:
        print_json({**found.to_dict(), **({} if outside is None else {"out_of_domain": outside.to_dict()})})
        return
    print(found.summary())
    if legend := _legend(_by_task(found).values()):
        print(f"\n{legend}")
    for name, each in _by_task(found).items():
        if each.per_class:
            print(f"\n{name}" if name else "")
            _print_classes(each)
    if outside is not None:
        print(f"\n{outside.summary()}")


def _legend(reports: "Iterable[Report]") -> str:
    """Return what the less common metrics of some reports are, in a few words each; empty where there are none."""
    there = {name for report in reports for name in report.estimates}
    words = "; ".join(f"{name}: {meaning}" for name, meaning in _MEANINGS.items() if name in there)
    return textwrap.fill(words, 100)


def _by_task(found: Any) -> "dict[str, Report]":  # noqa: ANN401 (of one task or several)
    """Return the reports of a model of several tasks by their names; the only one under the name ``""``."""
    from bothways.compose.multitask.trained import MultiReport

    return dict(found.reports) if isinstance(found, MultiReport) else {"": found}


def _print_classes(report: "Report") -> None:
    """Return a row for each class.

    Of many, those that are lowest in F1 and those that are most frequent.
    """
    shown = report.chosen_classes(_MOST_CLASSES)
    table = plain_table()
    table.add_column("", overflow="fold")
    own = ("threshold",) if any(row.threshold is not None for row in shown) else ()
    for heading in ("precision", "recall", "f1", "support", "predicted", *own):
        table.add_column(heading, justify="right")
    for row in shown:
        scores = (f"{each.value:.4f}" for each in (row.precision, row.recall, row.f1))
        counts = (f"{row.support:,}", f"{row.predicted:,}")
        threshold = () if row.threshold is None else (f"{row.threshold:.4f}",)
        table.add_row(shortened(one_line(row.label), _LONGEST_LABEL), *scores, *counts, *threshold)
    print_table(table)
    if left_out := len(report.per_class) - len(shown):
        print(f"These are the lowest in F1 and the most frequent; {left_out:,} more are in --report and --json.")


def _parts(model: Any, rows: Any, found: Any, before: Any) -> "dict[str, Evaluated]":  # noqa: ANN401 (of any task)
    """Return the parts of the page, one for each task of a model."""
    from bothways.report.evaluation import Evaluated

    parts, uncalibrated = {}, _by_task(before)
    for name, each in _by_task(found).items():
        task = model.parts[name] if name else model
        points: list[tuple[float, float]] = []
        if each.kind == "regression" and not name:
            predicted = (one.value for one in model.outputs.decide(rows.scores))
            points = list(zip(map(float, rows.truth), predicted, strict=True))
        own = None if task.confidence.calibration is None else uncalibrated[name]
        parts[name] = Evaluated(each, task.card, own, points)
    return parts


def _write_page(name: str, parts: "dict[str, Evaluated]", outside: "Report | None", page: Path) -> None:
    from bothways.report import write
    from bothways.report.evaluation import evaluation_page

    write(evaluation_page(name, parts, out_of_domain=outside), page)
    note(f"wrote {page}")
