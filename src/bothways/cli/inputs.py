"""Functions that open the models and read the rows that the options of a command name."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bothways.data
from bothways import compose, tasks
from bothways.cli.options import (
    ANY_FILE,
    FileOptions,
    ModelOptions,
    WindowOptions,
    as_usage_error,
    spelled,
    usage_error,
)
from bothways.tasks.columns import column_names

if TYPE_CHECKING:
    from bothways.data import Row, Source
    from bothways.tasks import SentenceEmbedder
    from bothways.tasks.backend import OpenOptions
    from bothways.tasks.task import AnyTask


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
        return typed_rows({text[0]: each} for each in texts)
    return file_rows(data, file, columns)


def file_rows(data: "Source", file: FileOptions, columns: Collection[str] | None = None) -> "Iterator[Row]":
    """Return the rows of a file, with these columns (default: all)."""
    return bothways.data.read_rows(data, format=file.format, encoding=file.encoding, columns=columns)


def typed_rows(values: Iterable[dict[str, object]]) -> "list[Row]":
    """Return numbered rows with values from the command line."""
    return [bothways.data.Row(number, each, f"text {number}") for number, each in enumerate(values, start=1)]


def texts_of(rows: "Iterable[Row]", text: tuple[str, ...]) -> Iterator[str]:
    """Yield the text of each row; a missing or empty text is an error."""
    for row in rows:
        yield bothways.data.text_at(row, text)


def labelled_source(data: str, file: FileOptions) -> "Source":
    """Return labelled data for the library: the file name, or the rows of the file if options for it are given."""
    return data if file == ANY_FILE else list(file_rows(data, file))


def optional_source(data: str | None, file: FileOptions) -> "Source | None":
    """Return labelled rows as `labelled_source` does, or None."""
    return None if data is None else labelled_source(data, file)


def check_given(texts: tuple[str, ...], data: str | None) -> None:
    """Raise a usage error unless there are either texts on the command line or ``--data``."""
    if texts and data is not None:
        raise usage_error("expected texts or --data, got both: drop one.")
    if not texts and data is None:
        raise usage_error("nothing to read: give texts, or --data with a file ('-' for standard input).")


def check_output(data: str | None, output: str) -> None:
    """Raise a usage error if ``--output`` would replace the file of ``--data``."""
    if data is not None and "-" not in (data, output) and Path(data).resolve() == Path(output).resolve():
        raise usage_error(f"--output is the same file as --data, {data!r}: choose another.")


def check_piped(files: Mapping[str, str | None]) -> None:
    """Raise a usage error if more than one of these options, mapped to their files, reads standard input."""
    piped = [name for name, value in files.items() if value == "-"]
    if len(piped) > 1:
        raise usage_error(f"{piped[0]} and {piped[1]} cannot both be standard input ('-'): name a file for one.")
