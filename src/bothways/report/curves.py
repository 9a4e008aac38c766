"""Charts of numbers along an axis: the course of a training run, and bars with intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways.errors import InvalidInput
from bothways.report.characters import printable
from bothways.report.drawing import (
    ACCENT,
    INK,
    PANEL_WIDTH,
    finite_or_gap,
    indexed_labels,
    label_width,
    require_altair,
    to_svg,
)

if TYPE_CHECKING:
    import altair as alt

_PANEL_HEIGHT = 240
_BARS_WIDTH = 480  # of labels and bars together
_MOST_POINTS = 300


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


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, with the ends of its interval if it has one."""

    label: str
    value: float
    interval: tuple[float, float] | None = None


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
    require_altair("drawing a learning curve")
    losses = sorted((p.step, p.loss) for p in points if isinstance(p, TrainLoss))
    scores = sorted((p.epoch, p.score) for p in points if isinstance(p, ValidationScore))
    if not losses and not scores:
        raise InvalidInput("a learning curve needs at least one TrainLoss or ValidationScore, got none.")
    panels = []
    if losses:
        averaged, span = _averaged(losses)
        title = "Training loss" if span == 1 else f"Training loss, mean of {span} steps"
        panels.append(_line(averaged, title, "step", dots=len(averaged) <= 2))
    if scores:
        title = printable(f"{metric[:1].upper()}{metric[1:]}, per epoch")
        panels.append(_line(scores, title, "epoch", dots=True))
    return tuple(panels)


def _averaged(losses: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], int]:
    """Means over spans of as many points as it takes to have at most ``_MOST_POINTS``, and that many."""
    span = math.ceil(len(losses) / _MOST_POINTS)
    chunks = [losses[start : start + span] for start in range(0, len(losses), span)]
    return [(_mean([x for x, _ in chunk]), _mean([y for _, y in chunk])) for chunk in chunks], span


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _line(points: Sequence[tuple[float, float]], title: str, x_title: str, *, dots: bool) -> str:
    import altair as alt

    rows = [{"x": x, "y": finite_or_gap(y)} for x, y in points]
    positions = sorted({x for x, _ in points})
    ticks: dict[str, Any] = {"values": positions} if len(positions) <= 8 else {"tickCount": 6}
    axis = alt.Axis(title=x_title, grid=False, format=",~f", labelFlush=False, **ticks)
    y_axis = alt.Axis(title=None, tickCount=5, domain=False, ticks=False, labelPadding=6, minExtent=32)
    # A single point would lie on the edge of an empty range.
    ends = [points[0][0] - 0.5, points[0][0] + 0.5] if len(points) == 1 else [points[0][0], points[-1][0]]
    chart = (
        alt.Chart(alt.InlineData(values=rows), title=title, width=PANEL_WIDTH, height=_PANEL_HEIGHT)
        .mark_line(
            color=ACCENT,
            strokeWidth=2,
            strokeJoin="round",
            point=alt.OverlayMarkDef(color=ACCENT, filled=True, size=40) if dots else False,
        )
        .encode(
            x=alt.X("x:Q", axis=axis, scale=alt.Scale(domain=ends, nice=False)),
            y=alt.Y("y:Q", axis=y_axis, scale=alt.Scale(zero=False, **_room_for_flat(points))),
        )
        .properties(autosize=alt.AutoSizeParams(type="fit", contains="padding"))
    )
    return to_svg(chart)


def _room_for_flat(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """A domain around a value that never changes: Vega's own is so narrow that its one tick is labelled wrongly."""
    heights = {y for _, y in points if math.isfinite(y)}
    if len(heights) > 1:
        return {}
    height = heights.pop() if heights else 0.0
    margin = abs(height) / 10 or 0.1
    return {"domain": [height - margin, height + margin]}


def bars(
    rows: Sequence[Bar], axis_title: str = "", domain: tuple[float, float] | None = None, decimals: int = 2
) -> str:
    """Horizontal bars in the given order, each with its value and, as a thin line, its interval.

    Args:
        rows: One for each bar, from the top.
        axis_title: What the bars measure, with its unit.
        domain: The ends of the axis; by default round numbers that hold 0 and every bar.
        decimals: Digits after the point of the values written beside the bars.

    Returns:
        The SVG.

    Raises:
        InvalidInput: There is no bar, a number is not finite, or an interval ends before it starts.
        MissingDependency: The extra ``report`` is not installed.
    """
    require_altair("drawing bars")
    _check_bars(rows)
    return to_svg(_bar_chart(rows, axis_title, domain, decimals), right=10)


def _bar_chart(
    rows: Sequence[Bar], axis_title: str, domain: tuple[float, float] | None, decimals: int
) -> "alt.LayerChart | alt.FacetChart":
    import altair as alt

    names = [row.label for row in rows]
    y_axis = alt.Axis(
        title=None,
        labelExpr=indexed_labels(names),
        minExtent=label_width(names) + 10,
        ticks=False,
        domain=False,
        labelPadding=8,
    )
    x_axis = alt.Axis(title=printable(axis_title) if axis_title else None, tickCount=5, grid=False, labelFlush=False)
    y = alt.Y("at:O", axis=y_axis, sort=None, scale=alt.Scale(paddingInner=0.35, paddingOuter=0.2))
    scale = alt.Scale(domain=list(domain), nice=False) if domain else alt.Scale(nice=True)
    x = alt.X("from:Q", axis=x_axis, scale=scale)
    base = alt.Chart(alt.InlineData(values=_bar_cells(rows, decimals))).encode(y=y)
    layers = [
        base.mark_bar(color=ACCENT, opacity=0.45, clip=True).encode(x=x, x2="value:Q"),
        base.transform_filter("datum.low < datum.high")
        .mark_rule(color=INK, strokeWidth=1.5, opacity=0.8, clip=True)
        .encode(x="low:Q", x2="high:Q"),
        base.mark_tick(color=ACCENT, thickness=3, bandSize=15, clip=True).encode(x="value:Q"),
        base.mark_text(color=INK, align="left", dx=12, fontSize=12).encode(x=alt.value("width"), text="text:N"),
    ]
    return alt.layer(*layers).properties(
        width=_clamped(_BARS_WIDTH - label_width(names), 240, 360), height=alt.Step(24 if len(rows) <= 12 else 20)
    )


def _written(value: float, decimals: int) -> str:
    """With a minus sign as on the axis, and none before zero."""
    return f"{round(float(value), decimals) + 0.0:.{decimals}f}".replace("-", "\u2212")


def _clamped(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


def _bar_cells(rows: Sequence[Bar], decimals: int) -> list[dict[str, float | str]]:
    return [
        {
            "at": at,
            "from": 0.0,
            "value": float(row.value),
            "low": float(row.interval[0]) if row.interval else float(row.value),
            "high": float(row.interval[1]) if row.interval else float(row.value),
            "text": _written(row.value, decimals),
        }
        for at, row in enumerate(rows)
    ]


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
