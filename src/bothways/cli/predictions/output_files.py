"""Output files: predictions as rows of a format, and vectors."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bothways.data
from bothways import compose
from bothways.choices import OnEmpty
from bothways.cli.options import check_known, options_of, usage_error
from bothways.data.output import PredictionTable, array_header
from bothways.errors import InvalidInput
from bothways.storage import new_file
from bothways.tasks.registry import SPECS, models
from bothways.tasks.spec import TaskSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = Iterable[NDArray[np.float32]]
    WriteVectors = Callable[[str, Vectors, int], int]


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
        array_header(stream, 0, dimensions)
        count = 0
        for vector_D in vectors:
            stream.write(vector_D.astype("<f4").tobytes())
            count += 1
        stream.seek(0)
        array_header(stream, count, dimensions)
    return count


def write_jsonl(path: str, vectors: "Vectors", dimensions: int) -> int:
    """Write a line ``{"vector": [...]}`` for each vector, in the shortest exact digits; return the number of lines."""

    def rows() -> Iterator[dict[str, object]]:
        for vector_D in vectors:
            empty = bool(vector_D[0] != vector_D[0])  # NaN stands for a row without a text
            yield {"vector": None if empty else [float(str(value)) for value in vector_D]}

    del dimensions
    return bothways.data.write_rows(path, rows(), overwrite=True)
