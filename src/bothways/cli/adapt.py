"""``bothways adapt``: let an encoder learn the language of raw texts."""

from pathlib import Path
from typing import TYPE_CHECKING

from bothways.choices import Format
from bothways.cli.declared import taking
from bothways.cli.opening import open_options
from bothways.cli.options import AS_IT_CAN, HERE, TEXT, Columns, File, ModelOptions, ReadingOptions, bad_usage
from bothways.cli.reading import labelled_source, optional_source
from bothways.cli.terminal import note
from bothways.cli.training import ONCE, RESUMING, TRAINING, RunOptions, check_piped, train_and_save

if TYPE_CHECKING:
    from bothways.tasks import FillMask
    from bothways.training.options import TrainingArguments
    from bothways.training.record import TrainingRecord

EXAMPLE = f"""\
Data are plain text, one paragraph a line, or rows with a text column.

Example:
  bothways adapt --model sentence-transformers/all-MiniLM-L6-v2 \\
    --data texts.txt.gz --output runs/adapted
  bothways train classification --model runs/adapted \\
    --train train.jsonl.gz --output runs/news

{RESUMING}"""


@taking(training=TRAINING)
def adapt(
    *,
    model: str,
    data: File,
    output: Path,
    validation: File | None = None,
    text: Columns = TEXT,
    format: Format | None = None,  # noqa: A002 (the option's name)
    run: RunOptions = ONCE,
    training: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> int:
    """Continue pre-training (masked LM) on your own texts.

    The model is then fine-tuned for a task as any other. Prints how well masked tokens of held-out texts are predicted
    before and after. A model without a masked LM head gets a new one.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        data: Texts: .txt, .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input. Empty
            ones are passed over.
        output: Folder for the adapted model. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: Held-out texts; a tenth of the texts, drawn with the seed, when left out.
        text: Column of the texts; give it again to join several.
        format: Of both files, where their names do not say it.
        run: What becomes of the run.
        training: How long and how fast.
        reading: How texts are read; in training the windows of a long text share nothing unless a stride is given.
        opening: How the model is found and where it runs.
    """
    check_piped({"--data": data, "--validation": validation})

    def fit(options: "TrainingArguments") -> "tuple[FillMask, TrainingRecord]":
        from bothways.tasks import FillMask

        with bad_usage():
            task = FillMask.from_pretrained(model, **open_options(reading, opening.in_full))
        if not task.has_head:
            note(f"{model} has no masked language modelling head: a new one is drawn, on its own token table.")
        record = task.fit(
            labelled_source(data, format),
            validation=optional_source(validation, format),
            text=text,
            **options,
        )
        return task, record

    def then(model: "FillMask", folder: str) -> str:
        del model
        return f"bothways train classification --model {folder} --train train.jsonl --output runs/new"

    return train_and_save(output, training, run, fit, then)
