"""The coverage results as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.coverage.cases import LABELS, METHODS, Row
from benchmarks.harness import table


@dataclass(frozen=True)
class Draws:
    """Numbers of samples.

    Attributes:
        fast: Where counts are drawn.
        rows: Where every row is drawn.
        slow: Where samples are computed one at a time.
    """

    fast: int
    rows: int
    slow: int


def text(figures: Mapping[str, Sequence[Row]], draws: Draws) -> str:
    """The tables of what was measured, with what they are of."""
    parts = [
        f"Share of 95 % intervals that hold the truth; {draws.fast:,} draws of each population, 2,000 rows without "
        f"labels; {draws.rows:,} and {draws.slow:,} draws where it says so. Standard errors of a coverage of .95: "
        f"{', '.join(f'{np.sqrt(0.95 * 0.05 / count):.4f}' for count in (draws.fast, draws.rows, draws.slow))}. "
        "`ppi++` is the default of `estimate_mean`; `uncorrected` are the "
        "intervals of the papers and of ppi-python.",
    ]
    for name, rows in figures.items():
        parts += SECTIONS[name](rows, draws)
    return "\n\n".join(parts)


def _proportions_section(rows: Sequence[Row], _: Draws) -> list[str]:
    return [
        "## Proportions",
        "Rates .7, .8 and .9; judges of accuracy .6, .7, .8, .9 and .95 whose errors are balanced, mostly false zeros "
        "(strict) or mostly false ones (generous). Lowest coverage of all populations, mean coverage, mean width.",
        _by_labels(rows, [*METHODS]),
        "Lowest coverage and mean width by the judge's accuracy:",
        _by_accuracy(rows),
        "The populations with the lowest coverage of `ppi++`:",
        _worst([row for row in rows if row["method"] == "ppi++"]),
    ]


def _bootstrap_section(rows: Sequence[Row], draws: Draws) -> list[str]:
    return [
        "## Bootstrap",
        "BCa interval of PPI++ with 1,000 resamples; rate .8, accuracies .6, .8 and .95, balanced and generous; "
        f"{draws.slow:,} draws.",
        _by_labels(rows, ["bootstrap"]),
    ]


def _scores_section(rows: Sequence[Row], draws: Draws) -> list[str]:
    return [
        "## Scores and numbers",
        f"Judges that give probabilities of labels 0 and 1, and labels that are numbers; {draws.rows:,} draws.",
        _by_case(rows, "case"),
    ]


def _differences_section(rows: Sequence[Row], _: Draws) -> list[str]:
    return [
        "## Differences of two systems",
        "Rates .8 and .8, .9 and .8, .75 and .7; accuracies .6, .8 and .95.",
        *(
            f"{pairing.capitalize()}:\n\n" + _by_labels([row for row in rows if row["pairing"] == pairing], [*METHODS])
            for pairing in ("paired", "unpaired")
        ),
    ]


def _strata_section(rows: Sequence[Row], _: Draws) -> list[str]:
    return [
        "## Strata",
        "Equal strata of rates from .6 to .95, with judges of accuracy .7 to .95.",
        _strata(rows),
    ]


def _quantiles_section(rows: Sequence[Row], draws: Draws) -> list[str]:
    return [
        "## Quantiles",
        f"Of numbers (gamma distributed) with a judge of correlation .95; {draws.slow:,} draws.",
        _by_case([{**row, "case": f"quantile {row['probability']}"} for row in rows], "case"),
    ]


def _not_at_random_section(rows: Sequence[Row], draws: Draws) -> list[str]:
    return [
        "## Labelled rows that are no random sample",
        "No method covers if the labelled rows are not drawn at random from the rows that the estimate is about. The "
        "judge is that of a counter-example in the tracker of ARES: truth .65, interval [.503, .608], estimate .555. "
        "Its two published accuracies give its two error rates, and with these both published estimates follow from "
        f"a rate of .44 in the 300 labelled rows. 4,081 rows without labels, {draws.slow:,} draws. `warned` is the "
        "share of samples with a warning that the judge scores labelled rows differently, in the first case a false "
        "alarm. In the last case the judge's errors cancel on both kinds of rows, so that the intervals hold.",
        _not_at_random(rows),
    ]


def _number(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if value < 1 else f"{value:.3f}"


def _by_labels(rows: Sequence[Row], methods: Sequence[str]) -> str:
    counts = sorted({row["labels"] for row in rows})
    lines = []
    for method in methods:
        cells = [method]
        for labels in counts:
            found = [row for row in rows if row["method"] == method and row["labels"] == labels]
            covered = [row["coverage"] for row in found]
            width = float(np.mean([row["width"] for row in found]))
            cells.append(f"{_number(min(covered))}, {_number(float(np.mean(covered)))}, {_number(width)}")
        lines.append(cells)
    return table(("method", *(f"{labels} labels: lowest, mean, width" for labels in counts)), lines)


def _by_accuracy(rows: Sequence[Row]) -> str:
    lines = []
    accuracies = sorted({row["accuracy"] for row in rows})
    for labels in LABELS:
        for method in ("ppi++", "ppi", "classical", "ppi++, uncorrected"):
            cells = [str(labels), method]
            for accuracy in accuracies:
                found = [
                    row for row in rows if (row["method"], row["labels"], row["accuracy"]) == (method, labels, accuracy)
                ]
                width = float(np.mean([row["width"] for row in found]))
                cells.append(f"{_number(min(row['coverage'] for row in found))}, {_number(width)}")
            lines.append(cells)
    return table(("labels", "method", *(f"accuracy {accuracy:g}" for accuracy in accuracies)), lines)


def _worst(rows: Sequence[Row]) -> str:
    lines = []
    for labels in LABELS:
        row = min((row for row in rows if row["labels"] == labels), key=lambda row: float(row["coverage"]))
        lines.append([str(labels), f"{row['rate']:g}", f"{row['accuracy']:g}", row["bias"], _number(row["coverage"])])
    return table(("labels", "rate", "accuracy", "bias", "coverage"), lines)


def _by_case(rows: Sequence[Row], name: str) -> str:
    lines = []
    for case in dict.fromkeys(row[name] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows):
            cells = [case, method]
            for labels in LABELS:
                row = next(row for row in rows if (row[name], row["method"], row["labels"]) == (case, method, labels))
                cells.append(f"{_number(row['coverage'])}, {_number(row['width'])}")
            lines.append(cells)
    return table((name, "method", *(f"{labels} labels: coverage, width" for labels in LABELS)), lines)


def _strata(rows: Sequence[Row]) -> str:
    sizes = list(dict.fromkeys((row["strata"], row["labels"]) for row in rows))
    lines = []
    for method in METHODS:
        found = {(row["strata"], row["labels"]): row for row in rows if row["method"] == method}
        lines.append([method, *(f"{_number(found[at]['coverage'])}, {_number(found[at]['width'])}" for at in sizes)])
    return table(("method", *(f"{count} strata of {labels}" for count, labels in sizes)), lines)


def _not_at_random(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        methods = [row["ppi++"], row["ppi"]]
        cells = [f"{_number(one['value'])}, {_number(one['width'])}, {_number(one['coverage'])}" for one in methods]
        lines.append([row["case"], str(row["labels"]), *cells, _number(row["warned"])])
    header = ("case", "labels", "ppi++: value, width, coverage", "ppi, uncorrected: value, width, coverage", "warned")
    return table(header, lines)


SECTIONS: dict[str, Callable[[Sequence[Row], Draws], list[str]]] = {
    "proportions": _proportions_section,
    "bootstrap": _bootstrap_section,
    "scores": _scores_section,
    "differences": _differences_section,
    "strata": _strata_section,
    "quantiles": _quantiles_section,
    "not_at_random": _not_at_random_section,
}
