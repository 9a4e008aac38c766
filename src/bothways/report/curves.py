"""Square panels that stand side by side: the course of a training run, and reliability diagrams."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways.errors import InvalidInput
from bothways.evaluation.reliability import ReliabilityBin, expected_calibration_error
from bothways.report.drawing import ACCENT, INK, PANEL_WIDTH, RULED, printable, require_extra, to_svg

if TYPE_CHECKING:
    import altair as alt

_MOST_STEPS = 300
MOST_POINTS = 2000
"""Points of a scatter plot; more would hide each other."""


@dataclass(frozen=True, slots=True)
class TrainLoss:
    """The training loss of one optimiser step; steps count from 1."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class ValidationScore:
    """The validation metric after one epoch; epochs count from 1."""

    epoch: float
    score: float


def learning_curve(points: Sequence[TrainLoss | ValidationScore], metric: str = "validation score") -> tuple[str, ...]:
    """Training loss per step and, in a second panel, the validation metric per epoch.

    A panel without points is left out. Losses that are not finite leave a gap. Of long runs the loss is drawn as the
    mean of equal spans of steps, at most 300 of them.

    Args:
        points: Both kinds, in any order.
        metric: The name of the validation metric, for the second panel's title.

    Returns:
        One SVG for each panel.

    Raises:
        InvalidInput: There is no point.
        MissingDependency: The extra ``report`` is not installed.
    """
    require_extra("drawing a learning curve")
    losses = sorted((p.step, p.loss) for p in points if isinstance(p, TrainLoss))
    scores = sorted((p.epoch, p.score) for p in points if isinstance(p, ValidationScore))
    if not losses and not scores:
        raise InvalidInput("a learning curve needs at least one TrainLoss or ValidationScore, got none.")
    panels = []
    if losses:
        span = math.ceil(len(losses) / _MOST_STEPS)
        averaged = [_mean(losses[start : start + span]) for start in range(0, len(losses), span)]
        title = "Training loss" if span == 1 else f"Training loss, mean of {span} steps"
        panels.append(_line(averaged, title, "step", dots=len(averaged) <= 2))
    if scores:
        panels.append(_line(scores, f"{metric[:1].upper()}{metric[1:]}, per epoch", "epoch", dots=True))
    return tuple(panels)


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
        titles: The titles of the two diagrams; the error follows them.

    Returns:
        One SVG for each diagram.

    Raises:
        InvalidInput: No bin has a text in it.
        MissingDependency: The extra ``report`` is not installed.
    """
    require_extra("drawing a reliability diagram")
    return _reliability(before_bins, titles[0]), _reliability(after_bins, titles[1])


def reliability_panel(bins: Sequence[ReliabilityBin], title: str) -> str:
    """One of the diagrams of `reliability_diagram`.

    Raises:
        InvalidInput: No bin has a text in it.
        MissingDependency: The extra ``report`` is not installed.
    """
    require_extra("drawing a reliability diagram")
    return _reliability(bins, title)


def scatter(points: Sequence[tuple[float, float]], x_title: str, y_title: str) -> str:
    """Points with a dashed diagonal, where both numbers are the same; of many, `MOST_POINTS` drawn at random.

    Args:
        points: Pairs of finite numbers.
        x_title: What the first number is.
        y_title: What the second is.

    Returns:
        The SVG.

    Raises:
        InvalidInput: There is no point, or a number is not finite.
        MissingDependency: The extra ``report`` is not installed.
    """
    require_extra("drawing points")
    import altair as alt

    if not points or not all(map(math.isfinite, (number for point in points for number in point))):
        raise InvalidInput("a scatter plot needs points of finite numbers: give at least one, and leave others out.")
    shown = random.Random(0).sample(points, MOST_POINTS) if len(points) > MOST_POINTS else points
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
    # A single point would lie on the edge of an empty range.
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
                scale=alt.Scale(zero=False, **_room_for_flat(points)),
            ),
        )
    )
    return _panel(chart, title, height=240)


def _room_for_flat(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return a domain around a value that never changes.

    Vega's own is so narrow that its one tick is labelled wrongly.
    """
    heights = {y for _, y in points if math.isfinite(y)}
    if len(heights) > 1:
        return {}
    height = heights.pop() if heights else 0.0
    margin = abs(height) / 10 or 0.1
    return {"domain": [height - margin, height + margin]}


def _reliability(bins: Sequence[ReliabilityBin], title: str) -> str:
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
    base = alt.Chart(alt.InlineData(values=[_cell(each, total) for each in filled]))
    diagonal = alt.Chart(alt.InlineData(values=[{"at": 0}, {"at": 1}])).encode(x="at:Q", y="at:Q")
    layers = [
        base.mark_rect(color=ACCENT, opacity=0.22).encode(x=x, x2="upper:Q", y=y, y2="accuracy:Q"),
        diagonal.mark_line(color=INK, opacity=0.5, strokeDash=[4, 4], strokeWidth=1.2),
        base.mark_rule(color=ACCENT, strokeWidth=1.5).encode(x="confidence:Q", y="accuracy:Q", y2="confidence:Q"),
        base.mark_circle(color=ACCENT, opacity=0.95).encode(x="confidence:Q", y="accuracy:Q", size=size),
    ]
    return _panel(alt.layer(*layers), f"{title}: ECE {expected_calibration_error(filled):.3f}", height=330)


def _cell(each: ReliabilityBin, total: int) -> dict[str, float]:
    gap = min(0.004, (each.upper - each.lower) / 10)  # a hair between neighbouring bars
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
