"""``bothways train``: fine-tune a pretrained encoder."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.cli.opening import AS_TRAINED, ClassifierOptions, open_classifier
from bothways.cli.options import (
    HERE,
    TEXT,
    Columns,
    File,
    Flag,
    Format,
    ModelOptions,
    PositiveFloat,
    PositiveInt,
    Target,
    usage_error,
)
from bothways.cli.reading import labelled_source
from bothways.cli.runs import RunFolders
from bothways.cli.terminal import note, print_json

if TYPE_CHECKING:
    from bothways.tasks import TextClassifier
    from bothways.tasks.settings import FitSettings
    from bothways.training.record import TrainingRecord

EXAMPLE = """\
Example:
  bothways train classification --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train train.jsonl.gz --validation validation.jsonl.gz --output runs/news

Ctrl-C ends the training after the update at hand: the best epoch so far is
saved, and the same command with --resume continues."""

_INTERRUPTED = 130


@Parameter(name="*", group="Training")
@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How long and how fast."""

    epochs: PositiveInt = 3
    """Passes over the training data; the best one is kept."""
    learning_rate: PositiveFloat | None = None
    """Peak of the schedule; by default 1e-4 for encoders up to 512 wide, 3e-5 for wider ones."""
    batch_size: PositiveInt = 32
    """Texts in one update."""
    patience: PositiveInt | None = None
    """Stop after this many epochs without a better validation score."""
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))] = 0
    """Of the new head, the order of the texts, and dropout."""
    checkpoints: Annotated[bool, Parameter(negative="--no-checkpoints", show_default=False)] = True
    """Write a checkpoint after each epoch (four times the size of the model), so that --resume can continue."""


USUAL = TrainingOptions()


def classification(
    *,
    model: str,
    train: File,
    output: Path,
    validation: File | None = None,
    text: Columns = TEXT,
    label: str = "label",
    target: Target = "single",
    format: Format | None = None,  # noqa: A002 (the option's name)
    overwrite: Flag = False,
    resume: Flag = False,
    json: Flag = False,
    quiet: Flag = False,
    training: TrainingOptions = USUAL,
    reading: ClassifierOptions = AS_TRAINED,
    opening: ModelOptions = HERE,
) -> int:
    """Fine-tune an encoder to label texts, keep its best epoch, and calibrate it.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        train: Labelled rows: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: Held-out rows; a tenth of the training rows, drawn with the seed, when left out.
        text: Column of the texts; give it again to join several.
        label: Column of the labels.
        target: One label a text, several (lists, or a|b in .csv), or a number.
        format: Of both files, where their names do not say it.
        overwrite: Replace a trained model at the output.
        resume: Continue an interrupted run; without one, begin afresh.
        json: Print the summary as one JSON object.
        quiet: Show no progress.
        training: How long and how fast.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    if output.name in ("", ".."):
        raise usage_error(f"--output must name a folder of its own for the model, but it is {str(output)!r}.")
    if train == validation == "-":
        raise usage_error("--train and --validation cannot both be standard input: give one of them as a file.")
    folders = RunFolders(output)
    folders.begin(resume=resume, overwrite=overwrite)
    try:
        classifier = open_classifier(model, reading, opening)
        record = classifier.fit(
            labelled_source(train, format),
            validation=None if validation is None else labelled_source(validation, format),
            text=text,
            label=label,
            target=target,
            epochs=training.epochs,
            learning_rate=training.learning_rate,
            batch_size=training.batch_size,
            seed=training.seed,
            settings=_settings(training),
            log=folders.log,
            checkpoints=folders.unfinished if training.checkpoints or resume else None,
            resume=resume,
            show_progress=False if quiet else None,
        )
        return _conclude(classifier, record, folders, json=json)
    except KeyboardInterrupt:
        # After the training itself, which ends by its own on Ctrl-C.
        if folders.resumable:
            note(f"Nothing was saved.{_how_to_resume(folders)}")
        raise
    finally:
        folders.discard_if_empty()


def _settings(training: TrainingOptions) -> "FitSettings":
    from bothways.tasks.settings import FitSettings

    return FitSettings(patience=training.patience)


def _conclude(classifier: "TextClassifier", record: "TrainingRecord", folders: RunFolders, *, json: bool) -> int:
    """Save what was trained and say how it went; the exit code."""
    if record.interrupted and record.best_epoch is None:
        note(f"Interrupted in the first epoch, before there was a model worth saving.{_how_to_resume(folders)}")
        if not folders.resumable:
            folders.forget()
        return _INTERRUPTED
    # What is in the way was checked, and allowed, before the training.
    classifier.save(folders.output, overwrite=True)
    if record.interrupted:
        best = f"{folders.output} has the best epoch so far, {record.best_epoch}"
        note(f"Interrupted: {best}.{_how_to_resume(folders)}")
    if not (record.interrupted and folders.resumable):
        folders.finish()
    if json:
        print_json(_summary(classifier, record, folders.output))
    else:
        print(_in_words(classifier, record, folders.output))
    return _INTERRUPTED if record.interrupted else 0


def _how_to_resume(folders: RunFolders) -> str:
    return " Run the same command with --resume to continue." if folders.resumable else ""


def _summary(classifier: "TextClassifier", record: "TrainingRecord", output: Path) -> dict[str, object]:
    return {
        "output": str(output),
        "labels": list(classifier.target.labels) if classifier.target else [],
        "best_epoch": record.best_epoch,
        "validation": _best_metrics(record),
        "temperature": None if classifier.temperature is None else asdict(classifier.temperature),
        "updates": record.updates,
        "tokens": record.tokens,
        "seconds": record.seconds,
        "stopped_early": record.stopped_early,
        "interrupted": record.interrupted,
    }


def _in_words(classifier: "TextClassifier", record: "TrainingRecord", output: Path) -> str:
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in _best_metrics(record).items())
    how = ", stopped early" if record.stopped_early else ""
    lines = [
        f"trained      {record.updates:,} updates in {record.seconds:,.0f} s{how}",
        f"best epoch   {record.best_epoch} of {len(record.validations)}",
        f"validation   {metrics}",
    ]
    if classifier.temperature is not None:
        value, slope = classifier.temperature.value, classifier.temperature.slope
        lines.append(f"temperature  {value:.3f}" + (f", times entropy to the power of {slope:.3f}" if slope else ""))
    lines += [f"saved in     {output}", f"next         bothways evaluate {shlex.quote(str(output))} --data test.jsonl"]
    return "\n".join(lines)


def _best_metrics(record: "TrainingRecord") -> dict[str, float]:
    """The validation metrics of the epoch that was kept."""
    return next((dict(each.metrics) for each in record.validations if each.epoch == record.best_epoch), {})
