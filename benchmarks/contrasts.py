"""What a feature gives beside doing without it, in our own package: each contrast trains both and judges them alike.

- ``clinc150_few_shot``: 8 texts of each of 12 intents, which the seed draws: what a classifier does by default with few
  texts, beside a linear head on the untouched embedder.
- ``imdb_windows``: reviews longer than 256 tokens; windows beside truncation, in training and in the test.
- ``stsb_pooling``: the mean of the tokens, the first of them, and their maximum as a text's vector, as the model comes
  and after an epoch of training with each: Spearman's correlation of the cosines with the scores of STS-B.
- ``trecqa_bi``: the mean average precision of the embedder without training, and after ``fit``, which goes back to it
  where no epoch is as good on the validation rows; to be set beside the cross-encoder's (``trecqa``).
- ``trecqa_reranker``: a cross-encoder that learns on sentences of SQuAD's contexts which of them answers a question,
  and then on TREC-QA, whose 348 right answers alone are too few (transfer and adapt: Garg et al. 2019,
  arXiv:1911.04118).
"""

import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import DATA, MODEL, Options, table
from benchmarks.kept import stated_origin
from benchmarks.spread import lead, spread
from benchmarks.task_data import Row, mean_average_precision
from benchmarks.texts import labelled_texts, read_rows
from benchmarks.trainer_peers import BATCH, LEARNING_RATE
from benchmarks.workers import Worker

SHOTS, INTENTS, EPOCHS = 8, 12, 3
QUESTIONS = 8_000
REVIEW_TOKENS, REVIEWS = 256, {"train": 500, "validation": 200, "test": 1_500}

Figures = dict[str, float]


class Subject:
    """What a worker serves."""

    def __init__(self, threads: int, device: str) -> None:
        import torch

        torch.set_num_threads(threads)
        self.device = device

    def run(self, name: str, seed: int, quick: bool) -> Figures:
        """Train what a contrast compares, and the figures on its test rows."""
        return _CONTRASTS[name](self.device, seed, quick)


def _few_shot(device: str, seed: int, quick: bool) -> Figures:
    from bothways import SentenceEmbedder, TextClassifier

    rows, test = (labelled_texts(DATA / f"clinc150/{part}.jsonl.gz") for part in ("train", "test"))
    names = random.Random(seed).sample(sorted({row["label"] for row in rows}), 3 if quick else INTENTS)
    train = _shots(rows, names, seed)
    test = [row for row in test if row["label"] in names]
    texts, truth = [row["text"] for row in test], [row["label"] for row in test]

    few = TextClassifier.from_pretrained(MODEL, device=device)
    few.fit(train, seed=seed, show_progress=False)
    figures = {"few texts": _accuracy([each.label for each in few.predict(texts)], truth)}
    embedder = SentenceEmbedder.from_pretrained(MODEL, device=device)
    shown, asked = (embedder.encode(each) for each in ([row["text"] for row in train], texts))
    figures["head alone"] = _accuracy(_nearest_head(shown, [row["label"] for row in train], asked), truth)
    return figures


def _shots(rows: Sequence[Row], names: Sequence[str], seed: int) -> list[Row]:
    """As many rows of each label as are shown."""
    draw = random.Random(seed)
    of_label = {name: [row for row in rows if row["label"] == name] for name in names}
    return [row for name in names for row in draw.sample(of_label[name], SHOTS)]


def _nearest_head(shown: np.ndarray, labels: Sequence[str], asked: np.ndarray) -> list[str]:
    from sklearn.linear_model import LogisticRegression

    head = LogisticRegression(C=100, max_iter=2_000).fit(shown, list(labels))
    return [str(label) for label in head.predict(asked)]


def _windows(device: str, seed: int, quick: bool) -> Figures:
    from bothways import TextClassifier

    parts = _long_reviews(quick)
    texts, truth = [row["text"] for row in parts["test"]], [row["label"] for row in parts["test"]]
    figures = {}
    for policy in ("window", "truncate"):
        classifier = TextClassifier.from_pretrained(
            MODEL, device=device, max_length=REVIEW_TOKENS, stride=REVIEW_TOKENS // 4, on_overflow=policy
        )
        classifier.fit(
            parts["train"],
            validation=parts["validation"],
            epochs=1 if quick else EPOCHS,
            learning_rate=LEARNING_RATE,
            batch_size=BATCH,
            seed=seed,
            show_progress=False,
        )
        found = [each.label for each in classifier.predict(texts, show_progress=False)]
        figures[{"window": "windows", "truncate": "truncation"}[policy]] = _accuracy(found, truth)
    return figures


def _long_reviews(quick: bool) -> dict[str, list[Row]]:
    """Reviews that a model of 256 tokens cannot read at once; the same for every seed."""
    import bothways

    tokenizer = bothways.load(MODEL).tokenizer
    wanted = dict.fromkeys(REVIEWS, 24) if quick else REVIEWS
    parts: dict[str, list[Row]] = {}
    for part, source in (("train", "train"), ("validation", "train"), ("test", "test")):
        rows = list(read_rows(DATA / f"imdb/{source}.jsonl.gz"))
        random.Random(7).shuffle(rows)
        # From the other end, so that no review is both learnt from and held out.
        rows = rows[::-1] if part == "validation" else rows
        parts[part] = _first_long(rows, tokenizer, wanted[part])
    return parts


def _first_long(rows: Sequence[Row], tokenizer: Any, count: int) -> list[Row]:  # noqa: ANN401
    found: list[Row] = []
    for row in rows:
        if len(tokenizer.encode([row["text"]], max_length=REVIEW_TOKENS)[0].windows) > 1:
            found.append({"text": row["text"], "label": str(row["label"])})
        if len(found) == count:
            return found
    raise SystemExit(f"expected {count} reviews above {REVIEW_TOKENS} tokens, found {len(found)}")


def _poolings(device: str, seed: int, quick: bool) -> Figures:
    from bothways import SentenceEmbedder
    from bothways.tasks.embedding.spec import ScoredPairs

    train, validation, test = _parts("stsb", 200 if quick else None)
    figures = {}
    for pooling in ("mean", "cls", "max"):
        embedder = SentenceEmbedder.from_pretrained(MODEL, device=device, pooling=pooling)
        figures[f"{pooling}, as it comes"] = _correlated(embedder, test)
        embedder.fit(
            train,
            validation=validation,
            columns=ScoredPairs(),
            epochs=1,
            learning_rate=LEARNING_RATE,
            batch_size=BATCH,
            seed=seed,
            show_progress=False,
        )
        figures[f"{pooling}, trained"] = _correlated(embedder, test)
    return figures


def _parts(name: str, most: int | None) -> list[list[Row]]:
    """Training, validation and test rows of a data set."""
    return [list(read_rows(DATA / f"{name}/{part}.jsonl.gz"))[:most] for part in ("train", "validation", "test")]


def _correlated(embedder: Any, rows: Sequence[Row]) -> float:  # noqa: ANN401
    from scipy.stats import spearmanr

    return float(spearmanr(_cosines(embedder, rows), [row["score"] for row in rows])[0])


def _embedders(device: str, seed: int, quick: bool) -> Figures:
    from bothways import SentenceEmbedder
    from bothways.tasks.embedding.spec import Pairs

    train, validation, test = _parts("trecqa", 400 if quick else None)
    embedder = SentenceEmbedder.from_pretrained(MODEL, device=device)
    figures = {"no training": _ranked(embedder, test)}
    right, held = (
        [{"anchor": row["text_a"], "positive": row["text_b"]} for row in rows if row["label"] == "yes"]
        for rows in (train, validation)
    )
    record = embedder.fit(
        right,
        validation=held,
        columns=Pairs(),
        epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        batch_size=BATCH,
        seed=seed,
        show_progress=False,
    )
    return {**figures, "fit": _ranked(embedder, test), "epoch that fit keeps": float(record.kept_epoch or 0)}


def _ranked(embedder: Any, rows: Sequence[Row]) -> float:  # noqa: ANN401
    return mean_average_precision(rows, [{"yes": float(each)} for each in _cosines(embedder, rows)])["MAP"]


def _cosines(embedder: Any, rows: Sequence[Row]) -> np.ndarray:  # noqa: ANN401
    """Of the two texts of each row; the vectors have unit length."""
    firsts, seconds = (embedder.encode([row[side] for row in rows]) for side in ("text_a", "text_b"))
    cosines: np.ndarray = (firsts * seconds).sum(1)
    return cosines


def _reranker(device: str, seed: int, quick: bool) -> Figures:
    from bothways import PairClassifier, SentenceEmbedder

    train, validation, test = _parts("trecqa", 400 if quick else None)
    figures = {"no training, embedder": _ranked(SentenceEmbedder.from_pretrained(MODEL, device=device), test)}
    pairs = PairClassifier.from_pretrained(MODEL, device=device)
    common: dict[str, Any] = {"learning_rate": LEARNING_RATE, "batch_size": BATCH, "seed": seed, "show_progress": False}
    pairs.fit(_answering_sentences(seed, 100 if quick else QUESTIONS), validation=validation, epochs=1, **common)
    figures["reranker, SQuAD"] = _reranked(pairs, test)
    pairs.fit(train, validation=validation, epochs=1 if quick else EPOCHS, **common)
    return {**figures, "reranker, SQuAD and TREC-QA": _reranked(pairs, test)}


def _reranked(pairs: Any, rows: Sequence[Row]) -> float:  # noqa: ANN401
    # Uncalibrated, as CrossEncoder ranks.
    found = pairs.predict([(row["text_a"], row["text_b"]) for row in rows], calibrated=False, show_progress=False)
    return mean_average_precision(rows, [each.probabilities for each in found])["MAP"]


def _answering_sentences(seed: int, questions: int) -> list[Row]:
    """Questions of SQuAD 1.1 with the sentence of the context that holds the answer, and with two that do not."""
    draw, found = random.Random(seed), []
    rows = list(read_rows(DATA / "squad_v1/validation.jsonl.gz"))
    for row in draw.sample(rows, questions):
        sentences = _sentences(row["context"])
        starts = {answer["start"] for answer in row["answers"]}
        right = [each for each in sentences if any(each[0] <= start < each[1] for start in starts)]
        wrong = [each for each in sentences if each not in right]
        for label, chosen in (("yes", right[:1]), ("no", draw.sample(wrong, min(2, len(wrong))))):
            found += [
                {"text_a": row["question"], "text_b": row["context"][slice(*each)], "label": label} for each in chosen
            ]
    return found


def _sentences(text: str) -> list[tuple[int, int]]:
    """Where sentences begin and end, as far as full stops and capitals say it."""
    borders = [match.span() for match in re.finditer(r"(?<=[.!?])\s+(?=[A-Z\"'(0-9])", text)]
    return list(zip([0, *(end for _, end in borders)], [*(start for start, _ in borders), len(text)], strict=True))


def _accuracy(found: Sequence[str], truth: Sequence[str]) -> float:
    return float(np.mean([one == other for one, other in zip(found, truth, strict=True)]))


_CONTRASTS: dict[str, Callable[[str, int, bool], Figures]] = {
    "clinc150_few_shot": _few_shot,
    "imdb_windows": _windows,
    "stsb_pooling": _poolings,
    "trecqa_bi": _embedders,
    "trecqa_reranker": _reranker,
}
NAMES = tuple(_CONTRASTS)


def single(name: str, seed: int, options: Options) -> dict[str, Any]:
    """Train and test once, in a process of its own."""
    began = time.perf_counter()
    with Worker(Subject, options.threads, options.device) as worker:
        figures = worker.call("run", name, seed, options.quick)
    return {"figures": figures, "seconds": time.perf_counter() - began}


def contrasts_table(runs: Sequence[dict[str, Any]], _: Options) -> str:
    """Return mean and spread over the seeds, and the first line of a contrast minus each other one."""
    rows = []
    for name in dict.fromkeys(run["dataset"] for run in runs):
        kept = {run["seed"]: run["figures"] for run in runs if run["dataset"] == name}
        first, *others = next(iter(kept.values()))
        reference = {seed: figures[first] for seed, figures in kept.items()}
        for side in (first, *others):
            own = {seed: figures[side] for seed, figures in kept.items()}
            less = "" if side == first or side.startswith("epoch") else lead(reference, own)
            rows.append([name, side, spread(list(own.values())), str(len(own)), less])
    note = (
        "With a feature of ours and without it, trained by ourselves on the same rows (`benchmarks/contrasts.py`). "
        "On TREC-QA a training on its 348 right pairs made the embedder worse than no training: `fit` keeps it as it "
        "came (epoch 0) where the validation rows say so. A mean difference not larger than its deviation over the "
        f"seeds is a tie. {stated_origin(runs)}"
    )
    return f"{note}\n\n{table(('data', 'side', 'mean and deviation', 'seeds', 'first line minus it'), rows)}"
