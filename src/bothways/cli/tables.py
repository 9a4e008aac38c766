"""Predictions as tables for people, on a terminal."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bothways.cli.printing import one_line, print_table, shortened
from bothways.progress import figure

_AT_ONCE = 50  # rows of a table; the next rows have a table of their own
_LONGEST, _MOST = 60, 3  # characters of a text, and probabilities or words in a cell
_BAR = 24
# Figures for programs, which --json prints.
_HIDDEN = {"windows", "start", "end", "out_of_domain_score", "row"}
_SELDOM = {"out_of_domain", "dropped_tokens"}  # shown if they are not false or 0


def on_terminal(output: str, *, json: bool) -> bool:
    """Return True if results are for a person: on a terminal, and not asked for as JSON."""
    return output == "-" and not json and sys.stdout.isatty()


def print_rows(rows: Iterable[Mapping[str, object]]) -> int:
    """Print rows of inputs and predictions as tables, without columns that are empty; return the number of rows."""
    count = 0
    flat = ({name: _cell(value) for name, value in _flat(row)} for row in rows)
    while block := list(itertools.islice(flat, _AT_ONCE)):
        names = [name for name in dict.fromkeys(itertools.chain(*block)) if any(row.get(name) for row in block)]
        headings = [f">{name}" if _is_number(block, name) else f"~{name}" for name in names]
        print_table(headings, [[row.get(name) or "-" for name in names] for row in block])
        count += len(block)
    return count


def bar(share: float) -> str:
    """Return a bar for a share of the largest value, solid for positive and light for negative shares."""
    full, light = ("\u2588", "\u2591") if "utf" in (sys.stdout.encoding or "utf-8").lower() else ("#", "-")
    return (full if share > 0 else light) * round(_BAR * abs(share))


def described(prediction: Mapping[str, object]) -> str:
    """Return a prediction on one line.

    >>> described({"label": "good", "probability": 0.91, "probabilities": {"good": 0.91, "bad": 0.09}, "windows": 1})
    'label: good, probability: 0.910, probabilities: good 0.910  bad 0.090'
    """
    cells = ((name, _cell(value)) for name, value in _flat(prediction))
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in cells if value)


def _flat(row: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield the names and values to show; those of the tasks of a model begin with the name of the task."""
    tagged = bool(row.get("spans"))
    for name, value in row.items():
        if isinstance(value, Mapping) and not all(isinstance(each, float) for each in value.values()):
            yield from _flat(value, f"{before}{name} ")
        elif name not in _HIDDEN and not (name in _SELDOM and not value) and not (name == "words" and tagged):
            yield f"{before}{name}", value


def _cell(value: object) -> str:
    match value:
        case None | () | []:
            return ""
        case float():
            return figure(value, 3)
        case Mapping():
            listed = [f"{name} {_cell(share)}" for name, share in itertools.islice(value.items(), _MOST)]
            return "  ".join(map(one_line, [*listed, "..."] if len(value) > _MOST else listed))
        case list() | tuple():
            return "  ".join(map(_item, value))
        case _:
            return shortened(one_line(str(value)), _LONGEST)


def _item(item: object) -> str:
    """Return a label, a tagged word, a span, or an answer."""
    match item:
        case {"text": str(text), "tag": tag}:
            return f"{one_line(text)}/{tag}"
        case {**values}:
            return " ".join(filter(None, (_cell(value) for name, value in values.items() if name not in _HIDDEN)))
        case _:
            return one_line(str(item))


def _is_number(block: Sequence[Mapping[str, str]], name: str) -> bool:
    return all(not (cell := row.get(name)) or cell.replace(".", "").replace("-", "").isdigit() for row in block)
