"""Bars in groups: a few values for each of several things."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways.errors import InvalidInput
from bothways.report.characters import printable
from bothways.report.drawing import ACCENT, INK, indexed_labels, label_width, require_altair, to_svg

if TYPE_CHECKING:
    import altair as alt

_WIDTH = 620  # of labels and bars together
_BAR = 15


@dataclass(frozen=True, slots=True)
class BarGroup:
    """Bars that belong together, one for each of the chart's keys."""

    label: str
    values: tuple[float, ...]


def grouped_bars(groups: Sequence[BarGroup], keys: Sequence[str], key_title: str = "", axis_title: str = "") -> str:
    """Horizontal bars in groups from the top, each bar with its value; later keys are drawn lighter.

    Args:
        groups: One for each thing that is compared.
        keys: What the bars of a group stand for, in their order.
        key_title: What the keys are, for the legend.
        axis_title: What the bars measure, with its unit.

    Returns:
        The SVG.

    Raises:
        InvalidInput: There is no bar, a group has another number of values than there are keys, or a value is negative
            or not finite.
        MissingDependency: The extra ``report`` is not installed.
    """
    require_altair("drawing bars")
    _check(groups, keys)
    return to_svg(_chart(groups, keys, key_title, axis_title), right=36)


def _chart(
    groups: Sequence[BarGroup], keys: Sequence[str], key_title: str, axis_title: str
) -> "alt.LayerChart | alt.FacetChart":
    import altair as alt

    names = [group.label for group in groups]
    shades = [round(1 - 0.72 * at / max(1, len(keys) - 1), 3) for at in range(len(keys))]
    shown = [printable(key) for key in keys]
    y_axis = alt.Axis(
        title=None,
        labelExpr=indexed_labels(names),
        minExtent=label_width(names) + 10,
        ticks=False,
        domain=False,
        labelPadding=8,
    )
    x_axis = alt.Axis(title=printable(axis_title) if axis_title else None, tickCount=5, grid=False, labelFlush=False)
    legend = alt.Legend(
        title=printable(key_title) if key_title else None,
        orient="top",
        direction="horizontal",
        symbolType="square",
        symbolFillColor=ACCENT,
        symbolStrokeWidth=0,
    )
    base = alt.Chart(alt.InlineData(values=_cells(groups, shown))).encode(
        y=alt.Y("group:O", axis=y_axis, sort=None, scale=alt.Scale(paddingInner=0.28, paddingOuter=0.1)),
        yOffset=alt.YOffset("key:N", sort=shown, scale=alt.Scale(paddingInner=0.12)),
        x=alt.X("value:Q", axis=x_axis, scale=alt.Scale(nice=True)),
    )
    bars = base.mark_bar(color=ACCENT).encode(
        opacity=alt.Opacity("key:N", sort=shown, scale=alt.Scale(domain=shown, range=shades), legend=legend)
    )
    values = base.mark_text(color=INK, align="left", dx=5, fontSize=11, opacity=0.85).encode(text="text:N")
    return alt.layer(bars, values).properties(
        width=max(240, _WIDTH - label_width(names)), height=alt.Step(_BAR, **{"for": "offset"})
    )


def _cells(groups: Sequence[BarGroup], keys: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"group": at, "key": key, "value": float(value), "text": _written(value)}
        for at, group in enumerate(groups)
        for key, value in zip(keys, group.values, strict=True)
    ]


def _written(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _check(groups: Sequence[BarGroup], keys: Sequence[str]) -> None:
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
