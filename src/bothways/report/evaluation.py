"""The page of a trained model's evaluation: metrics, reliability before and after calibration, classes, the card."""

from collections.abc import Mapping

from bothways.evaluation import Estimate, Report, TextsRead
from bothways.evaluation.report import remarks_of
from bothways.report.curves import reliability_diagram
from bothways.report.matrices import confusion_matrix
from bothways.report.page import Block, Figure, KeyFigure, KeyFigures, Page, Paragraph, Section, Table

MOST_IN_MATRIX = 30
"""Classes up to which a confusion matrix is legible."""

LOWER_IS_BETTER = ("brier", "nll", "ece", "mce", "hamming_loss")


def evaluation_page(
    name: str,
    report: Report,
    uncalibrated: Report,
    *,
    card: Mapping[str, object],
    out_of_domain: Report | None = None,
) -> Page:
    """The page of an evaluation.

    Args:
        name: The name of the model.
        report: Metrics with the model's calibration.
        uncalibrated: Metrics of the same rows without it.
        card: The card that is saved with the model.
        out_of_domain: The detection of rows from elsewhere, if it was measured.

    Raises:
        MissingDependency: The extra ``report`` is not installed.
    """
    sections = [
        Section("Metrics", (_headline(report.estimates), _metrics(report, uncalibrated), *_read(report.tokens_read))),
        _reliability(report, uncalibrated),
    ]
    if out_of_domain is not None:
        sections.append(_outside(out_of_domain))
    sections += [_classes(report), _card(card)]
    return Page(
        title=f"Evaluation of {name}",
        subtitle=f"On {report.n:,} labelled texts; intervals are 95\u00a0% bootstrap intervals over these texts.",
        sections=tuple(sections),
        footer="Written by “bothways evaluate”.",
    )


def reliability_figure(report: Report, uncalibrated: Report) -> Figure:
    """Reliability diagrams before and after calibration."""
    return Figure(
        reliability_diagram(uncalibrated.reliability, report.reliability),
        "How often the model is right (height) where it states a confidence (width). On the dashed line the two agree; "
        "dots above it are texts on which the model was right more often than it said.",
        f"Reliability before and after calibration; the expected calibration error is {uncalibrated.ece.value:.3f} and "
        f"{report.ece.value:.3f}.",
    )


def confusion_figure(report: Report, remark: str = "") -> Figure:
    """The confusion matrix, with a remark in its caption."""
    words = f"True classes in rows, predicted ones in columns. {remark}".rstrip()
    return Figure(confusion_matrix(report.labels, report.confusion), words, f"Confusion matrix. {words}")


def _headline(estimates: Mapping[str, Estimate]) -> KeyFigures:
    first, second, *_ = estimates
    shown = [(name, estimates[name]) for name in (first, second, "ece")]
    return KeyFigures(tuple(KeyFigure(_word(name), f"{each.value:.3f}", _interval(each)) for name, each in shown))


def _metrics(report: Report, uncalibrated: Report) -> Table:
    before = uncalibrated.estimates
    rows = tuple(
        (_word(name), f"{each.value:.4f}", f"{each.low:.4f} to {each.high:.4f}", f"{before[name].value:.4f}")
        for name, each in report.estimates.items()
    )
    columns = ("Metric", "Value", "95\u00a0% interval", "Without calibration")
    lower = ", ".join(_word(name) for name in report.estimates if name in LOWER_IS_BETTER)
    return Table(columns, rows, f"Lower is better for: {lower}.", columns[1:])


def _reliability(report: Report, uncalibrated: Report) -> Section:
    words = f"The expected calibration error is {uncalibrated.ece.value:.3f} before and {report.ece.value:.3f} after."
    blocks: list[Block] = [reliability_figure(report, uncalibrated), Paragraph(words)]
    if report.kind == "classification":
        blocks.append(
            Paragraph(
                f"On as many texts as these, probabilities without any error would show "
                f"{report.values['ece_noise']:.3f} on average; what is above that is lack of calibration. With as many "
                "bins as the texts bear it is "
                f"{report.values['ece_sweep']:.3f}."
            )
        )
    return Section("Calibration", tuple(blocks))


def _outside(report: Report) -> Section:
    figures = [KeyFigure(_word(name), f"{each.value:.3f}", _interval(each)) for name, each in report.estimates.items()]
    blocks: list[Block] = [
        KeyFigures(tuple(figures)),
        Paragraph(f"{report.counts['n_inside']:,} texts of the domain against {report.counts['n_outside']:,} others."),
    ]
    kept, passed = report.values["kept_inside"], report.values["passed_outside"]
    if kept is not None and passed is not None:
        blocks.append(
            Paragraph(
                f"At the model's own threshold {kept:.1%} of its domain's texts are taken for such, and "
                f"{passed:.1%} of the others."
            )
        )
    return Section("Texts from elsewhere", (*blocks, *_read(report.tokens_read)))


def _read(reading: TextsRead | None) -> list[Block]:
    """A paragraph each for texts that were read in windows or cut."""
    return [Paragraph(f"{line}.") for line in remarks_of(reading)]


def _classes(report: Report) -> Section:
    columns = ("Class", "Precision", "Recall", "F1", "Texts", "Predicted")
    rows = tuple(
        (
            row.label,
            *(f"{each.value:.3f}" for each in (row.precision, row.recall, row.f1)),
            f"{row.support:,}",
            f"{row.predicted:,}",
        )
        for row in report.per_class
    )
    blocks: list[Block] = [Table(columns, rows, numeric=columns[1:])]
    if report.confusion and len(report.labels) <= MOST_IN_MATRIX:
        blocks.insert(0, confusion_figure(report))
    return Section("Classes", tuple(blocks))


def _card(card: Mapping[str, object]) -> Section:
    rows = tuple(_facts("", card))
    return Section("The model", (Table(("What", "Value"), rows, "The card that is saved with the model."),))


def _facts(name: str, value: object) -> list[tuple[str, str]]:
    """A nested object as rows with dotted names."""
    if isinstance(value, Mapping):
        parts = [_facts(f"{name}.{key}" if name else str(key), each) for key, each in value.items()]
        return [row for part in parts for row in part]
    if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        return [row for number, each in enumerate(value, start=1) for row in _facts(f"{name}.{number}", each)]
    if isinstance(value, list):
        return [(name, ", ".join(map(str, value)))]
    return [(name, "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value))]


def _word(name: str) -> str:
    words = {"mcc": "Matthews correlation", "fpr95": "FPR at 95\u00a0%", "macro_f1": "Macro F1", "micro_f1": "Micro F1"}
    if name in words:
        return words[name]
    return name.upper() if len(name) <= 5 and name != "brier" else name.replace("_", " ").capitalize()


def _interval(each: Estimate) -> str:
    return f"95\u00a0% interval {each.low:.3f} to {each.high:.3f}"
