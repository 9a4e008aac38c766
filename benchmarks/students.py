"""Students of MiniLM beside their teacher: size, time per text, STS-B, Cranfield and agreement with the teacher.

``python -m benchmarks students --contestants runs/mini-3 runs/mini-2``: the contestants are folders of students. The
teacher, and for each student the untrained copy of as many layers, stand beside them. Times are of the speed
benchmark's sentences and passages, interleaved. Held-out Wikipedia: the validation split, of which nothing was trained.
"""

import gzip
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import DATA, MODEL, Options, interleaved, ratios, table, write_results
from benchmarks.texts import read_rows, workloads
from bothways import SemanticSearch, SentenceEmbedder
from bothways.data import read_judgments
from bothways.evaluation import ranking_outcomes, spearman
from bothways.pretraining.runs import parameters
from bothways.pretraining.students import shortened
from bothways.pretraining.teachers import EmbedderTeacher, open_teacher
from bothways.retrieval import Dense

TEACHER, HELD_OUT, QUICK_ROWS, HITS, RESAMPLES, TOP = "teacher", 1000, 60, 100, 100, "ndcg@10"


def run(options: Options) -> Path:
    """Measure the teacher, untrained copies and students, and write the table."""
    with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
        return _measured(_models(options.contestants, Path(folder)), options)


def _measured(models: dict[str, SentenceEmbedder], options: Options) -> Path:
    seconds, most = _seconds(models, options), QUICK_ROWS if options.quick else None
    figures = {name: {**_size(model), **_quality(model, models[TEACHER], most)} for name, model in models.items()}
    shares = {
        work: {name: ratios(each, taken[TEACHER]) for name, each in taken.items()} for work, taken in seconds.items()
    }
    rows = [
        [
            name,
            str(found["layers"]),
            f"{found['parameters'] / 1e6:.1f} M",
            f"{found['parameters'] * 2 / 1e6:.1f}",
            *(each[name].text() for each in shares.values()),
            *(f"{found[each]:.4f}" for each in ("stsb", "cranfield", "agreement")),
        ]
        for name, found in figures.items()
    ]
    header = ["model", "layers", "parameters", "MB in float16", *(f"{work}: time / teacher's" for work in seconds)]
    text = table([*header, "STS-B test", "Cranfield nDCG@10", "agreement"], rows)
    return write_results("students", options, {"models": figures, "seconds": seconds, "shares": shares}, text)


def _models(folders: Sequence[str], copies: Path) -> dict[str, SentenceEmbedder]:
    models = {TEACHER: SentenceEmbedder.from_pretrained(MODEL, device="cpu")}
    for folder in folders:
        student = SentenceEmbedder.from_pretrained(folder, device="cpu")
        layers = student.model.config.layers
        models[f"its start, {layers} copied layers"] = _copy(layers, copies / str(layers))
        models[Path(folder).name] = student
    return models


def _copy(layers: int, folder: Path) -> SentenceEmbedder:
    """Write and open the teacher with some of its layers, where a student begins."""
    teacher = open_teacher(MODEL, device="cpu")
    if not isinstance(teacher, EmbedderTeacher):
        raise TypeError(f"expected a sentence embedder, got {type(teacher).__name__}")
    folder.mkdir(exist_ok=True)
    teacher.write(shortened(teacher.model, layers).model, folder, {})
    return SentenceEmbedder.from_pretrained(folder, device="cpu")


def _seconds(models: dict[str, SentenceEmbedder], options: Options) -> dict[str, dict[str, list[float]]]:
    """Return by workload and model the seconds of each round."""

    def timed(name: str, texts: Sequence[str]) -> float:
        began = time.perf_counter()
        models[name].encode(texts, show_progress=False)
        return time.perf_counter() - began

    found = {}
    for work in workloads(quick=options.quick):
        for name in models:
            timed(name, work.texts[:100])
        run = partial(lambda texts, name, _: timed(name, texts), work.texts)
        found[work.name] = interleaved(list(models), options.rounds, run, what=work.name)
    return found


def _size(model: SentenceEmbedder) -> dict[str, int]:
    return {"layers": model.model.config.layers, "parameters": parameters(model.model)}


def _quality(model: SentenceEmbedder, teacher: SentenceEmbedder, most: int | None) -> dict[str, float]:
    pairs = read_rows(DATA / "stsb" / "test.jsonl.gz")[:most]
    first, second = (model.encode([row[side] for row in pairs], show_progress=False) for side in ("text_a", "text_b"))
    said = np.array([float(row["score"]) for row in pairs])
    return {
        "stsb": float(spearman((first * second).sum(1).astype(np.float64), said)),
        "cranfield": _cranfield(model, most),
        "agreement": _agreement(model, teacher, most or HELD_OUT),
    }


def _cranfield(model: SentenceEmbedder, most: int | None) -> float:
    folder = DATA / "cranfield"
    corpus, queries = (read_rows(folder / f"{name}.jsonl.gz")[:most] for name in ("corpus", "queries"))
    texts, ids = [row["text"] for row in corpus], [row["id"] for row in corpus]
    search = SemanticSearch.build(model, texts, ids=ids, show_progress=False)
    answers = search.search([row["text"] for row in queries], HITS, mode=Dense())
    rankings = {row["id"]: [hit.id for hit in hits] for row, hits in zip(queries, answers, strict=True)}
    report = ranking_outcomes(rankings, read_judgments(folder / "qrels.tsv")).report(resamples=RESAMPLES)
    return report.estimates[TOP].value


def _agreement(model: SentenceEmbedder, teacher: SentenceEmbedder, most: int) -> float:
    """Return Spearman's correlation of a model's cosines of all pairs of paragraphs with the teacher's."""
    with gzip.open(DATA / "wikipedia_text" / "validation.txt.gz", "rt", encoding="utf-8") as stream:
        texts = [line.strip() for line in stream if line.strip() and not line.startswith("= ")][:most]
    places = np.triu_indices(len(texts), 1)
    ours, theirs = (each.encode(texts, show_progress=False).astype(np.float64) for each in (model, teacher))
    return float(spearman((ours @ ours.T)[places], (theirs @ theirs.T)[places]))
