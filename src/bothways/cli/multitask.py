"""``bothways train multitask``: one encoder, a head for each of several tasks."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from cyclopts import Parameter

from bothways.choices import Format, Merge, Sampling, TargetKind
from bothways.cli.declared import taking
from bothways.cli.opening import open_options
from bothways.cli.options import AS_IT_CAN, HERE, ModelOptions, PositiveFloat, ReadingOptions, bad_usage, usage_error
from bothways.cli.reading import labelled_source, optional_source
from bothways.cli.training import (
    ONCE,
    RESUMING,
    TRAINING,
    RunOptions,
    check_piped,
    evaluate_next,
    train_and_save,
)

if TYPE_CHECKING:
    from bothways.compose.multitask.data import TaskData
    from bothways.compose.multitask.multitask import MultiTask
    from bothways.compose.multitask.sampling import Sampling as Sampler
    from bothways.training.options import TrainingArguments
    from bothways.training.record import TrainingRecord

EXAMPLE = f"""\
A row of the data of a task:
  {{"text": "Lakers win in overtime", "label": "sports"}}
or, of one that tags words:
  {{"tokens": ["EU", "rejects", "it"], "tags": ["B-ORG", "O", "O"]}}

A task is NAME=FILE, or NAME=FILE:TEXT:LABEL with the columns of texts and
labels, or NAME=FILE:TEXT:LABEL:TARGET with single (the default), multi or
regression; with tagging TEXT and LABEL are the columns of words and tags.

Example:
  bothways train multitask --model sentence-transformers/all-MiniLM-L6-v2 \\
    --task sentiment=s.jsonl.gz:text:label \\
    --task names=n.jsonl.gz:tokens:tags:tagging --output runs/mt

{RESUMING}"""


@dataclass(frozen=True, slots=True)
class _TaskWords:
    """One ``--task`` option, parsed."""

    file: str
    text: str
    label: str
    target: TargetKind | Literal["tagging"]


@taking(training=TRAINING)
def multitask(
    *,
    model: str,
    task: Annotated[tuple[str, ...], Parameter(negative=())],
    output: Path,
    validation: tuple[str, ...] = (),
    sampling: Sampling = "proportional",
    temperature: PositiveFloat | None = None,
    merge: Merge | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    run: RunOptions = ONCE,
    training: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> int:
    """Train several tasks above one encoder.

    Fine-tunes the encoder with a head for each task, keeps a good epoch (see --epochs), and calibrates each task.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        task: NAME=FILE[:TEXT:LABEL[:TARGET]], or NAME=FILE:TOKENS:TAGS:tagging; once for each task, two or more.
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: NAME=FILE with held-out rows of a task; a tenth of its rows, drawn with the seed, when left out.
        sampling: How an epoch is shared: every row of every task once, small tasks more often, or all tasks alike.
        temperature: Of --sampling temperature, 2 by default: 1 is proportional, and the higher, the more alike.
        merge: How the logits of a long text's windows become one; by default their mean weighted with their lengths.
        format: Of all files, where their names do not say it.
        run: What becomes of the run.
        training: How long and how fast; the batch size is that of each task's updates.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    tasks = dict(_named(each, "--task") for each in task)
    held = dict(_named(each, "--validation") for each in validation)
    if len(tasks) < len(task) or len(held) < len(validation):
        raise usage_error("each task has a name of its own, and one --validation at most.")
    for name in held.keys() - tasks.keys():
        raise usage_error(f"--validation is for {name!r}, but the tasks are {', '.join(tasks)}.")
    if temperature is not None and sampling != "temperature":
        raise usage_error("--temperature goes with --sampling temperature.")
    words = {name: _words(name, value) for name, value in tasks.items()}
    check_piped(
        {f"--task {name}": each.file for name, each in words.items()}
        | {f"--validation {name}": file for name, file in held.items()}
    )

    def fit(options: "TrainingArguments") -> "tuple[MultiTask, TrainingRecord]":
        from bothways.compose.multitask.files import check_names
        from bothways.compose.multitask.multitask import MultiTask

        with bad_usage():
            check_names(words)
            sampler = _sampler(sampling, temperature)
            shared = MultiTask.from_pretrained(model, merge=merge, **open_options(reading, opening.in_full))
        data = {name: _data(each, held.get(name), format) for name, each in words.items()}
        return shared, shared.fit(data, sampling=sampler, **options)

    return train_and_save(output, training, run, fit, _next)


def _next(model: "MultiTask", folder: str) -> str:
    """Return what to type after the training: one task is evaluated where rows can be right for one alone."""
    one = "" if model.has_own_label_columns else f" --task {next(iter(model.parts))}"
    return evaluate_next(model, f"{folder}{one}")


def _named(word: str, option: str) -> tuple[str, str]:
    name, sign, rest = word.partition("=")
    if not (name and sign and rest):
        raise usage_error(f"{option} must be NAME=FILE, but it is {word!r}.")
    return name, rest


def _words(name: str, value: str) -> _TaskWords:
    parts = value.split(":")
    if len(parts) not in (1, 3, 4) or not all(parts):
        raise usage_error(
            f"--task {name} must be FILE, FILE:TEXT:LABEL or FILE:TEXT:LABEL:TARGET, but it is {value!r}."
        )
    file, text, label, target = (*parts, *("", "text", "label", "single")[len(parts) :])
    known: tuple[TargetKind | Literal["tagging"], ...] = (*get_args(TargetKind), "tagging")
    for each in known:
        if target == each:
            return _TaskWords(file, text, label, each)
    raise usage_error(f"the target of --task {name} must be one of {', '.join(known)}, but it is {target!r}.")


def _data(words: _TaskWords, validation: str | None, format_: Format | None) -> "TaskData":
    from bothways.compose.multitask.data import TaggingData, TaskData

    train, held = labelled_source(words.file, format_), optional_source(validation, format_)
    if words.target == "tagging":
        return TaggingData(train, held, tokens=words.text, tags=words.label)
    return TaskData(train, held, text=words.text, label=words.label, target=words.target)


def _sampler(sampling: Sampling, temperature: float | None) -> "Sampler":
    from bothways.compose.multitask.sampling import Proportional, Tempered, Uniform

    match sampling:
        case "proportional":
            return Proportional()
        case "temperature":
            return Tempered() if temperature is None else Tempered(temperature)
        case "uniform":
            return Uniform()
