"""``bothways train tagging``: fine-tune a pretrained encoder to tag words."""

from pathlib import Path
from typing import TYPE_CHECKING

from bothways.cli.opening import AS_TRAINED, ClassifierOptions, open_options
from bothways.cli.options import HERE, File, Format, ModelOptions, Scheme, bad_usage
from bothways.cli.reading import labelled_source, optional_source
from bothways.cli.train import RESUMING
from bothways.cli.training import ONCE, USUAL, RunOptions, TrainingOptions, check_inputs, train_and_save

if TYPE_CHECKING:
    from bothways.tasks.fitting import FitOptions
    from bothways.tasks.task import Task
    from bothways.training.record import TrainingRecord

EXAMPLE = f"""\
A row of the data, with a tag for each word:
  {{"tokens": ["Li", "Na", "left"], "tags": ["B-PER", "I-PER", "O"]}}
or, in a .conll file, a word and its tag on each line and an empty line
between texts.

Example:
  bothways train tagging --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train train.jsonl.gz --validation validation.jsonl.gz --output runs/ner

{RESUMING}"""


def tagging(
    *,
    model: str,
    train: File,
    output: Path,
    validation: File | None = None,
    tokens: str = "tokens",
    tags: str = "tags",
    scheme: Scheme | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    run: RunOptions = ONCE,
    training: TrainingOptions = USUAL,
    reading: ClassifierOptions = AS_TRAINED,
    opening: ModelOptions = HERE,
) -> int:
    """Fine-tune an encoder to tag words: names, parts of speech and the like.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        train: Tagged rows: .jsonl, .conll, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: Held-out rows; a tenth of the training rows, drawn with the seed, when left out.
        tokens: Column of the words: lists, or strings with white space between the words.
        tags: Column of their tags, in the same form.
        scheme: How tags say spans; by default what they look like. IOB1 is learnt as BIO, plain tags are no spans.
        format: Of both files, where their names do not say it.
        run: What becomes of the run.
        training: How long and how fast.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    check_inputs(train, validation)

    def fit(options: "FitOptions") -> "tuple[Task, TrainingRecord]":
        from bothways.tasks import TextTagger

        with bad_usage():
            tagger = TextTagger.from_pretrained(model, labels=reading.labels, **open_options(reading, opening))
        record = tagger.fit(
            labelled_source(train, format),
            validation=optional_source(validation, format),
            tokens=tokens,
            tags=tags,
            scheme=scheme,
            **options,
        )
        return tagger, record

    return train_and_save(output, training, run, fit)
