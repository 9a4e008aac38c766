"""``bothways compare``: two trained models on the same labelled data."""

from typing import TYPE_CHECKING, Any

from bothways.choices import Format
from bothways.cli.declared import given_of, taking
from bothways.cli.opening import COLUMNS, OPENING, open_task, reading_columns
from bothways.cli.options import (
    AS_IT_CAN,
    HERE,
    File,
    Flag,
    ModelOptions,
    PositiveInt,
    ReadingOptions,
    WholeNumber,
    usage_error,
)
from bothways.cli.terminal import plain_table, print_json, print_table

if TYPE_CHECKING:
    from bothways.evaluation import ComparisonReport

EXAMPLE = """\
Example:
  bothways compare runs/a runs/b --data test.jsonl.gz
  bothways compare runs/topic runs/both --task topic --data test.jsonl.gz

A difference whose interval holds 0, or with a p-value above 0.05, may be
chance."""


@taking(columns=COLUMNS, opened=OPENING)
def compare(
    first: str,
    second: str,
    /,
    *,
    data: File,
    task: str | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    resamples: PositiveInt = 1000,
    seed: WholeNumber = 0,
    json: Flag = False,
    quiet: Flag = False,
    columns: object = None,
    opened: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    model: ModelOptions = HERE,
) -> None:
    """Compare two trained models on the same labelled data.

    Prints the metrics of both, their differences with paired intervals, and tests of whether these could be chance.

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
        opened: How both models are opened.
        reading: How texts are read, by both models.
        model: How the models are found and where they run.
    """
    from bothways.data import read_rows

    opened_both = _opened((first, second), task, given_of(opened), reading, model.in_full)
    one, other = (reading_columns(each, given_of(columns)) for each in opened_both)
    # Read once: standard input cannot be read for each of the two.
    rows = list(read_rows(data, format=format))
    report = one.compare(other, rows, resamples=resamples, seed=seed, show_progress=False if quiet else None)
    if json:
        print_json({"first": first, "second": second, **report.to_dict()})
    else:
        _show(report)


def _opened(
    names: tuple[str, str], task: str | None, own: dict[str, Any], reading: ReadingOptions, model: ModelOptions
) -> list[Any]:
    """Open both models; of one with several tasks, the task that is named.

    Raises:
        CycloptsError: A task is named, but neither has several.
    """
    from bothways.compose.multitask.multitask import MultiTask
    from bothways.compose.opening import SIMILARITY

    opened = [open_task(name, own, reading, model, SIMILARITY if task == SIMILARITY else None) for name in names]
    if task in (None, SIMILARITY):
        return opened
    if not any(isinstance(each, MultiTask) for each in opened):
        raise usage_error(
            f"--task {task} chooses one of several tasks, but each of these models has one: leave it out."
        )
    return [each.part(task) if isinstance(each, MultiTask) else each for each in opened]


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
