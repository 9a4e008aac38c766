"""The palette, theme and labels of all charts, and the conversion of charts to SVG.

Charts have no background. Lines and text are in ``currentColor``, and shades are the accent colour at some opacity: the
same drawing is legible on a light page, on a dark page, and on paper.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bothways.choices import LabelValue
from bothways.errors import MissingDependency

if TYPE_CHECKING:
    import altair as alt

# White text on ACCENT has a contrast of 5.1; ACCENT on the page's dark background 3.4 (WCAG asks for 4.5 and 3).
ACCENT = "#2f6fb0"
ACCENT_CLEAR = "rgba(47, 111, 176, 0)"
INK = "currentColor"
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"

LABEL_SIZE = 12
PANEL_WIDTH = 362  # two panels fit side by side on a page of 50rem
_LONGEST_LABEL = 32

# The complement of XML 1.0, production [2] Char: control characters, lone surrogates and two non-characters.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LINE_ENDS = re.compile("\r\n|[\r\n\u2028\u2029]")
# Ids in Vega's form; labels cannot contain this, since their quotes are escaped.
_ID = re.compile(r' id="((?:gradient|clip)_?\d+)"')
_REFERENCE = re.compile(r'="url\(#((?:gradient|clip)_?\d+)\)"')

# Adds line and ticks to a numeric axis; the axes of the theme have only labels.
RULED: dict[str, Any] = {"ticks": True, "domain": True, "labelPadding": 3}

_THEME: dict[str, Any] = {
    "font": FONT,
    "background": None,
    "aria": False,  # the page has a description of the whole figure
    "view": {"stroke": None},
    "title": {"color": INK, "fontSize": 13, "fontWeight": 600, "anchor": "start", "offset": 10},
    "axis": {
        "ticks": False,
        "domain": False,
        "grid": False,
        "labelFlush": False,
        "labelPadding": 7,
        "labelColor": INK,
        "labelFontSize": LABEL_SIZE,
        "labelLimit": 0,  # `short_label` limits the number of characters instead, since the reader's font is unknown
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


def require_extra(purpose: str) -> None:
    """Raise MissingDependency if a package of the extra ``report`` is not installed; ``purpose`` names its use."""
    for module, package in (("jinja2", "jinja2"), ("altair", "altair"), ("vl_convert", "vl-convert-python")):
        if find_spec(module) is None:
            raise MissingDependency.of(package, extra="report", purpose=purpose)


def storable(text: str) -> str:
    """Replace characters that are not allowed in XML or HTML by U+FFFD."""
    return _NOT_XML.sub("\ufffd", text)


def printable(text: str) -> str:
    r"""Return a text as a label on one line: line ends become ⏎, tabs ⇥, and an empty text ∅.

    >>> printable("a\nb")
    'a⏎b'
    """
    return storable(_LINE_ENDS.sub("⏎", text).replace("\t", "⇥")) or "∅"


def to_svg(chart: "alt.TopLevelMixin", right: float = 4) -> str:
    """Draw a chart in the shared theme as one SVG element, with ``right`` pixels of space on the right."""
    import altair as alt
    import vl_convert

    # Altair's default limit of rows, meant for notebooks, is less than a confusion matrix of 77 classes needs.
    with alt.data_transformers.enable("default", max_rows=None):
        spec = chart.to_dict()
    padding = {"left": 0, "right": right, "top": 2, "bottom": 4}
    spec["config"] = _THEME | {"padding": padding}  # instead of a theme that the caller may have enabled
    version = "_".join(alt.SCHEMA_VERSION.split(".")[:2])
    return _renumbered(vl_convert.vegalite_to_svg(spec, vl_version=version))


def _renumbered(svg: str) -> str:
    """Renumber the ids of a drawing from 0, since Vega numbers ids over all drawings of the process."""
    ids = dict.fromkeys(_ID.findall(svg))
    numbers = {old: f"part-{number}" for number, old in enumerate(ids)}
    svg = _ID.sub(lambda match: f' id="{numbers[match[1]]}"', svg)
    return _REFERENCE.sub(lambda match: f'="url(#{numbers.get(match[1], match[1])})"', svg)


def indexed_labels(labels: Sequence[LabelValue]) -> str:
    """Return a Vega expression that labels the positions 0, 1, ... of an axis; labels may be equal."""
    return f"{json.dumps([short_label(label) for label in labels])}[datum.value]"


def short_label(label: LabelValue) -> str:
    """Return printable text; an ellipsis replaces the middle of a long label, since labels differ at their ends."""
    text, half = printable(str(label)), _LONGEST_LABEL // 2
    return text if len(text) <= _LONGEST_LABEL else f"{text[:half].rstrip()}…{text[1 - half :].lstrip()}"


def label_width(labels: Sequence[LabelValue], size: float = LABEL_SIZE) -> float:
    """Estimate the width of the widest label in pixels, after `short_label`."""
    return max(sum(map(_width_in_ems, short_label(label))) for label in labels) * size


def _width_in_ems(character: str) -> float:
    # Widths of a wide system font: text in other fonts needs less.
    if unicodedata.east_asian_width(character) in "WF" or character in "mwMW@%…":
        return 1.0
    if character in " iljtfr.,:;'!|()[]-":
        return 0.4
    return 0.72 if character.isupper() or character == "#" else 0.61
