"""Reliability diagrams: how often a classifier is right when it says that it is sure."""

from collections.abc import Sequence
from typing import Any

from bothways.errors import InvalidInput
from bothways.evaluation.reliability import ReliabilityBin, expected_calibration_error
from bothways.report.characters import printable
from bothways.report.drawing import ACCENT, INK, PANEL_WIDTH, require_altair, to_svg

_PANEL_HEIGHT = 330


def reliability_diagram(
    before_bins: Sequence[ReliabilityBin],
    after_bins: Sequence[ReliabilityBin],
    titles: tuple[str, str] = ("Before calibration", "After calibration"),
) -> tuple[str, str]:
    """Accuracy against confidence, before and after calibration.

    A bar is as wide as its bin and reaches up to the accuracy there. A dot lies at the bin's mean confidence and
    accuracy, larger for more texts, and a line joins it to the diagonal, where confidence equals accuracy. The title
    gives the expected calibration error, over the bins that are given.

    Args:
        before_bins: Bins of the uncalibrated probabilities; empty bins are left out.
        after_bins: Bins of the calibrated ones.
        titles: What stands above the two diagrams, before the error.

    Returns:
        One SVG for each diagram.

    Raises:
        InvalidInput: No bin has a text in it.
        MissingDependency: The extra ``report`` is not installed.
    """
    require_altair("drawing a reliability diagram")
    return _panel(before_bins, titles[0]), _panel(after_bins, titles[1])


def _panel(bins: Sequence[ReliabilityBin], title: str) -> str:
    import altair as alt

    filled = [each for each in bins if each.count > 0]
    if not filled:
        raise InvalidInput("a reliability diagram needs at least one bin with a text in it, got none.")
    total = sum(each.count for each in filled)
    error = expected_calibration_error(filled)
    rows = [_row(each, total) for each in filled]
    scale = alt.Scale(domain=[0, 1], nice=False)
    axis: dict[str, Any] = {
        "values": [0, 0.2, 0.4, 0.6, 0.8, 1],
        "format": ".1f",
        "ticks": False,
        "domain": False,
        "labelFlush": False,
        "labelPadding": 7,
    }
    x = alt.X("lower:Q", scale=scale, axis=alt.Axis(title="confidence", grid=False, **axis))
    y = alt.Y("zero:Q", scale=scale, axis=alt.Axis(title="accuracy", **axis))
    base = alt.Chart(alt.InlineData(values=rows))
    ends = alt.InlineData(values=[{"at": 0}, {"at": 1}])
    size = alt.Size("share:Q", scale=alt.Scale(type="linear", domain=[0, 1], range=[10, 500]), legend=None)
    layers = [
        base.mark_rect(color=ACCENT, opacity=0.22).encode(x=x, x2="upper:Q", y=y, y2="accuracy:Q"),
        alt.Chart(ends)
        .mark_line(color=INK, opacity=0.5, strokeDash=[4, 4], strokeWidth=1.2)
        .encode(x="at:Q", y="at:Q"),
        base.mark_rule(color=ACCENT, strokeWidth=1.5).encode(x="confidence:Q", y="accuracy:Q", y2="confidence:Q"),
        base.mark_circle(color=ACCENT, opacity=0.95).encode(x="confidence:Q", y="accuracy:Q", size=size),
    ]
    chart = alt.layer(*layers).properties(
        title=printable(f"{title}: ECE {error:.3f}"),
        width=PANEL_WIDTH,
        height=_PANEL_HEIGHT,
        autosize=alt.AutoSizeParams(type="fit", contains="padding"),
    )
    return to_svg(chart)


def _row(each: ReliabilityBin, total: int) -> dict[str, float]:
    gap = min(0.004, (each.upper - each.lower) / 10)  # a hair between neighbouring bars
    return {
        "lower": float(each.lower) + gap,
        "upper": float(each.upper) - gap,
        "zero": 0.0,
        "accuracy": float(each.accuracy),
        "confidence": float(each.confidence),
        "share": each.count / total,
    }
