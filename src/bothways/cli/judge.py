"""``bothways judge``: a cross-encoder that judges retrieval-augmented answers, and the success rates of systems."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from cyclopts import App, Parameter

from bothways import judging
from bothways import report as pages
from bothways.choices import JudgeDimension, Merge, Negatives, PpiMethod
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import counted, note, print_json, print_table, shortened
from bothways.cli.training import run as runs
from bothways.cli.training.folders import RunFolders
from bothways.data import Row, write_rows
from bothways.judging.triples import TripleColumns
from bothways.progress import figure
from bothways.tasks.classification.spec import PAIRS

if TYPE_CHECKING:
    from bothways.judging import Judge, SystemRanking, SystemScore
    from bothways.training.options import TrainingArguments
    from bothways.training.state import TrainingRecord

_LONGEST_NAME = 32
_COLUMNS = opt.group_of("Columns", opt.options_of(TripleColumns))
_OWN = [
    option
    for option in opt.options_of(PAIRS.fit_options)
    if option.name not in ("target", "score", "unlabelled", "normalise_labels")
]
_MERGE = opt.Option(
    "merge", Merge, "How to merge the windows of a long passage; see 'bothways train pairs'.", default="maxp"
)

Dimension = Annotated[JudgeDimension | None, Parameter(help="Dimension to judge, if the folder has several judges.")]


JudgeFolder = Annotated[Path, Parameter(name=("--judge", "--model"))]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class EstimateOptions:
    """Options for estimating success rates."""

    labels: opt.File | None = None
    """File of human labels for randomly drawn rows of each system, or of labelled rows with texts of their own.
    Default: the labels in the data."""
    dimension: Dimension = None
    method: PpiMethod = "ppi++"
    """Method of the interval to show first; all three are reported. ppi++ weights the judge by its agreement with the
    labels, ppi gives the judge full weight, classical uses only the labels."""
    level: opt.Level = 0.95
    """Confidence level of the intervals."""
    seed: opt.BootstrapSeed = 0
    shared: opt.SharedRows = "keep"
    report: opt.Report = None
    """Also write an HTML page to this file."""
    overwrite: opt.Overwrite = False
    json: opt.Json = False

    def settings(self, columns: TripleColumns) -> dict[str, Any]:
        """Return the options as keyword arguments for the library's functions."""
        return {
            "columns": columns,
            "method": self.method,
            "level": self.level,
            "seed": self.seed,
            "shared": self.shared,
        }


ESTIMATE = EstimateOptions()

judge = App(name="judge", help="Judge retrieval-augmented answers, and rank the systems that gave them.")

_TRAIN_EXAMPLE = f"""\
A row of the data; a label may be 0 or 1, true or false, yes or no, or null:
  {{"query": "Who won?", "passage": "The Broncos won in 2016.",
   "answer": "The Broncos.", "context_relevance": 1,
   "answer_faithfulness": 1, "answer_relevance": 1}}

Examples:
  bothways judge train --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train triples.jsonl --dimension context_relevance --output runs/judge
  bothways judge train --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train triples.jsonl --dimension all --output runs/judges
  bothways judge train --model sentence-transformers/all-MiniLM-L6-v2 \\
    --train questions.jsonl --negatives both --dimension context_relevance \\
    --output runs/judge                  # queries and passages, no labels

'bothways recommend --task judging' suggests encoders.

{runs.RESUMING}"""


@opt.command(
    _TRAIN_EXAMPLE,
    name="train",
    columns=_COLUMNS,
    training=runs.TRAINING,
    **opt.fitting_groups("Judge", _OWN, [_MERGE]),
)
def train(
    model: runs.BaseModel,
    *,
    train: opt.File,
    dimension: tuple[JudgeDimension | Literal["all"], ...],
    output: runs.OutputFolder,
    validation: opt.File | None = None,
    negatives: Negatives | None = None,
    file: opt.FileOptions = opt.ANY_FILE,
    columns: object = None,
    own: object = None,
    confidence: object = None,
    run: runs.RunOptions = runs.DEFAULT_RUN,
    training: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> int:
    """Train a judge of retrieval-augmented answers.

    Fine-tunes a cross-encoder for each dimension, on labelled triples of query, passage and answer, or on queries and
    passages alone. Held-out rows are used to choose the epoch (see --epochs) and to calibrate probabilities.

    Args:
        train: Triples: .jsonl, .json, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        dimension: Property to judge. Repeat the option, or give 'all', to train several judges, each in a subfolder.
        validation: Held-out triples. Default: about a tenth of the rows, drawn with the seed; they share no query or
            passage with the other rows.
        negatives: Make negatives from the positive rows. weak: the passage or answer of a random other question;
            strong: one from the same document, or else one with many words in common; both: strong and weak in turn.
            Default: both if no row has a label, else none.
    """
    inputs.check_piped({"--train": train, "--validation": validation})
    given = {**opt.given_of(own), **opt.given_of(confidence)}
    words: dict[str, Any] = {"merge": given.pop("merge")} if "merge" in given else {}
    with opt.as_usage_error(*given):
        PAIRS.fit_options(**given)
    # Read once: standard input cannot be read for each dimension.
    rows = list(inputs.file_rows(train, file))
    words |= {
        "validation": None if validation is None else list(inputs.file_rows(validation, file)),
        "columns": TripleColumns.named(opt.given_of(columns)),
        "negatives": negatives,
        "opening": inputs.open_options(reading, opening.in_full),
        "confidence": given,
    }
    every: tuple[JudgeDimension, ...] = get_args(JudgeDimension)
    dimensions = every if "all" in dimension else tuple(each for each in every if each in dimension)
    answers, gold = inputs.like("answers", train, file), inputs.like("gold", train, opt.ANY_FILE)
    score_next = f"bothways judge score {{}} --data {answers} --labels {gold}"
    several = len(dimensions) > 1
    for name in _unfinished(dimensions, output) if several and run.resume else dimensions:
        if several and not run.json:
            print(f"{name}:")
        fit = partial(_fit, model, rows, name, words)
        folder, files = output / name if several else output, file.to_remember(train, validation)
        if code := runs.train_and_save(folder, training, run, fit, score_next, files):
            return code
    return 0


def _unfinished(dimensions: Sequence[JudgeDimension], output: Path) -> Iterator[JudgeDimension]:
    """Yield the dimensions without a finished judge in the output, and note the others."""
    finished = judging.judges_in(output)
    for name in dimensions:
        if name not in finished or RunFolders(output / name).unfinished.is_dir():
            yield name
        else:
            note(f"The judge of {name} had already been trained: {str(output / name)!r}.")


def _fit(
    model: str, rows: Sequence[Row], dimension: JudgeDimension, words: dict[str, Any], options: "TrainingArguments"
) -> "tuple[Judge, TrainingRecord]":
    judge = judging.Judge.train(model, rows, dimension, **words, **options)
    if judge.record is None:
        raise TypeError("a judge that was just trained must have a record")
    return judge, judge.record


_SCORE_EXAMPLE = """\
Draw the rows to label at random. A row of --labels has the id or the texts of
an answer, and a column such as context_relevance. It need not be among the
data: the judge then reads its own query, passage and answer.

Example:
  bothways judge score runs/judge --data answers.jsonl --labels gold.jsonl \\
    --report page.html"""


@opt.command(_SCORE_EXAMPLE, columns=_COLUMNS)
def score(
    judge: JudgeFolder,
    *,
    data: opt.File,
    estimate: EstimateOptions = ESTIMATE,
    file: opt.FileOptions = opt.ANY_FILE,
    columns: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    model: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Estimate the success rate of a system.

    Combines the judge with a few human labels; the interval is valid even if the judge errs.

    Args:
        judge: Folder of a judge.
        data: All answers of the system: .jsonl, .csv, .tsv (also .gz), .parquet, or '-' for standard input.
    """
    inputs.check_piped({"--data": data, "--labels": estimate.labels})
    inputs.check_output(estimate.report, estimate.overwrite, option="--report")
    opened = judging.Judge.open(judge, estimate.dimension, **inputs.open_options(reading, model))
    settings = estimate.settings(TripleColumns.named(opt.given_of(columns), opened.columns))
    labels = inputs.optional_source(estimate.labels, file)
    result = judging.score_system(
        opened, inputs.labelled_source(data, file), labels, name=_system_name(data), **settings
    )
    _show(result, opened, str(judge), estimate)


_RANK_EXAMPLE = """\
A row of --labels has the id or the texts of an answer, and may name its system
in the column system. By default, a system has the name of its file.

Example:
  bothways judge rank a.jsonl b.jsonl --judge runs/judge --labels gold.jsonl \\
    --next label_these.jsonl --report page.html"""


@opt.command(_RANK_EXAMPLE, columns=_COLUMNS)
def rank(
    *data: opt.File,
    judge: JudgeFolder,
    estimate: EstimateOptions = ESTIMATE,
    truth: opt.File | None = None,
    next: Path | None = None,  # noqa: A002 (the option's name)
    next_rows: opt.WholeNumber = 50,
    file: opt.FileOptions = opt.ANY_FILE,
    columns: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    model: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Rank systems by their success rates.

    Also prints how certain the order is. Systems that answered the same queries are compared query by query.

    Args:
        data: A file of answers for each system; a row with another name in the column system counts for that system.
        judge: Folder of a judge.
        truth: True success rates, if known, to compare the order with by Kendall's tau: rows with the columns system
            and value, or 'labels' if every row of the data has a label.
        next: Write to this file the rows that should be labelled next: those where the judge sees the largest
            difference between the first two systems, or is least certain.
        next_rows: Number of rows to write with --next.
    """
    systems = _named_files(data)
    inputs.check_piped({**{f"the file {each!r}": each for each in data}, "--labels": estimate.labels, "--truth": truth})
    inputs.check_output(estimate.report, estimate.overwrite, option="--report")
    inputs.check_output(next, estimate.overwrite, option="--next")
    opened = judging.Judge.open(judge, estimate.dimension, **inputs.open_options(reading, model))
    names = TripleColumns.named(opt.given_of(columns), opened.columns)
    sources: dict[str, Any] = {name: inputs.labelled_source(path, file) for name, path in systems.items()}
    rates: dict[str, float] | None = None
    if truth == "labels":
        rates = judging.truth_in_labels(sources, opened.dimension, names)
    elif truth is not None:
        rates = judging.read_truth(inputs.labelled_source(truth, file))
    result = judging.rank_systems(
        opened,
        sources,
        inputs.optional_source(estimate.labels, file),
        truth=rates,
        next_rows=next_rows if next is not None else 0,
        **estimate.settings(names),
    )
    if next is not None:
        count = write_rows(str(next), (each.to_dict(names) for each in result.next_rows), overwrite=True)
        note(
            f"{counted(count, 'row')} to label next in {next}. They are not a random sample: use them to train the "
            "judge, not with --labels to estimate success rates."
        )
    _show(result, opened, str(judge), estimate)


@opt.command("Example:\n  bothways judge evaluate runs/judge --data labelled.jsonl --json", columns=_COLUMNS)
def evaluate(
    judge: JudgeFolder,
    *,
    data: opt.File,
    dimension: Dimension = None,
    file: opt.FileOptions = opt.ANY_FILE,
    resamples: opt.Resamples = 1000,
    seed: opt.BootstrapSeed = 0,
    shared: opt.SharedRows = "keep",
    json: opt.Json = False,
    columns: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    model: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Compare a judge with human labels.

    Prints accuracy, AUROC, calibration error, and the order of systems.

    Args:
        judge: Folder of a judge.
        data: File of labelled triples. If rows name their system, Kendall's tau compares the judge's order of systems.
    """
    opened = judging.Judge.open(judge, dimension, **inputs.open_options(reading, model))
    report = opened.evaluate(
        inputs.labelled_source(data, file),
        columns=TripleColumns.named(opt.given_of(columns), opened.columns),
        shared=shared,
        resamples=resamples,
        seed=seed,
    )
    if json:
        print_json({"judge": str(judge), "dimension": opened.dimension.name, **report.to_dict()})
        return
    print(f"{opened.dimension.question} {report.report.title}")
    print(report.summary())
    for each in report.disagreements[:3]:
        note(f"look at {each.triple.where}: label {each.triple.label}, judge {figure(each.probability, 3)}")


def _system_name(path: str) -> str:
    name = Path(path).name
    for ending in (".gz", ".jsonl", ".json", ".csv", ".tsv", ".parquet"):
        name = name.removesuffix(ending)
    return name or path


def _named_files(paths: Sequence[str]) -> dict[str, str]:
    """Return files by the names of their systems; by their whole paths if two names are the same."""
    if not paths:
        raise opt.usage_error("nothing to rank: give a file of answers for each system.")
    if len(set(paths)) < len(paths):
        raise opt.usage_error("expected a different file of answers for each system, got one twice.")
    names = [_system_name(path) for path in paths]
    return dict(zip(names if len(set(names)) == len(names) else paths, paths, strict=True))


def _show(result: "SystemScore | SystemRanking", judge: "Judge", folder: str, estimate: EstimateOptions) -> None:
    if estimate.report is not None:
        facts: dict[str, Any] = {"judge": _facts(judge), "command": shlex.join(["bothways", *sys.argv[1:]])}
        page = (
            pages.ranking_page(result, **facts)
            if isinstance(result, judging.SystemRanking)
            else pages.score_page(result, **facts)
        )
        pages.write(page, estimate.report, overwrite=True)
    if estimate.json:
        print_json({"judge": folder, **result.to_dict()})
    else:
        if isinstance(result, judging.SystemRanking):
            _print_ranking(result, judge)
        else:
            _print_score(result, judge)
        for warning in result.warnings:
            note(f"warning: {warning}")
    if estimate.report is not None:
        note(f"page: {estimate.report}")


def _facts(judge: "Judge") -> dict[str, str]:
    card = judge.classifier.card
    rows, base, own = card.get("training_rows"), card.get("base_model"), card.get("judge")
    negatives = own.get("made_negatives") if isinstance(own, dict) else None
    facts = {
        "folder": str(judge.classifier.name),
        "trained from": str(base) if base else "",
        "question": judge.dimension.question,
        "training pairs": f"{rows:,}" if isinstance(rows, int) else "",
        "generated negatives": f"{negatives:,}" if negatives else "",
    }
    return {name: value for name, value in facts.items() if value}


def _print_score(result: "SystemScore", judge: "Judge") -> None:
    print(f"{judge.dimension.question} {result.rows:,} rows of {result.system}; labels: {result.labelled}")
    rows = []
    for name, each in result.estimates.items():
        bounds = f"{figure(each.low)} to {figure(each.high)}"
        rows.append((name, figure(each.value), bounds, figure(each.high - each.low), judging.equivalent_labels(each)))
    print_table(("<method", ">rate", f">{result.estimate.level:.0%} interval", ">width", ">equivalent labels"), rows)
    print(f"mean of the judge alone: {figure(result.judge_mean)}. The judge on the labelled rows:")
    print(result.quality.summary())


def _print_ranking(result: "SystemRanking", judge: "Judge") -> None:
    print(judge.dimension.question)
    truth, rows = (">truth",) if result.truth else (), []
    headings = (">rate", ">interval", *truth, ">labels", ">equivalent labels", ">judge alone", ">better than the next")
    for at, each in enumerate(result.systems):
        estimate, below = each.estimate, result.systems[at + 1 : at + 2]
        certainty = figure(result.probability(each.system, below[0].system), 3) if below else ""
        cells = [figure(estimate.value), f"{figure(estimate.low)} to {figure(estimate.high)}"]
        cells += [figure(result.truth[each.system])] if result.truth else []
        cells += [str(estimate.labels), judging.equivalent_labels(estimate), figure(each.judge_mean), certainty]
        rows.append((shortened(each.system, _LONGEST_NAME), *cells))
    print_table(("<system", *headings), rows)
    if len(result.systems) > 1:
        first = result.comparisons[0]
        found = first.difference
        gap, low, high = (figure(each, sign=True) for each in (found.value, found.low, found.high))
        better = f"{first.first} is better than {first.second} with probability {figure(first.probability, 3)}"
        print(f"{better}: difference {gap}, from {low} to {high} ({first.pairing}).\n{result.separation}")
    if result.tau is not None:
        print(f"Kendall's tau with the truth: {figure(result.tau, 3)}")


for _command in (train, score, rank, evaluate):
    judge.command(_command)
