"""The stages of the demo: each takes what it needs and gives a result.

Shapes: N texts, C classes.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints import load
from bothways.demo.news import SPLITS, file_name, news_rows
from bothways.demo.results import Attended, Classified, FewShot, Found, Mistake, Searched, Told
from bothways.demo.settings import COVERAGE, HEADLINES, MODEL, QUERIES, SENTENCE, DemoSettings
from bothways.evaluation import Estimate, Temperature, apply_temperature, bootstrap_estimates
from bothways.explain import attention_of, causal, illustrative_head
from bothways.retrieval import SearchIndex, SemanticSearch
from bothways.tasks import FewShotClassifier, MultiTask, SentenceEmbedder, TaskData, TextClassifier
from bothways.tasks.predictions import Classification
from bothways.tasks.settings import FitSettings
from bothways.training.record import TrainingRecord

HITS, NEIGHBOURS = 3, 2
LABELS = ("category", "sentiment")


@dataclass(frozen=True, slots=True)
class Trained:
    """A classifier and the course of its training."""

    classifier: TextClassifier
    record: TrainingRecord


def train(data: Path, label: str, settings: DemoSettings) -> Trained:
    """Fine-tune the model on one label of the news texts, and calibrate it on the validation texts.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the training.
    """
    classifier = TextClassifier.from_pretrained(MODEL)
    record = classifier.fit(
        data / file_name("train"),
        validation=data / file_name("validation"),
        label=label,
        epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        batch_size=settings.batch_size,
        seed=settings.seed,
        # The page explains this method, whatever the texts of the day would ask for.
        settings=FitSettings(calibration="temperature"),
    )
    if record.interrupted:
        raise KeyboardInterrupt  # a half-trained model is no demo
    return Trained(classifier, record)


def train_together(data: Path, settings: DemoSettings) -> dict[str, Trained]:
    """Fine-tune one encoder on both labels of the news texts, and calibrate each head on the validation texts.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the training.
    """
    train, validation = data / file_name("train"), data / file_name("validation")
    both = MultiTask.from_pretrained(MODEL)
    record = both.fit(
        {label: TaskData(train, validation, label=label) for label in LABELS},
        epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        batch_size=settings.batch_size,
        seed=settings.seed,
        settings=FitSettings(calibration="temperature"),
    )
    if record.interrupted:
        raise KeyboardInterrupt
    return {label: Trained(both.part(label), record) for label in LABELS}


def learn_from_few(data: Path, settings: DemoSettings) -> FewShot:
    """Show another model a few texts of each category, drawn by the seed, and hold it against the test texts.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the training.
    """
    rows, draw = news_rows(data, "train"), random.Random(settings.seed)
    draw.shuffle(rows)
    shown = [
        row
        for category in sorted({row["category"] for row in rows})
        for row in [each for each in rows if each["category"] == category][: settings.shots]
    ]
    few = FewShotClassifier.from_pretrained(MODEL)
    record = few.fit(shown, label="category", epochs=2, pairs_per_text=settings.pairs_per_text, seed=settings.seed)
    if record.interrupted:
        raise KeyboardInterrupt
    report = few.evaluate(data / file_name("test"), resamples=settings.resamples)
    return FewShot(len(shown), report)


def evaluate(trained: Trained, data: Path, label: str, settings: DemoSettings) -> Classified:
    """Hold a classifier against the test texts, before and after calibration."""
    classifier = trained.classifier
    calibration = classifier.calibration
    temperature = calibration if isinstance(calibration, Temperature) else Temperature(1.0)
    logits_NC, truth_N = classifier.logits(data / file_name("test"), label=label)
    before, after = (
        classifier.report(logits_NC, truth_N, calibrated=calibrated, resamples=settings.resamples)
        for calibrated in (False, True)
    )
    texts = [row["text"] for row in news_rows(data, "test")]
    probabilities_NC = apply_temperature(logits_NC, temperature)
    return Classified(
        record=trained.record,
        temperature=temperature,
        before=before,
        after=after,
        nll_change=nll_change(apply_temperature(logits_NC, 1.0), probabilities_NC, truth_N, settings),
        mistakes=mistakes(texts, after.labels, probabilities_NC, truth_N),
    )


def nll_change(
    before_NC: NDArray[np.float64], after_NC: NDArray[np.float64], truth_N: NDArray[Any], settings: DemoSettings
) -> Estimate:
    """Mean over the texts of how much calibration changed the negative log likelihood, paired, with its interval."""
    rows_N = np.arange(len(truth_N))
    changes_N = np.log(before_NC[rows_N, truth_N]) - np.log(after_NC[rows_N, truth_N])
    (estimate,) = bootstrap_estimates(
        lambda counts_RN: (counts_RN @ changes_N / len(changes_N))[:, None],
        len(changes_N),
        resamples=settings.resamples,
    )
    return estimate


def mistakes(
    texts: Sequence[str], labels: Sequence[str], probabilities_NC: NDArray[np.float64], truth_N: NDArray[Any]
) -> tuple[Mistake, ...]:
    """The texts whose most probable label is not theirs, the most confident first."""
    predicted_N = probabilities_NC.argmax(1)
    wrong = [
        Mistake(
            text=texts[row],
            truth=labels[truth_N[row]],
            predicted=labels[predicted_N[row]],
            probability=float(probabilities_NC[row].max()),
            probability_of_truth=float(probabilities_NC[row, truth_N[row]]),
        )
        for row in np.flatnonzero(predicted_N != truth_N).tolist()
    ]
    return tuple(sorted(wrong, key=lambda each: -each.probability))


def tell(classifier: TextClassifier) -> tuple[Told, ...]:
    """What the classifier says of the demo's own headlines."""
    texts = [headline.text for headline in HEADLINES]
    predictions = classifier.predict(texts, coverage=COVERAGE, show_progress=False)
    return tuple(
        Told(headline, cast("Classification", prediction))
        for headline, prediction in zip(HEADLINES, predictions, strict=True)
    )


def search(data: Path, index_folder: Path) -> Searched:
    """Index all news texts with the model as it comes, save the index, and search it."""
    rows = [row for split in SPLITS for row in news_rows(data, split)]
    texts, ids = [row["text"] for row in rows], [row["id"] for row in rows]
    embedder = SentenceEmbedder.from_pretrained(MODEL)
    semantic = SemanticSearch.build(embedder, texts, ids=ids)
    semantic.save(index_folder)
    answers = semantic.search(QUERIES, HITS)
    category_of = {row["id"]: row["category"] for row in rows}
    others = _nearest_others(semantic.index)
    return Searched(
        queries=tuple(Found(query, tuple(hits)) for query, hits in zip(QUERIES, answers, strict=True)),
        neighbours=tuple(others[row["id"]] for row in _first_of_each(news_rows(data, "test"), "category").values()),
        category_of=category_of,
        agreement=_mean(category_of[id_] == category_of[found.hits[0].id] for id_, found in others.items()),
        agreement_by_chance=_agreement_by_chance(list(category_of.values())),
    )


def attend() -> Attended:
    """The attention of one head over the demo's sentence, and what a causal mask would leave of it."""
    attention = attention_of(load(MODEL), SENTENCE)
    head = illustrative_head(attention)
    weights_SS = attention.head(head)
    return Attended(attention, head, weights_SS, causal(weights_SS))


def _nearest_others(index: SearchIndex) -> dict[str, Found]:
    """For each text of the index, by its id, the texts nearest to it other than itself."""
    answers = index.search(index.vectors_ND, NEIGHBOURS + 1)
    return {
        id_: Found(text, tuple([hit for hit in hits if hit.id != id_][:NEIGHBOURS]))
        for id_, text, hits in zip(index.ids, index.texts, answers, strict=True)
    }


def _first_of_each(rows: Sequence[dict[str, str]], column: str) -> dict[str, dict[str, str]]:
    first: dict[str, dict[str, str]] = {}
    for row in rows:
        first.setdefault(row[column], row)
    return first


def _agreement_by_chance(labels: Sequence[str]) -> float:
    """How likely two different rows have the same label."""
    same = sum(labels.count(label) * (labels.count(label) - 1) for label in set(labels))
    return same / (len(labels) * (len(labels) - 1))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
