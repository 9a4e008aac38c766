"""``bothways train few-shot``: a classifier from a few examples of each label."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bothways.cli.opening import AS_IT_CAN, ReadingOptions, open_options
from bothways.cli.options import HERE, TEXT, Columns, File, Format, ModelOptions, PositiveInt, bad_usage, usage_error
from bothways.cli.reading import labelled_source, optional_source
from bothways.cli.training import ONCE, USUAL, RunOptions, TrainingOptions, check_inputs, train_and_save
from bothways.cli.trusting import AS_USUAL, TrustOptions, draw_border, rows_from_elsewhere, with_trust

if TYPE_CHECKING:
    from bothways.tasks.fitting import FitOptions
    from bothways.tasks.task import Task
    from bothways.training.record import TrainingRecord

EXAMPLE = """\
A row of the data:
  {"text": "Where is my card?", "label": "card_arrival"}

Example:
  bothways train few-shot --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train eight_of_each.jsonl --output runs/intents

The trained model answers 'bothways predict' and 'bothways evaluate', and is
a sentence embedder too."""


def few_shot(
    *,
    model: str,
    train: File,
    output: Path,
    validation: File | None = None,
    text: Columns = TEXT,
    label: str = "label",
    pairs_per_text: Annotated[PositiveInt, Parameter(group="Training")] = 8,
    format: Format | None = None,  # noqa: A002 (the option's name)
    run: RunOptions = ONCE,
    training: TrainingOptions = USUAL,
    trust: TrustOptions = AS_USUAL,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> int:
    """Learn to label texts from a few examples of each label: first their likeness, then the labels.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2; best a sentence embedder.
        train: Labelled rows: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: Held-out rows, to choose the epoch to keep, to calibrate, and to notice texts from elsewhere; none
            are held out when left out.
        text: Column of the texts; give it again to join several.
        label: Column of the labels.
        pairs_per_text: With how many others of its label each text is put together in an epoch.
        format: Of both files, where their names do not say it.
        run: What becomes of the run.
        training: How long and how fast.
        trust: What is learnt on the held-out rows.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    check_inputs(train, validation, elsewhere=trust.out_of_domain)
    if trust.out_of_domain is not None and validation is None:
        raise usage_error("--out-of-domain draws the border of held-out rows: give some with --validation.")
    others = rows_from_elsewhere(trust, "single", [text], format)

    def fit(options: "FitOptions") -> "tuple[Task, TrainingRecord]":
        from bothways.tasks import FewShotClassifier

        with bad_usage():
            classifier = FewShotClassifier.from_pretrained(model, **open_options(reading, opening))
        record = classifier.fit(
            labelled_source(train, format),
            validation=optional_source(validation, format),
            text=text,
            label=label,
            pairs_per_text=pairs_per_text,
            **with_trust(options, trust),
        )
        draw_border(classifier, others, record)
        return classifier, record

    return train_and_save(output, training, run, fit)
