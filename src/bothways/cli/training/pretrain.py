"""``bothways adapt``, ``bothways distill`` and ``bothways pretrain``: encoders from raw text."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bothways import checkpoints, pretraining, tasks
from bothways.choices import RecipeName, RecipeScale
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import counted, note
from bothways.cli.training import run as runs
from bothways.data import Source, corpus_files
from bothways.tasks.spec import NamedLabelData
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from bothways.data.shards import TokenCorpus
    from bothways.pretraining import Distiller, Pretrainer, TaskDistiller
    from bothways.tasks import FillMask
    from bothways.text import TextTokenizer
    from bothways.training.options import TrainingArguments
    from bothways.training.state import TrainingRecord

_CORPUS = """\
Plain text has one paragraph per line, and an empty line after each document;
rows of .jsonl, .csv, .tsv and .parquet are documents."""

_ADAPT_EXAMPLE = f"""\
The data are plain text, one paragraph per line, or rows with a text column.

Example:
  bothways adapt --model sentence-transformers/all-MiniLM-L6-v2 \\
    --data texts.txt.gz --output runs/adapted
  bothways train classification --model runs/adapted \\
    --train train.jsonl.gz --output runs/news

{runs.RESUMING}"""


@opt.command(_ADAPT_EXAMPLE, training=runs.TRAINING)
def adapt(
    model: runs.BaseModel,
    *,
    data: opt.File,
    output: runs.OutputFolder,
    validation: opt.File | None = None,
    text: opt.TrainedTextColumns = None,
    file: opt.FileOptions = opt.ANY_FILE,
    run: runs.RunOptions = runs.DEFAULT_RUN,
    training: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> int:
    """Continue pre-training (masked LM) on your own texts.

    Fine-tune the model for a task afterwards. Prints how well the model predicts masked tokens of held-out texts before
    and after the training. A model without a masked LM head gets a new one.

    Args:
        data: Texts: .txt, .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input. Empty
            texts are skipped.
        validation: Held-out texts. Default: a tenth of the texts, drawn with the seed.
    """
    inputs.check_piped({"--data": data, "--validation": validation})

    def fit(options: "TrainingArguments") -> "tuple[FillMask, TrainingRecord]":
        with opt.as_usage_error():
            task = tasks.FillMask.from_pretrained(model, **inputs.open_options(reading, opening.in_full))
        if not task.has_head:
            note(f"{model} has no masked LM head: a new one is initialised from its token embeddings.")
        held_out = inputs.optional_source(validation, file)
        columns = inputs.text_columns(text, inputs.trained_columns(model, opening))
        return task, task.fit(inputs.labelled_source(data, file), validation=held_out, text=columns, **options)

    files = file.to_remember(data, validation)
    return runs.train_and_save(output, training, run, fit, runs.train_next(data, file), files)


_DISTILL_EXAMPLE = f"""\
{_CORPUS}

{runs.RESUMING}

Example:
  bothways distill --teacher sentence-transformers/all-MiniLM-L6-v2 --layers 3 \\
    --data texts.txt.gz --output runs/student
  bothways distill --teacher runs/news --layers 3 --data texts.jsonl.gz \\
    --validation validation.jsonl.gz --output runs/small"""

_DISTILLING = runs.training_group(
    opt.Option("updates", int, "Number of optimizer steps.", default="2000"),
    runs.TOKENS,
    opt.Option("batch_size", int, "Sequences per update. Default: 16 for embedders, else 32."),
    opt.Option(
        "learning_rate",
        float,
        "Peak learning rate. Default: 6e-4 for embedders, else 1e-4, and higher for larger batches.",
    ),
    runs.LAYER_DECAY,
    opt.Option("seed", int, "Seed of masks, dropout and the order of sequences.", default="0"),
)


# --tokens is the length of the training here; taggers read the column of words that they were trained on.
@opt.command(
    _DISTILL_EXAMPLE,
    own=opt.group_of("Data", opt.options_of(NamedLabelData)),
    columns=opt.column_options(without=runs.TOKENS.name),
    training=_DISTILLING,
)
def distill(
    teacher: Annotated[str, Parameter(name=("--teacher", "--model"))],
    *,
    data: opt.Names,
    output: runs.OutputFolder,
    layers: opt.PositiveInt | None = None,
    length: opt.PositiveInt | None = None,
    validation: opt.File | None = None,
    own: object = None,
    columns: object = None,
    file: opt.FileOptions = opt.ANY_FILE,
    training: object = None,
    batch: runs.BatchOptions = runs.FULL_BATCH,
    run: runs.RunOptions = runs.DEFAULT_RUN,
    model: opt.ModelOptions = opt.ANY_MODEL,
) -> int:
    """Distill a model into a smaller one on unlabelled texts.

    The student has fewer layers, initialised from evenly spaced layers of the teacher. It learns the vectors of a
    sentence embedder, the predictions and hidden states of a classifier, tagger or masked language model (DistilBERT),
    or the hidden states of another encoder. The student of a classifier or tagger has the same task.

    Args:
        teacher: Folder or name of the model to distill.
        data: Files, or folders of files: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet; or a folder of token shards.
            For a classifier or tagger, rows as for 'bothways predict'; each line of a .txt file is a text.
        layers: Number of layers of the student. Default: half the teacher's.
        length: Tokens per sequence. Default: 128, or the teacher's limit if that is lower.
        validation: Labelled rows to evaluate and calibrate a classifier or tagger on. Default: a tenth of the data,
            with its labels; unless all have one, agreement with the teacher is measured and nothing is calibrated.
    """
    if not data:
        raise opt.usage_error("--data needs at least one file or folder.")
    warmup, names = batch.warmup(), opt.given_of(columns)
    reading = opt.given_of(own)
    if model.dtype not in (None, "float32"):
        raise opt.usage_error(f"a student is trained in float32: drop --dtype {model.dtype}.")

    def fit(options: "TrainingArguments") -> "tuple[Distiller | TaskDistiller, TrainingRecord]":
        located = checkpoints.locate(teacher, revision=model.revision, download=model.download)
        if pretraining.task_to_distill(located.folder, teacher) is not None:
            if warmup is not None:
                raise opt.usage_error(f"{teacher!r} is distilled with a fixed batch size: drop --batch-from.")
            opened = inputs.open_options(replace(opt.ANY_WINDOWS, max_length=length), model)
            learner = pretraining.TaskDistiller.from_pretrained(teacher, layers=layers, **opened)
            held_out = inputs.optional_source(validation, file)
            return learner, learner.fit(_rows(data, file), validation=held_out, **names, **reading, **options)
        _check_raw(teacher, {**names, **reading}, validation)
        source: dict[str, Any] = {"revision": model.revision, "device": model.device, "download": model.download}
        source["allow_pickle"] = model.allow_pickle
        distiller = pretraining.Distiller.from_pretrained(teacher, layers=layers, length=length, **source)
        tokenizer = distiller.student.model.tokenizer
        text = inputs.text_columns(names.get("text"), inputs.trained_columns(teacher, model))
        corpus = _corpus(data, output, tokenizer, text, file)
        return distiller, distiller.fit(corpus, batch_warmup=warmup, **options)

    files, next_step = file.to_remember(*data, validation), partial(_after_distilling, data[0], file, names.get("text"))
    return runs.train_and_save(output, training, run, fit, next_step, files)


def _rows(data: opt.Names, file: opt.FileOptions) -> Source:
    """Return the rows of files and folders, as a task reads them."""
    files = [str(each) for each in corpus_files(data)]
    if len(files) == 1 and file == opt.ANY_FILE:
        return files[0]
    return [row for path in files for row in inputs.file_rows(path, file)]


def _check_raw(teacher: str, columns: Mapping[str, object], validation: str | None) -> None:
    """Raise a usage error for options that apply only to teachers with a task."""
    foreign = ["--validation"] * (validation is not None) + [opt.spelled(name) for name in columns if name != "text"]
    if foreign:
        raise opt.usage_error(
            f"{foreign[0]} is for trained classifiers and taggers, but {teacher!r} is distilled on raw text: drop it."
        )


def _after_distilling(
    data: str, file: opt.FileOptions, text: Sequence[str] | None, distiller: "Distiller | TaskDistiller"
) -> str:
    if not isinstance(distiller, pretraining.Distiller):
        return runs.evaluate_next(data, file)
    if distiller.embeds:
        return runs.build_next(data, file, text or ())
    return runs.train_next(data, file)


_PRETRAIN_EXAMPLE = f"""\
{_CORPUS}

{runs.RESUMING}

Examples:
  bothways tokenizer train --vocabulary 8000 --data texts.txt.gz --output tok/
  bothways pretrain --recipe electra --scale tiny --tokenizer tok/ \\
    --data texts.txt.gz --output runs/pt --updates 50 --seed 1"""

_PRETRAINING = runs.training_group(
    opt.Option("updates", int, "Number of optimizer steps. Default: the recipe's."),
    runs.TOKENS,
    opt.Option("batch_size", int, "Sequences per update. Default: the recipe's; other sizes scale the learning rate."),
    opt.Option("learning_rate", float, "Peak learning rate. Default: the recipe's."),
    runs.LAYER_DECAY,
    opt.Option("seed", int, "Seed of weights, masks, sentence pairs and the order of sequences.", default="0"),
)


@opt.command(_PRETRAIN_EXAMPLE, training=_PRETRAINING)
def pretrain(
    *,
    recipe: RecipeName,
    tokenizer: str,
    data: opt.Names,
    output: runs.OutputFolder,
    scale: RecipeScale = "tiny",
    length: opt.PositiveInt | None = None,
    text: opt.TextColumns = opt.TEXT,
    file: opt.FileOptions = opt.ANY_FILE,
    training: object = None,
    batch: runs.BatchOptions = runs.FULL_BATCH,
    run: runs.RunOptions = runs.DEFAULT_RUN,
    device: str = "auto",
    threads: opt.Threads = None,
) -> int:
    """Pre-train a new encoder on raw text.

    Fine-tune the encoder for tasks afterwards. The text is first tokenized into OUTPUT.shards, which later runs on the
    same files reuse. 'bothways plan' estimates the time and memory of a run.

    Args:
        recipe: Name of the recipe, which sets objective, architecture and schedule.
        tokenizer: Folder of a tokenizer (see 'bothways tokenizer train') or of a model.
        data: Files, or folders of files: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet; or a folder of token shards.
        scale: Size of the recipe: reduced for one machine, or as published.
        length: Tokens per sequence. Default: the recipe's.
        device: Device to train on: cpu or cuda; auto takes a GPU if there is one.
    """
    choose_threads(threads)
    if not data:
        raise opt.usage_error("--data needs at least one file or folder.")
    warmup = batch.warmup()

    def fit(options: "TrainingArguments") -> "tuple[Pretrainer, TrainingRecord]":
        opened, _ = checkpoints.open_tokenizer(tokenizer)
        chosen = pretraining.scaled(pretraining.find_recipe(recipe), scale).changed(length=length)
        with opt.as_usage_error():
            pretrainer = pretraining.Pretrainer(chosen, opened, device=device)
        for remark in chosen.recipe.remarks:
            note(remark)
        corpus = _corpus(data, output, opened, text, file)
        return pretrainer, pretrainer.fit(corpus, batch_warmup=warmup, **options)

    return runs.train_and_save(output, training, run, fit, runs.train_next(data[0], file, remembered=False))


def _corpus(
    data: opt.Names,
    output: Path,
    tokenizer: "TextTokenizer",
    text: tuple[str, ...],
    file: opt.FileOptions,
) -> "TokenCorpus":
    """Return a corpus of token shards: the given folder, those of an earlier run on the same files, or new ones."""
    from bothways.data.shards import MANIFEST, ShardSource, TokenCorpus, write_shards
    from bothways.training.workers import current_workers

    if len(data) == 1 and (Path(data[0]) / MANIFEST).is_file():
        return TokenCorpus.open(data[0])
    files = [(str(each.absolute()), each.stat().st_size, each.stat().st_mtime_ns) for each in corpus_files(data)]
    settings = inputs.file_settings(data[0], file)
    identity = files, text, *settings.values(), tokenizer.encoding_digest
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    folder = output.with_name(f"{output.name}.shards") / key
    workers = current_workers()
    if workers.rank == 0 and not (folder / MANIFEST).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        source = ShardSource(data, text=text, **settings)
        manifest = write_shards(source, folder, tokenizer)
        note(f"{manifest.tokens:,} tokens of {counted(manifest.documents, 'document')} are in {folder}")
    workers.gather(workers.rank)  # the other processes wait here until the first has written
    return TokenCorpus.open(folder)
