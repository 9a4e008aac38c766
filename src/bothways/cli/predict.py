"""``bothways predict``: the predictions of a trained model."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from bothways.choices import Format, OnEmpty
from bothways.cli.declared import given_of, group_of, of_all_tasks, taking
from bothways.cli.forms import form_of
from bothways.cli.opening import COLUMNS, OPENING, open_task, reading_columns
from bothways.cli.options import AS_IT_CAN, HERE, File, Flag, ModelOptions, ReadingOptions, bad_usage
from bothways.cli.reading import GO_ON, check_given, check_output, typed_rows
from bothways.cli.terminal import counted, note, progress_beside
from bothways.errors import EmptyInput

EXAMPLE = """\
Examples:
  bothways predict runs/news "Lakers win in overtime"
  bothways predict runs/news --data test.jsonl.gz --output out.jsonl
  bothways predict runs/news "Lakers win in overtime" --coverage 0.95 --top 3
  bothways predict runs/qa "Who won?" "In 2016 the Broncos won." --top 3
  bothways predict runs/ner --data test.jsonl --output out.conll --scheme BIOES

Of a model of one label for each text, "out_of_domain" is true for texts that
are unlike those that it was trained on: do not rely on their labels."""


@taking(
    options=group_of("Predictions", of_all_tasks(lambda spec: [spec.predict_options])), columns=COLUMNS, opened=OPENING
)
def predict(
    run: str,
    /,
    *texts: str,
    data: File | None = None,
    output: File = "-",
    keep: Flag = False,
    on_empty: OnEmpty = "error",
    format: Format | None = None,  # noqa: A002 (the option's name)
    json: Flag = False,
    quiet: Flag = False,
    task: str | None = None,
    options: object = None,
    columns: object = None,
    opened: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    model: ModelOptions = HERE,
) -> None:
    """Predict with a trained model.

    Prints one JSON object a line. Probabilities are calibrated where the model is.

    Args:
        run: Folder of a trained model.
        texts: Texts, instead of --data; two for a model that reads pairs, or a question and its
            context.
        data: Rows: .jsonl, .json, .csv, .tsv, .txt, .conll (also .gz), .parquet, or '-' for JSON Lines on standard
            input.
        output: .jsonl, .csv, .tsv or, for words and their tags, .conll (also .gz), replaced if it is there; '-' is
            standard output. Tables have the texts, a column for each probability, or with --top for each place, and one
            for ids where the first row has one; of words and of several answers, a row for each span or answer, with
            the number of its input in "row".
        keep: Copy all columns of the input; those named like a result get 'input_' before their names, again where
            that is another column's name.
        on_empty: What becomes of a row without a text: an error, no row in the output (skip), or one whose predictions
            are null; how many there were is said.
        format: Of the data, where the name does not say it.
        json: Print JSON Lines, which is what is printed anyway.
        quiet: Show no progress, and do not say that probabilities are not calibrated.
        task: Which of its tasks, for a model of several; all of them when left out.
        options: Of the predictions.
        columns: Where the parts of a row stand.
        opened: How the model is opened.
        reading: How texts are read.
        model: How the model is found and where it runs.
    """
    from bothways.data import read_rows, write_rows

    check_output(data, output)
    check_given(texts, data)
    del json  # there is no other form on standard output
    show = progress_beside(output, quiet=quiet)
    trained = reading_columns(open_task(run, given_of(opened), reading, model, task), given_of(columns))
    wanted = given_of(options)
    with bad_usage(*wanted):
        form = form_of(trained, output, wanted, keep=keep, on_empty=on_empty)
        read = None if keep else trained.fitted.columns.input_columns
        given = (
            typed_rows(trained.fitted.columns.rows_of(texts))
            if data is None
            else read_rows(data, format=format, columns=read)
        )
        rows, again = itertools.tee(given)
        # Empty rows are skipped when they are written, where the rows that they belong to are at hand.
        instead: OnEmpty = "error" if on_empty == "error" else "null"
        predictions = trained.predict_rows(again, on_empty=instead, show_progress=show, **wanted)
    tally: Counter[str] = Counter()
    try:
        count = write_rows(output, form.rows(rows, _counted(predictions, tally)), format=form.format)
    except EmptyInput as error:
        raise EmptyInput(f"{error} {GO_ON}") from error
    if output != "-" and not quiet:
        listed = f"{counted(count, (form.listed or '')[:-1])} of " if form.listed else ""
        note(f"{listed}{counted(tally['predicted'], 'prediction')} in {output}")
    if tally["empty"]:
        note(f"{counted(tally['empty'], 'row')} without a text: {_BECAME[on_empty]}.")
    if not quiet and (bare := _uncalibrated(trained)):
        note(f"the probabilities of {', '.join(bare)} are not calibrated on held-out rows.")


_BECAME = {"skip": "left out", "null": "their predictions are null"}


def _counted(predictions: Iterable[Any], tally: Counter[str]) -> Iterator[Any]:
    for each in predictions:
        tally["empty" if each is None else "predicted"] += 1
        yield each


def _uncalibrated(model: Any) -> list[str]:  # noqa: ANN401 (a trained model)
    """Return what gives probabilities that nothing calibrates: the model, or some of its tasks."""
    from bothways.tasks.columns import column_names
    from bothways.tasks.heads.targets import Regression

    parts = model.parts or {"this model": model}
    return [
        name
        for name, each in parts.items()
        if "calibrated" in column_names(each.spec.predict_options)
        and each.confidence.calibration is None
        and each.labels != Regression.labels
    ]
