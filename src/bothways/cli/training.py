"""What the commands of ``bothways train`` share: their options, and a run from the first check to the last word."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.cli.options import Flag, PositiveFloat, PositiveInt, usage_error
from bothways.cli.runs import RunFolders
from bothways.cli.terminal import complain, note, print_json
from bothways.errors import OutputExists

if TYPE_CHECKING:
    from bothways.tasks.fitting import FitOptions
    from bothways.tasks.task import Task
    from bothways.training.record import TrainingRecord

FAILED, INTERRUPTED = 1, 130


@Parameter(name="*", group="Training")
@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How long and how fast."""

    epochs: PositiveInt = 3
    """Passes over the training data; kept is the latest whose score is within a standard error of the best (of masked
    language models: the best)."""
    learning_rate: PositiveFloat | None = None
    """Peak of the schedule; by default 1e-4 for encoders up to 512 wide, 3e-5 for wider ones."""
    batch_size: PositiveInt = 32
    """Rows in one update."""
    patience: PositiveInt | None = None
    """Stop after this many epochs without a better validation score."""
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))] = 0
    """Of the new head, the order of the rows, and dropout."""
    checkpoints: Annotated[bool, Parameter(negative="--no-checkpoints", show_default=False)] = True
    """Write a checkpoint after each epoch (four times the size of the model), so that --resume can continue."""


@Parameter(name="*", group="Run")
@dataclass(frozen=True, slots=True)
class RunOptions:
    """What becomes of the run."""

    overwrite: Flag = False
    """Replace a trained model at the output, and forget an unfinished run once there is a checkpoint of the new one."""
    resume: Flag = False
    """Continue an interrupted run; without one, begin afresh."""
    json: Flag = False
    """Print the summary as one JSON object."""
    quiet: Flag = False
    """Show no progress."""


USUAL = TrainingOptions()
ONCE = RunOptions()


def train_and_save(
    output: Path,
    training: TrainingOptions,
    run: RunOptions,
    fit: "Callable[[FitOptions], tuple[Task, TrainingRecord]]",
) -> int:
    """Train a model, save it at ``output`` and say how it went.

    Args:
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie beside it.
        training: How long and how fast.
        run: What becomes of the run.
        fit: Opens a task and fits it with these options.

    Returns:
        The exit code.

    Raises:
        OutputExists: Something is there that was not to be overwritten, or that is no trained model.
        InvalidInput: Another process is training into this output, or no folder can take its place.
    """
    folders = RunFolders(output)
    with folders.held():
        folders.begin(resume=run.resume, overwrite=run.overwrite)
        try:
            task, record = fit(_fit_options(training, run, folders))
            return _conclude(task, record, folders, json=run.json)
        except KeyboardInterrupt:
            # After the training itself, which ends by its own on Ctrl-C.
            if folders.resumable:
                note(f"Nothing was saved.{_how_to_resume(folders)}")
            raise


def check_inputs(train: str, validation: str | None, option: str = "--train", elsewhere: str | None = None) -> None:
    """Refuse standard input for more than one.

    Args:
        train: The value of ``option``.
        validation: That of ``--validation``.
        option: What the data to learn from are called.
        elsewhere: The value of ``--out-of-domain``.

    Raises:
        CycloptsError: Two are ``-``.
    """
    check_piped({option: train, "--validation": validation, "--out-of-domain": elsewhere})


def check_piped(given: Mapping[str, str | None]) -> None:
    """Refuse standard input for more than one of several options.

    Args:
        given: Values by the names of their options.

    Raises:
        CycloptsError: Two are ``-``.
    """
    piped = [name for name, value in given.items() if value == "-"]
    if len(piped) > 1:
        raise usage_error(f"{piped[0]} and {piped[1]} cannot both be standard input: give one of them as a file.")


def _fit_options(training: TrainingOptions, run: RunOptions, folders: RunFolders) -> "FitOptions":
    from bothways.tasks.settings import FitSettings

    return {
        "epochs": training.epochs,
        "learning_rate": training.learning_rate,
        "batch_size": training.batch_size,
        "seed": training.seed,
        "settings": FitSettings(patience=training.patience),
        "log": folders.log,
        "checkpoints": folders.unfinished if training.checkpoints or run.resume else None,
        "resume": run.resume,
        "keep_diverged": True,
        "show_progress": False if run.quiet else None,
    }


def _conclude(task: "Task", record: "TrainingRecord", folders: RunFolders, *, json: bool) -> int:
    """Save what was trained and say how it went; the exit code."""
    if record.finished_no_epoch:
        note(f"Interrupted before there was a model worth saving.{_how_to_resume(folders)}")
        if not folders.resumable:
            folders.forget()
        return INTERRUPTED
    saved = _save(task, folders)
    _say_how_it_ended(record, folders, saved)
    interrupted = record.interrupted and record.diverged is None
    if interrupted and folders.resumable:
        folders.leave(saved)
    else:
        folders.finish(saved)
    if json:
        print_json(_summary(task, record, saved))
    else:
        print(_in_words(task, record, saved))
    if interrupted:
        return INTERRUPTED
    return 0 if record.diverged is None and saved == folders.output else FAILED


def _save(task: "Task", folders: RunFolders) -> Path:
    """Save the model at the output, or beside it where something appeared there during the training; where it is."""
    try:
        task.save(folders.output, overwrite=folders.replaceable)
    except OutputExists:
        saved = folders.beside
        task.save(saved)
        complain(
            f"{str(folders.output)!r} appeared or changed during the training and was not replaced: the model is in "
            f"{str(saved)!r} instead."
        )
        return saved
    return folders.output


def _say_how_it_ended(record: "TrainingRecord", folders: RunFolders, saved: Path) -> None:
    """What the weights are of, where the training did not come to its end."""
    if record.diverged is not None:
        complain(f"{record.diverged}\n{saved} has the epoch kept before that, {record.kept_epoch or record.epochs}.")
    elif record.interrupted:
        note(f"Interrupted: {saved} has {_whose_weights(record)}.{_how_to_resume(folders)}")


def _whose_weights(record: "TrainingRecord") -> str:
    """What an interrupted run has kept; without validation it is as far as it came."""
    if record.kept_epoch is not None:
        return f"the epoch kept so far, {record.kept_epoch}"
    if record.epochs == record.settings.epochs:
        return f"the last epoch, {record.epochs}"
    return f"the weights after update {record.updates:,}, in epoch {record.epochs + 1} of {record.settings.epochs}"


def _how_to_resume(folders: RunFolders) -> str:
    return " Run the same command with --resume to continue." if folders.resumable else ""


def _summary(task: "Task", record: "TrainingRecord", output: Path) -> dict[str, object]:
    return {
        "output": str(output),
        **task.facts(),
        "kept_epoch": record.kept_epoch,
        "validation": _kept_metrics(record),
        "updates": record.updates,
        "tokens": record.tokens,
        "seconds": record.seconds,
        "stopped_early": record.stopped_early,
        "interrupted": record.interrupted,
        "diverged": record.diverged,
    }


def _in_words(task: "Task", record: "TrainingRecord", output: Path) -> str:
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in _kept_metrics(record).items())
    how = ", stopped early" if record.stopped_early else ""
    lines = [f"trained      {record.updates:,} updates in {record.seconds:,.0f} s{how}"]
    if record.validations:
        lines += [f"kept epoch   {record.kept_epoch} of {len(record.validations)}", f"validation   {metrics}"]
    lines += [f"{name:<12} {value}" for name, value in _spoken(task.facts())]
    lines += [f"saved in     {output}", f"next         {_next(task, output)}"]
    return "\n".join(lines)


def _next(task: "Task", output: Path) -> str:
    """What to type after a training."""
    from bothways.tasks import FillMask, MultiTask

    if isinstance(task, FillMask):  # an encoder that was adapted is there to be fine-tuned
        return f"bothways train classification --model {shlex.quote(str(output))} --train train.jsonl --output runs/new"
    one = f" --task {next(iter(task.parts))}" if isinstance(task, MultiTask) and not task.told_apart else ""
    return f"bothways evaluate {shlex.quote(str(output))}{one} --data test.jsonl"


def _kept_metrics(record: "TrainingRecord") -> dict[str, float]:
    """The validation metrics of the epoch that was kept."""
    return next((dict(each.metrics) for each in record.validations if each.epoch == record.kept_epoch), {})


def _spoken(facts: Mapping[str, object]) -> list[tuple[str, str]]:
    """The facts that are a number or a few; not lists such as that of the labels."""
    spoken = []
    for name, value in facts.items():
        if isinstance(value, bool):
            continue  # for machines
        if isinstance(value, float):
            spoken.append((name, f"{value:.3f}"))
        elif isinstance(value, str | int):
            spoken.append((name, str(value)))
        elif isinstance(value, Mapping):
            spoken.append((name, ", ".join(_part(part, each) for part, each in value.items() if each)))
    return spoken


def _part(name: str, value: object) -> str:
    return f"{name} {value:.3f}" if isinstance(value, float) else str(value)
