"""Functions that open the models and read the rows that the options of a command name."""

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import BoundArguments
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

import bothways.data
from bothways import checkpoints, retrieval, tasks
from bothways.cli.options import (
    ANY_MODEL,
    TEXT,
    FileOptions,
    ModelOptions,
    WindowOptions,
    as_usage_error,
    file_kind,
    spelled,
    usage_error,
)
from bothways.cli.printing import note
from bothways.data.columns import TEXT_ARGUMENTS, texts_in
from bothways.data.formats import FORMATS, FileSettings
from bothways.errors import BothwaysError
from bothways.reading import parse_json, read_bytes
from bothways.storage import check_file_writable
from bothways.tasks.columns import RawTextColumns, column_names, typed_texts
from bothways.tasks.embedding.spec import LabelledTexts, PlainTexts, RowColumns
from bothways.tasks.registry import stored_columns_in

if TYPE_CHECKING:
    from bothways.data import Row, Source
    from bothways.tasks import SentenceEmbedder
    from bothways.tasks.backend import OpenOptions
    from bothways.tasks.columns import AnyColumns
    from bothways.tasks.task import AnyTask


# An argument of Python in a message, before the option in parentheses.
_OPTION = r"\b[a-z_]+=(?:True|'[^']*'|\"[^\"]*\"|\([^()]*\)|\.\.\.) \((--[a-z-]+{})\)"
_ARGUMENT = re.compile(_OPTION.format(r"(?:'[^']*'|[^()'])*"))
# A column that a row lacks, and the advice to name another one.
_MISSING = re.compile(r"(?:no|neither a|nor a) column ('[^']*'|\"[^\"]*\")")
_BESIDE = ("--validation", "--out-of-domain")
_ADVICE = re.compile(r"(?:Did you mean|Name another:) " + _OPTION.format(r") ((?:'[^']*'|[^()'])+") + "[?.]")

# Parameters of commands that name models, or an index.
_MODELS = ("index", "judge", "models", "teacher", "model")

SKIP_EMPTY = "To continue without such rows: --on-empty skip or --on-empty null."


def open_options(reading: WindowOptions, model: ModelOptions) -> "OpenOptions":
    """Return the options as keyword arguments of the library's functions that open a model for a task."""
    return {
        "max_length": reading.max_length,
        "on_overflow": reading.on_overflow,
        "stride": reading.stride,
        "check": False,
        **model.arguments(),
    }


def open_task(
    name: str, own: dict[str, Any], reading: WindowOptions, model: ModelOptions, task: str | None = None
) -> "AnyTask":
    """Open a trained model; ``task`` names one task of a multi-task model, or is ``similarity`` for any encoder."""
    from bothways import compose

    with as_usage_error(*own):
        return compose.open_trained(name, task=task, **own, **open_options(reading, model))


def open_embedder(
    name: str, vectors: dict[str, Any], reading: WindowOptions, model: ModelOptions
) -> "SentenceEmbedder":
    """Open a model as a sentence embedder; ``vectors`` are the options of `vector_options`."""
    with as_usage_error(*vectors):
        return tasks.SentenceEmbedder.from_pretrained(name, **vectors, **open_options(reading, model))


def with_columns(model: Any, columns: dict[str, Any]) -> Any:  # noqa: ANN401 (a model that reads rows)
    """Return the model, which then reads columns with these names; an unknown option is a usage error."""
    known = model.column_names if hasattr(model, "column_names") else column_names(model.fitted.columns)
    for name in columns:
        if name not in known:
            own = ", ".join(map(spelled, known))
            raise usage_error(f"this model does not read {spelled(name)}. Its column options are: {own}.")
    return model.with_columns(**columns) if columns else model


def trained_columns(name: str, model: ModelOptions) -> "AnyColumns | None":
    """Return the columns that a model was trained on, without opening it; None for an encoder without a task."""
    found = checkpoints.locate(name, revision=model.revision, download=model.download, allow_pickle=model.allow_pickle)
    return stored_columns_in(found.folder)


def text_columns(given: tuple[str, ...] | None, columns: object) -> tuple[str, ...]:
    """Return the columns of ``--text``, else those of the texts that a model was trained on, else ``text``."""
    match columns:
        case RawTextColumns(text=text) | LabelledTexts(text=text) | PlainTexts(text=text):
            return given or text
        case _:
            return given or TEXT


def given_rows(
    texts: tuple[str, ...],
    data: str | None,
    text: tuple[str, ...],
    file: FileOptions,
    columns: Collection[str] | None = None,
) -> "Iterable[Row]":
    """Return the rows of ``--data``, with these columns (default: all), or a row for each text on the command line."""
    check_given(texts, data)
    if data is None:
        return typed_rows(typed_texts(text, texts))
    return file_rows(data, file, columns)


def file_rows(data: "Source", file: FileOptions, columns: Collection[str] | None = None) -> "Iterator[Row]":
    """Return the rows of a file, with these columns (default: all)."""
    return bothways.data.read_rows(data, columns=columns, **file_settings(data, file))


def file_settings(data: "Source", file: FileOptions) -> "FileSettings":
    """Return the format and the encoding to read a file with; a note names those that were not typed."""
    chosen = file.settings(data)
    if remembered := [(name, value) for name, value in chosen.items() if value and not getattr(file, name)]:
        options = " ".join(f"{spelled(name)} {value}" for name, value in remembered)
        note(f"{data} is read with {options}, as the files before it; give these options to change that.")
    return chosen


def remember_files(bound: BoundArguments) -> None:
    """Let a command read its files with the options that those of its models, or of its index, were read with."""
    given, usual = bound.arguments, bound.signature.parameters["file"].default
    named = [given[key] for key in _MODELS if isinstance(given.get(key), str | Path | tuple)]
    opening = next((each for each in given.values() if isinstance(each, ModelOptions)), ANY_MODEL)
    trained: dict[str, FileSettings] = {}
    for each in named:
        for name in each if isinstance(each, tuple) else (each,):
            trained = {**_files_of(name, opening), **trained}
    if trained:
        given["file"] = replace(given.get("file", usual), trained=trained)


def _files_of(name: str | Path, model: ModelOptions) -> "dict[str, FileSettings]":
    """Return the options that the files of a model or an index were read with, by the kind of file."""
    try:
        if retrieval.is_database(name):
            source = retrieval.facts_of(name).source
            return {} if source is None else dict(source.files)
        folder = Path(name) if Path(name).is_dir() else checkpoints.locate(str(name), revision=model.revision).folder
        paths = [path for path in (folder / checkpoints.OURS, folder / "index.json") if path.is_file()]
        paths = paths or sorted(folder.glob(f"*/{checkpoints.OURS}"))  # of a judge for each dimension
        contents = [parse_json(read_bytes(path)) for path in paths]
        return {kind: each for content in contents for kind, each in _stored_files(content)}
    except (BothwaysError, OSError, ValueError):  # the command reports what is wrong
        return {}


def _stored_files(content: object) -> "Iterator[tuple[str, FileSettings]]":
    match content:
        case {"card": {"files": {**files}}} | {"source": {"files": {**files}}}:
            for kind, each in files.items():
                match each:
                    case {"format": None | str() as format_, "encoding": None | str() as encoding}:
                        chosen = next((known for known in FORMATS if known == format_), None)
                        yield str(kind), {"format": chosen, "encoding": encoding}
        case {"heads": [*heads]}:
            for head in heads:
                yield from _stored_files(head)


def typed_rows(values: Iterable[dict[str, object]]) -> "list[Row]":
    """Return numbered rows with values from the command line."""
    return [bothways.data.Row(number, each, f"text {number}") for number, each in enumerate(values, start=1)]


def texts_of(rows: "Iterable[Row]", text: tuple[str, ...]) -> Iterator[str]:
    """Yield the text of each row; a missing or empty text is an error."""
    for row in rows:
        yield bothways.data.text_at(row, text)


def input_texts(rows: "Iterable[Row]", given: tuple[str, ...] | None, columns: "AnyColumns | None") -> Iterator[str]:
    """Yield the text of each row: of ``--text``, else all that a model with these columns reads of it."""
    if given or columns is None or isinstance(columns, RowColumns):
        yield from texts_of(rows, text_columns(given, columns))
    else:
        yield from (" ".join(texts_in(columns.read(row))) for row in rows)


def labelled_source(data: str, file: FileOptions) -> "Source":
    """Return labelled data for the library: the file name, or the rows of the file if it is read with options."""
    return list(file_rows(data, file)) if any(file.settings(data).values()) else data


def optional_source(data: str | None, file: FileOptions) -> "Source | None":
    """Return labelled rows as `labelled_source` does, or None."""
    return None if data is None else labelled_source(data, file)


def like(name: str, data: str | None, file: FileOptions, *, remembered: bool = True) -> str:
    """Return the name of a file of rows in the format of the data, with the options that its reading needs.

    ``remembered`` is True for files that a model reads, which reads them as the data of its training.

    >>> like("test", "data/news.train.csv.gz", FileOptions()), like("test", "-", FileOptions("csv", "cp1252"))
    ('data/news.test.csv.gz', 'test.csv --encoding cp1252')
    """
    given, kind = Path(data or "-"), file_kind(data)
    ending = Path(given.name.removesuffix(".gz")).suffix
    if not file.format and ending in ("", ".txt"):  # raw text and folders of texts have no labels
        ending = ".jsonl"
    elif file.format and kind is None:
        ending = f".{file.format}"
    beside = given.with_name(given.name.replace("train", name)) if "train" in given.name else None
    named = f"{name}{ending}" if beside is None or beside == given else shlex.quote(str(beside))
    if remembered and kind is not None and kind == file_kind(named):
        return named
    options = [("format", file.format), ("encoding", file.encoding)]
    needed = [f"--{option} {value}" for option, value in options if value not in (None, file_kind(named))]
    return " ".join([named, *needed])


def check_typed(texts: tuple[str, ...], instead: str = "") -> None:
    """Raise a usage error if one of the texts is the name of a file; ``instead`` is the option that reads files."""
    for each in texts:
        try:
            named = bool(Path(each).suffix) and Path(each).is_file()
        except (OSError, ValueError):  # too long, or with a null character
            continue
        if named:
            advice = f"Did you mean {instead} {shlex.quote(each)}?" if instead else "Give the text itself."
            raise usage_error(f"expected a text, got {each!r}, which is a file. {advice}")


def check_given(texts: tuple[str, ...], data: str | None) -> None:
    """Raise a usage error unless there are either texts on the command line, not names of files, or ``--data``."""
    check_typed(texts, "--data")
    if texts and data is not None:
        raise usage_error("expected texts or --data, got both: drop one.")
    if not texts and data is None:
        raise usage_error("nothing to read: give texts, or --data with a file ('-' for standard input).")


def check_output(
    output: str | Path | None, overwrite: bool, data: str | None = None, *, option: str = "--output"
) -> None:
    """Raise an error before the work if an output cannot be written, or would replace a file that is not to be lost."""
    if output is None or (str(output) == "-" and option == "--output"):
        return
    if str(output) == "-":
        raise usage_error(f"{option} needs the name of a file, or /dev/stdout.")
    if data not in (None, "-") and Path(data).resolve() == Path(output).resolve():
        raise usage_error(f"{option} is the same file as --data, {data!r}: choose another.")
    if str(output).endswith(("/", os.sep)) or (Path(output).is_dir() and not Path(output).suffix):
        raise usage_error(f"{option}: {str(output)!r} is a folder: name a file in it.")
    check_file_writable(output, overwrite=overwrite)


def check_piped(files: Mapping[str, str | None]) -> None:
    """Raise a usage error if more than one of these options, mapped to their files, reads standard input."""
    piped = [name for name, value in files.items() if value == "-"]
    if len(piped) > 1:
        raise usage_error(f"{piped[0]} and {piped[1]} cannot both be standard input ('-'): name a file for one.")


def advised(message: str, app: App, arguments: Sequence[str]) -> str:
    """Return a message with its advice as options of the command line, which may have none for a column.

    Files of the options in ``_BESIDE`` have the columns of the other data, so that only theirs can be renamed.
    """
    options = () if app.default_command is None else app.assemble_argument_collection()
    if missing := _MISSING.findall(message):
        columns = {each.name for each in options if "str" in str(each.hint)}  # --tokens may be their number
        paths = [path for option, path in pairwise(arguments) if option in _BESIDE]
        beside = any(f"of {each!r}" in message for path in paths for each in (path, path.partition("=")[2]))

        def advice(found: re.Match[str]) -> str:
            name, column = found.groups()
            if name in columns and not beside:
                return found[0]
            if "--text" in columns and not beside and name[2:].replace("-", "_") in TEXT_ARGUMENTS:
                return f"Did you mean --text {column}?"
            which = "the column that holds it" if column == "COLUMN" else column
            return f"Rename {which} to {missing[-(name == '--text')]}."

        message = _ADVICE.sub(advice, message)
    message = _ARGUMENT.sub(r"\1", message)
    # The option for the format of data has this name where --format is another, such as that of a report.
    other = "--data-format"
    return message.replace("--format", other) if any(other in each.names for each in options) else message
