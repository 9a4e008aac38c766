"""``bothways predict``: what a trained model says of texts."""

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bothways.cli.answer_options import AS_USUAL, AnswerOptions, use_answers
from bothways.cli.answers import form_of
from bothways.cli.column_options import AS_IN_TRAINING, ColumnOptions, use_columns
from bothways.cli.opening import AS_TRAINED, ClassifierOptions, open_task, trusting_task
from bothways.cli.options import (
    HERE,
    Coverage,
    File,
    Flag,
    Format,
    ModelOptions,
    SpanScheme,
    bad_usage,
)
from bothways.cli.reading import check_given, check_output, typed_rows
from bothways.cli.terminal import counted, note

if TYPE_CHECKING:
    from bothways.tasks.task import Task

EXAMPLE = """\
Examples:
  bothways predict runs/news "Lakers win in overtime"
  bothways predict runs/news --data test.jsonl.gz --output out.jsonl
  bothways predict runs/news "Lakers win in overtime" --coverage 0.95
  bothways predict runs/qa "Who won?" "In 2016 the Broncos won." --top 3
  bothways predict runs/ner --data test.jsonl --output out.conll --scheme BIOES

Of a model that was trained to give one label, "outside" says whether a text is
unlike those that it was trained on; its label is then not to be relied on."""


def predict(
    run: str,
    /,
    *texts: str,
    data: File | None = None,
    output: File = "-",
    coverage: Coverage | None = None,
    keep: Flag = False,
    scheme: SpanScheme | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    json: Flag = False,
    quiet: Flag = False,
    task: str | None = None,
    answers: AnswerOptions = AS_USUAL,
    columns: ColumnOptions = AS_IN_TRAINING,
    reading: ClassifierOptions = AS_TRAINED,
    model: ModelOptions = HERE,
) -> None:
    """What a trained model says of texts, one JSON object a line; probabilities are calibrated where the model is.

    Args:
        run: Folder of a trained model.
        texts: Texts, instead of --data; two for a model that reads pairs, or a question and its
            context.
        data: Rows: .jsonl, .json, .csv, .tsv, .txt, .conll (also .gz), .parquet, or '-' for JSON Lines on standard
            input.
        output: .jsonl, .csv, .tsv or, for words and their tags, .conll (also .gz), replaced if it is there; '-' is
            standard output. Tables have a column for each probability, and one for ids where the first row has one.
        coverage: Also give a set of labels (or an interval around a number) that holds the truth for this share of
            texts, such as 0.9.
        keep: Copy all columns of the input; those named like a result get 'input_' before their names, again where
            that is another column's name.
        scheme: Write the tags of words in this scheme, whatever the model's is.
        format: Of the data, where the name does not say it.
        json: Print JSON Lines, which is what is printed anyway.
        quiet: Show no progress, and do not say that probabilities are not calibrated.
        task: Which of its tasks, for a model of several; all of them when left out.
        answers: How answers to questions are looked for.
        columns: Where the parts of a row stand.
        reading: How texts are read.
        model: How the model is found and where it runs.
    """
    from bothways.data import read_rows, write_rows
    from bothways.tasks import Ensemble

    check_output(data, output)
    check_given(texts, data)
    del json  # there is no other form on standard output
    show = None if not quiet and output != "-" else False
    trained = open_task(run, reading, model, task)
    use_columns(trained, columns)
    use_answers(trained, answers)
    form = form_of(trained, output, scheme=scheme, keep=keep)
    with bad_usage():
        given = typed_rows(trained.rows_of(texts)) if data is None else read_rows(data, format=format)
    rows, again = itertools.tee(given)
    if coverage is None:
        predictions = trained.predict_rows(again, show_progress=show)
    else:
        promising = trained if isinstance(trained, Ensemble) else trusting_task(trained, "--coverage")
        predictions = promising.predict_rows(again, coverage=coverage, show_progress=show)
    count = write_rows(output, form.rows(rows, predictions), format=form.format)
    if output != "-" and not quiet:
        note(f"{counted(count, 'prediction')} in {output}")
    if not quiet and (bare := _uncalibrated(trained)):
        note(f"the probabilities of {', '.join(bare)} are not calibrated on held-out rows.")


def _uncalibrated(task: "Task") -> list[str]:
    """What gives probabilities that nothing calibrates: the model, or some of its tasks."""
    facts = task.facts()
    parts = facts.get("tasks")
    if isinstance(parts, list):
        return [str(part["task"]) for part in parts if _lacks_calibration(part)]
    return ["this model"] if _lacks_calibration(facts) else []


def _lacks_calibration(facts: Mapping[str, object]) -> bool:
    """Whether a model states that it has no calibration; one of numbers needs none."""
    from bothways.tasks.targets import Regression

    stated = [facts[name] for name in ("calibration", "temperature") if name in facts]
    return stated == [None] and facts.get("labels") != list(Regression.labels)
