"""A report as data, and its rendering to one self-contained HTML file.

The macros of ``templates/blocks.html`` render the blocks; a block's ``kind`` is the name of its macro. The file has no
external script, font, image or style, and its content security policy forbids them. Rendering is deterministic.
"""

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from bothways.errors import InvalidInput
from bothways.report.drawing import printable, require_extra, storable
from bothways.storage import new_file

if TYPE_CHECKING:
    from jinja2 import Template

LONGEST_TEXT = 600  # maximum characters of a text in a TextList; the page says how many more were left out

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
# The elements that Vega's SVG writer uses, and similar ones; no script, style, image, link or foreign HTML.
_ELEMENTS = frozenset(
    {"svg", "g", "path", "rect", "line", "circle", "ellipse", "polyline", "polygon", "text", "tspan", "title", "desc"}
    | {"defs", "clipPath", "linearGradient", "radialGradient", "stop", "use"}
)
# Attributes to drop: the page sets the font and describes the whole figure, and its style sheet must match no class.
_LEFT_OUT = frozenset({"class", "font-family", "pointer-events", "role", "version"})
_REFERENCE = re.compile(r"url\(\s*(['\"]?)(.*?)\1\s*\)")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    kind: ClassVar = "paragraph"
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text cells under column names; the caller formats numbers as text.

    Attributes:
        columns: The names of the columns.
        rows: The cells; each row has a cell for each column.
        caption: The caption.
        numeric: The names of the columns to align on the right.
        folded: The line in whose place a reader may unfold the table; an empty one shows the table.
    """

    kind: ClassVar = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    numeric: tuple[str, ...] = ()
    folded: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one drawing, or of several side by side on wide screens.

    Attributes:
        svg: The drawings, from the chart functions of this package.
        caption: The caption under the figure.
        alternative: A description for readers who cannot see the figure.
    """

    kind: ClassVar = "figure"
    svg: str | tuple[str, ...]
    caption: str
    alternative: str

    @property
    def panels(self) -> tuple[str, ...]:
        """The drawings, always as a tuple."""
        return (self.svg,) if isinstance(self.svg, str) else self.svg


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A prominent number, such as ``KeyFigure("Accuracy", "0.913", "95% interval 0.904 to 0.921")``."""

    label: str
    value: str
    interval: str = ""


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """A row of prominent numbers."""

    kind: ClassVar = "key_figures"
    figures: tuple[KeyFigure, ...]


@dataclass(frozen=True, slots=True)
class TextItem:
    """A text with facts and tables about it; texts over 600 characters are truncated."""

    text: str
    facts: Mapping[str, str] = field(default_factory=dict)
    """Short named values, such as ``{"predicted": "sport"}``; empty ones are not shown."""
    tables: tuple[Table, ...] = ()

    @property
    def beginning(self) -> str:
        """The first ``LONGEST_TEXT`` characters, or a few less to end with a whole word."""
        if len(self.text) <= LONGEST_TEXT:
            return self.text
        end = self.text.rfind(" ", LONGEST_TEXT - 40, LONGEST_TEXT)
        return self.text[: end if end > 0 else LONGEST_TEXT]


@dataclass(frozen=True, slots=True)
class TextList:
    """A numbered list of texts, such as the most confident mistakes or the nearest neighbours of a query."""

    kind: ClassVar = "text_list"
    items: tuple[TextItem, ...]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines in a fixed-width font, such as commands."""

    kind: ClassVar = "code"
    lines: tuple[str, ...]
    caption: str = ""


Block: TypeAlias = Paragraph | Table | Figure | KeyFigures | TextList | Code


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with the blocks under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report, with a table of contents if it has several sections."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    footer: str = ""


def write(page: Page, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Render a page into a file, completely or not at all; ``overwrite`` replaces an existing file."""
    document = render(page).encode()
    with new_file(path, overwrite=overwrite, binary=True) as stream:
        stream.write(document)


def render(page: Page) -> str:
    """Return the page as an HTML document; all texts are escaped."""
    require_extra("a report")
    for section in page.sections:
        for block in section.blocks:
            if isinstance(block, Table):
                _check_table(block)
    return storable(_template().render(page=page, tables=count(1), figures=count(1), next=next))


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("bothways.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["printable"] = printable
    environment.filters["drawing"] = lambda svg, prefix: Markup(_embedded_svg(svg, prefix=prefix))
    return environment.get_template("page.html")


def _check_table(table: Table) -> None:
    unknown = [name for name in table.numeric if name not in table.columns]
    if unknown:
        raise InvalidInput(
            f"numeric columns of a table: expected some of {list(table.columns)}, got {unknown}. Name the columns."
        )
    for at, row in enumerate(table.rows, start=1):
        if len(row) != len(table.columns):
            raise InvalidInput(
                f"row {at} of a table: expected {len(table.columns)} cells, one for each of {list(table.columns)}, "
                f"got {len(row)}. Give the row an empty cell where it has no value."
            )


# --- drawings ---


def _embedded_svg(svg: str, *, prefix: str) -> str:
    """Return a drawing for an HTML page with prefixed ids; refuse elements that could run code or fetch anything.

    The drawing is parsed and written again without namespaces, which HTML does not need. The CSS variable ``--width``
    gives its width, which the page uses as the maximum.
    """
    if "<!" in svg:
        raise InvalidInput("a figure's SVG: expected no document type, entity or comment, got '<!'. Remove it.")
    other = f"a figure: expected an <svg> element with a viewBox, got {svg[:80]!r}. Pass what a chart function returns."
    try:
        root = ElementTree.fromstring(svg)
        width = float(root.attrib["viewBox"].split()[2])
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise InvalidInput(other) from error
    if root.tag.removeprefix(_SVG) != "svg":
        raise InvalidInput(other)
    for element in root.iter():
        element.tag = _checked_tag(element.tag)
        element.attrib = dict(
            _checked_attribute(key, value, prefix)
            for key, value in element.attrib.items()
            if key not in _LEFT_OUT and not key.startswith("aria-")
        )
    # The style sheet sets the size for the width of the screen; the figure has a description.
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.attrib |= {"style": f"--width: {width:g}px", "aria-hidden": "true"}
    return ElementTree.tostring(root, encoding="unicode")


def _checked_tag(tag: str) -> str:
    name = tag.removeprefix(_SVG)
    if name not in _ELEMENTS:
        raise InvalidInput(
            f"a figure's SVG: expected only drawing elements, got <{name}>. Remove it; reports run and fetch nothing."
        )
    return name


def _checked_attribute(key: str, value: str, prefix: str) -> tuple[str, str]:
    """Return the attribute; ids and references to ids get the prefix."""
    name = "href" if key == _XLINK_HREF else key
    if name == "href" and value.startswith("#"):
        return name, f"#{prefix}{value[1:]}"
    if name == "id":
        return name, prefix + value
    references = [match[2] for match in _REFERENCE.finditer(value)] if "url" in value.lower() else []
    outside = any(not reference.startswith("#") for reference in references)
    hidden = "url" in value.lower() and not references
    if name.lower().startswith("on") or name in ("href", "style") or outside or hidden:
        raise InvalidInput(
            f"a figure's SVG: expected attributes that only draw, got {name}={value!r}. "
            "Remove it; reports run and fetch nothing."
        )
    return name, _REFERENCE.sub(lambda match: f"url(#{prefix}{match[2][1:]})", value)
