"""What every chart shares: the palette, the theme, readable labels, and the step from an Altair chart to SVG.

The charts have no background of their own. Ink is ``currentColor`` and every shade is the accent colour at some
opacity, so that one drawing is legible on white, on a dark page, and on paper.
"""

import json
import math
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bothways.errors import MissingDependency
from bothways.report.characters import printable

if TYPE_CHECKING:
    import altair as alt

# White text on ACCENT has a contrast of 5.1; ACCENT on the page's dark background 3.4 (WCAG asks for 4.5 and 3).
ACCENT = "#2f6fb0"
ACCENT_CLEAR = "rgba(47, 111, 176, 0)"
INK = "currentColor"
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"

LABEL_SIZE = 12
PANEL_WIDTH = 362  # two stand side by side on a page of 50rem
_LONGEST_LABEL = 32

# As Vega names them; a label in quotes can hardly read like this.
_ID = re.compile(r' id="((?:gradient|clip)_?\d+)"')
_REFERENCE = re.compile(r'="url\(#((?:gradient|clip)_?\d+)\)"')

_THEME: dict[str, Any] = {
    "font": FONT,
    "background": None,
    "aria": False,  # the page describes a figure as a whole, in words
    "view": {"stroke": None},
    "title": {"color": INK, "fontSize": 13, "fontWeight": 600, "anchor": "start", "offset": 10},
    "axis": {
        "labelColor": INK,
        "labelFontSize": LABEL_SIZE,
        "labelLimit": 0,  # labels are cut by characters, since the reader's font is not known
        "labelOpacity": 0.85,
        "titleColor": INK,
        "titleFontSize": LABEL_SIZE,
        "titleFontWeight": 500,
        "titleOpacity": 0.7,
        "titlePadding": 8,
        "gridColor": INK,
        "gridOpacity": 0.12,
        "domainColor": INK,
        "domainOpacity": 0.35,
        "tickColor": INK,
        "tickOpacity": 0.35,
    },
    "legend": {
        "labelColor": INK,
        "labelFontSize": 11,
        "titleColor": INK,
        "titleFontSize": 11,
        "titleFontWeight": 500,
        "titleOpacity": 0.7,
        "titleLimit": 260,
    },
}


def require_altair(purpose: str) -> None:
    """Check that the packages of the extra ``report`` are installed.

    Raises:
        MissingDependency: ``altair`` or ``vl_convert`` cannot be imported.
    """
    try:
        import altair  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependency.of("altair", extra="report", purpose=purpose) from error
    try:
        import vl_convert  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependency.of("vl-convert-python", extra="report", purpose=purpose) from error


def to_svg(chart: "alt.Chart | alt.LayerChart | alt.FacetChart", right: float = 4) -> str:
    """Draw a chart in the shared theme, as one SVG element with ``right`` pixels of room on the right."""
    import altair as alt
    import vl_convert

    # A confusion matrix of 77 classes has more rows than Altair's default limit for notebooks.
    with alt.data_transformers.enable("default", max_rows=None):
        spec = chart.to_dict()
    padding = {"left": 0, "right": right, "top": 2, "bottom": 4}
    spec["config"] = _THEME | {"padding": padding}  # in place of a theme that the caller may have set for notebooks
    version = "_".join(alt.SCHEMA_VERSION.split(".")[:2])
    return _renumbered(vl_convert.vegalite_to_svg(spec, vl_version=version))


def _renumbered(svg: str) -> str:
    """``svg`` with its ids counted from 0: Vega counts on from one drawing to the next, which would alter the bytes."""
    ids = dict.fromkeys(_ID.findall(svg))
    numbers = {old: f"part-{number}" for number, old in enumerate(ids)}
    svg = _ID.sub(lambda match: f' id="{numbers[match[1]]}"', svg)
    return _REFERENCE.sub(lambda match: f'="url(#{numbers.get(match[1], match[1])})"', svg)


def indexed_labels(labels: Sequence[str]) -> str:
    """A Vega expression that turns the position of a label, the axis value, into the label.

    Axes run over positions, since two tokens or two cut labels may read the same.
    """
    return f"{json.dumps([short_label(label) for label in labels])}[datum.value]"


def short_label(text: str) -> str:
    """``text`` printable, and cut in the middle if long: the ends are what tells labels apart."""
    label = printable(text)
    kept = _LONGEST_LABEL - 1
    return (
        label
        if len(label) <= _LONGEST_LABEL
        else f"{label[: kept - kept // 2].rstrip()}…{label[-(kept // 2) :].lstrip()}"
    )


def label_width(labels: Sequence[str], size: float = LABEL_SIZE) -> float:
    """About how many pixels the widest of these labels takes at a font size, once cut."""
    return max(sum(map(_width_in_ems, short_label(label))) for label in labels) * size


def _width_in_ems(character: str) -> float:
    """Of a wide system font, so that in others there is a little more room than needed."""
    if unicodedata.east_asian_width(character) in "WF" or character in "mwMW@%…":
        return 1.0
    if character in " iljtfr.,:;'!|()[]-":
        return 0.4
    return 0.72 if character.isupper() or character == "#" else 0.61


def finite_or_gap(value: float) -> float | None:
    """``value``, or None, which a line leaves out, where it is infinite or not a number."""
    return float(value) if math.isfinite(value) else None
