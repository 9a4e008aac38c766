"""The demo as a script: fine-tune, calibrate, evaluate, predict, search and show attention, then write the report.

Shape legend: R resamples, N texts.
"""

import json
import math
import platform
import random
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bothways import MultiTask, SearchIndex, SemanticSearch, SentenceEmbedder, TaskData, TextClassifier, load
from bothways import report as html
from bothways.checkpoints import MINILM
from bothways.demo import story
from bothways.demo.files import (
    COVERAGE,
    DATA,
    FIGURES,
    INDEX,
    MADE_BY,
    MODEL_FOLDER,
    QUERIES,
    REPORT,
    SENTENCE,
    DemoSettings,
    Row,
    copy_news,
    headlines,
    read_rows,
)
from bothways.demo.story import Tested, commands, duration, tell, with_interval
from bothways.evaluation.intervals import Estimate, bootstrap_estimates
from bothways.evaluation.temperature import Temperature
from bothways.explain import attention_of
from bothways.interrupts import interruption
from bothways.retrieval import Dense
from bothways.storage import new_folder
from bothways.tasks.classification.spec import LabelPrediction
from bothways.tasks.heads.targets import Classification
from bothways.tasks.task import HeadTask
from bothways.training.options import TrainingArguments
from bothways.training.state import TrainingRecord


def produce(output: Path, settings: DemoSettings, show: Callable[[str], None]) -> Path:
    """Run all stages, write the folder ``output`` completely or not at all, and return the path of the report."""
    with new_folder(output, overwrite=True) as folder:
        demo = Demo(folder, settings, show)
        demo.classify()
        demo.learn_two_labels()
        demo.learn_from_few()
        demo.search()
        demo.attend()
        with demo.stage("report", "Drawing the report"):
            demo.write(output)
    show("")
    show(f"Done in {duration(sum(demo.seconds.values()))}. The report: {output / REPORT}")
    show("What to run next:")
    for command in commands(output):
        show(f"  {command}")
    return output / REPORT


class Demo:
    """The stages of the demo; each adds sections to the report and results to ``demo.json``."""

    def __init__(self, folder: Path, settings: DemoSettings, show: Callable[[str], None]) -> None:
        self.folder, self.settings, self.show = folder, settings, show
        self.news = copy_news(folder / DATA, settings.rows)
        self.rows = {split: read_rows(path) for split, path in self.news.items()}
        self.fitting: TrainingArguments = {
            "epochs": settings.epochs,
            "learning_rate": settings.learning_rate,
            "batch_size": settings.batch_size,
            "seed": settings.seed,
        }
        self.seconds: dict[str, float] = {}
        self.tested: dict[str, Tested] = {}
        self.sections: list[html.Section] = []
        self.figures: dict[str, Any] = {}

    @contextmanager
    def stage(self, name: str, description: str) -> Iterator[None]:
        """Print a line about a stage, and record its duration."""
        self.show(f"[{len(self.seconds) + 1}/7] {description}")
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started

    def say(self, line: object) -> None:
        """Print a result of a stage."""
        self.show(f"      {line}")

    def add(self, title: str, *blocks: html.Block) -> None:
        """Add a section to the report."""
        self.sections.append(html.Section(title, blocks))

    def classify(self) -> None:
        """Fine-tune, calibrate, evaluate and save a category classifier, and classify unseen headlines."""
        with self.stage("category", f"Fine-tuning {MINILM} on the category of {len(self.rows['train'])} news texts"):
            classifier = TextClassifier.from_pretrained(MINILM)
            record = classifier.fit(
                self.news["train"],
                validation=self.news["validation"],
                label="category",
                # The report explains this method; another may be better for these texts.
                calibration="temperature",
                **self.fitting,
            )
            category = self.tested["category"] = self.test(classifier, record, "category")
            classifier.save(self.folder / MODEL_FOLDER)
        device = classifier.model.device
        self.figures["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
        self.say(category)
        self.sections += story.tested_sections(category, len(self.rows["validation"]))
        with self.stage("headlines", "Classifying headlines that are in none of the files"):
            unseen = headlines()
            texts = [row["text"] for row in unseen]
            answers: list[Classification] = classifier.predict(texts, coverage=COVERAGE, show_progress=False)
            predicted = list(zip(unseen, answers, strict=True))
        for row, each in predicted:
            unlike = "  (unlike the training texts)" if each.out_of_domain else ""
            self.say(f"{each.label} {each.probability:.2f}  {row['text']}{unlike}")
        self.add("Unseen headlines", *tell("headlines", predicted, COVERAGE), story.predictions(predicted))

    def learn_two_labels(self) -> None:
        """Fine-tune one encoder on category and sentiment, and calibrate a head for each."""
        both = f"Fine-tuning {MINILM} on two labels at once: the category, and the sentiment, which is harder"
        with self.stage("both labels", both):
            model = MultiTask.from_pretrained(MINILM)
            train, validation = self.news["train"], self.news["validation"]
            options = {"calibration": "temperature"}
            tasks = {label: TaskData(train, validation, label=label, **options) for label in ("category", "sentiment")}
            # Each label has its own updates: an epoch has twice as many as in the training above.
            fitting: TrainingArguments = {**self.fitting, "epochs": self.settings.epochs_of_two_labels}
            record = model.fit(tasks, **fitting)
            category, sentiment = (self.test(model.part(label), record, label) for label in tasks)
        self.tested |= {"category_beside_sentiment": category, "sentiment": sentiment}
        self.say(f"category: {category}")
        self.say(f"sentiment: {sentiment}")
        words = tell("together", category, self.tested["category"], sentiment)
        self.add("Two labels from one encoder", *words, story.confusion(sentiment.after))

    def learn_from_few(self) -> None:
        """Train a classifier on a few texts of each category, drawn with the seed."""
        with self.stage("few texts", f"Training on {self.settings.shots} texts of each category only"):
            rows = list(self.rows["train"])
            random.Random(self.settings.seed).shuffle(rows)
            shown: list[Row] = []
            for category in sorted({row["category"] for row in rows}):
                shown += [row for row in rows if row["category"] == category][: self.settings.shots]
            few = TextClassifier.from_pretrained(MINILM)
            # Without validation texts, cross-validation would train four more classifiers.
            validation = self.news["validation"]
            finished(few.fit(shown, validation=validation, label="category", seed=self.settings.seed))
            report = few.evaluate(self.news["test"], resamples=self.settings.resamples)
        self.say(f"accuracy {with_interval(report.accuracy, 2)} (on the test texts)")
        words = tell("few", report, len(shown), len(rows), self.tested["category"].after)
        self.add("A few texts of each category", *words)
        self.figures["few_shot"] = {"texts": len(shown), "test": report.to_dict()}

    def search(self) -> None:
        """Index all news texts with the pretrained model, save the index, and search it."""
        news = {row["id"]: row for rows in self.rows.values() for row in rows}
        with self.stage("search", f"Indexing all {len(news)} texts with the pretrained model, and searching"):
            embedder = SentenceEmbedder.from_pretrained(MINILM)
            semantic = SemanticSearch.build(embedder, [row["text"] for row in news.values()], ids=list(news))
            semantic.save(self.folder / INDEX)
            answers = dict(zip(QUERIES, semantic.search(QUERIES, 3, mode=Dense()), strict=True))
            index = SearchIndex.open(self.folder / INDEX)
            nearest = zip(news, index.search(index.vectors_ND, 3), strict=True)
            others = {id_: [hit for hit in hits if hit.id != id_][:2] for id_, hits in nearest}
        for query, (hit, *_) in answers.items():
            self.say(f"“{query}”: {textwrap.shorten(hit.text, 72, placeholder=' …')}")
        found = {f"Query: “{query}”": hits for query, hits in answers.items()}
        first = {row["category"]: row["id"] for row in reversed(self.rows["test"])}
        for id_ in (row["id"] for row in self.rows["test"] if row["id"] in first.values()):
            found[f"Nearest to the test text “{news[id_]['text']}”"] = others[id_]
        labels = [row["category"] for row in news.values()]
        agreement = sum(news[id_]["category"] == news[hits[0].id]["category"] for id_, hits in others.items())
        by_chance = sum(labels.count(label) - 1 for label in labels) / (len(labels) - 1)
        words = tell("search", len(news), agreement / len(news), by_chance / len(news))
        lists = (story.hits(name, listed, news) for name, listed in found.items())
        self.add("Search by meaning", *words, *lists)
        self.figures["nearest_text_has_the_same_category"] = agreement / len(news)

    def attend(self) -> None:
        """Show one attention head, with and without a causal mask."""
        with self.stage("attention", "Looking at one attention head, with and without a causal mask"):
            attention = attention_of(load(MINILM), SENTENCE)
        self.sections.insert(-1, html.Section("Reading both ways", story.attention_blocks(attention)))

    def test(self, classifier: HeadTask, record: TrainingRecord, label: str) -> Tested:
        """Evaluate a classifier on the test texts, before and after calibration."""
        finished(record)
        rows, resamples = self.rows["test"], self.settings.resamples
        truth = [row[label] for row in rows]
        scored = classifier.score(self.news["test"], label=label)
        decide = classifier.fitted.outputs.decide
        before, after = decide(scored.scores, LabelPrediction(calibrated=False)), decide(scored.scores)
        report = classifier.evaluate(scored, resamples=resamples)
        uncalibrated = classifier.evaluate(scored, calibrated=False, resamples=resamples)
        calibration = classifier.confidence.calibration
        temperature = calibration if isinstance(calibration, Temperature) else Temperature(1.0)
        change = nll_change(before, after, truth, resamples)
        wrong = mistakes([row["text"] for row in rows], truth, after)
        return Tested(record, temperature, uncalibrated, report, change, wrong)

    def write(self, output: Path) -> None:
        """Write the report, with commands that name ``output``, and ``demo.json``."""
        versions = {name: version(name) for name in ("bothways", "torch", "tokenizers", "numpy")}
        self.figures |= {
            "made_by": MADE_BY,
            "versions": {"Python": platform.python_version(), **versions},
            "model": MINILM,
            "seed": self.settings.seed,
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
        }
        for name, each in self.tested.items():
            self.figures[name] = {
                "temperature": asdict(each.temperature),
                "training": each.record.to_dict(),
                "test_uncalibrated": each.before.to_dict(),
                "test": each.after.to_dict(),
            }
        self.add("What to run next", *tell("next"), html.Code(commands(output)))
        counts = {split: len(rows) for split, rows in self.rows.items()}
        summary = story.summary(self.settings, counts, self.figures, self.tested)
        page = html.Page(
            "Short news, read both ways",
            "A small encoder fine-tuned, calibrated, evaluated, used for search and inspected, offline on one machine.",
            (html.Section("In short", summary), *self.sections),
            "Written by “bothways demo”. All news texts are invented.",
        )
        html.write(page, self.folder / REPORT)
        (self.folder / FIGURES).write_text(json.dumps(self.figures, indent=2) + "\n", encoding="utf-8")


def finished(record: TrainingRecord) -> None:
    """Raise the interruption again if the training was interrupted."""
    if record.interrupted:
        raise interruption(record.signal)


def nll_change(
    before: Sequence[Classification], after: Sequence[Classification], truth: Sequence[str], resamples: int
) -> Estimate:
    """Return the mean change in the texts' negative log-likelihood by calibration, with its paired interval."""
    triples = zip(before, after, truth, strict=True)
    changes_N = np.array([math.log(old.probabilities[label] / new.probabilities[label]) for old, new, label in triples])
    rows = len(changes_N)
    return bootstrap_estimates(lambda counts_RN: (counts_RN @ changes_N / rows)[:, None], rows, resamples=resamples)[0]


def mistakes(
    texts: Sequence[str], truth: Sequence[str], predictions: Sequence[Classification]
) -> list[tuple[str, str, Classification]]:
    """Return text, true label and prediction for each wrong prediction, the most confident first."""
    wrong = [each for each in zip(texts, truth, predictions, strict=True) if each[2].label != each[1]]
    return sorted(wrong, key=lambda each: -each[2].probability)
