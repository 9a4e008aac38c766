"""``bothways distill``: a smaller model that learns from a larger one on texts without labels."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.choices import Format
from bothways.cli.corpora import CORPUS, corpus_of
from bothways.cli.declared import Option, given_of, group_of, of_all_tasks, taking
from bothways.cli.opening import columns_of, open_options
from bothways.cli.options import AS_IT_CAN, HERE, TEXT, File, ModelOptions, Names, PositiveInt, usage_error
from bothways.cli.reading import optional_source
from bothways.cli.training import (
    CHECKPOINTING,
    CHECKPOINTS,
    FULL,
    LAYER_DECAY,
    ONCE,
    RESUMING,
    SHARD,
    TOKENS,
    BatchOptions,
    RunOptions,
    evaluate_next,
    train_and_save,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bothways.data import Source
    from bothways.pretraining.distiller import Distiller
    from bothways.pretraining.task_distiller import TaskDistiller
    from bothways.training.options import TrainingArguments
    from bothways.training.record import TrainingRecord

EXAMPLE = f"""\
{CORPUS}

{RESUMING}

Example:
  bothways distill --teacher sentence-transformers/all-MiniLM-L6-v2 --layers 3 \\
    --data texts.txt.gz --output runs/student
  bothways distill --teacher runs/news --layers 3 --data texts.jsonl.gz \\
    --validation validation.jsonl.gz --output runs/small"""

TRAINING = group_of(
    "Training",
    [
        Option("updates", int, "Optimizer steps.", default="2000"),
        TOKENS,
        Option("batch_size", int, "Sequences in an update. Default: 16 for embedders, else 32."),
        Option(
            "learning_rate",
            float,
            "Peak of the schedule. Default: 6e-4 for embedders, else 1e-4; more for larger batches.",
        ),
        LAYER_DECAY,
        Option("seed", int, "Seed of masks, dropout and order.", default="0"),
        CHECKPOINTING,
        SHARD,
        CHECKPOINTS,
    ],
)


# The words of taggers stand where they stood in the training: --tokens is how much to read.
COLUMNS = group_of(
    "Columns (by default as in training)", (each for each in of_all_tasks(columns_of) if each.name != TOKENS.name)
)


@taking(columns=COLUMNS, training=TRAINING)
def distill(
    *,
    teacher: str,
    data: Names,
    output: Path,
    layers: PositiveInt | None = None,
    length: PositiveInt | None = None,
    validation: File | None = None,
    columns: object = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    training: object = None,
    batch: BatchOptions = FULL,
    run: RunOptions = ONCE,
    model: ModelOptions = HERE,
) -> int:
    """Distill a model into a smaller one on unlabelled texts.

    The student has fewer layers and begins as a copy of evenly chosen layers. Of a trained classifier or tagger it
    learns predictions and hidden states, and becomes one itself; of a sentence embedder the vectors; of a masked
    language model predictions and hidden states (DistilBERT); of another encoder hidden states.

    Args:
        teacher: A folder or a name of a published model.
        data: Files, or folders of them: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet; or one folder of shards. A
            classifier or tagger reads rows as in predict, where each line of .txt is a text.
        output: Folder for the student. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        layers: Layers of the student. Default: half of the teacher's.
        length: Tokens of a sequence. Default: 128, or the most that the teacher reads.
        validation: Labelled rows to measure and calibrate a classifier or tagger on. Default: a tenth of the data,
            measured by its labels, or without any beside the teacher's answers, and then nothing is calibrated.
        columns: Where the parts of a row stand.
        format: Of the files, where their names do not say it.
        training: How long and how fast.
        batch: How the batch grows at the beginning.
        run: What becomes of the run.
        model: How the teacher is found and where it runs.
    """
    if not data:
        raise usage_error("--data needs at least one file or folder.")
    warmup = batch.warmup()
    if model.dtype not in (None, "float32"):
        raise usage_error(f"a student is trained in float32: leave out --dtype {model.dtype}.")

    named = given_of(columns)

    def fit(options: "TrainingArguments") -> "tuple[Distiller | TaskDistiller, TrainingRecord]":
        from bothways.checkpoints.hub import locate
        from bothways.pretraining.distiller import Distiller
        from bothways.pretraining.task_distiller import TaskDistiller, task_to_distill

        found = locate(teacher, revision=model.revision, download=model.download)
        if task_to_distill(found.folder, teacher) is not None:
            if warmup is not None:
                raise usage_error(f"{teacher!r} is distilled in batches of one size: leave out --batch-from.")
            reading = open_options(replace(AS_IT_CAN, max_length=length), model)
            learner = TaskDistiller.from_pretrained(teacher, layers=layers, **reading)
            rows = _rows(data, format)
            return learner, learner.fit(rows, validation=optional_source(validation, format), **named, **options)
        _check_raw(teacher, named, validation)
        distiller = Distiller.from_pretrained(
            teacher,
            layers=layers,
            length=length,
            revision=model.revision,
            device=model.device,
            download=model.download,
            allow_pickle=model.allow_pickle,
        )
        tokenizer, text = distiller.student.model.tokenizer, named.get("text", TEXT)
        corpus = corpus_of(data, output, tokenizer, text, format, quiet=run.quiet)
        return distiller, distiller.fit(corpus, batch_warmup=warmup, **options)

    return train_and_save(output, training, run, fit, _then)


def _rows(data: Names, format_: Format | None) -> "Source":
    """Rows of files and folders, as a task reads them."""
    from bothways.data import corpus_files, read_rows

    files = [str(each) for each in corpus_files(data)]
    if len(files) == 1 and format_ is None:
        return files[0]
    return [row for file in files for row in read_rows(file, format=format_)]


def _check_raw(teacher: str, columns: "Mapping[str, object]", validation: str | None) -> None:
    """Refuse options that only models of a task have.

    Raises:
        CycloptsError: There is one.
    """
    foreign = ["--validation"] * (validation is not None)
    foreign += [f"--{name.replace('_', '-')}" for name in columns if name != "text"]
    if foreign:
        raise usage_error(
            f"{teacher!r} is no trained classifier or tagger, and is distilled on raw text: leave out {foreign[0]}."
        )


def _then(distiller: "Distiller | TaskDistiller", folder: str) -> str:
    from bothways.pretraining.distiller import Distiller

    if not isinstance(distiller, Distiller):
        return evaluate_next(distiller, folder)
    if distiller.embeds:
        return f"bothways search build --model {folder} --data texts.jsonl --output runs/index"
    return f"bothways train classification --model {folder} --train train.jsonl --output runs/new"
