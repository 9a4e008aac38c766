"""``bothways compare``: two trained models on the same labelled data."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.cli.column_options import AS_IN_TRAINING, ColumnOptions, use_columns
from bothways.cli.opening import AS_TRAINED, ClassifierOptions, open_task
from bothways.cli.options import HERE, File, Flag, Format, ModelOptions, usage_error
from bothways.cli.terminal import plain_table, print_json, print_table
from bothways.cli.vector_options import AS_THE_MODEL_SAYS, VectorOptions, use_vectors

if TYPE_CHECKING:
    from bothways.evaluation import ComparisonReport
    from bothways.tasks.task import Task

EXAMPLE = """\
Example:
  bothways compare runs/a runs/b --data test.jsonl.gz
  bothways compare runs/topic runs/both --task topic --data test.jsonl.gz

A difference whose interval holds 0, or with a p-value above 0.05, may be
chance."""


def compare(
    first: str,
    second: str,
    /,
    *,
    data: File,
    task: str | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    resamples: Annotated[int, Parameter(validator=Number(gte=1))] = 1000,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    json: Flag = False,
    quiet: Flag = False,
    columns: ColumnOptions = AS_IN_TRAINING,
    vectors: VectorOptions = AS_THE_MODEL_SAYS,
    reading: ClassifierOptions = AS_TRAINED,
    model: ModelOptions = HERE,
) -> None:
    """Two trained models on the same labelled data: both, their difference, and whether it could be chance.

    Args:
        first: Folder of a trained model, of any task but masked language modelling.
        second: Folder of another one, or of an ensemble, of the same task and labels; differences are second minus
            first.
        data: Labelled rows: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        task: One of the tasks of a model that has several; or "similarity", for any encoders as embedders.
        format: Of the data, where the name does not say it.
        resamples: Bootstrap resamples for the paired intervals.
        seed: Of resamples and permutations.
        json: Print one JSON object: each metric of the first (_a), the second (_b), and _difference, with intervals.
        quiet: Show no progress.
        columns: Where the parts of a row stand, for both models.
        vectors: How texts become vectors, of both models, where they compare them.
        reading: How texts are read, by both models.
        model: How the models are found and where they run.
    """
    from bothways.data import read_rows
    from bothways.tasks.comparing import compare_tasks

    one, other = _opened((first, second), task, reading, model)
    for each in (one, other):
        use_columns(each, columns)
        use_vectors(each, vectors)
    # Read once: standard input cannot be read for each of the two.
    rows = list(read_rows(data, format=format))
    report = compare_tasks(one, other, rows, resamples=resamples, seed=seed, show_progress=False if quiet else None)
    if json:
        print_json({"first": first, "second": second, **report.to_dict()})
    else:
        _show(report)


def _opened(
    names: tuple[str, str], task: str | None, reading: ClassifierOptions, model: ModelOptions
) -> "tuple[Task, Task]":
    """Both models; where one has several tasks, as the one that is named.

    Raises:
        CycloptsError: A task is named, but neither has several.
    """
    from bothways.compose.opening import SIMILARITY
    from bothways.tasks import MultiTask

    if task == SIMILARITY:
        one, other = (open_task(name, reading, model, SIMILARITY) for name in names)
        return one, other
    one, other = (open_task(name, reading, model) for name in names)
    if task is None:
        return one, other
    if not (isinstance(one, MultiTask) or isinstance(other, MultiTask)):
        raise usage_error(
            f"--task {task} chooses one of several tasks, but each of these models has one: leave it out."
        )
    first, second = (each.part(task) if isinstance(each, MultiTask) else each for each in (one, other))
    return first, second


def _show(report: "ComparisonReport") -> None:
    from bothways.evaluation.report import remarks_of

    table = plain_table()
    table.add_column(f"{report.n} rows", no_wrap=True)
    for heading in ("first", "second", "difference", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, each in report.metrics.items():
        difference = each.difference
        table.add_row(
            name,
            f"{each.first.value:.4f}",
            f"{each.second.value:.4f}",
            f"{difference.value:+.4f}",
            f"{difference.low:+.4f} to {difference.high:+.4f}",
        )
    print_table(table)
    for test in report.tests:
        alone = (
            ""
            if test.only_first is None
            else f"; only the first has {test.only_first} right, only the second {test.only_second}"
        )
        print(f"{test.name} ({test.of}): p = {test.p_value:.4f}{alone}")
    for name, read in zip(("first", "second"), report.tokens_read, strict=True):
        for line in remarks_of(read):
            print(f"{name}: {line}")
