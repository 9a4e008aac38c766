"""``bothways evaluate``: metrics of a trained model on labelled data."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.cli.column_options import AS_IN_TRAINING, ColumnOptions, use_columns
from bothways.cli.opening import AS_TRAINED, ClassifierOptions, open_task
from bothways.cli.options import HERE, EvaluatedAs, File, Flag, Format, ModelOptions
from bothways.cli.reading import labelled_source
from bothways.cli.terminal import print_json

EXAMPLE = """\
Examples:
  bothways evaluate runs/news --data test.jsonl.gz --json
  bothways evaluate sentence-transformers/all-MiniLM-L6-v2 \\
    --data sts.jsonl.gz --task similarity"""


def evaluate(
    run: str,
    /,
    *,
    data: File,
    task: EvaluatedAs | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    resamples: Annotated[int, Parameter(validator=Number(gte=1))] = 1000,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    json: Flag = False,
    quiet: Flag = False,
    columns: ColumnOptions = AS_IN_TRAINING,
    reading: ClassifierOptions = AS_TRAINED,
    model: ModelOptions = HERE,
) -> None:
    """Metrics of a trained model on labelled data, with 95 % intervals; which ones, its task says.

    Args:
        run: Folder of a trained model.
        data: Labelled rows: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        task: What an encoder is evaluated as that was not trained here: similarity correlates the cosines of pairs
            with their scores (columns text_a, text_b, score).
        format: Of the data, where the name does not say it.
        resamples: Bootstrap resamples for the intervals.
        seed: Of the bootstrap.
        json: Print everything as one JSON object: metrics, intervals, tables per class and the like.
        quiet: Show no progress.
        columns: Where the parts of a row stand.
        reading: How texts are read.
        model: How the model is found and where it runs.
    """
    opened = open_task(run, reading, model, task=task)
    use_columns(opened, columns)
    report = opened.evaluate(
        labelled_source(data, format), resamples=resamples, seed=seed, show_progress=False if quiet else None
    )
    if json:
        print_json(report.to_dict())
    else:
        print(report.summary())
