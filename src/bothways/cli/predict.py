"""``bothways predict``: what a trained classifier says of texts."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.cli.opening import AS_TRAINED, ClassifierOptions, open_classifier
from bothways.cli.options import HERE, TEXT, File, Flag, Format, ModelOptions, usage_error
from bothways.cli.reading import given_rows, texts_of
from bothways.cli.terminal import note

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.tasks.predictions import Prediction

EXAMPLE = """\
Examples:
  bothways predict runs/news "Lakers win in overtime"
  bothways predict runs/news --data test.jsonl.gz --output out.jsonl"""


def predict(
    run: str,
    /,
    *texts: str,
    data: File | None = None,
    text: tuple[str, ...] | None = None,
    output: File = "-",
    keep: Flag = False,
    format: Format | None = None,  # noqa: A002 (the option's name)
    quiet: Flag = False,
    reading: ClassifierOptions = AS_TRAINED,
    model: ModelOptions = HERE,
) -> None:
    """Labels and calibrated probabilities of texts, one JSON object a line.

    Args:
        run: Folder of a trained classifier.
        texts: Texts, instead of --data.
        data: Rows: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON Lines on standard input.
        text: Column of the texts, by default as in training; give it again to join several.
        output: .jsonl, .csv or .tsv (also .gz), replaced if it is there; '-' is standard output.
        keep: Copy all columns of the input; those named like a result get 'input_' before their names.
        format: Of the data, where the name does not say it.
        quiet: Show no progress.
        reading: How texts are read.
        model: How the model is found and where it runs.
    """
    from bothways.data import write_rows

    if data is not None and data != "-" and output != "-" and Path(data).resolve() == Path(output).resolve():
        raise usage_error(f"--output is the same file as --data, {data!r}: choose another.")
    show = None if not quiet and output != "-" else False
    rows, again = itertools.tee(given_rows(texts, data, TEXT, format))
    classifier = open_classifier(run, reading, model)
    columns = TEXT if texts else text or classifier.columns.text
    predictions = classifier.predict_stream(texts_of(again, columns), show_progress=show)
    count = write_rows(output, _answers(rows, predictions, keep=keep))
    if output != "-" and not quiet:
        note(f"{count:,} predictions in {output}")


def _answers(
    rows: "Iterable[Row]", predictions: "Iterable[Prediction]", *, keep: bool
) -> Iterator[Mapping[str, object]]:
    for row, prediction in zip(rows, predictions, strict=True):
        answer = prediction.to_dict()
        kept = row.values if keep else {name: row.values[name] for name in ("id",) if name in row.values}
        yield {(f"input_{name}" if name in answer else name): value for name, value in kept.items()} | answer
