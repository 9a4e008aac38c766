"""Checking a model of any kind against its golden answers, and recording those of models of others."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from bothways import checkpoints
from bothways.checkpoints.golden import (
    ENCODER,
    Answering,
    GoldenInputs,
    as_json,
    neutral_inputs,
    recorded,
)
from bothways.checkpoints.golden_check import GoldenFile, GoldenReport, compare_golden
from bothways.checkpoints.hub import LocatedModel
from bothways.checkpoints.schema import GOLDEN_FILE
from bothways.compose.opening import COMPOSED
from bothways.data import read_rows, text_at
from bothways.errors import InvalidInput, NotFitted
from bothways.lazy import imported
from bothways.storage import check_file_writable, new_file
from bothways.tasks.backend import OpenOptions, check_requested
from bothways.tasks.opening import find_model
from bothways.tasks.outputs import AnsweringTask
from bothways.tasks.registry import SPECS, task_class, task_of
from bothways.tasks.task import AnyTask

if TYPE_CHECKING:
    from bothways.data import Source

MOST_GIVEN = 1000
"""Maximum number of inputs in a golden file."""


def check(
    name_or_path: str | Path, *, against: str | Path | None = None, **options: Unpack[OpenOptions]
) -> GoldenReport:
    """Compare a model with golden answers, to notice an upgrade that changes its answers.

    Args:
        name_or_path: A folder or a name, see `bothways.load`.
        against: A file that `record_answers` wrote. Default: ``golden.json`` in the model's folder.
        options: Options for finding the model, its device and its precision.

    Returns:
        The report; ``report.ok`` is True if nothing differs, and ``report.check()`` raises `AnswersChanged` otherwise.

    Raises:
        InvalidInput: There are no golden answers, or they belong to another model.
        CorruptCheckpoint: The file of golden answers is damaged.
    """
    options = _in_full(options)
    located = find_model(name_or_path, options)
    file = located.folder / GOLDEN_FILE if against is None else Path(against)
    golden = GoldenFile.read(file, str(name_or_path))
    model = _opened(located, options, encoder=golden.task == ENCODER)
    return compare_golden(golden, model, located.folder, str(name_or_path))


def record_answers(
    name_or_path: str | Path,
    file: str | Path,
    *,
    data: "Source | None" = None,
    overwrite: bool = False,
    **options: Unpack[OpenOptions],
) -> int:
    """Write the golden answers of any model into a file, for `check`; return the number of inputs.

    Args:
        name_or_path: A folder or a name, see `bothways.load`.
        file: The file.
        data: Rows with inputs of the model's task, in the columns of its training; for an embedder, texts in the column
            ``text``. Default: 16 neutral inputs.
        overwrite: Replace an existing file.
        options: Options for finding the model, its device and its precision.

    Raises:
        InvalidInput: The data have no rows, or more than 1,000, or the model cannot answer any of them.
        OutputExists: The file exists and ``overwrite`` is false.
    """
    options = _in_full(options)
    check_file_writable(file, overwrite=overwrite)
    located = find_model(name_or_path, options)
    model = _opened(located, options, encoder=False)
    inputs = neutral_inputs(model) if data is None else GoldenInputs("given", _given(model, data))
    content = recorded(located.folder, model, inputs)
    with new_file(file, overwrite=overwrite) as stream:
        stream.write(content)
    return len(json.loads(content)["answers"])


def _in_full(options: OpenOptions) -> OpenOptions:
    """Return the options with float32 as the default precision; refuse options that change answers."""
    check_requested({**options, "check": True})
    return {**options, "dtype": options.get("dtype") or "float32"}


def _opened(located: LocatedModel, options: OpenOptions, *, encoder: bool) -> Answering:
    """Open a model as the task that it was trained for, or an encoder as an embedder or, with ``encoder``, as such."""
    if encoder:
        from bothways.checkpoints.golden_encoder import AnsweringEncoder  # loads torch

        return AnsweringEncoder(
            checkpoints.load(
                located.name,
                revision=options.get("revision"),
                device=options.get("device", "auto"),
                dtype=options.get("dtype"),
                download=options.get("download", False),
                allow_pickle=options.get("allow_pickle", False),
            )
        )
    name = task_of(located.folder)
    if name not in (*COMPOSED, *SPECS):
        raise NotFitted(f"{located.name!r} is a model for {name}, which this version of bothways does not know.")
    kind = imported(COMPOSED[name]) if name in COMPOSED else task_class(SPECS[name])
    opened: AnyTask = kind.from_pretrained(located.name, **options)
    return opened._answering()


def _given(model: Answering, data: "Source") -> list[object]:
    rows = list(read_rows(data))
    if len(rows) > MOST_GIVEN:
        raise InvalidInput(f"expected at most {MOST_GIVEN:,} rows of inputs, got {len(rows):,}: give fewer.")
    values = model.read(rows) if isinstance(model, AnsweringTask) else [text_at(row, "text", "") for row in rows]
    return [as_json(value) for value in values]
