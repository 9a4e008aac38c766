"""The page of an evaluation of any task: metrics, reliability, classes, ensemble members, and the model card."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bothways.evaluation.differences import LOWER_IS_BETTER, BaselineReport
from bothways.evaluation.intervals import Estimate
from bothways.evaluation.report import Report, remarks_of
from bothways.progress import duration, figure
from bothways.report.charts import (
    MAX_POINTS,
    confusion_matrix,
    learning_curve,
    reliability_diagram,
    reliability_panel,
    scatter,
)
from bothways.report.drawing import short_label
from bothways.report.mistakes import MOST_SHOWN, Mistake
from bothways.report.page import Block, Figure, KeyFigure, KeyFigures, Page, Paragraph, Section, Table, TextList

MAX_IN_MATRIX = 30
"""Maximum number of classes in a confusion matrix."""

MAX_PAIRS = 30
"""Number of confused pairs to list if the matrix would be too large."""

_CLASSES = ("Classes", "Class", "Texts")
# For a table of precision and recall, by kind of report: section title, first column, and the counted unit.
_KINDS = {
    "span tagging": ("Spans", "Label", "Spans"),
    "tagging": ("Tags", "Tag", "Words"),
    "multi-label classification": ("Labels", "Label", "Texts"),
}


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The evaluation of a task.

    Attributes:
        report: The metrics.
        card: The model card.
        uncalibrated: Metrics of the same rows without calibration; None for an uncalibrated model.
        points: True and predicted numbers of the rows, for regression.
        mistakes: The wrong predictions, or the errors of a regression, those to look at first before the others.
    """

    report: Report
    card: Mapping[str, object]
    uncalibrated: Report | None = None
    points: Sequence[tuple[float, float]] = ()
    mistakes: Sequence[Mistake] = ()


def evaluation_page(name: str, parts: Mapping[str, Evaluated], *, out_of_domain: Report | None = None) -> Page:
    """Return the page of an evaluation.

    Args:
        name: The name of the model.
        parts: The evaluation of each task by name; the name of a single task is ``""``.
        out_of_domain: The detection of out-of-domain rows, if it was measured.
    """
    sections = [section for task, part in parts.items() for section in _sections(task, part)]
    if out_of_domain is not None:
        sections.append(_out_of_domain(out_of_domain))
    for task, part in parts.items():
        if part.card:
            sections.append(Section(f"{task}: the model" if task else "The model", tuple(_card(part.card))))
    titles = dict.fromkeys(part.report.title for part in parts.values())
    return Page(
        title=f"Evaluation of {name}",
        subtitle=f"On {'; '.join(titles)}. Intervals are 95\u00a0% bootstrap intervals over these rows.",
        sections=tuple(sections),
        footer="Written by “bothways evaluate”.",
    )


def _sections(task: str, part: Evaluated) -> Iterator[Section]:
    """Yield the sections of a task, except for its card."""
    report, before, named = part.report, part.uncalibrated, f"{task}: " if task else ""
    yield Section(f"{named}Result", (Paragraph(verdict(report)), _headline(report)))
    if part.mistakes:
        yield Section(f"{named}{'Largest errors' if part.points else 'Wrong predictions'}", (_wrong(part.mistakes),))
    if scores := _validations(part.card):
        yield Section(f"{named}Training", (_learning_curve(scores, part.card),))
    yield Section(f"{named}Metrics", (_metrics(report, before), *_notes(report)))
    if report.baseline is not None:
        yield Section(f"{named}Baseline", tuple(_baseline(report.baseline)))
    if part.points:
        yield Section(f"{named}Numbers", (_numbers(part.points),))
    if report.reliability:
        yield Section(f"{named}Calibration", tuple(_reliability(report, before)))
    if report.per_class:
        yield Section(f"{named}{_KINDS.get(report.kind, _CLASSES)[0]}", tuple(_classes(report)))
    if report.members:
        yield Section(f"{named}Members", tuple(_members(report)))


def reliability_figure(report: Report, uncalibrated: Report | None) -> Figure:
    """Return reliability diagrams before and after calibration, or one diagram for an uncalibrated model."""
    drawn: str | tuple[str, str] = reliability_panel(report.reliability, "Uncalibrated")
    errors = f"is {figure(report.ece.value, 3)}"
    if uncalibrated is not None:
        drawn = reliability_diagram(uncalibrated.reliability, report.reliability)
        errors = f"before and after it is {figure(uncalibrated.ece.value, 3)} and {figure(report.ece.value, 3)}"
    return Figure(
        drawn,
        "Accuracy (vertical) by confidence (horizontal). On the dashed line they are equal; predictions above it "
        "were right more often than their confidence.",
        f"Reliability{'' if uncalibrated is None else ' before and after calibration'}; the expected calibration error "
        f"{errors}.",
    )


def confusion_figure(report: Report, remark: str = "") -> Figure:
    """Return a figure of the confusion matrix, with a remark in its caption."""
    words = f"True classes in rows, predicted ones in columns. {remark}".rstrip()
    return Figure(confusion_matrix(report.labels, report.confusion), words, f"Confusion matrix. {words}")


def key_figure(name: str, estimate: Estimate) -> KeyFigure:
    """Return an estimate with its 95 % interval as a key figure."""
    interval = f"95\u00a0% interval {figure(estimate.low, 3)} to {figure(estimate.high, 3)}"
    return KeyFigure(name, figure(estimate.value, 3), interval)


def verdict(report: Report) -> str:
    """Return a sentence on the first metric: its value, its interval, and how the baseline compares."""
    name, found = next(iter(report.estimates.items()))
    interval = f"{figure(found.value, 3)} (95\u00a0% interval {figure(found.low, 3)} to {figure(found.high, 3)})"
    value = f"{_word(name)} is {interval}"
    if name == "accuracy" and report.kind == "classification":
        value = f"{round(found.value * report.n):,} of {report.n:,} predictions are right, an accuracy of {interval}"
    baseline = report.baseline
    if baseline is None:
        return f"{value}."
    of, each = next(iter(baseline.metrics.items()))
    kept = "" if of == name else f"{_word(of).lower()} "
    doubt = "; with so few rows, the difference may be chance" if baseline.may_be_chance else ""
    figures = f"{kept}{figure(each.first.value, 3)}"
    return f"{value}, {baseline.comparison} its baseline, a {baseline.name} ({figures}){doubt}."


def _headline(report: Report) -> KeyFigures:
    estimates = report.estimates
    names = list(estimates)
    shown = dict.fromkeys([*names[:2], *(["ece"] if "ece" in estimates else names[2:3])])
    figures = [key_figure(_word(name), estimates[name]) for name in shown]
    if "ece" in shown:
        chance = figure(_chance_error(report), 3)
        figures[-1] = replace(figures[-1], interval=f"{figures[-1].interval}; by chance alone {chance}")
    return KeyFigures(tuple(figures))


def _wrong(mistakes: Sequence[Mistake]) -> TextList:
    shown = tuple(each.item() for each in mistakes[:MOST_SHOWN])
    more = f"The first {len(shown)} of {len(mistakes):,}. " if len(mistakes) > len(shown) else ""
    return TextList(shown, f"{more}Some may be wrong labels: correct those first.")


def _metrics(report: Report, uncalibrated: Report | None) -> Table:
    columns: tuple[str, ...] = ("Metric", "Value", "95\u00a0% interval")
    rows: list[tuple[str, ...]] = [
        (_word(name), figure(each.value), f"{figure(each.low)}\u00a0to\u00a0{figure(each.high)}")
        for name, each in report.estimates.items()
    ]
    if uncalibrated is not None:
        columns = (*columns, "Without calibration")
        before = uncalibrated.estimates.values()
        rows = [(*row, figure(each.value)) for row, each in zip(rows, before, strict=True)]
    lower = ", ".join(_word(name) for name in report.estimates if name in LOWER_IS_BETTER)
    return Table(columns, tuple(rows), f"Metrics.{f' Lower is better for: {lower}.' if lower else ''}", columns[1:])


def _notes(report: Report) -> list[Block]:
    """Return paragraphs on the settings of the metrics, and remarks such as on truncated texts."""
    rules = [f"{_word(name)}: {value}" for name, value in report.settings.items()]
    lines = [*(f"{rule}." for rule in rules), *report.remarks, *(f"{line}." for line in remarks_of(report.tokens_read))]
    return [Paragraph(line) for line in lines]


def _baseline(found: BaselineReport) -> Iterator[Block]:
    """Yield the table of the differences, and the tests."""
    columns = ("Metric", "Model", "Baseline", "Difference, 95\u00a0% interval")
    rows = tuple(
        (_word(name), figure(each.second.value), figure(each.first.value), each.summary().replace(", ", ",\u00a0"))
        for name, each in found.metrics.items()
    )
    yield Table(columns, rows, f"The model and its baseline on the same rows. Baseline: {found.name}.", columns[1:])
    if found.tests:
        yield Paragraph(f"{'; '.join(test.summary() for test in found.tests)}.")
    if found.remark:
        yield Paragraph(found.remark)


def _numbers(points: Sequence[tuple[float, float]]) -> Figure:
    drawn = f" {MAX_POINTS:,} of {len(points):,} rows, drawn at random." if len(points) > MAX_POINTS else ""
    words = f"Predicted (vertical) against true numbers (horizontal); they are equal on the dashed line.{drawn}"
    return Figure(scatter(points, "true", "predicted"), words, words)


def _reliability(report: Report, uncalibrated: Report | None) -> list[Block]:
    ece, chance = report.ece.value, _chance_error(report)
    words = f"The expected calibration error is {figure(ece, 3)}; the model is not calibrated."
    if uncalibrated is not None:
        before, expected = figure(uncalibrated.ece.value, 3), figure(_chance_error(uncalibrated), 3)
        words = f"The expected calibration error is {before} before (by chance alone {expected})"
        words += f", {figure(ece, 3)} after calibration."
    rest = "the rest is lack of calibration" if ece > chance else "these rows show no lack of calibration"
    explained = (
        f"With this number of predictions, perfectly calibrated probabilities have an error of {figure(chance, 3)} on "
        f"average; {rest}."
    )
    if (sweep := report.values.get("ece_sweep")) is not None:
        explained += f" With as many bins as the number of texts allows, the error is {figure(sweep, 3)}."
    return [reliability_figure(report, uncalibrated), Paragraph(words), Paragraph(explained)]


def _chance_error(report: Report) -> float:
    """Return the calibration error that chance alone would show, estimated from the bins if the report has no value."""
    if (noise := report.values.get("ece_noise")) is not None:
        return noise
    rows = sum(each.count for each in report.reliability)
    deviations = (each.count * each.confidence * (1 - each.confidence) for each in report.reliability)
    return sum(math.sqrt(2 / math.pi * each) for each in deviations) / rows


def _out_of_domain(report: Report) -> Section:
    blocks: list[Block] = [
        KeyFigures(tuple(key_figure(_word(name), each) for name, each in report.estimates.items())),
        Paragraph(
            f"{report.counts['n_in_domain']:,} in-domain and {report.counts['n_out_of_domain']:,} out-of-domain texts."
        ),
    ]
    kept, passed = report.values["accepted_in_domain"], report.values["accepted_out_of_domain"]
    if kept is not None and passed is not None:
        blocks.append(
            Paragraph(
                f"At its threshold the model accepts {kept:.1%} of the in-domain texts, and {passed:.1%} of the "
                "out-of-domain texts."
            )
        )
    return Section("Out-of-domain texts", (*blocks, *_notes(replace(report, settings={}, values={}, notes=()))))


def _classes(report: Report) -> Iterator[Block]:
    """Yield the confusion matrix, or the most confused pairs if it would be too large, and the table of classes."""
    _, one, counted = _KINDS.get(report.kind, _CLASSES)
    # The matrix shows shortened labels, which must differ.
    distinct = len({short_label(label) for label in report.labels}) == len(report.labels)
    if report.confusion and len(report.labels) <= MAX_IN_MATRIX and distinct:
        yield confusion_figure(report)
    elif pairs := report.confused_pairs(MAX_PAIRS):
        shown = tuple((str(each.truth), str(each.predicted), f"{each.count:,}", f"{each.share:.1%}") for each in pairs)
        heading = (f"True {one.lower()}", "Predicted as", counted, "Share of the true class")
        yield Table(heading, shown, "The most frequent confusions.", heading[2:])
    own = any(row.threshold is not None for row in report.per_class)
    columns = (one, "Precision", "Recall", "F1", counted, "Predicted", *(("Threshold",) if own else ()))
    rows = tuple(
        (
            str(row.label),
            *(figure(each.value, 3) for each in (row.precision, row.recall, row.f1)),
            f"{row.support:,}",
            f"{row.predicted:,}",
            *(() if row.threshold is None else (figure(row.threshold, 3),)),
        )
        for row in report.per_class
    )
    yield Table(columns, rows, f"Precision and recall of each {one.lower()}.", columns[1:])


def _members(report: Report) -> Iterator[Block]:
    names = list(dict.fromkeys(name for _, metrics in report.members for name in metrics))
    rows = tuple(
        (member, *(figure(metrics[name]) if name in metrics else "" for name in names))
        for member, metrics in report.members
    )
    columns = ("Member", *map(_word, names))
    yield Table(columns, rows, "Each member of the ensemble alone, with its metrics on the same rows.", columns[1:])
    shown = ", ".join(f"{_word(name).lower()} {figure(value)}" for name, value in report.disagreement.items())
    if shown:
        yield Paragraph(f"Average disagreement of the members: {shown}.")


def _validations(card: Mapping[str, object]) -> list[Mapping[str, float]]:
    """Return the metrics of each validation of a training, with its epoch; none for a model without a training."""
    match card.get("training"):
        case {"validations": list(validations)}:
            return [{"epoch": each["epoch"], **each["metrics"]} for each in validations]
    return []


def _learning_curve(validations: Sequence[Mapping[str, float]], card: Mapping[str, object]) -> Figure:
    """Return curves of the first metric on the held-out rows, and of their loss, by epoch."""
    measured = [name for name in validations[-1] if name != "epoch"]
    drawn = dict.fromkeys(measured[:1] + [name for name in measured if name in ("nll", "loss")])
    curves = [
        learning_curve((), [(each["epoch"], each[name]) for each in validations if name in each], _word(name))
        for name in drawn
    ]
    facts = dict(_facts("", card))
    kept, reason = (facts.get(f"training.{name}") for name in ("kept_epoch", "kept_because"))
    words = "Metrics on the held-out rows by epoch, without calibration; epoch 0 is the model before fine-tuning."
    words += f" Epoch {kept} was kept{f': {reason}' if reason else ''}." if kept is not None else ""
    return Figure(tuple(panel for panels in curves for panel in panels), words, words)


_SHOWN = {
    "base_model": "Pretrained model",
    "training_rows": "Training rows",
    "validation_rows": "Held-out rows",
    "training.kept_epoch": "Kept epoch",
    "training.updates": "Updates",
    "training.settings.learning_rate": "Learning rate",
    "training.seconds": "Time of training",
    "confidence.calibration": "Calibration",
    "confidence.out_of_domain": "Detector of out-of-domain texts",
}


def _card(card: Mapping[str, object]) -> Iterator[Block]:
    """Yield what a reader of the page needs of the card, and all of it, folded away."""
    facts = _facts("", card)
    found = dict(facts)
    if seconds := found.get("training.seconds"):
        found["training.seconds"] = duration(float(seconds))
    rows = tuple((title, found[name]) for name, title in _SHOWN.items() if name in found)
    if rows:
        yield Table(("Property", "Value"), rows, "The model.")
    yield Table(
        ("Key", "Value"),
        tuple(facts),
        "The card that is saved with the model.",
        folded=f"All {len(facts)} entries of the card",
    )


def _facts(name: str, value: object) -> list[tuple[str, str]]:
    """Flatten a nested object to rows with dotted names."""
    if isinstance(value, Mapping):
        parts = [_facts(f"{name}.{key}" if name else str(key), each) for key, each in value.items()]
        return [row for part in parts for row in part]
    if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        return [(f"{name}.{number}", _in_a_line(each)) for number, each in enumerate(value, start=1)]
    if isinstance(value, list):
        return [(name, ", ".join(map(str, value)))]
    return [(name, "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value))]


def _in_a_line(value: object) -> str:
    return ", ".join(f"{key} {each}" for key, each in _facts("", value))


def _word(name: str) -> str:
    words = {
        "mcc": "Matthews correlation",
        "squad_version": "Rules of SQuAD",
        "fpr95": "FPR at 95\u00a0%",
        "macro_f1": "Macro F1",
        "micro_f1": "Micro F1",
        "training_mean_rmse": "RMSE of the training mean",
    }
    if name in words:
        return words[name]
    if len(name) <= 5 and name not in ("brier", "loss"):
        return name.upper()
    return name.replace("_", " ").capitalize().replace(" f1", " F1")
