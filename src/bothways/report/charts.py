"""Charts: horizontal bars, confusion matrices, learning curves, reliability diagrams and scatter plots.

Learning curves and reliability diagrams are square panels, placed side by side.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bothways.choices import LabelValue
from bothways.errors import InvalidInput
from bothways.evaluation.outcomes import expected_calibration_error
from bothways.evaluation.report import ReliabilityBin
from bothways.report.drawing import (
    ACCENT,
    ACCENT_CLEAR,
    INK,
    LABEL_SIZE,
    PANEL_WIDTH,
    RULED,
    indexed_labels,
    label_width,
    printable,
    require_extra,
    to_svg,
)

if TYPE_CHECKING:
    import altair as alt

_MAX_STEPS = 300
# Minimum opacity of the accent colour at which white text has more contrast than dark text on a light page.
_WHITE_TEXT_FROM = 0.75
_SLANTED_FROM = 24  # pixels; labels of narrower columns are vertical
MAX_POINTS = 2000
"""Maximum points of a scatter plot; more would overlap too much."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a bar chart, with the ends of its confidence interval (optional)."""

    label: str
    value: float
    interval: tuple[float, float] | None = None


def bars(
    rows: Sequence[Bar], axis_title: str = "", domain: tuple[float, float] | None = None, decimals: int = 2
) -> str:
    """Draw horizontal bars as an SVG, in the given order, each with its value and, as a thin line, its interval.

    Args:
        rows: The bars, from the top.
        axis_title: The measured quantity, with its unit.
        domain: The first and last value of the axis. Default: round numbers that include 0 and every bar.
        decimals: Number of decimals of the values beside the bars.
    """
    require_extra("drawing bars")
    import altair as alt

    _check_bars(rows)
    names = [row.label for row in rows]
    scale = alt.Scale(domain=list(domain), nice=False) if domain else alt.Scale(nice=True)
    x = alt.X("from:Q", axis=_value_axis(axis_title), scale=scale)
    y = alt.Y("at:O", axis=_name_axis(names), sort=None, scale=alt.Scale(paddingInner=0.35, paddingOuter=0.2))
    base = alt.Chart(alt.InlineData(values=[_bar_cell(at, row, decimals) for at, row in enumerate(rows)])).encode(y=y)
    layers = [
        base.mark_bar(color=ACCENT, opacity=0.45, clip=True).encode(x=x, x2="value:Q"),
        base.transform_filter("datum.low < datum.high")
        .mark_rule(color=INK, strokeWidth=1.5, opacity=0.8, clip=True)
        .encode(x="low:Q", x2="high:Q"),
        base.mark_tick(color=ACCENT, thickness=3, bandSize=15, clip=True).encode(x="value:Q"),
        base.mark_text(color=INK, align="left", dx=12, fontSize=12).encode(x=alt.value("width"), text="text:N"),
    ]
    width = min(max(480 - label_width(names), 240), 360)
    return to_svg(alt.layer(*layers).properties(width=width, height=alt.Step(24 if len(rows) <= 12 else 20)), right=10)


def _name_axis(names: Sequence[str]) -> "alt.Axis":
    import altair as alt

    return alt.Axis(title=None, labelExpr=indexed_labels(names), minExtent=label_width(names) + 10)


def _value_axis(title: str) -> "alt.Axis":
    import altair as alt

    return alt.Axis(title=printable(title) if title else None, tickCount=5, **RULED)


def _bar_cell(at: int, row: Bar, decimals: int) -> dict[str, float | str]:
    low, high = row.interval or (row.value, row.value)
    # Use the minus sign of the axis labels, and no sign before zero.
    text = f"{round(float(row.value), decimals) + 0.0:.{decimals}f}".replace("-", "\u2212")
    return {"at": at, "from": 0.0, "value": float(row.value), "low": float(low), "high": float(high), "text": text}


def _check_bars(rows: Sequence[Bar]) -> None:
    if not rows:
        raise InvalidInput("a bar chart needs at least one bar, got none.")
    for row in rows:
        low, high = row.interval or (row.value, row.value)
        if not all(math.isfinite(number) for number in (row.value, low, high)):
            raise InvalidInput(
                f"bar {row.label!r}: expected finite numbers, got {row}. Leave out bars without a value."
            )
        if low > high:
            raise InvalidInput(
                f"bar {row.label!r}: expected an interval (low, high), got ({low}, {high}). Swap its ends."
            )


# --- panels ---


def learning_curve(
    losses: Sequence[float], scores: Sequence[tuple[float, float]] = (), metric: str = "validation score"
) -> tuple[str, ...]:
    """Draw the training loss per step and the validation metric per epoch, and return the two panels as SVG.

    A panel without points is left out, and losses that are not finite leave a gap. Losses of long runs are averaged
    over at most 300 equal spans of steps.

    Args:
        losses: The training loss of each step.
        scores: Pairs of an epoch, in ascending order, and its validation metric.
        metric: The name of the validation metric.
    """
    require_extra("drawing a learning curve")
    if not losses and not scores:
        raise InvalidInput("a learning curve needs at least one loss or validation score, got none.")
    panels = []
    if losses:
        span = math.ceil(len(losses) / _MAX_STEPS)
        steps = list(enumerate(losses, start=1))
        averaged = [_mean(steps[start : start + span]) for start in range(0, len(steps), span)]
        title = "Training loss" if span == 1 else f"Training loss, mean of {span} steps"
        panels.append(_line(averaged, title, "step", dots=len(averaged) <= 2))
    if scores:
        panels.append(_line(scores, f"{metric[:1].upper()}{metric[1:]}, per epoch", "epoch", dots=True))
    return tuple(panels)


def reliability_diagram(before_bins: Sequence[ReliabilityBin], after_bins: Sequence[ReliabilityBin]) -> tuple[str, str]:
    """Draw accuracy against confidence, before and after calibration; see `reliability_panel`.

    Args:
        before_bins: Bins of the uncalibrated probabilities.
        after_bins: Bins of the calibrated probabilities.
    """
    return reliability_panel(before_bins, "Before calibration"), reliability_panel(after_bins, "After calibration")


def reliability_panel(bins: Sequence[ReliabilityBin], title: str) -> str:
    """Draw accuracy against confidence, as a reliability diagram.

    Each bar has the width of a bin and the height of the bin's accuracy. A dot, larger for more texts, marks the mean
    confidence and the accuracy of the bin; a line joins it to the diagonal, where confidence equals accuracy. The title
    ends with the expected calibration error over these bins.
    """
    require_extra("drawing a reliability diagram")
    import altair as alt

    filled = [each for each in bins if each.count > 0]
    if not filled:
        raise InvalidInput("a reliability diagram needs at least one bin with a text in it, got none.")
    total = sum(each.count for each in filled)
    axis: dict[str, Any] = {"values": [0, 0.2, 0.4, 0.6, 0.8, 1], "format": ".1f"}
    scale = alt.Scale(domain=[0, 1], nice=False)
    x = alt.X("lower:Q", scale=scale, axis=alt.Axis(title="confidence", **axis))
    y = alt.Y("zero:Q", scale=scale, axis=alt.Axis(title="accuracy", grid=True, **axis))
    size = alt.Size("share:Q", scale=alt.Scale(type="linear", domain=[0, 1], range=[10, 500]), legend=None)
    base = alt.Chart(alt.InlineData(values=[_reliability_cell(each, total) for each in filled]))
    diagonal = alt.Chart(alt.InlineData(values=[{"at": 0}, {"at": 1}])).encode(x="at:Q", y="at:Q")
    layers = [
        base.mark_rect(color=ACCENT, opacity=0.22).encode(x=x, x2="upper:Q", y=y, y2="accuracy:Q"),
        diagonal.mark_line(color=INK, opacity=0.5, strokeDash=[4, 4], strokeWidth=1.2),
        base.mark_rule(color=ACCENT, strokeWidth=1.5).encode(x="confidence:Q", y="accuracy:Q", y2="confidence:Q"),
        base.mark_circle(color=ACCENT, opacity=0.95).encode(x="confidence:Q", y="accuracy:Q", size=size),
    ]
    return _panel(alt.layer(*layers), f"{title}: ECE {expected_calibration_error(filled):.3f}", height=330)


def scatter(points: Sequence[tuple[float, float]], x_title: str, y_title: str) -> str:
    """Draw points and a dashed diagonal; if there are more than `MAX_POINTS`, draw a random sample of them."""
    require_extra("drawing points")
    import altair as alt

    if not points or not all(map(math.isfinite, (number for point in points for number in point))):
        raise InvalidInput("a scatter plot needs at least one point, and only finite numbers: leave other points out.")
    shown = random.Random(0).sample(points, MAX_POINTS) if len(points) > MAX_POINTS else points
    ends = [min(map(min, points)), max(map(max, points))]
    margin = 0.03 * (ends[1] - ends[0]) or 1.0
    scale = alt.Scale(domain=[ends[0] - margin, ends[1] + margin], nice=False)
    x = alt.X("x:Q", scale=scale, axis=alt.Axis(title=x_title, tickCount=6, **RULED))
    y = alt.Y("y:Q", scale=scale, axis=alt.Axis(title=y_title, tickCount=6, grid=True))
    diagonal = alt.Chart(alt.InlineData(values=[{"x": end, "y": end} for end in ends])).encode(x=x, y=y)
    dots = alt.Chart(alt.InlineData(values=[{"x": float(at), "y": float(up)} for at, up in shown])).encode(x=x, y=y)
    layers = (
        diagonal.mark_line(color=INK, opacity=0.5, strokeDash=[4, 4], strokeWidth=1.2),
        dots.mark_circle(color=ACCENT, opacity=0.45, size=22),
    )
    return _panel(alt.layer(*layers), "", height=330)


def _mean(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def _line(points: Sequence[tuple[float, float]], title: str, x_title: str, *, dots: bool) -> str:
    import altair as alt

    rows = [{"x": x, "y": float(y) if math.isfinite(y) else None} for x, y in points]
    positions = sorted({x for x, _ in points})
    ticks: dict[str, Any] = {"values": positions} if len(positions) <= 8 else {"tickCount": 6}
    # Widen the axis of a single point, whose range would be empty.
    ends = [positions[0] - 0.5, positions[0] + 0.5] if len(points) == 1 else [positions[0], positions[-1]]
    point = alt.OverlayMarkDef(color=ACCENT, filled=True, size=40) if dots else False
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(color=ACCENT, strokeWidth=2, strokeJoin="round", point=point)
        .encode(
            x=alt.X(
                "x:Q",
                axis=alt.Axis(title=x_title, format=",~f", **ticks, **RULED),
                scale=alt.Scale(domain=ends, nice=False),
            ),
            y=alt.Y(
                "y:Q",
                axis=alt.Axis(title=None, tickCount=5, grid=True, minExtent=32),
                scale=alt.Scale(zero=False, **_constant_domain(points)),
            ),
        )
    )
    return _panel(chart, title, height=240)


def _constant_domain(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return a domain if all values are equal: Vega's own domain would be too narrow, and its only tick mislabelled."""
    heights = {y for _, y in points if math.isfinite(y)}
    if len(heights) > 1:
        return {}
    height = heights.pop() if heights else 0.0
    margin = abs(height) / 10 or 0.1
    return {"domain": [height - margin, height + margin]}


def _reliability_cell(each: ReliabilityBin, total: int) -> dict[str, float]:
    gap = min(0.004, (each.upper - each.lower) / 10)  # a thin gap between neighbouring bars
    return {
        "lower": float(each.lower) + gap,
        "upper": float(each.upper) - gap,
        "zero": 0.0,
        "accuracy": float(each.accuracy),
        "confidence": float(each.confidence),
        "share": each.count / total,
    }


def _panel(chart: "alt.Chart | alt.LayerChart | alt.FacetChart", title: str, height: float) -> str:
    import altair as alt

    fit = alt.AutoSizeParams(type="fit", contains="padding")
    named = chart.properties(title=printable(title)) if title else chart
    return to_svg(named.properties(width=PANEL_WIDTH, height=height, autosize=fit))


# --- confusion matrices ---


def confusion_matrix(labels: Sequence[LabelValue], counts: npt.ArrayLike) -> str:
    """Draw a confusion matrix with its counts, coloured by the share of each true class.

    Args:
        labels: The C classes, in the order of rows and columns.
        counts: Whole numbers (C, C); rows are true classes, columns predicted classes.
    """
    require_extra("drawing a confusion matrix")
    import altair as alt

    counts_CC = _checked_counts(labels, counts)
    shares_CC = counts_CC / np.maximum(counts_CC.sum(axis=1, keepdims=True), 1)
    cells = [
        {"row": row, "column": column, "count": str(counts_CC[row, column]), "shade": float(shares_CC[row, column])}
        for row, column in np.ndindex(counts_CC.shape)
    ]
    digits = len(str(counts_CC.max()))
    step = float(np.clip(520 / len(labels), max(18, 5 * digits + 5), 72 if len(labels) <= 4 else 56))
    base = _grid(cells, labels, step)
    legend = alt.Legend(
        title="share of the true class",
        format="~%",
        values=[0, 0.5, 1],
        orient="bottom",
        direction="horizontal",
        gradientLength=140,
        gradientThickness=8,
    )
    shade = alt.Color("shade:Q", scale=alt.Scale(domain=[0, 1], range=[ACCENT_CLEAR, ACCENT]), legend=legend)
    heat = base.mark_rect(stroke=INK, strokeOpacity=0.12, strokeWidth=1).encode(color=shade)
    numbers = base.mark_text(fontSize=min(13.0, (step - 4) / (0.6 * digits)), baseline="middle").encode(
        text="count:N",
        color=alt.condition(f"datum.shade >= {_WHITE_TEXT_FROM}", alt.value("white"), alt.value(INK)),
        opacity=alt.condition("datum.count === '0'", alt.value(0.3), alt.value(1)),
    )
    # Leave space on the right: a slanted last label may be wider in the reader's font.
    return to_svg(alt.layer(heat, numbers), right=4 + 0.12 * label_width(labels[-1:]))


def _grid(cells: list[dict[str, Any]], labels: Sequence[LabelValue], step: float) -> "alt.Chart":
    import altair as alt

    size = min(LABEL_SIZE, step - 3)
    shared: dict[str, Any] = {"labelExpr": indexed_labels(labels), "labelFontSize": size, "labelOverlap": False}
    # Labels are horizontal if each fits above its column, else slanted, else vertical.
    angle = 0 if label_width(labels) <= step - 6 else -45 if step >= _SLANTED_FROM else -90
    slant: dict[str, Any] = {"labelAlign": "left", "labelBaseline": "middle"} if angle else {}
    width = label_width(labels, size)
    height = width * abs(math.sin(math.radians(angle))) + 8
    x_axis = alt.Axis(title="predicted", orient="top", labelAngle=angle, minExtent=height, **shared, **slant)
    y_axis = alt.Axis(title="true", minExtent=width + 8, **shared)
    scale = alt.Scale(domain=list(range(len(labels))), paddingInner=0, paddingOuter=0)
    return (
        alt.Chart(alt.InlineData(values=cells))
        .encode(x=alt.X("column:O", axis=x_axis, scale=scale), y=alt.Y("row:O", axis=y_axis, scale=scale))
        .properties(width=step * len(labels), height=step * len(labels))
    )


def _checked_counts(labels: Sequence[LabelValue], counts: npt.ArrayLike) -> npt.NDArray[np.int64]:
    size = len(labels)
    try:
        given = np.asarray(counts, dtype=np.float64)
    except ValueError as error:
        raise InvalidInput(f"counts: expected a matrix of numbers, got rows of different lengths ({error}).") from error
    if size == 0 or given.shape != (size, size):
        raise InvalidInput(f"counts: expected a row and a column for each of {size} labels, got shape {given.shape}.")
    if not (np.isfinite(given).all() and (given >= 0).all() and (given == np.floor(given)).all()):
        raise InvalidInput("counts: expected whole numbers of at least 0; the chart computes shares itself.")
    return given.astype(np.int64)
