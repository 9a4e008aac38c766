"""A report as data, and its rendering to one HTML file that needs nothing else.

The macros of ``templates/blocks.html`` draw the blocks; a block's ``kind`` is the name of its macro. The file has no
script, font, image or style from elsewhere, and its content security policy forbids a browser to fetch any. The same
page always gives the same bytes.
"""

import os
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from bothways.errors import InvalidInput
from bothways.report.drawing import printable, require_extra, storable
from bothways.report.embedding import embedded_svg
from bothways.storage import new_file

if TYPE_CHECKING:
    from jinja2 import Template

LONGEST_TEXT = 600  # characters of one text in a TextList; the rest is only counted


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    kind: ClassVar = "paragraph"
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under column names; numbers come formatted, with the same decimals down a column.

    Attributes:
        columns: The names of the columns.
        rows: The cells, as many in a row as there are columns.
        caption: What the table shows.
        numeric: The names of the columns to align on the right.
    """

    kind: ClassVar = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    numeric: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing, or several that stand side by side where there is room for that.

    Attributes:
        svg: What the chart functions of this package return.
        caption: What the figure shows and what to see in it.
        alternative: A description for readers who cannot see it.
    """

    kind: ClassVar = "figure"
    svg: str | tuple[str, ...]
    caption: str
    alternative: str

    @property
    def panels(self) -> tuple[str, ...]:
        """The drawings."""
        return (self.svg,) if isinstance(self.svg, str) else self.svg


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number to be seen first, such as ``KeyFigure("Accuracy", "0.913", "95% interval 0.904 to 0.921")``."""

    label: str
    value: str
    interval: str = ""


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """A row of big numbers."""

    kind: ClassVar = "key_figures"
    figures: tuple[KeyFigure, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A short named value beside a text, such as ``Fact("predicted", "sport")``."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class TextItem:
    """A text with facts and tables about it; of a text over 600 characters the beginning is shown."""

    text: str
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()

    @property
    def beginning(self) -> str:
        """Return at most ``LONGEST_TEXT`` characters, up to the end of a word if one ends near."""
        if len(self.text) <= LONGEST_TEXT:
            return self.text
        end = self.text.rfind(" ", LONGEST_TEXT - 40, LONGEST_TEXT)
        return self.text[: end if end > 0 else LONGEST_TEXT]


@dataclass(frozen=True, slots=True)
class TextList:
    """Numbered texts, such as the most confident mistakes or the nearest neighbours of a query."""

    kind: ClassVar = "text_list"
    items: tuple[TextItem, ...]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to be typed or read as they are, such as commands."""

    kind: ClassVar = "code"
    lines: tuple[str, ...]
    caption: str = ""


Block: TypeAlias = Paragraph | Table | Figure | KeyFigures | TextList | Code


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report; it gets a list of contents from its second section on."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    footer: str = ""


def write(page: Page, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Render ``page`` into the file ``path``, whole or not at all.

    Raises:
        InvalidInput: As for ``render``.
        OutputExists: ``path`` exists and ``overwrite`` is false.
        OutOfDisk: The disk is full.
    """
    document = render(page).encode()
    with new_file(path, overwrite=overwrite, binary=True) as stream:
        stream.write(document)


def render(page: Page) -> str:
    """Return the page as an HTML document; every text in it is escaped.

    Raises:
        InvalidInput: A table's rows or numeric columns do not match its columns, or a figure is not an SVG drawing or
            holds a script or a reference to something outside.
        MissingDependency: The extra ``report`` is not installed.
    """
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
    environment.filters["drawing"] = lambda svg, prefix: Markup(embedded_svg(svg, prefix=prefix))
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
