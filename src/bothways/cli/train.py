"""``bothways train``: fine-tune a pretrained encoder to label texts, or pairs of texts."""

from pathlib import Path
from typing import TYPE_CHECKING

from bothways.cli.opening import AS_TRAINED, ClassifierOptions, open_options
from bothways.cli.options import HERE, TEXT, Columns, File, Format, Merge, ModelOptions, Target, bad_usage, usage_error
from bothways.cli.reading import labelled_source, optional_source
from bothways.cli.training import ONCE, USUAL, RunOptions, TrainingOptions, check_inputs, train_and_save
from bothways.cli.trusting import AS_USUAL, TrustOptions, draw_border, rows_from_elsewhere, with_trust

if TYPE_CHECKING:
    from bothways.tasks.fitting import FitOptions
    from bothways.tasks.task import Task
    from bothways.training.record import TrainingRecord

RESUMING = """\
Ctrl-C ends the training after the update at hand: the epoch kept so far is
saved, and the same command with --resume continues."""

CLASSIFICATION_EXAMPLE = f"""\
A row of the data:
  {{"text": "Lakers win in overtime", "label": "sports"}}

Example:
  bothways train classification --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train train.jsonl.gz --validation validation.jsonl.gz --output runs/news

{RESUMING}"""

PAIRS_EXAMPLE = f"""\
A row of the data, with --label or with --score:
  {{"text_a": "A man sleeps.", "text_b": "It is night.", "label": "neutral"}}
  {{"text_a": "A man sleeps.", "text_b": "Someone is asleep.", "score": 4.6}}

Example:
  bothways train pairs --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train train.jsonl.gz --validation validation.jsonl.gz --output runs/nli

{RESUMING}"""


def classification(
    *,
    model: str,
    train: File,
    output: Path,
    validation: File | None = None,
    text: Columns = TEXT,
    label: str = "label",
    target: Target = "single",
    merge: Merge | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    run: RunOptions = ONCE,
    training: TrainingOptions = USUAL,
    trust: TrustOptions = AS_USUAL,
    reading: ClassifierOptions = AS_TRAINED,
    opening: ModelOptions = HERE,
) -> int:
    """Fine-tune an encoder to label texts, keep a good epoch (see --epochs), and calibrate it.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        train: Labelled rows: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: Held-out rows; a tenth of the training rows, drawn with the seed, when left out.
        text: Column of the texts; give it again to join several.
        label: Column of the labels.
        target: One label a text, several (lists, or a|b in .csv), or a number.
        merge: How the logits of a long text's windows become one; by default their mean weighted with their lengths.
        format: Of both files, where their names do not say it.
        run: What becomes of the run.
        training: How long and how fast.
        trust: What is learnt on the held-out rows.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    check_inputs(train, validation, elsewhere=trust.out_of_domain)
    others = rows_from_elsewhere(trust, target, [text], format)

    def fit(options: "FitOptions") -> "tuple[Task, TrainingRecord]":
        from bothways.tasks import TextClassifier

        with bad_usage():
            opened = open_options(reading, opening)
            classifier = TextClassifier.from_pretrained(model, labels=reading.labels, merge=merge, **opened)
        record = classifier.fit(
            labelled_source(train, format),
            validation=optional_source(validation, format),
            text=text,
            label=label,
            target=target,
            **with_trust(options, trust),
        )
        draw_border(classifier, others, record)
        return classifier, record

    return train_and_save(output, training, run, fit)


def pairs(
    *,
    model: str,
    train: File,
    output: Path,
    validation: File | None = None,
    text_a: str = "text_a",
    text_b: str = "text_b",
    label: str | None = None,
    score: str | None = None,
    target: Target = "single",
    merge: Merge | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    run: RunOptions = ONCE,
    training: TrainingOptions = USUAL,
    trust: TrustOptions = AS_USUAL,
    reading: ClassifierOptions = AS_TRAINED,
    opening: ModelOptions = HERE,
) -> int:
    """Fine-tune an encoder on pairs of texts: entailment, paraphrase, similarity, relevance.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        train: Labelled rows: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the trained model. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: Held-out rows; when left out, about a tenth of the training rows, drawn with the seed, those with
            the same first text together.
        text_a: Column of the first texts.
        text_b: Column of the second texts, which are cut into windows where a pair is too long.
        label: Column of the labels; 'label' unless there is a --score.
        score: Column of numbers to predict, instead of labels.
        target: One label a pair, several (lists, or a|b in .csv), or a number.
        merge: How the logits of a long pair's windows become one; by default their mean weighted with their lengths.
        format: Of both files, where their names do not say it.
        run: What becomes of the run.
        training: How long and how fast.
        trust: What is learnt on the held-out rows.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    check_inputs(train, validation, elsewhere=trust.out_of_domain)
    if score is not None and (label is not None or target == "multi"):
        raise usage_error("--score predicts a number, so it goes neither with --label nor with --target multi.")
    others = rows_from_elsewhere(trust, target if score is None else "regression", [(text_a,), (text_b,)], format)

    def fit(options: "FitOptions") -> "tuple[Task, TrainingRecord]":
        from bothways.tasks import PairClassifier

        with bad_usage():
            opened = open_options(reading, opening)
            classifier = PairClassifier.from_pretrained(model, labels=reading.labels, merge=merge, **opened)
        record = classifier.fit(
            labelled_source(train, format),
            validation=optional_source(validation, format),
            text_a=text_a,
            text_b=text_b,
            label=label,
            score=score,
            target=target,
            **with_trust(options, trust),
        )
        draw_border(classifier, others, record)
        return classifier, record

    return train_and_save(output, training, run, fit)
