"""Heat maps with the same axis on both sides: confusion matrices and attention.

Shape legend: C classes, S tokens of a sequence.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput
from bothways.report.drawing import (
    ACCENT,
    ACCENT_CLEAR,
    INK,
    LABEL_SIZE,
    PANEL_WIDTH,
    indexed_labels,
    label_width,
    printable,
    require_extra,
    to_svg,
)

if TYPE_CHECKING:
    import altair as alt

# From this share of the accent colour on, white text has more contrast on a light page than dark text.
_WHITE_TEXT_FROM = 0.75
_FAINTEST_DRAWN = 0.0005
_SLANTED_FROM = 24  # pixels; labels of narrower columns are vertical


def confusion_matrix(labels: Sequence[str], counts: npt.ArrayLike) -> str:
    """Draw a confusion matrix with its counts, coloured by the share of each true class (row).

    Args:
        labels: The classes, in the order of rows and columns.
        counts: (C, C) whole numbers; rows are true classes, columns predicted ones.

    Raises:
        InvalidInput: No label, a matrix of another shape, or an entry that is not a whole number from 0.
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
    base = _grid(cells, labels, step, "predicted", "true")
    shade = _shade("share of the true class", "~%", [0, 0.5, 1], "linear")
    heat = base.mark_rect(stroke=INK, strokeOpacity=0.12, strokeWidth=1).encode(color=shade)
    numbers = base.mark_text(fontSize=min(13.0, (step - 4) / (0.6 * digits)), baseline="middle").encode(
        text="count:N",
        color=alt.condition(f"datum.shade >= {_WHITE_TEXT_FROM}", alt.value("white"), alt.value(INK)),
        opacity=alt.condition("datum.count === '0'", alt.value(0.3), alt.value(1)),
    )
    return to_svg(alt.layer(heat, numbers), right=_overhang(labels))


def attention_map(tokens: Sequence[str], weights_SS: npt.ArrayLike, title: str = "") -> str:
    """Draw the attention of each token (row) to each token (column).

    The colour follows the square root of the weight, so that weights of a few per cent remain distinct.

    Args:
        tokens: The S tokens, with special and repeated ones.
        weights_SS: (S, S) weights from 0 to 1; a row sums to 1 for a single head or a mean over heads.
        title: A line above the map.

    Raises:
        InvalidInput: No token, weights of another shape, or a weight outside 0 to 1.
    """
    require_extra("drawing an attention map")
    checked_SS = _checked_weights(tokens, weights_SS)
    cells = [
        {"row": int(row), "column": int(column), "shade": round(float(checked_SS[row, column]), 4)}
        for row, column in np.argwhere(checked_SS >= _FAINTEST_DRAWN)
    ]
    grid = _grid(cells, tokens, _attention_step(tokens), "attends to", "token")
    shade = _shade("attention weight", "~g", [0, 0.1, 0.5, 1], "sqrt")
    chart = grid.mark_rect(stroke=INK, strokeOpacity=0.08, strokeWidth=1).encode(color=shade)
    return to_svg(chart.properties(title=printable(title)) if title else chart, right=_overhang(tokens))


def attention_pair(
    tokens: Sequence[str],
    encoder_weights_SS: npt.ArrayLike,
    causal_weights_SS: npt.ArrayLike,
    captions: tuple[str, str] = ("Encoder: both ways", "Causal: to the left only"),
) -> tuple[str, str]:
    """Draw the attention of an encoder and of a causal model over the same tokens, in the same colours.

    Args:
        tokens: The S tokens.
        encoder_weights_SS: (S, S), as for ``attention_map``.
        causal_weights_SS: (S, S), as for ``attention_map``.
        captions: The titles of the two maps.
    """
    return (
        attention_map(tokens, encoder_weights_SS, captions[0]),
        attention_map(tokens, causal_weights_SS, captions[1]),
    )


def _shade(title: str, format_: str, ticks: list[float], scale: Literal["linear", "sqrt"]) -> "alt.Color":
    import altair as alt

    legend = alt.Legend(
        title=title,
        format=format_,
        values=ticks,
        orient="bottom",
        direction="horizontal",
        gradientLength=140,
        gradientThickness=8,
    )
    return alt.Color("shade:Q", scale=alt.Scale(type=scale, domain=[0, 1], range=[ACCENT_CLEAR, ACCENT]), legend=legend)


def _grid(cells: list[dict[str, Any]], labels: Sequence[str], step: float, x_title: str, y_title: str) -> "alt.Chart":
    import altair as alt

    size = min(LABEL_SIZE, step - 3)
    shared: dict[str, Any] = {"labelExpr": indexed_labels(labels), "labelFontSize": size, "labelOverlap": False}
    # Horizontal if every label fits above its column, else slanted, else vertical.
    angle = 0 if label_width(labels) <= step - 6 else -45 if step >= _SLANTED_FROM else -90
    slant: dict[str, Any] = {"labelAlign": "left", "labelBaseline": "middle"} if angle else {}
    width = label_width(labels, size)
    height = width * abs(math.sin(math.radians(angle))) + 8
    x_axis = alt.Axis(title=x_title, orient="top", labelAngle=angle, minExtent=height, **shared, **slant)
    y_axis = alt.Axis(title=y_title, minExtent=width + 8, **shared)
    scale = alt.Scale(domain=list(range(len(labels))), paddingInner=0, paddingOuter=0)
    return (
        alt.Chart(alt.InlineData(values=cells))
        .encode(x=alt.X("column:O", axis=x_axis, scale=scale), y=alt.Y("row:O", axis=y_axis, scale=scale))
        .properties(width=step * len(labels), height=step * len(labels))
    )


def _overhang(labels: Sequence[str]) -> float:
    # A slanted last label may be wider in the reader's font.
    return 4 + 0.12 * label_width(labels[-1:])


def _attention_step(tokens: Sequence[str]) -> float:
    # Slanted labels need space on the right too.
    room = PANEL_WIDTH - label_width(tokens) - 40
    slanted = (room - label_width(tokens[-1:])) / len(tokens)
    upright = min(room / len(tokens), _SLANTED_FROM - 1)
    return float(np.clip(slanted if slanted >= _SLANTED_FROM else upright, 14, 36))


def _checked_counts(labels: Sequence[str], counts: npt.ArrayLike) -> npt.NDArray[np.int64]:
    given = _checked_square(labels, counts, "counts", "label")
    if not (np.isfinite(given).all() and (given >= 0).all() and (given == np.floor(given)).all()):
        raise InvalidInput(
            "the counts of a confusion matrix: expected whole numbers from 0, got others. "
            "Pass the counts; the chart computes the shares."
        )
    return given.astype(np.int64)


def _checked_weights(tokens: Sequence[str], weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
    given = _checked_square(tokens, weights, "attention weights", "token")
    # Rounding in half precision may carry a weight a little over 1.
    if not (np.isfinite(given).all() and given.min() >= 0 and given.max() <= 1.01):
        raise InvalidInput(
            f"attention weights: expected numbers from 0 to 1, got {given.min()} to {given.max()}. "
            "Pass the weights after the softmax."
        )
    return np.minimum(given, 1.0)


def _checked_square(names: Sequence[str], values: npt.ArrayLike, what: str, noun: str) -> npt.NDArray[np.float64]:
    size = len(names)
    try:
        given = np.asarray(values, dtype=np.float64)
    except ValueError as error:
        raise InvalidInput(f"{what}: expected a matrix of numbers, got rows that do not make one ({error}).") from error
    if size == 0 or given.shape != (size, size):
        raise InvalidInput(
            f"{what}: expected one row and one column for each {noun}, got {size} {noun}s and "
            f"a shape of {given.shape}. "
            f"Pass at least one {noun} and a matrix of that size."
        )
    return given
