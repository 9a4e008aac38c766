"""A report as data, and its rendering to one HTML file that needs nothing else.

The file has no script, font, image or style from elsewhere, and its content security policy forbids a browser to
fetch any. The same page always gives the same bytes.
"""

import os
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TypeAlias, assert_never

from bothways.errors import InvalidInput
from bothways.report.characters import printable, storable
from bothways.report.embedding import embedded_svg
from bothways.storage import new_file

LONGEST_TEXT = 600  # characters of one text in a TextList; the rest is only counted


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

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

    svg: str | tuple[str, ...]
    caption: str
    alternative: str


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number to be seen first, such as ``KeyFigure("Accuracy", "0.913", "95% interval 0.904 to 0.921")``."""

    label: str
    value: str
    interval: str = ""


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """A row of big numbers."""

    figures: tuple[KeyFigure, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A short named value beside a text, such as ``Fact("predicted", "sport")``."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class TextItem:
    """A text with what is to be said of it; of a text over 600 characters the beginning is shown."""

    text: str
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class TextList:
    """Numbered texts, such as the most confident mistakes or the nearest neighbours of a query."""

    items: tuple[TextItem, ...]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to be typed or read as they are, such as commands."""

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
    """The page as an HTML document; every text in it is escaped.

    Raises:
        InvalidInput: A table's rows or numeric columns do not match its columns, or a figure is not an SVG drawing or
            holds a script or a reference to something outside.
    """
    numbers = _Numbers()
    contents = _contents(page.sections) if len(page.sections) > 1 else ""
    sections = "\n".join(_section(section, at, numbers) for at, section in enumerate(page.sections, start=1))
    footer = f"<footer><p>{_text(page.footer)}</p></footer>\n" if page.footer else ""
    subtitle = f'<p class="subtitle">{_text(page.subtitle)}</p>\n' if page.subtitle else ""
    style = files("bothways.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(printable(page.title))}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{_text(page.title)}</h1>\n{subtitle}</header>\n{contents}"
        f"<main>\n{sections}\n</main>\n{footer}</body>\n</html>\n"
    )


class _Numbers:
    """Counts the figures and tables of one page."""

    def __init__(self) -> None:
        self._figures = 0
        self._tables = 0

    def next_figure(self) -> int:
        self._figures += 1
        return self._figures

    def next_table(self) -> int:
        self._tables += 1
        return self._tables


def _contents(sections: tuple[Section, ...]) -> str:
    lines = (f'<li><a href="#section-{at}">{_text(section.title)}</a></li>' for at, section in enumerate(sections, 1))
    return '<nav aria-label="Contents">\n<ol>\n' + "\n".join(lines) + "\n</ol>\n</nav>\n"


def _section(section: Section, at: int, numbers: _Numbers) -> str:
    blocks = "\n".join(_block(block, numbers) for block in section.blocks)
    return f'<section id="section-{at}">\n<h2>{_text(section.title)}</h2>\n{blocks}\n</section>'


def _block(block: Block, numbers: _Numbers) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{_text(text)}</p>"
        case Table():
            return _table(block, numbers.next_table())
        case Figure():
            return _figure(block, numbers.next_figure())
        case KeyFigures(figures):
            return '<dl class="key">\n' + "\n".join(map(_key_figure, figures)) + "\n</dl>"
        case TextList():
            return _text_list(block)
        case Code():
            return _code(block)
        case _:
            assert_never(block)


def _table(table: Table, number: int) -> str:
    _check_table(table)
    kinds = [' class="number"' if column in table.numeric else "" for column in table.columns]
    head = "".join(f'<th scope="col"{k}>{_text(c)}</th>' for k, c in zip(kinds, table.columns, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{k}>{_text(cell)}</td>" for k, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    name = f"Table {number}"
    caption = f"<caption><b>{name}.</b> {_text(table.caption)}</caption>\n" if table.caption else ""
    return (
        f'<div class="scroll" role="region" aria-label="{name}" tabindex="0">\n<table>\n{caption}'
        f"<thead>\n<tr>{head}</tr>\n</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


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


def _figure(figure: Figure, number: int) -> str:
    panels = (figure.svg,) if isinstance(figure.svg, str) else figure.svg
    drawings = "\n".join(
        f'<div class="panel">{embedded_svg(panel, prefix=f"figure-{number}-{at}-")}</div>'
        for at, panel in enumerate(panels, start=1)
    )
    caption = f"<figcaption><b>Figure {number}.</b> {_text(figure.caption)}</figcaption>"
    return (
        f'<figure>\n<div class="panels" role="img" aria-label="{_text(figure.alternative)}">\n{drawings}\n</div>\n'
        f"{caption}\n</figure>"
    )


def _key_figure(figure: KeyFigure) -> str:
    interval = f'<dd class="interval">{_text(figure.interval)}</dd>' if figure.interval else ""
    return f'<div><dt>{_text(figure.label)}</dt><dd class="value">{_text(figure.value)}</dd>{interval}</div>'


def _text_list(block: TextList) -> str:
    items = "\n".join(_text_item(item) for item in block.items)
    listed = f"<ol>\n{items}\n</ol>" if items else "<p>None.</p>"
    caption = f'<p class="caption">{_text(block.caption)}</p>\n' if block.caption else ""
    return f'<div class="texts">\n{caption}{listed}\n</div>'


def _code(block: Code) -> str:
    caption = f'<p class="caption">{_text(block.caption)}</p>\n' if block.caption else ""
    lines = "".join(f"<span>{_text(line)}\n</span>" for line in block.lines)
    return f'<div class="code">\n{caption}<pre><code>{lines}</code></pre>\n</div>'


def _text_item(item: TextItem) -> str:
    shown = _beginning(item.text)
    left_out = len(item.text) - len(shown)
    more = f' <span class="more">… and {left_out} more characters</span>' if left_out else ""
    facts = "".join(f"<div><dt>{_text(f.name)}</dt><dd>{_text(f.value)}</dd></div>" for f in item.facts)
    listed = f'<dl class="facts">{facts}</dl>' if facts else ""
    return f'<li><p dir="auto">{_text(shown)}{more}</p>{listed}</li>'


def _beginning(text: str) -> str:
    """At most ``LONGEST_TEXT`` characters, up to the end of a word if one ends near."""
    if len(text) <= LONGEST_TEXT:
        return text
    end = text.rfind(" ", LONGEST_TEXT - 40, LONGEST_TEXT)
    return text[: end if end > 0 else LONGEST_TEXT]


def _text(text: str) -> str:
    return escape(storable(text), quote=True)
