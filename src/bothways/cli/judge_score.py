"""``bothways judge score`` and ``bothways judge rank``: success rates of systems from a judge and human labels."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.choices import Format, JudgeDimension, PpiMethod
from bothways.cli.declared import given_of, taking
from bothways.cli.judge_printing import show_ranking, show_score, write_next
from bothways.cli.judge_train import COLUMNS
from bothways.cli.opening import open_options
from bothways.cli.options import AS_IT_CAN, HERE, File, Flag, ModelOptions, ReadingOptions, WholeNumber, usage_error
from bothways.cli.reading import labelled_source, optional_source
from bothways.cli.terminal import note, print_json
from bothways.cli.training import check_piped
from bothways.judging.triples import TripleColumns

if TYPE_CHECKING:
    from bothways.judging import Judge, SystemRanking, SystemScore

Level = Annotated[float, Parameter(validator=Number(gt=0, lt=1))]

SCORE_EXAMPLE = """\
The labels must be of rows that were drawn at random. Their rows carry the id
of the answer, or its texts, and a column such as context_relevance.

Example:
  bothways judge score runs/judge --data answers.jsonl --labels gold.jsonl \\
    --report page.html"""

RANK_EXAMPLE = """\
A row of the labels says which answer it is of by its id, by its texts, or by
the column system. Systems are called as their files.

Example:
  bothways judge rank a.jsonl b.jsonl --judge runs/judge --labels gold.jsonl \\
    --next label_these.jsonl --report page.html"""


@taking(columns=COLUMNS)
def score(
    judge: Path,
    /,
    *,
    data: File,
    labels: File | None = None,
    dimension: JudgeDimension | None = None,
    method: PpiMethod = "ppi++",
    level: Level = 0.95,
    seed: WholeNumber = 0,
    report: Path | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    json: Flag = False,
    quiet: Flag = False,
    columns: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    model: ModelOptions = HERE,
) -> None:
    """Estimate the success rate of a system.

    The interval holds with few human labels.

    Args:
        judge: Folder of a judge.
        data: All answers of the system: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard
            input.
        labels: Human labels of some of these rows, drawn at random; by default those in the data.
        dimension: Of a folder with several judges.
        method: Of the interval that comes first: ppi++ weighs the judge by what it is worth, ppi trusts it fully,
            classical uses the labels alone. All are reported.
        level: Share of such intervals that hold the truth.
        seed: Of the bootstrap.
        report: Also write a page in HTML.
        format: Of both files, where their names do not say it.
        json: Print one JSON object.
        quiet: Show no progress.
        columns: Where the parts of a row stand, in both files.
        reading: How texts are read.
        model: Where the judge runs.
    """
    from bothways.judging import score_system

    check_piped({"--data": data, "--labels": labels})
    opened = _opened(judge, dimension, reading, model)
    found = score_system(
        opened,
        labelled_source(data, format),
        optional_source(labels, format),
        name=_system_name(data),
        columns=TripleColumns.named(given_of(columns)),
        method=method,
        level=level,
        seed=seed,
        format=format,
        show_progress=False if quiet else None,
    )
    _tell(found, opened, str(judge), report, json=json)


@taking(columns=COLUMNS)
def rank(
    *data: File,
    judge: Path,
    labels: File | None = None,
    dimension: JudgeDimension | None = None,
    truth: File | None = None,
    next: Path | None = None,  # noqa: A002 (the option's name)
    next_rows: WholeNumber = 50,
    method: PpiMethod = "ppi++",
    level: Level = 0.95,
    seed: WholeNumber = 0,
    report: Path | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    json: Flag = False,
    quiet: Flag = False,
    columns: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    model: ModelOptions = HERE,
) -> None:
    """Rank systems by their success rates.

    Prints how sure the order is.

    Where two systems answered the same queries, their difference is taken query by query.

    Args:
        data: A file of answers for each system; rows that name their system count for that one.
        judge: Folder of a judge.
        labels: Human labels of rows of every system, drawn at random; by default those in the data.
        dimension: Of a folder with several judges.
        truth: True success rates, where they are known: rows with the columns system and value; or 'labels', where
            the data hold a label of every row, of which --labels uses some. Kendall's tau compares the order with them.
        next: Write rows to label next into this file: those on which the judge sees the first two systems furthest
            apart, else is least sure.
        next_rows: How many rows that are.
        method: Of the intervals, as for 'bothways judge score'.
        level: Share of such intervals that hold the truth.
        seed: Of the bootstrap.
        report: Also write a page in HTML.
        format: Of all files, where their names do not say it.
        json: Print one JSON object.
        quiet: Show no progress.
        columns: Where the parts of a row stand, in all files.
        reading: How texts are read.
        model: Where the judge runs.
    """
    from bothways.judging import rank_systems

    named, systems = TripleColumns.named(given_of(columns)), _named_files(data)
    check_piped({**{f"the file {each!r}": each for each in data}, "--labels": labels, "--truth": truth})
    opened = _opened(judge, dimension, reading, model)
    sources: dict[str, Any] = {name: labelled_source(path, format) for name, path in systems.items()}
    found = rank_systems(
        opened,
        sources,
        optional_source(labels, format),
        truth=_truth(truth, sources, opened, named, format),
        columns=named,
        method=method,
        level=level,
        next_rows=next_rows if next is not None else 0,
        seed=seed,
        format=format,
        show_progress=False if quiet else None,
    )
    if next is not None:
        write_next(found, next, named, quiet=quiet)
    _tell(found, opened, str(judge), report, json=json)


def _opened(judge: Path, dimension: JudgeDimension | None, reading: ReadingOptions, model: ModelOptions) -> "Judge":
    from bothways.judging import Judge

    return Judge.open(judge, dimension, **open_options(reading, model))


def _tell(
    found: "SystemScore | SystemRanking", judge: "Judge", folder: str, report: Path | None, *, json: bool
) -> None:
    """Write the page, if one is wanted, and print what was found."""
    from bothways.judging import SystemRanking

    if report is not None:
        from bothways.report.judging import ranking_page, score_page
        from bothways.report.page import write

        given: dict[str, Any] = {"judge": _judge_facts(judge), "command": shlex.join(["bothways", *sys.argv[1:]])}
        write(ranking_page(found, **given) if isinstance(found, SystemRanking) else score_page(found, **given), report)
    if json:
        print_json({"judge": folder, **found.to_dict()})
    elif isinstance(found, SystemRanking):
        show_ranking(found, judge)
    else:
        show_score(found, judge)
    if report is not None:
        note(f"page: {report}")


def _judge_facts(judge: "Judge") -> dict[str, str]:
    """Return what a page says of the judge."""
    card = judge.classifier.card
    rows, base = card.get("training_rows"), card.get("base_model")
    facts = {
        "folder": str(judge.classifier.name),
        "trained from": str(base) if base else "",
        "question": judge.dimension.question,
        "training pairs": f"{rows:,}" if isinstance(rows, int) else "",
    }
    made = card.get("judge", {}).get("made_negatives") if isinstance(card.get("judge"), dict) else None
    return {name: value for name, value in facts.items() if value} | ({"made negatives": f"{made:,}"} if made else {})


def _system_name(path: str) -> str:
    """Return the name of a file without its folder and endings."""
    name = Path(path).name
    for ending in (".gz", ".jsonl", ".json", ".csv", ".tsv", ".parquet"):
        name = name.removesuffix(ending)
    return name or path


def _named_files(paths: Sequence[str]) -> dict[str, str]:
    """Files by the names of their systems; whole paths where two files share a name.

    Raises:
        CycloptsError: There is none, or one is there twice.
    """
    if not paths:
        raise usage_error("nothing to rank: give a file of answers for each system.")
    if len(set(paths)) < len(paths):
        raise usage_error("a file is given twice: give each system's answers once.")
    names = [_system_name(path) for path in paths]
    unique = names if len(set(names)) == len(names) else list(paths)
    return dict(zip(unique, paths, strict=True))


def _truth(
    truth: str | None,
    sources: dict[str, Any],
    judge: "Judge",
    columns: TripleColumns,
    format_: Format | None,
) -> dict[str, float] | None:
    """Return the true success rates, of a file or of the labels in the data."""
    if truth is None:
        return None
    from bothways.judging.ranking import read_truth, truth_in_labels

    if truth == "labels":
        return truth_in_labels(sources, judge.dimension, columns, format=format_)
    return read_truth(truth, format=format_)
