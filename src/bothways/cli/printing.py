"""Output: results on standard output or in files; notes and errors on standard error."""

import itertools
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import bothways.data
from bothways import compose
from bothways.choices import OnEmpty
from bothways.cli.options import check_known, options_of, usage_error
from bothways.errors import InvalidInput
from bothways.progress import figure
from bothways.storage import new_file
from bothways.tasks.registry import SPECS, models
from bothways.tasks.spec import TaskSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.text import Text

    from bothways.data import OutputFormat, Row

    Vectors = Iterable[NDArray[np.float32]]
    WriteVectors = Callable[[str, Vectors, int], int]


FAILED, BAD_USAGE, BROKEN_PIPE = 1, 2, 141
"""Exit codes of the program, besides those of `interrupted_code`."""

_WIDE = 10_000  # characters per line if the output is not a terminal

# Tables of predictions for people.
_AT_ONCE = 50  # rows of a table; the next rows have a table of their own
_LONGEST, _MOST = 60, 3  # characters of a text, and probabilities or words in a cell
_BAR = 24
# Figures for programs, which --json prints.
_HIDDEN = {"windows", "start", "end", "out_of_domain_score", "row"}
_SELDOM = {"out_of_domain", "dropped_tokens"}  # shown if they are not false or 0


def print_json(value: object) -> None:
    """Print a value as one line of JSON, in ASCII unless standard output is UTF-8."""
    encoding = (sys.stdout.encoding or "utf-8").lower().replace("-", "")
    print(json.dumps(value, ensure_ascii=encoding != "utf8", allow_nan=False))


def six_digits(value: object) -> object:
    """Round numbers to six significant digits, also inside lists and objects.

    >>> six_digits({"probability": 0.12345678901234568, "windows": 1})
    {'probability': 0.123457, 'windows': 1}
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: six_digits(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [six_digits(each) for each in value]
    return value


def rounded(values: Mapping[str, object]) -> dict[str, object]:
    """Return a row of results with its numbers rounded to six significant digits."""
    return {name: six_digits(each) for name, each in values.items()}


def note(message: str) -> None:
    """Print a remark on standard error."""
    _print(printable(message))


def complain(message: str) -> None:
    """Print an error on standard error."""
    from rich.text import Text

    _print(Text.assemble(("error: ", "bold red"), printable(message)))


def progress_beside(output: str, *, quiet: bool) -> bool | None:
    """Return the library's ``show_progress``: False if quiet or if results go to the terminal, else None (default)."""
    return False if quiet or (output == "-" and sys.stderr is not None and sys.stderr.isatty()) else None


def interrupted_code(number: int | None) -> int:
    """Return the exit code after a signal, by the convention of shells; None counts as Ctrl-C."""
    return 128 + (number or signal.SIGINT)


def print_table(columns: Sequence[str], rows: "Iterable[Sequence[str | Text]]", *, header: bool = True) -> None:
    """Print a table without border lines. On a terminal it fits the width; elsewhere, lines may have any length.

    The first character of a heading sets the layout of its column: ``<`` aligns it left and ``>`` right, both without
    line breaks; ``~`` breaks lines, also within long words. Columns with other headings break lines between words.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_header=header)
    for column in columns:
        match column[:1]:
            case "<":
                table.add_column(column[1:], no_wrap=True)
            case ">":
                table.add_column(column[1:], justify="right", no_wrap=True)
            case "~":
                table.add_column(column[1:], overflow="fold")
            case _:
                table.add_column(column)
    for row in rows:
        table.add_row(*row)
    target = _console()
    with target.capture() as capture:
        target.print(table)
    # Remove the padding of the last column.
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def printable(text: str) -> str:
    r"""Escape control characters, so that a text cannot control the terminal.

    >>> print(printable("\x1b[31mred"))
    \x1b[31mred
    """
    return "".join(
        each if each.isprintable() or each in "\n " else each.encode("unicode_escape").decode("ascii") for each in text
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 text``, ``2,000 texts``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shortened(text: str, longest: int) -> str:
    """Replace the middle of a long text by an ellipsis, since names differ most at their ends.

    >>> shortened("transfer_not_received_by_recipient", 20)
    'transfer_n…recipient'
    """
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[half + 1 - longest :]}"


def one_line(text: str) -> str:
    """Return the text on one line, with single spaces and control characters escaped."""
    return printable(" ".join(text.split()))


def _print(message: object) -> None:
    target = _console(stderr=True)
    # Lines are wrapped on a terminal only.
    target.print(message, soft_wrap=not target.is_terminal)


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    # Without markup and automatic colours, texts are printed unchanged.
    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console


# Columns of a .conll file, and the keys of a predicted word for them.
_CONLL = (("tokens", "text"), ("tags", "tag"))


@dataclass(frozen=True, slots=True)
class PredictionTable:
    """Converts predictions to output rows."""

    format: "OutputFormat"
    keep: bool
    """Also write all columns of the input."""
    inputs: tuple[str, ...] = ()
    """Input columns with texts that a .csv or .tsv output repeats."""
    skip: bool = False
    """Leave out rows without a text, instead of writing null predictions."""
    listed: str | None = None
    """The field of a prediction whose items become the rows of a table, such as ``spans``."""
    ranked: bool = False
    """Write columns for the best label, the second best, ... to .csv or .tsv, instead of a column for each label."""

    def rows(self, rows: "Iterable[Row]", predictions: Iterable[Any]) -> Iterator[Mapping[str, object]]:
        """Yield the output rows.

        A table has the same columns in every row. If the first row has an id, there is a column for ids, which is empty
        in rows without an id.
        """
        ids: bool | None = None
        names: list[str] | None = None  # columns of a prediction, known from the first row with a text
        waiting: list[dict[str, object]] = []  # rows before the first row with a text
        for number, (row, prediction) in enumerate(zip(rows, predictions, strict=True), start=1):
            kept = {name: value for name, value in row.values.items() if self.keep or name == "id"}
            if not self.keep:
                kept |= {name: text if isinstance(text := row.values.get(name), str) else None for name in self.inputs}
            ids = "id" in kept if ids is None else ids
            if ids and self.format != "jsonl":
                kept.setdefault("id", None)
            if prediction is None:
                if not self.skip and not self.listed:
                    waiting.append(kept)
            else:
                for answer in self._answers(prediction.to_dict(), number):
                    names = list(answer)
                    yield from (_beside(dict.fromkeys(names), each) for each in waiting)
                    waiting.clear()
                    yield _beside(answer, kept)
            if names is not None:
                yield from (_beside(dict.fromkeys(names), each) for each in waiting)
                waiting.clear()
        yield from (_beside({"prediction": None}, each) for each in waiting)

    def _answers(self, prediction: Mapping[str, object], number: int) -> list[dict[str, object]]:
        answer = rounded(prediction)
        if self.format == "conll":
            words: Any = answer["words"]
            return [{column: [word[part] for word in words] for column, part in _CONLL}]
        if self.format == "jsonl":
            return [answer]
        if self.listed:
            items: Any = answer[self.listed]
            return [{"row": number, **_flat(item)} for item in items]
        return [_flat({k: v for k, v in answer.items() if not _holds_objects(v)}, ranked=self.ranked)]


def prediction_table(
    task: Any,  # noqa: ANN401 (a trained model)
    output: str,
    options: Mapping[str, Any],
    *,
    keep: bool,
    on_empty: OnEmpty = "error",
    shown: bool = False,
) -> PredictionTable:
    """Return the table for an output file; raise a usage error for options that do not fit the file or the model.

    A table that is ``shown`` to a person repeats the texts.
    """
    try:
        chosen = bothways.data.output_format(output)
    except InvalidInput as error:
        raise usage_error(f"--output: {error}") from error
    in_cells, parts = chosen in ("csv", "tsv"), compose.parts_of(task)
    if ("scheme" in options or chosen == "conll") and not _tags_words(task.spec):
        subject = "--scheme" if "scheme" in options else f"a .conll output ({Path(output).name})"
        tagger = next((name for name in parts if _tags_words(parts[name].spec)), None)
        advice = f" Name the task that tags: --task {tagger}." if tagger else ""
        taggers = models(spec for spec in SPECS.values() if _tags_words(spec))
        raise usage_error(f"{subject} is for {taggers}, but this model does not.{advice}")
    check_known(task.spec, "predict_options", options)
    if keep and chosen == "conll":
        raise usage_error("a .conll file holds only words and tags: drop --keep, or write .jsonl.")
    if on_empty == "null" and chosen == "conll":
        raise usage_error("a .conll file cannot hold null: use --on-empty skip, or write .jsonl.")
    prediction = task.spec.predict_options(**options)
    listed = prediction.listed if in_cells else None
    if in_cells and not listed and (several := prediction.nested):
        other = ".jsonl, or .conll for words and tags" if _tags_words(task.spec) else ".jsonl"
        raise usage_error(f"{' and '.join(several)} do not fit into the cells of a .{chosen} file: write {other}.")
    for name, part in parts.items() if in_cells else ():
        if several := part.spec.predict_options().nested:
            raise usage_error(
                f"{' and '.join(f'the {each}' for each in several)} of the task {name!r} do not fit into the cells of "
                f"a .{chosen} file: write .jsonl, or choose one task with --task."
            )
    every = (task, *parts.values()) if shown else (task,) if in_cells and not listed else ()
    inputs = tuple(dict.fromkeys(name for each in every for name in each.fitted.columns.input_columns or ()))
    return PredictionTable(chosen, keep, inputs, on_empty == "skip", listed, ranked=options.get("top") is not None)


def _tags_words(spec: TaskSpec) -> bool:
    return any(option.name == "scheme" for option in options_of(spec.predict_options))


def _holds_objects(value: object) -> bool:
    """Return True for a list of objects, which does not fit into a cell."""
    return isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value)


def _beside(answer: Mapping[str, object], kept: Mapping[str, object]) -> dict[str, object]:
    """Merge input columns (``kept``) with an answer; input columns of the same name get the prefix ``input_``."""
    named: dict[str, object] = {}
    for name, value in kept.items():
        free = name
        while free in answer or (free != name and (free in kept or free in named)):
            free = f"input_{free}"
        named[free] = value
    return named | dict(answer)


def _flat(values: Mapping[str, object], before: str = "", *, ranked: bool = False) -> dict[str, object]:
    """Flatten objects to the cells of a table: ``{"a": {"b": 1}}`` becomes ``{"a_b": 1}``."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        if name == "probabilities" and ranked and isinstance(value, Mapping):
            columns: dict[str, object] = {}
            for rank, (label, probability) in enumerate(value.items(), start=1):
                columns |= {f"{before}label_{rank}": label, f"{before}probability_{rank}": probability}
        elif isinstance(value, Mapping):
            # Labels are ordered by probability in each row, but a table needs the same order in all rows.
            inner = dict(sorted(value.items())) if name == "probabilities" else value
            columns = _flat(inner, f"{before}{name}_", ranked=ranked)
        else:
            columns = {f"{before}{name}": value}
        twice = flat.keys() & columns.keys()
        if twice:
            raise InvalidInput(f"two columns would have the name {min(twice)!r}: write .jsonl instead.")
        flat |= columns
    return flat


def vector_writer(output: str) -> "WriteVectors":
    """Return the function that writes vectors in the format of the file's suffix."""
    if output == "-":
        raise usage_error(
            "vectors cannot be written to standard output. Name a file: --output vectors.npy or --output vectors.jsonl."
        )
    if output.lower().endswith(".npy"):
        return write_npy
    if output.lower().endswith((".jsonl", ".jsonl.gz")):
        return write_jsonl
    raise usage_error(f"--output must end in .npy, .jsonl or .jsonl.gz, got {output!r}.")


def write_npy(path: str, vectors: "Vectors", dimensions: int) -> int:
    """Write vectors as the rows of a float32 array, in constant memory, and return their number.

    NumPy pads headers so that the number of rows can grow: a header for 0 rows is written first, and the final one
    replaces it.
    """
    with new_file(path, binary=True) as stream:
        if not stream.seekable():
            raise InvalidInput(f"a .npy array cannot be written to the pipe {path!r}: name a file, or write .jsonl.")
        _write_header(stream, 0, dimensions)
        count = 0
        for vector_D in vectors:
            stream.write(vector_D.astype("<f4").tobytes())
            count += 1
        stream.seek(0)
        _write_header(stream, count, dimensions)
    return count


def _write_header(stream: IO[bytes], rows: int, dimensions: int) -> None:
    from numpy.lib import format as npy

    npy.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, dimensions)})


def write_jsonl(path: str, vectors: "Vectors", dimensions: int) -> int:
    """Write a line ``{"vector": [...]}`` for each vector, in the shortest exact digits; return the number of lines."""

    def rows() -> Iterator[dict[str, object]]:
        for vector_D in vectors:
            empty = bool(vector_D[0] != vector_D[0])  # NaN stands for a row without a text
            yield {"vector": None if empty else [float(str(value)) for value in vector_D]}

    del dimensions
    return bothways.data.write_rows(path, rows())


# --- predictions as tables for people, on a terminal ---


def on_terminal(output: str, *, json: bool) -> bool:
    """Return True if results are for a person: on a terminal, and not asked for as JSON."""
    return output == "-" and not json and sys.stdout.isatty()


def print_rows(rows: Iterable[Mapping[str, object]]) -> int:
    """Print rows of inputs and predictions as tables, without columns that are empty; return the number of rows."""
    count = 0
    flat = ({name: _cell(value) for name, value in _figures(row)} for row in rows)
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
    cells = ((name, _cell(value)) for name, value in _figures(prediction))
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in cells if value)


def _figures(row: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield the names and values to show; those of the tasks of a model begin with the name of the task."""
    tagged = bool(row.get("spans"))
    for name, value in row.items():
        if isinstance(value, Mapping) and not all(isinstance(each, float) for each in value.values()):
            yield from _figures(value, f"{before}{name} ")
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
