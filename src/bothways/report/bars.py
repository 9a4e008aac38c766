"""Horizontal bars, one by one with intervals or in groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bothways.errors import InvalidInput
from bothways.report.drawing import (
    ACCENT,
    INK,
    RULED,
    indexed_labels,
    label_width,
    printable,
    require_extra,
    to_svg,
)

if TYPE_CHECKING:
    import altair as alt


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, with the ends of its interval if it has one."""

    label: str
    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class BarGroup:
    """Bars that belong together, one for each of the chart's keys."""

    label: str
    values: tuple[float, ...]


def bars(
    rows: Sequence[Bar], axis_title: str = "", domain: tuple[float, float] | None = None, decimals: int = 2
) -> str:
    """Horizontal bars in the given order, each with its value and, as a thin line, its interval.

    Args:
        rows: One for each bar, from the top.
        axis_title: The measured quantity, with its unit.
        domain: The ends of the axis; by default round numbers that hold 0 and every bar.
        decimals: Digits after the point of the values written beside the bars.

    Returns:
        The SVG.

    Raises:
        InvalidInput: There is no bar, a number is not finite, or an interval ends before it starts.
        MissingDependency: The extra ``report`` is not installed.
    """
    require_extra("drawing bars")
    import altair as alt

    _check_bars(rows)
    names = [row.label for row in rows]
    scale = alt.Scale(domain=list(domain), nice=False) if domain else alt.Scale(nice=True)
    x = alt.X("from:Q", axis=_value_axis(axis_title), scale=scale)
    y = alt.Y("at:O", axis=_name_axis(names), sort=None, scale=alt.Scale(paddingInner=0.35, paddingOuter=0.2))
    base = alt.Chart(alt.InlineData(values=[_cell(at, row, decimals) for at, row in enumerate(rows)])).encode(y=y)
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


def grouped_bars(groups: Sequence[BarGroup], keys: Sequence[str], key_title: str = "", axis_title: str = "") -> str:
    """Horizontal bars in groups from the top, each bar with its value; later keys are drawn lighter.

    Args:
        groups: One for each thing that is compared.
        keys: The names of the bars of a group, in their order.
        key_title: The legend's title.
        axis_title: The measured quantity, with its unit.

    Returns:
        The SVG.

    Raises:
        InvalidInput: There is no bar, a group has another number of values than there are keys, or a value is negative
            or not finite.
        MissingDependency: The extra ``report`` is not installed.
    """
    require_extra("drawing bars")
    import altair as alt

    _check_groups(groups, keys)
    names, shown = [group.label for group in groups], [printable(key) for key in keys]
    cells = [
        {"at": at, "key": key, "value": float(value), "text": f"{value:,.0f}" if value >= 10 else f"{value:.2g}"}
        for at, group in enumerate(groups)
        for key, value in zip(shown, group.values, strict=True)
    ]
    legend = alt.Legend(
        title=printable(key_title) if key_title else None,
        orient="top",
        direction="horizontal",
        symbolType="square",
        symbolFillColor=ACCENT,
        symbolStrokeWidth=0,
    )
    shades = [round(1 - 0.72 * at / max(1, len(keys) - 1), 3) for at in range(len(keys))]
    opacity = alt.Opacity("key:N", sort=shown, scale=alt.Scale(domain=shown, range=shades), legend=legend)
    base = alt.Chart(alt.InlineData(values=cells)).encode(
        x=alt.X("value:Q", axis=_value_axis(axis_title), scale=alt.Scale(nice=True)),
        y=alt.Y("at:O", axis=_name_axis(names), sort=None, scale=alt.Scale(paddingInner=0.28, paddingOuter=0.1)),
        yOffset=alt.YOffset("key:N", sort=shown, scale=alt.Scale(paddingInner=0.12)),
    )
    values = base.mark_text(color=INK, align="left", dx=5, fontSize=11, opacity=0.85).encode(text="text:N")
    chart = alt.layer(base.mark_bar(color=ACCENT).encode(opacity=opacity), values)
    width, step = max(240, 620 - label_width(names)), alt.Step(15, **{"for": "offset"})
    return to_svg(chart.properties(width=width, height=step), right=36)


def _name_axis(names: Sequence[str]) -> "alt.Axis":
    import altair as alt

    return alt.Axis(title=None, labelExpr=indexed_labels(names), minExtent=label_width(names) + 10)


def _value_axis(title: str) -> "alt.Axis":
    import altair as alt

    return alt.Axis(title=printable(title) if title else None, tickCount=5, **RULED)


def _cell(at: int, row: Bar, decimals: int) -> dict[str, float | str]:
    low, high = row.interval or (row.value, row.value)
    # With a minus sign as on the axis, and none before zero.
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


def _check_groups(groups: Sequence[BarGroup], keys: Sequence[str]) -> None:
    if not groups or not keys:
        raise InvalidInput("a chart of grouped bars needs at least one group and one key, got none.")
    for group in groups:
        if len(group.values) != len(keys):
            raise InvalidInput(
                f"group {group.label!r}: expected {len(keys)} values, one for each of {list(keys)}, "
                f"got {len(group.values)}."
            )
        if not all(math.isfinite(value) and value >= 0 for value in group.values):
            raise InvalidInput(f"group {group.label!r}: expected finite numbers from 0, got {group.values}.")
