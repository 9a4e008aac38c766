"""Shared parts of the training commands: their options, and a run from the first check to the summary."""

import io
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from cyclopts import Parameter

from bothways import compose, pretraining, tasks
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import FAILED, complain, interrupted_code, note, print_json
from bothways.cli.training.folders import RunFolders
from bothways.data.formats import FileSettings
from bothways.progress import elapsed, figure, reporting, stage, stage_seconds, timed
from bothways.tasks.question_answering.spec import ALWAYS_ANSWERS
from bothways.training.options import TrainingOptions

if TYPE_CHECKING:
    from bothways.pretraining import BatchWarmup
    from bothways.training.options import TrainingArguments
    from bothways.training.state import TrainingRecord

    Fit = Callable[[TrainingArguments], tuple[Any, TrainingRecord]]
    Cards = Mapping[str, Mapping[str, Any]]  # the card of each task, by the prefix of its metrics
    NextStep = str | Callable[[Any], str]  # the command to type next, with {} for the folder

RESUMING = """\
Ctrl-C or SIGTERM stops the training after the current update and saves the
epoch kept so far; the same command with --resume continues the training."""

# Options with the same help in several commands.
BaseModel = Annotated[str, Parameter(help="A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.")]
OutputFolder = Annotated[
    Path,
    Parameter(
        help="Folder for the trained model. An unfinished run keeps its log and checkpoints in OUTPUT.checkpoints."
    ),
]

_MILD_TEMPERATURES = (0.8, 1.25)  # temperatures in this range change probabilities little
_RESUME = " Run the same command with --resume to continue."
_DECLARED = {option.name: option for option in opt.options_of(TrainingOptions)}
_CHECKPOINTS = opt.Option(
    "checkpoints",
    bool,
    "Write a checkpoint for --resume after each epoch; it is four times the size of the model.",
    negative="--no-checkpoints",
)
TOKENS = opt.Option("tokens", opt.TokenCount, "Tokens to train on, such as 50M (k, M, G, T), instead of --updates.")
LAYER_DECAY = _DECLARED["layer_decay"]
_OF_ALL = (_DECLARED["activation_checkpointing"], _DECLARED["shard"], _CHECKPOINTS, _DECLARED["log_to"])


def training_group(*options: opt.Option) -> type:
    """Return the group of training options: the given ones, and those of all training commands."""
    return opt.group_of("Training", (*options, *_OF_ALL))


TRAINING = training_group(
    *(_DECLARED[name] for name in ("epochs", "updates")),
    replace(TOKENS, name="total_tokens"),
    *(_DECLARED[name] for name in ("learning_rate", "layer_decay", "batch_size", "seed", "patience")),
)


@Parameter(name="*", group="Run")
@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of the run and its output."""

    overwrite: opt.Flag = False
    """Replace a trained model at the output; an unfinished run there is kept until this run's first checkpoint."""
    resume: opt.Flag = False
    """Continue an interrupted run, or start a new one if there is none."""
    golden: opt.Golden = "validation"
    json: opt.Json = False
    ray: Annotated[Literal["local", "auto"] | None, Parameter(group="Ray")] = None
    """Let Ray Train start processes for the training: local (on this machine), or auto (the cluster that this machine
    belongs to)."""
    workers: Annotated[opt.PositiveInt | None, Parameter(group="Ray")] = None
    """Number of processes that Ray starts. Default: one for each GPU, or for each machine."""


DEFAULT_RUN = RunOptions()


@Parameter(name="*", group="Batch warm-up")
@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options of the batch warm-up."""

    batch_from: opt.PositiveInt | None = None
    """Sequences in the first update; the batch then grows to --batch-size. Needs one of the following options."""
    batch_warmup_updates: opt.PositiveInt | None = None
    """Number of updates until the batch has its full size."""
    batch_warmup_tokens: opt.TokenCount | None = None
    """Number of tokens until the batch has its full size, such as 5M."""

    def warmup(self) -> "BatchWarmup | None":
        """Return the batch warm-up, or None for a fixed batch size."""
        over = [each for each in (self.batch_warmup_updates, self.batch_warmup_tokens) if each is not None]
        if self.batch_from is None and not over:
            return None
        if self.batch_from is None or len(over) != 1:
            raise opt.usage_error(
                "a batch warm-up needs --batch-from and one of --batch-warmup-updates and --batch-warmup-tokens."
            )
        return pretraining.BatchWarmup(self.batch_from, self.batch_warmup_updates, self.batch_warmup_tokens)


FULL_BATCH = BatchOptions()


def evaluate_next(data: str | None, file: opt.FileOptions, more: str = "") -> str:
    """Return the command to suggest after most trainings: an evaluation on rows in the format of the data."""
    return f"bothways evaluate {{}}{more} --data {inputs.like('test', data, file)}  # your labelled test rows"


def train_next(data: str | None, file: opt.FileOptions, *, remembered: bool = True) -> str:
    """Return the command to suggest after a training on raw text."""
    rows = inputs.like("train", data, file, remembered=remembered)
    return f"bothways train classification --model {{}} --train {rows} --output runs/new"


def build_next(data: str, file: opt.FileOptions, text: Iterable[str] = ()) -> str:
    """Return the command to suggest after the training of an embedder on texts: a search index of these texts."""
    texts = inputs.like("corpus", data, file) if opt.file_kind(data) is None else shlex.quote(data)
    columns = "".join(f" --text {shlex.quote(each)}" for each in text)
    return f"bothways search build --model {{}} --data {texts}{columns} --output runs/index"


@timed()  # also the time in which torch is loaded
def train_and_save(
    output: Path,
    training: object,
    run: RunOptions,
    fit: "Fit",
    next_step: "NextStep",
    files: Mapping[str, FileSettings] | None = None,
) -> int:
    """Train a model with ``fit``, save it, print a summary and return the exit code.

    ``files`` are the options that later commands read files with by default, see `FileOptions.to_remember`.
    """
    from bothways.training import stages, workers

    def fitted(options: "TrainingArguments") -> "tuple[object, TrainingRecord]":
        with stages.stages_of(TrainingOptions(**options)):  # also of what follows a training, such as a threshold
            return fit(options)

    given = opt.given_of(training)
    checkpoints = given.pop("checkpoints", True) or run.resume
    if TOKENS.name in given:  # commands that have no column option --tokens use this name
        given["total_tokens"] = given.pop(TOKENS.name)
    with opt.as_usage_error(*given):
        TrainingOptions(**given)
    folders = RunFolders(output)
    options = _arguments(**given, resume=run.resume, keep_diverged=True)
    with workers.joined() as joined:
        if joined.rank:
            # The first process writes and prints for all.
            with reporting(False), redirect_stderr(io.StringIO()):
                folder = folders.unfinished if checkpoints else None
                _, record = fitted({**options, "checkpoints": folder, "log_to": None, "show_progress": False})
            return interrupted_code(record.signal) if record.interrupted else 0
        return _run(options, folders, run, fitted, next_step, files, checkpoints=checkpoints)


def _arguments(**given: Unpack["TrainingArguments"]) -> "TrainingArguments":
    return given


def _run(
    options: "TrainingArguments",
    folders: RunFolders,
    run: RunOptions,
    fit: "Fit",
    next_step: "NextStep",
    files: Mapping[str, FileSettings] | None,
    *,
    checkpoints: bool,
) -> int:
    with folders.held():
        if not folders.begin(resume=run.resume, overwrite=run.overwrite):
            note(f"This training had already finished: its model is {str(folders.output)!r}.", always=True)
            if run.json:
                print_json({"output": str(folders.output)})
            return 0
        try:
            options = {**options, "log": folders.log, "checkpoints": folders.unfinished if checkpoints else None}
            task, record = fit(options)
            task = task._with_card(files=files) if files and not record.finished_no_epoch else task
            save = partial(task.save, golden=opt.golden_source(run.golden))
            return _conclude(task, record, folders, next_step, save, json=run.json)
        except KeyboardInterrupt:
            # The interruption came outside of the training loop, which handles interruptions itself.
            if folders.resumable or folders.stages.is_dir():
                note(f"No model was saved, but what is finished is kept.{_RESUME}", always=True)
            raise
        except Exception:
            folders.forget_stages()
            raise


def _conclude(
    task: Any,  # noqa: ANN401 (a trained model)
    record: "TrainingRecord",
    folders: RunFolders,
    next_step: "NextStep",
    save: "Callable[[Path], None]",
    *,
    json: bool,
) -> int:
    """Save the model, print the summary and return the exit code."""
    if record.finished_no_epoch:
        end = f"no model was saved.{_how_to_resume(folders)}"
        note(f"Interrupted before the end of the first epoch: {end}", always=True)
        if not folders.resumable:
            folders.forget()
        return interrupted_code(record.signal)
    interrupted = record.interrupted and record.diverged is None
    finished = not (interrupted and folders.resumable)
    with reporting(record.settings.show_progress), stage("saving the model"):
        saved = folders.save(save, finished=finished)
    record = replace(record, seconds=elapsed(), stages=stage_seconds())
    if saved != folders.output:
        complain(
            f"{str(folders.output)!r} appeared or changed during the training and was not replaced: the model is in "
            f"{str(saved)!r} instead."
        )
    if record.diverged is not None:
        kept = record.epochs if record.kept_epoch is None else record.kept_epoch
        complain(f"{record.diverged}\n{saved} holds the weights kept before that, from epoch {kept}.")
    elif record.interrupted:
        note(f"Interrupted: {saved} holds {_kept_weights(record)}.{_how_to_resume(folders)}", always=True)
    if finished:
        folders.finish()
    _print_summary(task, record, saved, next_step, json=json)
    if interrupted:
        return interrupted_code(record.signal)
    return 0 if record.diverged is None and saved == folders.output else FAILED


def _kept_weights(record: "TrainingRecord") -> str:
    """Describe the weights that an interrupted run saved: of the kept epoch or, without validation, the last ones."""
    if record.kept_epoch is not None:
        return f"the epoch kept so far, {record.kept_epoch}"
    if record.epochs == record.settings.epochs:
        return f"the last epoch, {record.epochs}"
    return f"the weights after update {record.updates:,}, in epoch {record.epochs + 1} of {record.settings.epochs}"


def _how_to_resume(folders: RunFolders) -> str:
    return _RESUME if folders.resumable else ""


def _print_summary(
    task: Any,  # noqa: ANN401 (a trained model)
    record: "TrainingRecord",
    saved: Path,
    next_step: "NextStep",
    *,
    json: bool,
) -> None:
    card = task.fitted.card
    mistakes = task.fitted.issues if isinstance(task.fitted, tasks.TrainedHead) else ()
    facts = task.facts()
    cards = {f"{name}.": each.card for name, each in compose.parts_of(task).items()} or {"": card}
    baselines, notes = _baselines(cards), list(record.notes)
    measured, measured_on = _measured(record, cards)
    if json:
        print_json(
            {
                "output": str(saved),
                **facts,
                **{name: getattr(record, name) for name in ("kept_epoch", "updates", "tokens", "seconds", "stages")},
                "kept_because": record.kept_because,
                **{name: getattr(record, name) for name in ("stopped_early", "interrupted", "diverged")},
                **({"skipped": record.skipped} if record.skipped else {}),
                "validation": measured,
                "baseline": {name: value for each in baselines.values() for name, value in each.items()} or None,
                "notes": notes,
                "confident_mistakes": [asdict(each) for each in mistakes],
            }
        )
        return
    lines = [f"trained      {record.course}"]
    if record.validations:
        lines.append(f"kept epoch   {record.kept_epoch} of {record.epochs}: {record.kept_because}")
    if record.validations or measured:
        lines.append(f"validation   {_listed(measured)}{measured_on}")
    lines += [f"baseline     {_listed(each)} ({name})" for name, each in baselines.items()]
    lines += [f"{name:<12} {value}" for name, value in _printable_facts(facts)]
    lines += [f"note         {ALWAYS_ANSWERS}"] * (facts.get("can_decline") is False)
    lines += [f"note         {each}" for each in notes]
    lines += [f"look at      {each}" for each in record.look_at]
    command = next_step if isinstance(next_step, str) else next_step(task)
    lines += [f"saved in     {saved}", f"next         {command.replace('{}', shlex.quote(str(saved)))}"]
    print("\n".join(lines))


def _measured(record: "TrainingRecord", cards: "Cards") -> tuple[dict[str, float], str]:
    """Return the metrics of the final model on the held-out rows, with a remark on the rows used.

    They are those of the card, whose probabilities are calibrated and whose thresholds are the model's, and metrics of
    the kept epoch that the card does not have.
    """
    kept = next((dict(each.metrics) for each in record.validations if each.epoch == record.kept_epoch), None)
    stored: dict[str, float] = {}
    for prefix, card in cards.items():
        metrics = card.get("metrics") or {}
        stored |= {f"{prefix}{name}": value for name, value in metrics.items() if f"{name}_low" in metrics}
    if kept is None or not stored:
        return kept or stored, "" if record.validations or not stored else f" ({cards['']['validation']})"
    # The loss is the negative log-likelihood before the calibration.
    names = [name if name in stored else re.sub(r"(^|\.)loss$", r"\1nll", name) for name in kept]
    own = {name: value for name, value in kept.items() if name.rpartition(".")[2] not in ("loss", "threshold")}
    return {name: value for name in names if (value := stored.get(name, own.get(name))) is not None}, ""


def _baselines(cards: "Cards") -> dict[str, dict[str, float]]:
    """Return the metrics of the baseline of each task on the held-out rows, by the name of the baseline."""
    found: dict[str, dict[str, float]] = {}
    for prefix, card in cards.items():
        if (each := tasks.training_baseline(card)) is not None:
            found.setdefault(each.name, {}).update({f"{prefix}{name}": value for name, value in each.metrics.items()})
    return found


def _listed(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {figure(value)}" for name, value in metrics.items())


def _printable_facts(facts: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the facts to print: strings, numbers and mappings; flags and lists are only in the JSON output."""
    spoken = []
    for name, value in facts.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, float):
            spoken.append((name, figure(value, 3)))
        elif isinstance(value, str | int):
            spoken.append((name, str(value)))
        elif isinstance(value, Mapping):
            listed = ", ".join(
                f"{part} {figure(each, 3)}" if isinstance(each, float) else str(each)
                for part, each in value.items()
                if each
            )
            spoken.append((name, f"{listed}{_temperature_remark(name, value)}"))
    return spoken


def _temperature_remark(name: str, fact: Mapping[str, object]) -> str:
    """Return a remark on a temperature far from 1; an empty string for all other facts."""
    temperature = fact.get("value") if "temperature" in (name, fact.get("method")) else None
    if not isinstance(temperature, float) or _MILD_TEMPERATURES[0] <= temperature <= _MILD_TEMPERATURES[1]:
        return ""
    return f" (before calibration, the model is {'overconfident' if temperature > 1 else 'underconfident'})"
