"""``bothways evaluate`` and ``bothways compare``: trained models on labelled data."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import CycloptsError, Parameter

from bothways import checkpoints, compose, retrieval, tasks
from bothways import report as pages
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import note, one_line, print_json, print_table, shortened
from bothways.data import Row, Source
from bothways.errors import nearest
from bothways.progress import figure
from bothways.tasks.classification.spec import LabelPrediction
from bothways.tasks.columns import column_names
from bothways.tasks.registry import SPECS, models, stored_task, task_of_heads

if TYPE_CHECKING:
    from bothways.compose import MultiReport
    from bothways.evaluation.comparison import ComparisonReport
    from bothways.evaluation.report import Report
    from bothways.report.evaluation import Evaluated
    from bothways.retrieval import CandidateRanking
    from bothways.tasks.scores import ScoredRows
    from bothways.tasks.task import AnyTask

RANKING = "ranking"  # value of --task: evaluate the ranking of candidates

_MOST_CLASSES, _LONGEST_LABEL = 20, 40
_MEANINGS = {
    "mcc": "correlation of labels and predictions",
    "brier": "squared error of the probabilities",
    "nll": "negative log-likelihood",
    "ece": "expected calibration error, the mean distance between confidence and accuracy over bins",
    "mce": "maximum calibration error, the largest distance between confidence and accuracy in a bin",
}

_DATA_OPTIONS = opt.group_of("Data", opt.of_all_tasks(lambda spec: [spec.data_options]))

_EXAMPLE = """\
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


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class PointOptions:
    """Operating points of a binary model."""

    at_precision: opt.Share | None = None
    """For binary models: report the highest recall at this precision, and its threshold."""
    at_recall: opt.Share | None = None
    """For binary models: report the highest precision at this recall, and its threshold."""
    at_label: str | None = None
    """The class that precision and recall refer to. Default: the one with fewer rows."""

    def __bool__(self) -> bool:
        return self.at_precision is not None or self.at_recall is not None


NO_POINTS = PointOptions()

_Baseline = Annotated[
    bool,
    Parameter(
        negative="--no-baseline",
        help="Also evaluate the model's baseline on the same rows: the model before the training, such as a linear "
        "model of frozen hidden states, or the best member of an ensemble. It takes about as long as the model.",
    ),
]


@opt.command(
    _EXAMPLE,
    own=_DATA_OPTIONS,
    columns=opt.column_options(),
    opened=opt.opening_options("threshold"),
)
def evaluate(
    model: str,
    *,
    data: opt.File,
    out_of_domain: opt.File | None = None,
    report: opt.Report = None,
    overwrite: opt.Overwrite = False,
    file: opt.FileOptions = opt.ANY_FILE,
    resamples: opt.Resamples = 1000,
    seed: opt.BootstrapSeed = 0,
    json: opt.Json = False,
    task: str | None = None,
    relevant: str | None = None,
    points: PointOptions = NO_POINTS,
    baseline: _Baseline = True,
    own: object = None,
    columns: object = None,
    opened: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Evaluate a trained model on labelled data.

    Args:
        model: Folder of a trained model.
        data: Labelled rows: .jsonl, .json, .csv, .tsv, .conll (also .gz), .parquet, or '-' for JSON Lines on stdin.
        out_of_domain: File of out-of-domain rows without labels, to report also how well the model detects them.
        report: Also write an HTML page to this file: a verdict, wrong predictions with their texts, the learning curve,
            metrics, charts, classes, members and the model card.
        task: Name of a task of a multi-task model. Default: all. 'similarity' uses any encoder as an embedder and
            correlates the similarities of pairs with scores (columns text_a, text_b, score). 'ranking' ranks each
            query's candidates with a pair model or by similarity (columns text_a, text_b, label, or as in training).
        relevant: For ranking: the label of relevant candidates. Default: a usual one such as 'yes'; numbers are grades.
    """
    inputs.check_piped({"--data": data, "--out-of-domain": out_of_domain})
    _check_together(task, relevant, points, pages=bool(out_of_domain or report))
    if report is not None:
        pages.require_extra("the page of an evaluation")
        inputs.check_output(report, overwrite, option="--report")
    given = opt.given_of(own)
    saved = _with_labels(model, opt.given_of(opened), given.get("labels"), opening)
    common = {"seed": seed, **given}
    if task == RANKING:
        with opt.as_usage_error(*saved):
            saved |= inputs.open_options(reading, opening)
            ranking = retrieval.CandidateRanking.open(model, relevant=relevant, **saved)
        opt.check_known(SPECS["pairs"], "data_options", given)
        ranking, rows = inputs.with_columns(ranking, opt.given_of(columns)), inputs.labelled_source(data, file)
        _rank(ranking, rows, {"resamples": resamples, **common}, json=json)
        return
    with _suggested_task(task):
        trained = inputs.with_columns(inputs.open_task(model, saved, reading, opening, task), opt.given_of(columns))
    opt.check_known(trained.spec, "data_options", given)
    if points:
        with opt.as_usage_error():
            tasks.check_class(trained, points.at_label)
    others = None if out_of_domain is None else _other_rows(trained, out_of_domain, file)
    rows = trained.score(inputs.labelled_source(data, file), baseline=baseline, **common)
    _evaluate(trained, rows, others, points, resamples, seed, (Path(model).name, report), json=json)


def _with_labels(model: str, saved: dict[str, Any], labels: object, opening: opt.ModelOptions) -> dict[str, Any]:
    """Return the options for opening a model; ``--labels`` also names the outputs of a head."""
    if labels is None:
        return saved
    located = checkpoints.locate(model, revision=opening.revision, download=opening.download)
    found = SPECS.get(stored_task(located.folder) or task_of_heads(located.folder) or "")
    named = found is not None and "labels" in column_names(found.open_options)
    return {**saved, "labels": labels} if named else saved


def _rank(ranking: "CandidateRanking", data: Source, options: dict[str, Any], *, json: bool) -> None:
    ranked = ranking.evaluate(data, **options)
    if json:
        print_json({"ranked_by": ranking.ranked_by, **ranked.to_dict()})
    else:
        print(f"ranked by: {ranking.ranked_by}\n{ranked.summary()}")


def _evaluate(
    model: Any,  # noqa: ANN401 (a trained model)
    rows: "ScoredRows",
    others: list[Row] | None,
    points: PointOptions,
    resamples: int,
    seed: int,
    page: tuple[str, Path | None],
    *,
    json: bool,
) -> None:
    """Compute and print the metrics of scored rows, and write the page if ``page`` (model name, file) has a file."""
    drawing = {"resamples": resamples, "seed": seed}
    result = model.evaluate(rows, **drawing)
    if points:
        points_at = partial(tasks.operating_points, model, rows, label=points.at_label, **drawing)
        found = points_at(at_precision=points.at_precision, at_recall=points.at_recall)
        result = replace(result, operating_points=found)
    detection = None
    if others is not None:
        detection = tasks.out_of_domain(model, rows, others, resamples=resamples, seed=seed)
    # Print the results first: they are not lost if the page cannot be written.
    _print_result(result, detection, json=json)
    name, file = page
    if file is not None:
        alone = replace(rows, baseline={})
        parts = _page_parts(model, rows, result, model.evaluate(alone, calibrated=False, **drawing))
        pages.write(pages.evaluation_page(name, parts, out_of_domain=detection), file, overwrite=True)
        note(f"wrote {file}")


def _check_together(task: str | None, relevant: str | None, points: PointOptions, *, pages: bool) -> None:
    """Raise a usage error for options that cannot be combined."""
    if relevant is not None and task != RANKING:
        raise opt.usage_error(f"--relevant needs --task {RANKING}: it names the label of relevant candidates.")
    if points.at_label is not None and not points:
        raise opt.usage_error("--at-label names the class for --at-precision or --at-recall: add one of these two.")
    if task == RANKING and points:
        raise opt.usage_error(f"--at-precision and --at-recall cannot be used with --task {RANKING}: drop them.")
    if task == RANKING and pages:
        raise opt.usage_error(f"--out-of-domain and --report cannot be used with --task {RANKING}: drop them.")


@contextmanager
def _suggested_task(task: str | None) -> Iterator[None]:
    """Add ``--task ranking`` or ``similarity`` to the error about an unknown task if its name is similar."""
    try:
        yield
    except CycloptsError as error:
        near = nearest(task or "", (RANKING, "similarity"))
        if near in (None, task) or repr(task) not in str(error):
            raise
        raise opt.usage_error(f"{error} Did you mean --task {near}?") from error


def _other_rows(model: "AnyTask", source: str, file: opt.FileOptions) -> list[Row]:
    """Return the out-of-domain rows; raise an error if the model has no detector or cannot read a row."""
    if not issubclass(model.spec.predict_options, LabelPrediction):
        those = models(spec for spec in SPECS.values() if issubclass(spec.predict_options, LabelPrediction))
        raise opt.usage_error(f"--out-of-domain can be given for {those}, but this model does not.")
    model.confidence.detector(model.name)
    rows = list(inputs.file_rows(source, file))
    for row in rows:
        model.fitted.columns.read(row)
    return rows


def _print_result(result: "Report | MultiReport", detection: "Report | None", *, json: bool) -> None:
    if json:
        print_json({**result.to_dict(), **({} if detection is None else {"out_of_domain": detection.to_dict()})})
        return
    print(result.summary())
    reports = _by_task(result)
    if legend := _legend(reports.values()):
        print(f"\n{legend}")
    for name, each in reports.items():
        if each.per_class:
            print(f"\n{name}" if name else "")
            _print_classes(each)
    if detection is not None:
        print(f"\n{detection.summary()}")


def _legend(reports: "Iterable[Report]") -> str:
    """Return short explanations of the less common metrics in the reports; an empty string if there are none."""
    metrics = {name for report in reports for name in report.estimates}
    words = "; ".join(f"{name}: {meaning}" for name, meaning in _MEANINGS.items() if name in metrics)
    return textwrap.fill(words, 100)


def _by_task(result: "Report | MultiReport") -> "dict[str, Report]":
    """Return the reports by task name; a single report has the name ``""``."""
    return dict(result.reports) if isinstance(result, compose.MultiReport) else {"": result}


def _print_classes(report: "Report") -> None:
    """Print a row for each class; if there are many, only for the classes lowest in F1 and the most frequent ones."""
    shown = report.chosen_classes(_MOST_CLASSES)
    own = (">threshold",) if any(row.threshold is not None for row in shown) else ()
    rows = []
    for row in shown:
        scores = (figure(each.value) for each in (row.precision, row.recall, row.f1))
        counts = (f"{row.support:,}", f"{row.predicted:,}")
        threshold = () if row.threshold is None else (figure(row.threshold),)
        rows.append((shortened(one_line(str(row.label)), _LONGEST_LABEL), *scores, *counts, *threshold))
    print_table(("~", ">precision", ">recall", ">f1", ">support", ">predicted", *own), rows)
    if left_out := len(report.per_class) - len(shown):
        print(f"Shown: classes with the lowest F1, and the most frequent. --report and --json show {left_out:,} more.")


def _page_parts(
    model: "AnyTask",
    rows: "ScoredRows",
    result: Any,  # noqa: ANN401 (a report of any task)
    uncalibrated: Any,  # noqa: ANN401 (another one)
) -> "dict[str, Evaluated]":
    """Return the parts of the page, one for each task."""
    parts, before = {}, _by_task(uncalibrated)
    for name, each in _by_task(result).items():
        task = compose.parts_of(model)[name] if name else model
        scored = compose.rows_of_task(rows, name) if name else rows
        predictions = list(task.fitted.outputs.decide(scored.scores)) if scored.examples else []
        points: list[tuple[float, float]] = []
        if each.kind == "regression":
            points = list(zip(map(float, scored.truth), (one.value for one in predictions), strict=True))
        own = None if task.confidence.calibration is None else before[name]
        wrong = pages.wrong_predictions([one.to_dict() for one in predictions], scored.examples)
        parts[name] = pages.Evaluated(each, task.card, own, points, wrong)
    return parts


_COMPARE_EXAMPLE = """\
Example:
  bothways compare runs/a runs/b --data test.jsonl.gz
  bothways compare runs/topic runs/both --task topic --data test.jsonl.gz

A difference between the models may be due to chance if its interval contains 0,
or if its p-value is above 0.05."""


@opt.command(
    _COMPARE_EXAMPLE,
    own=_DATA_OPTIONS,
    columns=opt.column_options(),
    opened=opt.opening_options(),
)
def compare(
    models: opt.Models,
    *,
    data: opt.File,
    task: str | None = None,
    file: opt.FileOptions = opt.ANY_FILE,
    resamples: opt.Resamples = 1000,
    seed: opt.WholeNumber = 0,
    json: opt.Json = False,
    own: object = None,
    columns: object = None,
    opened: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Compare two trained models on the same labelled data.

    Prints the metrics of both, their differences with paired intervals, and significance tests. With
    --json, names of metrics end in _a for the first model, _b for the second, and _difference.

    Args:
        models: Folders of two trained models or ensembles with the same task and labels, of any task except masked LM;
            differences are second minus first.
        data: Labelled rows: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        task: Name of one task of multi-task models, or 'similarity' to compare any two encoders as embedders.
        seed: Seed of the bootstrap and the permutation tests.
    """
    if len(models) != 2:
        raise opt.usage_error(f"expected two models to compare, got {len(models)}.")
    first, second = models
    given = opt.given_of(own)
    saved = [_with_labels(each, opt.given_of(opened), given.get("labels"), opening) for each in models]
    both = _opened((first, second), task, saved, reading, opening.in_full)
    one, other = (inputs.with_columns(each, opt.given_of(columns)) for each in both)
    opt.check_known(one.spec, "data_options", given)
    rows = list(inputs.file_rows(data, file))
    report = tasks.compare(one, other, rows, resamples=resamples, seed=seed, **given)
    if json:
        print_json({"first": first, "second": second, **report.to_dict()})
    else:
        _print_comparison(report)


def _opened(
    names: tuple[str, str],
    task: str | None,
    own: Sequence[dict[str, Any]],
    reading: opt.WindowOptions,
    model: opt.ModelOptions,
) -> list[Any]:
    """Open both models; ``task`` selects one task of a multi-task model."""
    opened = [
        inputs.open_task(name, saved, reading, model, compose.SIMILARITY if task == compose.SIMILARITY else None)
        for name, saved in zip(names, own, strict=True)
    ]
    if task in (None, compose.SIMILARITY):
        return opened
    if not any(isinstance(each, compose.MultiTask) for each in opened):
        raise opt.usage_error(
            f"--task {task} selects one task of a multi-task model, but each model has only one task: drop it."
        )
    return [each.part(task) if isinstance(each, compose.MultiTask) else each for each in opened]


def _print_comparison(report: "ComparisonReport") -> None:
    rows = []
    for name, each in report.metrics.items():
        difference = each.difference
        interval = f"{figure(difference.low, sign=True)} to {figure(difference.high, sign=True)}"
        rows.append(
            (
                name,
                figure(each.first.value),
                figure(each.second.value),
                figure(difference.value, sign=True),
                interval,
            )
        )
    print_table((f"<{report.n} rows", ">first", ">second", ">difference", ">95 % interval"), rows)
    for test in report.tests:
        alone = f"; only the first is right on {test.only_first} rows, only the second on {test.only_second}"
        print(f"{test.name} ({test.of}): p = {figure(test.p_value)}{'' if test.only_first is None else alone}")
    for remarks in (report.shared, report.tokens_read):
        for name, counts in zip(("first", "second"), remarks, strict=True):
            if counts is not None and (remark := counts.summary()):
                print(f"{name}: {remark}")
