"""Models, rows and texts that a command line names."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bothways.data
from bothways import compose, retrieval, tasks
from bothways.choices import Format
from bothways.cli.options import ModelOptions, WindowOptions, as_usage_error, spelled, usage_error
from bothways.tasks.columns import column_names

if TYPE_CHECKING:
    from bothways.data import Row, Source
    from bothways.retrieval import CandidateRanking
    from bothways.tasks import SentenceEmbedder
    from bothways.tasks.backend import OpenOptions
    from bothways.tasks.predict import AnyPredictor

SKIP_EMPTY = "To continue without such rows: --on-empty skip or --on-empty null."


def open_options(reading: WindowOptions, model: ModelOptions) -> "OpenOptions":
    """Return the library's keyword arguments for these options."""
    return {
        "max_length": reading.max_length,
        "on_overflow": reading.on_overflow,
        "stride": reading.stride,
        "revision": model.revision,
        "device": model.device,
        "dtype": model.dtype,
        "download": model.download,
        "allow_pickle": model.allow_pickle,
    }


def open_task(
    name: str, own: dict[str, Any], reading: WindowOptions, model: ModelOptions, task: str | None = None
) -> "AnyPredictor":
    """Open a trained model as the task it was trained for, or as one of its tasks.

    Raises:
        CycloptsError: A value of an option is out of range, or the model's task has no such option.
    """
    with as_usage_error(*own):
        return compose.open_trained(name, task=task, **own, **open_options(reading, model))


def open_ranking(
    name: str, own: dict[str, Any], reading: WindowOptions, model: ModelOptions, relevant: str | None
) -> "CandidateRanking":
    """Open a pair model, or any encoder as an embedder, to rank candidates.

    Raises:
        CycloptsError: A value of an option is out of range, or the model has no such label or option.
    """
    with as_usage_error(*own):
        return retrieval.CandidateRanking.open(name, relevant=relevant, **own, **open_options(reading, model))


def open_embedder(
    name: str, vectors: dict[str, Any], reading: WindowOptions, model: ModelOptions
) -> "SentenceEmbedder":
    """Open an embedder.

    Raises:
        CycloptsError: A value of an option is out of range.
    """
    with as_usage_error(*vectors):
        return tasks.SentenceEmbedder.from_pretrained(name, **vectors, **open_options(reading, model))


def with_columns(model: Any, columns: dict[str, Any]) -> Any:  # noqa: ANN401 (a model that reads rows)
    """Return the model with other columns to read.

    Raises:
        CycloptsError: It does not read such a part of a row.
    """
    known = model.column_names if hasattr(model, "column_names") else column_names(model.fitted.columns)
    for name in columns:
        if name not in known:
            raise usage_error(
                f"this model does not read {spelled(name)}. Its columns are: {', '.join(map(spelled, known))}."
            )
    return model.with_columns(**columns) if columns else model


def given_rows(
    texts: tuple[str, ...],
    data: str | None,
    text: tuple[str, ...],
    format_: Format | None,
    columns: Collection[str] | None = None,
) -> "Iterable[Row]":
    """Return the rows of ``--data``, or one for each text of the command line.

    Args:
        texts: Texts of the command line.
        data: The file.
        text: Columns of the text.
        format_: Format of the file.
        columns: The columns to read; all by default.

    Raises:
        CycloptsError: Both or neither were given.
    """
    check_given(texts, data)
    if data is None:
        return typed_rows({text[0]: each} for each in texts)
    return bothways.data.read_rows(data, format=format_, columns=columns)


def typed_rows(values: Iterable[dict[str, object]]) -> "list[Row]":
    """Return rows for values of the command line."""
    return [bothways.data.Row(number, each, f"text {number}") for number, each in enumerate(values, start=1)]


def texts_of(rows: "Iterable[Row]", text: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts of rows, checked."""
    for row in rows:
        yield bothways.data.text_at(row, text)


def labelled_source(data: str, format_: Format | None) -> "Source":
    """Return labelled rows as the library takes them: a file, or its rows if their format is given."""
    return data if format_ is None else list(bothways.data.read_rows(data, format=format_))


def optional_source(data: str | None, format_: Format | None) -> "Source | None":
    """Return labelled rows as `labelled_source` does, or None."""
    return None if data is None else labelled_source(data, format_)


def check_given(texts: tuple[str, ...], data: str | None) -> None:
    """Raise a usage error unless there are either texts on the command line or ``--data``."""
    if texts and data is not None:
        raise usage_error("expected texts or --data, got both.")
    if not texts and data is None:
        raise usage_error("nothing to read: give texts, or --data with a file ('-' for standard input).")


def check_output(data: str | None, output: str) -> None:
    """Raise a usage error if ``--output`` would replace the file of ``--data``."""
    if data is not None and "-" not in (data, output) and Path(data).resolve() == Path(output).resolve():
        raise usage_error(f"--output is the same file as --data, {data!r}: choose another.")


def check_piped(files: Mapping[str, str | None]) -> None:
    """Raise a usage error if several options read standard input.

    Args:
        files: File names by their options.
    """
    piped = [name for name, value in files.items() if value == "-"]
    if len(piped) > 1:
        raise usage_error(f"{piped[0]} and {piped[1]} cannot both be standard input: give one of them as a file.")
