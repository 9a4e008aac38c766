"""Pages on systems rated by a judge: success rates with intervals, the quality of the judge, and the assumptions."""

from collections.abc import Mapping, Sequence

from bothways.judging import JudgeReport, SystemRanking, SystemScore
from bothways.judging.scoring import equivalent_labels
from bothways.progress import figure
from bothways.report.charts import Bar, bars, reliability_panel
from bothways.report.drawing import short_label
from bothways.report.page import (
    Block,
    Code,
    Figure,
    KeyFigure,
    KeyFigures,
    Page,
    Paragraph,
    Section,
    Table,
    TextItem,
    TextList,
)

_METHODS = {
    "ppi++": "labels and judge, the judge weighted by its accuracy",
    "ppi": "labels and judge, the judge with full weight",
    "classical": "the labels alone",
}
_FOOTER = "Written by “bothways judge”."


def score_page(score: SystemScore, *, judge: Mapping[str, str], command: str) -> Page:
    """Return the page on the success rate of one system.

    Args:
        score: The success rate of the system.
        judge: Facts about the judge.
        command: The command line that reproduces the page.
    """
    estimate = score.estimate
    figures = (
        KeyFigure("Success rate", figure(estimate.value, 3), _interval(estimate.low, estimate.high, estimate.level)),
        KeyFigure("Human labels", f"{estimate.labels:,}", score.labelled),
        KeyFigure("Equivalent labels", equivalent_labels(estimate), "for an interval from labels alone"),
        KeyFigure("Judge alone", figure(score.judge_mean, 3), "uncorrected"),
    )
    drawn = [Bar(name, each.value, (each.low, each.high)) for name, each in score.estimates.items()]
    rows = tuple(
        (
            name,
            _METHODS[name],
            figure(each.value),
            f"{figure(each.low)} to {figure(each.high)}",
            figure(each.high - each.low),
        )
        for name, each in score.estimates.items()
    )
    columns = ("Method", "What it uses", "Rate", "Interval", "Width")
    caption = f"Success rate by each method, with {estimate.level:.0%} intervals."
    blocks: list[Block] = [
        KeyFigures(figures),
        Figure(bars(drawn, "success rate", (0.0, 1.0), 3), caption, caption),
        Table(columns, rows, "The success rates of the figure as numbers.", columns[2:]),
        *_warnings(score.warnings),
    ]
    return Page(
        title=f"{score.dimension.replace('_', ' ').capitalize()} of {score.system}",
        subtitle=judge.get("question", ""),
        sections=(
            Section("Success rate", tuple(blocks)),
            *_judge(score.quality, judge),
            _assumptions(paired=False, systems=1),
            Section("How to reproduce", (Code((command,)),)),
        ),
        footer=_FOOTER,
    )


def ranking_page(ranking: SystemRanking, *, judge: Mapping[str, str], command: str) -> Page:
    """Return the page on a ranking of several systems.

    Args:
        ranking: The systems, the best first.
        judge: Facts about the judge.
        command: The command line that reproduces the page.
    """
    return Page(
        title=f"Ranking by {ranking.dimension.replace('_', ' ')}",
        subtitle=judge.get("question", ""),
        sections=(
            Section("Systems", tuple(_systems(ranking))),
            *([Section("Certainty of the order", tuple(_order(ranking)))] if len(ranking.systems) > 1 else []),
            *_judge(ranking.quality, judge),
            _assumptions(paired=any(each.pairing == "paired" for each in ranking.comparisons), systems=2),
            Section("How to reproduce", (Code((command,)),)),
        ),
        footer=_FOOTER,
    )


def _systems(ranking: SystemRanking) -> list[Block]:
    best = ranking.systems[0]
    estimate = best.estimate
    figures = [
        KeyFigure("First", short_label(best.system), f"of {len(ranking.systems)} systems"),
        KeyFigure(
            "Its success rate", figure(estimate.value, 3), _interval(estimate.low, estimate.high, estimate.level)
        ),
    ]
    if ranking.comparisons:
        first = ranking.comparisons[0]
        figures.append(KeyFigure("Better than the second", f"{first.probability:.1%}", "probability"))
    if ranking.tau is not None:
        figures.append(KeyFigure("Kendall's tau", f"{ranking.tau:.2f}", "with the true order"))
    drawn = [Bar(each.system, each.estimate.value, (each.estimate.low, each.estimate.high)) for each in ranking.systems]
    truth = ("Truth",) if ranking.truth else ()
    columns = ("System", "Rate", "Interval", *truth, "Labels", "Equivalent labels", "Judge alone")
    rows = tuple(
        (
            each.system,
            figure(each.estimate.value),
            f"{figure(each.estimate.low)} to {figure(each.estimate.high)}",
            *((figure(ranking.truth[each.system]),) if ranking.truth else ()),
            each.labelled,
            equivalent_labels(each.estimate),
            figure(each.judge_mean),
        )
        for each in ranking.systems
    )
    caption = f"Success rates with {estimate.level:.0%} intervals ({estimate.method})."
    equivalent = "“Equivalent labels” is the number of labels that alone would give as narrow an interval."
    return [
        KeyFigures(tuple(figures)),
        Figure(bars(drawn, "success rate", (0.0, 1.0), 3), caption, caption),
        Table(columns, rows, f"Success rates as numbers. {equivalent}", columns[1:]),
        *_warnings(ranking.warnings),
    ]


def _order(ranking: SystemRanking) -> list[Block]:
    rows = tuple(
        (
            f"{each.first} before {each.second}",
            figure(each.probability, 3),
            figure(each.difference.value, sign=True),
            f"{figure(each.difference.low, sign=True)} to {figure(each.difference.high, sign=True)}",
            each.pairing,
        )
        for each in ranking.comparisons
    )
    columns = ("Order", "Probability", "Difference", "Interval", "Compared")
    return [
        Paragraph(ranking.separation),
        Table(columns, rows, "All pairs of systems; their order is open if the interval contains 0.", columns[1:4]),
    ]


def _judge(quality: JudgeReport, judge: Mapping[str, str]) -> list[Section]:
    """Return the sections on the judge's agreement with the labels, and on its confident mistakes."""
    estimates = quality.report.estimates
    figures = [
        KeyFigure(title, figure(each.value, 3), _interval(each.low, each.high, 0.95))
        for title, each in (
            ("Accuracy", estimates["accuracy"]),
            ("AUROC", quality.auroc),
            ("Calibration error", estimates["ece"]),
        )
        if each is not None
    ]
    words = (
        "Agreement with the human labels (vertical) by the judge's confidence (horizontal). On the dashed line they "
        "are equal."
    )
    items = tuple(
        TextItem(
            " | ".join(text for text in (each.triple.query, each.triple.answer, each.triple.passage) if text),
            {
                "label": str(each.triple.label),
                "judge": figure(each.probability, 3),
                "system": each.triple.system or "",
                "row": each.triple.where,
            },
        )
        for each in quality.disagreements
    )
    facts = tuple((name, value) for name, value in judge.items() if name != "question")
    blocks: list[Block] = [
        KeyFigures(tuple(figures)),
        Figure(reliability_panel(quality.report.reliability, "Judge"), words, words),
        Table(("Judge", ""), facts),
    ]
    caption = "Query, answer and passage where the judge contradicts the label most confidently. Either may be wrong."
    return [
        Section("The judge on the labelled rows", tuple(blocks)),
        Section("Most confident disagreements", (TextList(items, caption),)),
    ]


def _assumptions(*, paired: bool, systems: int) -> Section:
    lines = [
        "The labelled rows are a random sample of the rows of their system, or of the same kind of answers if they are "
        "not among these rows. If they were selected, for example because they are hard, every interval here is wrong.",
        "The rows of a system are a random sample of the queries that it will meet; the rate refers to such queries.",
        "The labels are right. The intervals are valid however often the judge is wrong: a bad judge makes them wide, "
        "not wrong. The judge was not trained on the labelled rows.",
    ]
    if systems > 1:
        lines.append(
            "The probability that a system is better assumes that the true difference is normal (or Student's t) "
            "around its estimate. Each interval alone has its confidence level; among many, some miss the true value."
        )
    if paired:
        lines.append("Systems that answered the same queries are compared query by query.")
    return Section("What was assumed", tuple(Paragraph(line) for line in lines))


def _warnings(warnings: Sequence[str]) -> list[Block]:
    return [TextList(tuple(TextItem(each) for each in warnings), "Warnings.")] if warnings else []


def _interval(low: float, high: float, level: float) -> str:
    return f"{level:.0%} interval {figure(low, 3)} to {figure(high, 3)}"
