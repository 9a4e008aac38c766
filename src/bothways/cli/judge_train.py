"""``bothways judge train`` and ``bothways judge evaluate``: a cross-encoder that judges triples."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from bothways.choices import Format, JudgeDimension, Merge, Negatives
from bothways.cli.declared import Option, given_of, group_of, options_of, taking
from bothways.cli.opening import open_options
from bothways.cli.options import (
    AS_IT_CAN,
    HERE,
    File,
    Flag,
    ModelOptions,
    PositiveInt,
    ReadingOptions,
    WholeNumber,
    bad_usage,
)
from bothways.cli.reading import labelled_source
from bothways.cli.terminal import note, print_json
from bothways.cli.training import ONCE, RESUMING, TRAINING, RunOptions, check_piped, train_and_save
from bothways.confidence.options import ConfidenceOptions
from bothways.judging.triples import TripleColumns
from bothways.tasks.classification.spec import PAIRS

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.judging import Judge
    from bothways.training.options import TrainingArguments
    from bothways.training.record import TrainingRecord

COLUMNS = group_of("Columns", options_of(TripleColumns))
_OWN = [option for option in options_of(PAIRS.fit_options) if option.name not in ("target", "score")]
_MERGE = Option(
    "merge",
    Merge,
    "How the windows of a long passage become one answer: that of the window where the passage is most probably good "
    "('maxp'), or as for 'bothways train pairs'.",
    default="maxp",
)
_CONFIDENCE = {option.name for option in options_of(ConfidenceOptions)}

EXAMPLE = f"""\
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

'bothways recommend judging' names encoders for it.

{RESUMING}"""

EVALUATE_EXAMPLE = """\
Example:
  bothways judge evaluate runs/judge --data labelled.jsonl --json"""


@taking(
    columns=COLUMNS,
    own=group_of("Judge", [option for option in (*_OWN, _MERGE) if option.name not in _CONFIDENCE]),
    confidence=group_of(
        "Confidence (learnt on held-out rows)", [option for option in _OWN if option.name in _CONFIDENCE]
    ),
    training=TRAINING,
)
def train(
    *,
    model: str,
    train: File,
    dimension: tuple[JudgeDimension | Literal["all"], ...],
    output: Path,
    validation: File | None = None,
    negatives: Negatives | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    columns: object = None,
    own: object = None,
    confidence: object = None,
    run: RunOptions = ONCE,
    training: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> int:
    """Train a judge of retrieval-augmented answers.

    It learns from labelled triples, or from passages and questions alone.

    Fine-tunes a cross-encoder for each dimension and keeps a good epoch (see --epochs). Probabilities are calibrated on
    held-out rows.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        train: Triples: .jsonl, .json, .csv, .tsv (also .gz), .parquet, or '-' for JSON Lines on standard input.
        dimension: What is judged; repeat it, or say all, for several judges, each in a folder of its name below the
            output.
        output: Folder for the judge. While it is unfinished, log and checkpoints lie in OUTPUT.checkpoints.
        validation: Held-out triples; about a tenth of the rows to learn from when left out, drawn with the seed, which
            share neither query nor passage with the others.
        negatives: Make negatives from the good rows: weak takes a passage or answer of another question at random,
            strong another passage of the same document or the nearest by words, both takes them in turn. Default: both
            where no row has a label, else none.
        format: Of both files, where their names do not say it.
        columns: Where the parts of a row stand.
        own: Of the judge.
        confidence: Learnt on held-out rows.
        run: What becomes of the run.
        training: Of the training.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    check_piped({"--train": train, "--validation": validation})
    wanted = list(get_args(JudgeDimension)) if "all" in dimension else list(dict.fromkeys(dimension))
    given = {**given_of(own), **given_of(confidence)}
    merge = {"merge": given.pop("merge")} if "merge" in given else {}
    with bad_usage(*given):
        PAIRS.fit_options(**given)
    named = TripleColumns.named(given_of(columns))
    # Read once: standard input cannot be read for each dimension.
    rows, held_out = _read(train, format), None if validation is None else _read(validation, format)
    for name in wanted:
        if len(wanted) > 1 and not run.json:
            print(f"{name}:")

        def fit(options: "TrainingArguments", name: JudgeDimension = name) -> "tuple[Judge, TrainingRecord]":  # type: ignore[assignment]
            from bothways.judging import Judge

            judge = Judge.train(
                model,
                rows,
                name,
                validation=held_out,
                columns=named,
                negatives=negatives,
                opening=open_options(reading, opening.in_full),
                confidence=given,
                **merge,
                **options,
            )
            if judge.record is None:
                raise TypeError("a judge that was trained has a record")
            return judge, judge.record

        code = train_and_save(output / name if len(wanted) > 1 else output, training, run, fit, _next)
        if code:
            return code
    return 0


def _read(source: str, format_: Format | None) -> "list[Row]":
    from bothways.data import read_rows

    return list(read_rows(source, format=format_))


def _next(model: object, folder: str) -> str:
    del model
    return f"bothways judge score {folder} --data answers.jsonl --labels gold.jsonl"


@taking(columns=COLUMNS)
def evaluate(
    judge: Path,
    /,
    *,
    data: File,
    dimension: JudgeDimension | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    resamples: PositiveInt = 1000,
    seed: WholeNumber = 0,
    json: Flag = False,
    quiet: Flag = False,
    columns: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    model: ModelOptions = HERE,
) -> None:
    """Compare a judge with human labels.

    Prints accuracy, AUROC, calibration error, and the order of systems.

    Args:
        judge: Folder of a judge.
        data: Labelled triples. Where rows name their system, Kendall's tau says how well the judge orders the systems.
        dimension: Of a folder with several judges.
        format: Of the data, where the name does not say it.
        resamples: Bootstrap resamples for the intervals.
        seed: Of the bootstrap.
        json: Print one JSON object.
        quiet: Show no progress.
        columns: Where the parts of a row stand.
        reading: How texts are read.
        model: Where the judge runs.
    """
    from bothways.judging import Judge

    opened = Judge.open(judge, dimension, **open_options(reading, model))
    named = TripleColumns.named(given_of(columns))
    report = opened.evaluate(
        labelled_source(data, format),
        columns=named,
        resamples=resamples,
        seed=seed,
        show_progress=False if quiet else None,
    )
    if json:
        print_json({"judge": str(judge), "dimension": opened.dimension.name, **report.to_dict()})
        return
    print(f"{opened.dimension.question} {report.report.title}")
    print(report.summary())
    for each in report.disagreements[:3]:
        note(f"look at {each.triple.where}: label {each.triple.label}, judge {each.probability:.3f}")
