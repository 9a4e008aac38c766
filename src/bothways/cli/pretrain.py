"""``bothways pretrain``: an encoder from raw text."""

from pathlib import Path
from typing import TYPE_CHECKING

from bothways.choices import Format, RecipeName, RecipeScale
from bothways.cli.corpora import CORPUS, corpus_of
from bothways.cli.declared import Option, group_of, taking
from bothways.cli.opening import open_tokenizer
from bothways.cli.options import TEXT, Columns, Names, PositiveInt, bad_usage, usage_error
from bothways.cli.terminal import note
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
    train_and_save,
)
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from bothways.pretraining.pretrainer import Pretrainer
    from bothways.training.options import TrainingArguments
    from bothways.training.record import TrainingRecord

EXAMPLE = f"""\
{CORPUS}

{RESUMING}

Examples:
  bothways tokenizer train --vocabulary 8000 --data texts.txt.gz --output tok/
  bothways pretrain --recipe electra --scale tiny --tokenizer tok/ \\
    --data texts.txt.gz --output runs/pt --updates 50 --seed 1"""

TRAINING = group_of(
    "Training",
    [
        Option("updates", int, "Optimizer steps. Default: the recipe's."),
        TOKENS,
        Option("batch_size", int, "Sequences in an update. Default: the recipe's; another changes its rate as well."),
        Option("learning_rate", float, "Peak of the schedule. Default: the recipe's."),
        LAYER_DECAY,
        Option("seed", int, "Seed of weights, masks, pairs and order.", default="0"),
        CHECKPOINTING,
        SHARD,
        CHECKPOINTS,
    ],
)


@taking(training=TRAINING)
def pretrain(
    *,
    recipe: RecipeName,
    tokenizer: str,
    data: Names,
    output: Path,
    scale: RecipeScale = "tiny",
    length: PositiveInt | None = None,
    text: Columns = TEXT,
    format: Format | None = None,  # noqa: A002 (the option's name)
    training: object = None,
    batch: BatchOptions = FULL,
    run: RunOptions = ONCE,
    device: str = "auto",
    threads: PositiveInt | None = None,
) -> int:
    """Pre-train a new encoder on raw text.

    The encoder is fine-tuned for tasks afterwards. The text is first encoded into OUTPUT.shards, which another run over
    the same files takes again. bothways plan says beforehand what a run takes.

    Args:
        recipe: What is learnt, and how.
        tokenizer: A folder of a tokenizer, such as bothways tokenizer train writes, or of a model.
        data: Files, or folders of them: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet; or one folder of shards.
        output: Folder for the encoder. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        scale: Size of the recipe: cut for one machine, or as published.
        length: Tokens of a sequence, in place of the recipe's.
        text: Column of the texts; give it again to join several.
        format: Of the files, where their names do not say it.
        training: How long and how fast; by default as the recipe says.
        batch: How the batch grows at the beginning.
        run: What becomes of the run.
        device: Where to train: auto, cpu, cuda.
        threads: CPU threads. Default: as OMP_NUM_THREADS says, else one for each core that the process is granted.
    """
    choose_threads(threads)
    if not data:
        raise usage_error("--data needs at least one file or folder.")
    warmup = batch.warmup()

    def fit(options: "TrainingArguments") -> "tuple[Pretrainer, TrainingRecord]":
        from bothways.pretraining.pretrainer import Pretrainer
        from bothways.pretraining.recipes import find_recipe, scaled

        read, _ = open_tokenizer(tokenizer, revision=None, download=False)
        chosen = scaled(find_recipe(recipe), scale).changed(length=length)
        with bad_usage():
            pretrainer = Pretrainer(chosen, read, device=device)
        if not run.quiet:
            for remark in chosen.recipe.remarks:
                note(remark)
        corpus = corpus_of(data, output, read, text, format, quiet=run.quiet)
        return pretrainer, pretrainer.fit(corpus, batch_warmup=warmup, **options)

    def then(model: "Pretrainer", folder: str) -> str:
        del model
        return f"bothways train classification --model {folder} --train train.jsonl --output runs/new"

    return train_and_save(output, training, run, fit, then)
