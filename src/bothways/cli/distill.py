"""``bothways distill``: a smaller encoder that learns from a larger one on raw text."""

from pathlib import Path
from typing import TYPE_CHECKING

from bothways.choices import Format
from bothways.cli.corpora import CORPUS, corpus_of
from bothways.cli.declared import Option, group_of, taking
from bothways.cli.options import HERE, TEXT, Columns, ModelOptions, Names, PositiveInt, usage_error
from bothways.cli.training import (
    CHECKPOINTS,
    FULL,
    LAYER_DECAY,
    ONCE,
    RESUMING,
    SHARD,
    TOKENS,
    BatchOptions,
    RunOptions,
    train_and_save,
)

if TYPE_CHECKING:
    from bothways.pretraining.distiller import Distiller
    from bothways.training.options import TrainingArguments
    from bothways.training.record import TrainingRecord

EXAMPLE = f"""\
{CORPUS}

{RESUMING}

Example:
  bothways distill --teacher sentence-transformers/all-MiniLM-L6-v2 --layers 3 \\
    --data texts.txt.gz --output runs/student"""

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
        SHARD,
        CHECKPOINTS,
    ],
)


@taking(training=TRAINING)
def distill(
    *,
    teacher: str,
    data: Names,
    output: Path,
    layers: PositiveInt | None = None,
    length: PositiveInt | None = None,
    text: Columns = TEXT,
    format: Format | None = None,  # noqa: A002 (the option's name)
    training: object = None,
    batch: BatchOptions = FULL,
    run: RunOptions = ONCE,
    model: ModelOptions = HERE,
) -> int:
    """Distill an encoder on raw text: a student with fewer layers learns what its teacher makes of each token.

    The student begins as a copy of evenly chosen layers. Of a sentence embedder it learns the vectors, of a masked
    language model predictions and hidden states (DistilBERT), of another encoder hidden states.

    Args:
        teacher: A folder or a name of a published model.
        data: Files, or folders of them: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet; or one folder of shards.
        output: Folder for the student. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        layers: Layers of the student. Default: half of the teacher's.
        length: Tokens of a sequence. Default: 128, or the most that the teacher reads.
        text: Column of the texts; give it again to join several.
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

    def fit(options: "TrainingArguments") -> "tuple[Distiller, TrainingRecord]":
        from bothways.pretraining.distiller import Distiller

        distiller = Distiller.from_pretrained(
            teacher,
            layers=layers,
            length=length,
            revision=model.revision,
            device=model.device,
            download=model.download,
            allow_pickle=model.allow_pickle,
        )
        corpus = corpus_of(data, output, distiller.student.model.tokenizer, text, format, quiet=run.quiet)
        return distiller, distiller.fit(corpus, batch_warmup=warmup, **options)

    return train_and_save(output, training, run, fit, _then)


def _then(distiller: "Distiller", folder: str) -> str:
    if distiller.embeds:
        return f"bothways search build --model {folder} --data texts.jsonl --output runs/index"
    return f"bothways train classification --model {folder} --train train.jsonl --output runs/new"
