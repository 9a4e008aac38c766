"""``bothways evaluate``: metrics of a trained classifier on labelled data."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.cli.opening import AS_TRAINED, ClassifierOptions, open_classifier
from bothways.cli.options import HERE, File, Flag, Format, ModelOptions
from bothways.cli.reading import labelled_source
from bothways.cli.terminal import print_json

EXAMPLE = """\
Example:
  bothways evaluate runs/news --data test.jsonl.gz --json"""


def evaluate(
    run: str,
    /,
    *,
    data: File,
    text: tuple[str, ...] | None = None,
    label: str | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    resamples: Annotated[int, Parameter(validator=Number(gte=1))] = 1000,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    json: Flag = False,
    quiet: Flag = False,
    reading: ClassifierOptions = AS_TRAINED,
    model: ModelOptions = HERE,
) -> None:
    """Metrics of a trained classifier on labelled data, with 95 % intervals.

    Args:
        run: Folder of a trained classifier.
        data: Labelled rows: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        text: Column of the texts, by default as in training; give it again to join several.
        label: Column of the labels, by default as in training.
        format: Of the data, where the name does not say it.
        resamples: Bootstrap resamples for the intervals.
        seed: Of the bootstrap.
        json: Print everything as one JSON object: metrics, intervals, tables per class, confusion, reliability.
        quiet: Show no progress.
        reading: How texts are read.
        model: How the model is found and where it runs.
    """
    classifier = open_classifier(run, reading, model)
    report = classifier.evaluate(
        labelled_source(data, format),
        text=text,
        label=label,
        resamples=resamples,
        seed=seed,
        show_progress=False if quiet else None,
    )
    if json:
        print_json(report.to_dict())
    else:
        print(report.summary())
