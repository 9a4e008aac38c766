"""Shared parts of the commands of ``bothways train``: options, and a run from the first check to the summary."""

import io
import shlex
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from bothways.cli.declared import Option, given_of, group_of, options_of
from bothways.cli.options import Flag, PositiveInt, TokenCount, bad_usage, usage_error
from bothways.cli.runs import RunFolders
from bothways.cli.terminal import complain, interrupted_code, note, print_json
from bothways.progress import phase, reporting
from bothways.tasks.question_answering.spec import ALWAYS_ANSWERS
from bothways.training.options import TrainingOptions

if TYPE_CHECKING:
    from bothways.pretraining.recipes import BatchWarmup
    from bothways.tasks.heads.diagnostics import LabelIssue
    from bothways.training.options import TrainingArguments
    from bothways.training.record import TrainingRecord

FAILED = 1

RESUMING = """\
Ctrl-C or SIGTERM ends the training after the update at hand: the epoch kept
so far is saved, and the same command with --resume continues."""

# Between these a temperature changes probabilities little.
_NEAR_ONE = (0.8, 1.25)
_MISTAKE_WIDTH = 70
_MISTAKES = 5  # that are shown on a terminal
_SHOWN = (
    "epochs",
    "updates",
    "total_tokens",
    "learning_rate",
    "layer_decay",
    "batch_size",
    "patience",
    "seed",
    "activation_checkpointing",
    "shard",
)
CHECKPOINTS = Option(
    "checkpoints",
    bool,
    "Write a checkpoint after each epoch (four times the size of the model), so that --resume can continue.",
    negative="--no-checkpoints",
)
_DECLARED = {option.name: option for option in options_of(TrainingOptions)}
TOKENS = Option("tokens", TokenCount, "Tokens to read, such as 50M (k, M, G, T), in place of the other lengths.")
_DECLARED["total_tokens"] = replace(TOKENS, name="total_tokens")
LAYER_DECAY, CHECKPOINTING, SHARD = (_DECLARED[name] for name in ("layer_decay", "activation_checkpointing", "shard"))
TRAINING = group_of("Training", [*(option for name, option in _DECLARED.items() if name in _SHOWN), CHECKPOINTS])


@Parameter(name="*", group="Run")
@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of the run and of its output."""

    overwrite: Flag = False
    """Replace a trained model at the output, and forget an unfinished run once there is a checkpoint of the new one."""
    resume: Flag = False
    """Continue an interrupted run; without one, begin afresh."""
    json: Flag = False
    """Print the summary as one JSON object."""
    quiet: Flag = False
    """Show no progress."""


ONCE = RunOptions()


@Parameter(name="*", group="Batch warm-up")
@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Growth of the batch at the beginning."""

    batch_from: PositiveInt | None = None
    """Sequences in the first update, which grow to those of --batch-size; with one of the next two."""
    batch_warmup_updates: PositiveInt | None = None
    """Updates until the batch is full."""
    batch_warmup_tokens: TokenCount | None = None
    """Tokens until the batch is full, such as 5M."""

    def warmup(self) -> "BatchWarmup | None":
        """Return the growth of the batch, if one is asked for.

        Raises:
            CycloptsError: Only a part of it is.
        """
        over = [each for each in (self.batch_warmup_updates, self.batch_warmup_tokens) if each is not None]
        if self.batch_from is None and not over:
            return None
        if self.batch_from is None or len(over) != 1:
            raise usage_error("--batch-from needs --batch-warmup-updates or --batch-warmup-tokens, and each needs it.")
        from bothways.pretraining.recipes import BatchWarmup

        return BatchWarmup(self.batch_from, self.batch_warmup_updates, self.batch_warmup_tokens)


FULL = BatchOptions()


def train_and_save(
    output: Path,
    training: object,
    run: RunOptions,
    fit: "Callable[[TrainingArguments], tuple[Any, TrainingRecord]]",
    then: Callable[[Any, str], str],
) -> int:
    """Train a model, save it at ``output`` and say how it went.

    Args:
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie beside it.
        training: The options of ``TRAINING``.
        run: What becomes of the run.
        fit: Opens a task and fits it with these options.
        then: What to type next, given the model and its folder.

    Returns:
        The exit code.

    Raises:
        OutputExists: Something is there that was not to be overwritten, or that is no trained model.
        InvalidInput: Another process is training into this output, or no folder can take its place.
    """
    from bothways.training.workers import joined

    given = given_of(training)
    checkpoints = given.pop("checkpoints", True)
    if TOKENS.name in given:  # taggers have a column of that name
        given["total_tokens"] = given.pop(TOKENS.name)
    with bad_usage(*given):
        TrainingOptions(**given)
    folders = RunFolders(output)
    with joined() as workers:
        if workers.rank:
            return _follow(given, folders, run, fit, checkpoints=checkpoints)
        return _lead(given, folders, run, fit, then, checkpoints=checkpoints)


def _follow(
    given: dict[str, Any],
    folders: RunFolders,
    run: RunOptions,
    fit: "Callable[[TrainingArguments], tuple[Any, TrainingRecord]]",
    *,
    checkpoints: bool,
) -> int:
    """Train as one of the other processes of a run: nothing is written or said; the exit code."""
    options: TrainingArguments = {
        **given,  # type: ignore[typeddict-item]
        "checkpoints": folders.unfinished if checkpoints or run.resume else None,
        "resume": run.resume,
        "keep_diverged": True,
        "show_progress": False,
    }
    # What it would say, the first process says.
    with reporting(False), redirect_stderr(io.StringIO()):
        _, record = fit(options)
    return interrupted_code(record.signal) if record.interrupted else 0


def _lead(
    given: dict[str, Any],
    folders: RunFolders,
    run: RunOptions,
    fit: "Callable[[TrainingArguments], tuple[Any, TrainingRecord]]",
    then: Callable[[Any, str], str],
    *,
    checkpoints: bool,
) -> int:
    """Train, save and say how it went; the exit code."""
    with folders.held():
        if not folders.begin(resume=run.resume, overwrite=run.overwrite):
            note(f"This training had ended: its model is {str(folders.output)!r}.")
            if run.json:
                print_json({"output": str(folders.output)})
            return 0
        try:
            options: TrainingArguments = {
                **given,  # type: ignore[typeddict-item]
                "log": folders.log,
                "checkpoints": folders.unfinished if checkpoints or run.resume else None,
                "resume": run.resume,
                "keep_diverged": True,
                "show_progress": False if run.quiet else None,
            }
            task, record = fit(options)
            return _conclude(task, record, folders, then, json=run.json)
        except KeyboardInterrupt:
            # After the training itself, which ends by its own.
            if folders.resumable:
                note(f"Nothing was saved.{_how_to_resume(folders)}")
            raise


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


def _conclude(
    task: Any,  # noqa: ANN401 (a trained model)
    record: "TrainingRecord",
    folders: RunFolders,
    then: Callable[[Any, str], str],
    *,
    json: bool,
) -> int:
    """Save what was trained and say how it went; the exit code."""
    if record.finished_no_epoch:
        note(f"Interrupted before there was a model worth saving.{_how_to_resume(folders)}")
        if not folders.resumable:
            folders.forget()
        return interrupted_code(record.signal)
    interrupted = record.interrupted and record.diverged is None
    finished = not (interrupted and folders.resumable)
    with reporting(record.settings.show_progress):
        phase(f"saving to {folders.output}")
    saved = folders.save(task.save, finished=finished)
    if saved != folders.output:
        complain(
            f"{str(folders.output)!r} appeared or changed during the training and was not replaced: the model is in "
            f"{str(saved)!r} instead."
        )
    _say_how_it_ended(record, folders, saved)
    if finished:
        folders.finish()
    from bothways.tasks.card import training_baseline
    from bothways.tasks.outputs import FittedHead

    card = getattr(task.fitted, "card", {})
    baseline, notes, mistakes = (
        training_baseline(card),
        _notes(card),
        task.fitted.issues if isinstance(task.fitted, FittedHead) else (),
    )
    if json:
        found = {"notes": notes, "confident_mistakes": [asdict(each) for each in mistakes]}
        measured = {"validation": _measured(record, card), "baseline": None if baseline is None else baseline.held_out}
        print_json({**_summary(task.facts(), record, saved), **measured, **found})
    else:
        lines = _course(record, card)
        if baseline is not None:
            lines.append(f"baseline     {_listed(baseline.held_out)} ({baseline.name})")
        lines += _facts(task.facts())
        lines += [f"note         {each}" for each in notes]
        lines += [_mistake(each) for each in mistakes[:_MISTAKES]]
        print("\n".join([*lines, f"saved in     {saved}", f"next         {then(task, shlex.quote(str(saved)))}"]))
    if interrupted:
        return interrupted_code(record.signal)
    return 0 if record.diverged is None and saved == folders.output else FAILED


def _notes(card: Mapping[str, Any]) -> list[str]:
    """Return the notes of a card, or those of the cards of several tasks, each with the name of its task."""
    parts = {name: each for name, each in card.items() if isinstance(each, Mapping)}
    return [*card.get("notes", []), *(f"{name}: {each}" for name, part in parts.items() for each in _notes(part))]


def _say_how_it_ended(record: "TrainingRecord", folders: RunFolders, saved: Path) -> None:
    """Print which weights were saved, where the training did not come to its end."""
    if record.diverged is not None:
        kept = record.epochs if record.kept_epoch is None else record.kept_epoch
        complain(f"{record.diverged}\n{saved} has the epoch kept before that, {kept}.")
    elif record.interrupted:
        note(f"Interrupted: {saved} has {_whose_weights(record)}.{_how_to_resume(folders)}")


def _whose_weights(record: "TrainingRecord") -> str:
    """Return the weights that an interrupted run has kept, in words; without validation the latest."""
    if record.kept_epoch is not None:
        return f"the epoch kept so far, {record.kept_epoch}"
    if record.epochs == record.settings.epochs:
        return f"the last epoch, {record.epochs}"
    return f"the weights after update {record.updates:,}, in epoch {record.epochs + 1} of {record.settings.epochs}"


def _how_to_resume(folders: RunFolders) -> str:
    return " Run the same command with --resume to continue." if folders.resumable else ""


def _summary(facts: Mapping[str, object], record: "TrainingRecord", output: Path) -> dict[str, object]:
    return {
        "output": str(output),
        **facts,
        "kept_epoch": record.kept_epoch,
        "updates": record.updates,
        "tokens": record.tokens,
        "seconds": record.seconds,
        "stopped_early": record.stopped_early,
        "interrupted": record.interrupted,
        "diverged": record.diverged,
        **({"skipped": record.skipped} if record.skipped else {}),
    }


def _course(record: "TrainingRecord", card: Mapping[str, Any]) -> list[str]:
    measured, how = _measured(record, card), ", stopped early" if record.stopped_early else ""
    how += f", {record.skipped} skipped as their loss was not finite" if record.skipped else ""
    lines = [f"trained      {record.updates:,} updates in {record.seconds:,.0f} s{how}"]
    if record.validations:
        return [*lines, f"kept epoch   {record.kept_epoch} of {record.epochs}", f"validation   {_listed(measured)}"]
    return [*lines, f"validation   {_listed(measured)} ({card['validation']})"] if measured else lines


def _facts(facts: Mapping[str, object]) -> list[str]:
    lines = [f"{name:<12} {value}" for name, value in _spoken(facts)]
    return [*lines, f"note         {ALWAYS_ANSWERS}"] if facts.get("can_decline") is False else lines


def _mistake(found: "LabelIssue") -> str:
    """Return the line of a confident mistake, with the beginning of its text."""
    text = found.text if isinstance(found.text, str) else " | ".join(map(str, found.text))
    described = f"{found.label!r}, but {found.predicted!r} with {found.probability:.3f}"
    return f"look at      {found.where}: {described}: {shorten(text, _MISTAKE_WIDTH, placeholder=' ...')}"


def _listed(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def evaluate_next(model: object, folder: str) -> str:
    """Return the command to type after most trainings."""
    del model
    return f"bothways evaluate {folder} --data test.csv  # your labelled test rows"


def _measured(record: "TrainingRecord", card: Mapping[str, Any]) -> dict[str, float]:
    """Return the validation metrics of the kept epoch, or where nothing was validated those of the card."""
    kept = next((dict(each.metrics) for each in record.validations if each.epoch == record.kept_epoch), None)
    stored = card.get("metrics") or {}
    return kept or {name: value for name, value in stored.items() if f"{name}_low" in stored}


def _spoken(facts: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the facts that are a number or a few; not lists such as that of the labels."""
    spoken = []
    for name, value in facts.items():
        if isinstance(value, bool):
            continue  # for machines
        if isinstance(value, float):
            spoken.append((name, f"{value:.3f}"))
        elif isinstance(value, str | int):
            spoken.append((name, str(value)))
        elif isinstance(value, Mapping):
            listed = ", ".join(_part(part, each) for part, each in value.items() if each)
            spoken.append((name, f"{listed}{_doubt(name, value)}"))
    return spoken


def _doubt(name: str, fact: Mapping[str, object]) -> str:
    """Return what a temperature that is far from 1 says of the model; empty for all else."""
    temperature = fact.get("value") if "temperature" in (name, fact.get("method")) else None
    if not isinstance(temperature, float) or _NEAR_ONE[0] <= temperature <= _NEAR_ONE[1]:
        return ""
    return f" (uncalibrated, the model is too {'sure' if temperature > 1 else 'unsure'})"


def _part(name: str, value: object) -> str:
    return f"{name} {value:.3f}" if isinstance(value, float) else str(value)
