"""Judges of retrieval-augmented generation on ares_nq, and mock systems of known success rates that they rank.

``python -m benchmarks judging`` trains a judge of context relevance; ``--contestants FOLDER...`` takes judges of any
dimension that ``bothways judge train`` wrote instead, and ``--kept`` none. Beside them stands MiniLM as it comes: the
cosine of query and passage, made a probability by logistic regression on 200 training pairs. Unless ``--kept`` says
otherwise, a judge of faithfulness is trained on SICK's entailment alone (premise: passage; hypothesis: answer) and
reads these answers, too.

Mock systems: rows are drawn with replacement from the relevant test rows with probability r, else from the others, so
that r is the success rate of the population that they are drawn from. Some of them are labelled. An interval covers
where it holds r.

Shapes: N rows, S systems.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from benchmarks.harness import DATA, MODEL, Options, say, table, write_results
from benchmarks.texts import read_rows
from bothways.choices import PpiMethod
from bothways.evaluation.prediction_powered import Sample, estimate_mean
from bothways.judging import DIMENSIONS, Dimension, Judge, JudgeReport, Triple, TripleColumns, read_triples
from bothways.judging.quality import judge_report, tau_of

COLUMNS = TripleColumns(
    query="Query",
    passage="Document",
    answer="Answer",
    context_relevance="Context_Relevance_Label",
    answer_faithfulness="Answer_Faithfulness_Label",
    answer_relevance="Answer_Relevance_Label",
    document="document_id",
)
CONTEXT = DIMENSIONS["context_relevance"]
COSINE = "cosine of MiniLM as it comes"
RATES = tuple(0.7 + 0.025 * step for step in range(9))
LABELS = (50, 150, 300)
ROWS = 900
"""Rows of a mock system."""

DRAWS = 500
METHODS: tuple[PpiMethod, ...] = ("ppi++", "ppi", "classical")
CALIBRATING = 200
WINDOWS = (None, 128)

Stated = NDArray[np.float64]


def run(options: Options) -> Path:
    """Measure and write the results."""
    test = _read("test", CONTEXT)
    say("judging: cosine")
    stated = {COSINE: _cosine(test)}
    found: dict[str, Any] = {"judges": {COSINE: _figures(judge_report(test, stated[COSINE]))}}
    with TemporaryDirectory(prefix="bothways-benchmark-") as scratch:
        for folder in options.contestants or (() if options.kept else (_trained(scratch, options),)):
            for window in WINDOWS:
                judge = Judge.open(folder, max_length=window)
                name = f"{Path(folder).name}, {judge.dimension.title}, windows of {judge.classifier.max_length}"
                say(f"judging: {name}")
                rows = _read("test", judge.dimension)
                values = judge.probabilities(rows, show_progress=False)
                found["judges"][name] = _figures(judge_report(rows, values))
                if judge.dimension == CONTEXT and window is None:
                    stated[name] = values
        if not options.kept:
            found["judges"] |= _from_entailment(options)
    say("judging: mock systems")
    draws = 5 if options.quick else DRAWS
    found["ranking"] = {name: _ranked(test, values, draws) for name, values in stated.items()}
    return write_results("judging", options, found, _text(found, draws))


def _read(part: str, dimension: Dimension) -> tuple[Triple, ...]:
    return read_triples(DATA / "ares_nq" / f"{part}.jsonl.gz", dimension, COLUMNS).labelled


def _trained(scratch: str, options: Options) -> str:
    folder = f"{scratch}/judge"
    files = {part: DATA / "ares_nq" / f"{part}.jsonl.gz" for part in ("train", "validation")}
    epochs = {"epochs": 1} if options.quick else {}
    judge = Judge.train(
        MODEL, files["train"], "context_relevance", validation=files["validation"], columns=COLUMNS, **epochs
    )
    judge.save(folder)
    return folder


def _from_entailment(options: Options) -> dict[str, dict[str, float]]:
    """Return how well a judge of faithfulness does that has seen nothing but SICK, on SICK's test rows and on these."""
    say("judging: faithfulness from SICK")
    parts = {part: _entailment(part) for part in ("train", "validation", "test")}
    epochs = {"epochs": 1} if options.quick else {}
    judge = Judge.train(MODEL, parts["train"], "answer_faithfulness", validation=parts["validation"], **epochs)
    tests = {
        "SICK": read_triples(parts["test"], judge.dimension).labelled,
        "ares_nq": _read("test", judge.dimension),
    }
    return {
        f"trained on SICK's entailment, {judge.dimension.title} of {name}": _figures(
            judge_report(rows, judge.probabilities(rows, show_progress=False))
        )
        for name, rows in tests.items()
    }


def _entailment(part: str) -> list[dict[str, object]]:
    return [
        {
            "query": "What happens?",
            "passage": row["text_a"],
            "answer": row["text_b"],
            "answer_faithfulness": int(row["label"] == "entailment"),
        }
        for row in read_rows(DATA / "sick" / f"{part}.jsonl.gz")
    ]


def _cosine(test: Sequence[Triple]) -> Stated:
    from bothways import SentenceEmbedder

    embedder = SentenceEmbedder.from_pretrained(MODEL)

    def cosines(rows: Sequence[Triple]) -> Stated:
        texts = list(dict.fromkeys(text for row in rows for text in (row.query, row.passage)))
        vectors = dict(zip(texts, embedder.encode(texts, show_progress=False), strict=True))
        return np.array([vectors[row.query] @ vectors[row.passage] for row in rows], np.float64)

    training = list({CONTEXT.pair(row): row for row in _read("train", CONTEXT)}.values())[:CALIBRATING]
    fitted = LogisticRegression(C=1e4).fit(cosines(training)[:, None], [row.label for row in training])
    stated: Stated = fitted.predict_proba(cosines(test)[:, None])[:, 1]
    return stated


def _figures(report: JudgeReport) -> dict[str, float]:
    estimates = {name: report.report.estimates[name] for name in ("accuracy", "ece")}
    if report.auroc is not None:
        estimates["auroc"] = report.auroc
    return {
        "rows": report.report.counts["n"],
        **{k: v for name, each in estimates.items() for k, v in each.named(name).items()},
    }


def _ranked(test: Sequence[Triple], stated_N: Stated, draws: int) -> dict[str, dict[str, float]]:
    """Return coverage, width and Kendall's tau by number of labels and method, over draws of all systems."""
    label_N = np.array([row.label for row in test])
    pools = np.flatnonzero(label_N == 1), np.flatnonzero(label_N == 0)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(draws):
        generator = np.random.default_rng(seed)
        systems = [_system(rate, pools, generator) for rate in RATES]
        for labels in LABELS:
            samples = [
                Sample(label_N[rows[:labels]], stated_N[rows[:labels]], stated_N[rows[labels:]]) for rows in systems
            ]
            for method in METHODS:
                estimates = [estimate_mean(each, method=method) for each in samples]
                tau = tau_of([each.value for each in estimates], RATES)
                for each, rate in zip(estimates, RATES, strict=True):
                    found.setdefault(f"{labels} labels, {method}", []).append(
                        (float(each.low <= rate <= each.high), each.high - each.low, tau)
                    )
        alone = tau_of([stated_N[rows].mean() for rows in systems], RATES)
        found.setdefault("judge alone", []).append((np.nan, np.nan, alone))
    names = ("coverage", "width", "tau")
    return {name: dict(zip(names, map(float, np.mean(each, axis=0)), strict=True)) for name, each in found.items()}


def _system(
    rate: float, pools: tuple[NDArray[np.int64], NDArray[np.int64]], generator: np.random.Generator
) -> NDArray[np.int64]:
    good_N = generator.random(ROWS) < rate
    return np.where(good_N, generator.choice(pools[0], ROWS), generator.choice(pools[1], ROWS))


def _text(found: Mapping[str, Any], draws: int) -> str:
    judges = [
        [name, f"{each['rows']:.0f}", *(_with_interval(each, figure) for figure in ("accuracy", "auroc", "ece"))]
        for name, each in found["judges"].items()
    ]
    ranked = [
        [name, setting, *("" if np.isnan(value) else f"{value:.3f}" for value in each.values())]
        for name, settings in found["ranking"].items()
        for setting, each in settings.items()
    ]
    return (
        "Judges on the test rows of ares_nq, with 95 % bootstrap intervals.\n\n"
        + table(("judge", "rows", "accuracy", "AUROC", "ECE"), judges)
        + f"\n\nNine mock systems with success rates of .70 to .90, {ROWS} rows each, {draws} draws of all of them: "
        "share of 95 % intervals that hold the rate, their mean width, and Kendall's tau with the true order.\n\n"
        + table(("judge", "labels and method", "coverage", "width", "tau"), ranked)
        + "\n\nARES (Saad-Falcon et al. 2023, arXiv:2311.09476) publishes accuracies of 68 to 97 %, tau of .78 to 1.0 "
        "and widths of 6 to 7 points, with larger judges and on its own mock systems, so only roughly comparable."
    )


def _with_interval(figures: Mapping[str, float], name: str) -> str:
    if name not in figures:
        return ""
    return f"{figures[name]:.3f} [{figures[f'{name}_low']:.3f}, {figures[f'{name}_high']:.3f}]"
