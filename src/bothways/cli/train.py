"""``bothways train``: a command for each task, made from what the task declares."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.choices import Format
from bothways.cli.declared import Option, given_of, group_of, options_of, taking
from bothways.cli.opening import columns_of, open_options
from bothways.cli.options import AS_IT_CAN, HERE, File, ModelOptions, ReadingOptions, bad_usage, usage_error
from bothways.cli.reading import labelled_source, optional_source
from bothways.cli.terminal import note
from bothways.cli.training import (
    ONCE,
    RESUMING,
    TRAINING,
    RunOptions,
    check_piped,
    evaluate_next,
    train_and_save,
)
from bothways.confidence.options import ConfidenceOptions
from bothways.tasks.columns import renamed
from bothways.tasks.registry import task_class
from bothways.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from bothways.data import Row, Source
    from bothways.training.options import TrainingArguments
    from bothways.training.record import TrainingRecord

_CONFIDENCE = {each.name for each in fields(ConfidenceOptions)}
_LONGEST = 78  # columns of a line of help
_ELSEWHERE = Option(
    "out_of_domain",
    File,
    "Rows from elsewhere, without labels, to fit the out-of-domain threshold to, instead of a share of held-out rows.",
)


@dataclass(frozen=True, slots=True)
class Extra:
    """Options of a task that are values on the command line and something else in Python.

    Attributes:
        options: The group.
        read: Given the rows to learn from, the options of the group and those of ``fit``, returns the rows and the
            options of ``fit`` with what the rows tell.
        completed: Given the task, the options of the group, those of ``fit`` and those of opening a model, returns the
            options of ``fit``.
    """

    options: type
    read: "Callable[[Source, Mapping[str, Any], dict[str, Any]], tuple[Source, dict[str, Any]]]"
    completed: Callable[[Any, dict[str, Any], dict[str, Any], Mapping[str, Any]], dict[str, Any]]


def training_command(spec: TaskSpec, extra: Extra | None = None) -> Callable[..., int]:
    """Return the command that trains models for a task."""
    own = options_of(spec.fit_options)
    learnt = {option.name for option in own}
    opened = [option for option in options_of(spec.open_options) if option.name not in learnt]
    detects = issubclass(spec.fit_options, ConfidenceOptions)
    confident = [option for option in own if option.name in _CONFIDENCE] + [_ELSEWHERE] * detects

    @taking(
        columns=group_of("Columns", _columns(spec)),
        own=group_of("Task", [option for option in (*own, *opened) if option.name not in _CONFIDENCE]),
        confidence=group_of("Confidence (learnt on held-out rows)", confident),
        loss=extra.options if extra else group_of("Loss", ()),
        training=TRAINING,
    )
    def train(
        *,
        model: str,
        train: File,
        output: Path,
        validation: File | None = None,
        format: Format | None = None,  # noqa: A002 (the option's name)
        columns: object = None,
        own: object = None,
        confidence: object = None,
        loss: object = None,
        run: RunOptions = ONCE,
        training: object = None,
        reading: ReadingOptions = AS_IT_CAN,
        opening: ModelOptions = HERE,
    ) -> int:
        given = {**given_of(own), **given_of(confidence)}
        elsewhere = given.pop("out_of_domain", None)
        check_piped({"--train": train, "--validation": validation, "--out-of-domain": elsewhere})
        learning = {name: value for name, value in given.items() if name in learnt}
        with bad_usage(*learning):
            wanted = spec.fit_options(**learning)
        named = given_of(columns)
        others = _rows_from_elsewhere(spec, wanted, named, elsewhere, format)
        words = {**named, **learning}

        def fit(options: "TrainingArguments") -> "tuple[Any, TrainingRecord]":
            opened = {name: value for name, value in given.items() if name not in learnt}
            options_of_opening = open_options(reading, opening.in_full)
            with bad_usage(*words, *opened):
                task = task_class(spec).from_pretrained(model, **opened, **options_of_opening)
                task.fit_options({**words, **options})
            rows, chosen = labelled_source(train, format), words
            if extra:
                rows, chosen = extra.read(rows, given_of(loss), words)
                with bad_usage(*words):
                    chosen = extra.completed(task, given_of(loss), chosen, options_of_opening)
            record = task.fit(rows, validation=optional_source(validation, format), **chosen, **options)
            if others is not None and not record.finished_no_epoch:
                if task.confidence.out_of_domain is None:
                    note("--out-of-domain was not used: the training fitted no out-of-domain detector.")
                else:
                    task.fit_threshold(others)
            return task, record

        return train_and_save(output, training, run, fit, evaluate_next)

    train.__doc__ = _help(spec)
    return train


def example_of(spec: TaskSpec) -> str:
    """Return what a row of a task's data looks like, and a command to type."""
    row, lines = "{", []
    for number, (name, value) in enumerate(spec.example.items()):
        part = f"{', ' if number else ''}{json.dumps(name)}: {json.dumps(value)}"
        if len(row + part) > _LONGEST - 2:
            lines.append(f"{row},")
            row, part = " ", part.removeprefix(", ")
        row += part
    shown = "\n  ".join([*lines, f"{row}}}"])
    notes = f"\n{spec.notes}" if spec.notes else ""
    return f"""\
A row of the data:
  {shown}{notes}

Example:
  bothways train {command_name(spec)} \\
    --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train train.jsonl.gz --validation validation.jsonl.gz --output runs/model

{RESUMING}"""


def command_name(spec: TaskSpec) -> str:
    """Return the task as it is typed."""
    return spec.name.replace("_", "-")


def _columns(spec: TaskSpec) -> list[Option]:
    return [option for columns in columns_of(spec) for option in options_of(columns)]


def _help(spec: TaskSpec) -> str:
    learns = any(option.name == "calibration" for option in options_of(spec.fit_options))
    calibrated = ". Probabilities are calibrated on held-out rows" if learns else ""
    return f"""{spec.summary}

    Fine-tunes an encoder and keeps a good epoch (see --epochs){calibrated}.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        train: Labelled rows: .jsonl, .json, .csv, .tsv, .conll (also .gz), .parquet, or '-' for JSON Lines on standard
            input.
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: Held-out rows; {spec.held_out}, when left out.
        format: Of both files, where their names do not say it.
    """


def _rows_from_elsewhere(
    spec: TaskSpec,
    wanted: Any,  # noqa: ANN401 (the task's own)
    columns: Mapping[str, Any],
    elsewhere: str | None,
    format_: Format | None,
) -> "list[Row] | None":
    """Return the rows to fit the threshold to, checked before a training whose result would be lost otherwise.

    Raises:
        CycloptsError: There will be no threshold to fit.
        InvalidInput: The rows are not usable; the message says where.
    """
    from bothways.data import read_rows

    if elsewhere is None:
        return None
    if not wanted.detects:
        raise usage_error(
            "--out-of-domain fits the threshold of a detector, which takes one label for each text (--target single) "
            "and a --detector other than none."
        )
    rows = list(read_rows(elsewhere, format=format_))
    reader = renamed(spec.columns, columns)
    for row in rows:
        reader.read(row)
    return rows
