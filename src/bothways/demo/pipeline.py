"""The demo's course: one stage after the other, said as it goes, and a folder that appears when all of it is there."""

import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch

from bothways.demo import stages, story
from bothways.demo.folder import DATA, FIGURES, INDEX, MADE_BY, MODEL_FOLDER, REPORT
from bothways.demo.news import SPLITS, copy_news, news_rows
from bothways.demo.page import report_page
from bothways.demo.results import Results, Shared, Surroundings
from bothways.demo.settings import MODEL, DemoSettings
from bothways.report import write
from bothways.storage import new_folder

Show = Callable[[str], None]
STAGES = 7


class _Course:
    """Says which stage begins, and keeps how long each took."""

    def __init__(self, show: Show) -> None:
        self.show = show
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        self.show(f"[{len(self.seconds) + 1}/{STAGES}] {what}")
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started

    def say(self, line: str) -> None:
        self.show(f"      {line}")


def produce(output: Path, settings: DemoSettings, show: Show) -> Path:
    """Run all stages into ``output``, whole or not at all, and return the path of the report.

    Raises:
        OutOfDisk: The disk is full; nothing was left behind.
    """
    course = _Course(show)
    with new_folder(output, overwrite=True) as folder:
        results = _results(folder, settings, course)
        with course.stage("report", "Drawing the report"):
            write(report_page(results, output), folder / REPORT)
            (folder / FIGURES).write_text(json.dumps(_figures(results), indent=2) + "\n", encoding="utf-8")
    show("")
    show(f"Done in {story.duration(sum(course.seconds.values()))}. The report: {output / REPORT}")
    show("What to run next:")
    for command in story.commands(output):
        show(f"  {command}")
    return output / REPORT


def _results(folder: Path, settings: DemoSettings, course: _Course) -> Results:
    data, test = folder / DATA, "calibrated, on the test texts"
    copy_news(data, settings.rows)
    counts: dict[str, int] = {split: len(news_rows(data, split)) for split in SPLITS}
    with course.stage("category", f"Fine-tuning {MODEL} on the category of {counts['train']} news texts"):
        trained = stages.train(data, "category", settings)
        category = stages.evaluate(trained, data, "category", settings)
        trained.classifier.save(folder / MODEL_FOLDER)
    course.say(f"{story.accuracy(category)}; {story.calibration_in_short(category)} ({test})")
    with course.stage("headlines", "Labelling headlines that are in none of the files"):
        told = stages.tell(trained.classifier)
    for each in told:
        outside = "  (unlike the training texts)" if each.prediction.outside else ""
        course.say(f"{each.prediction.label} {each.prediction.probability:.2f}  {each.headline.text}{outside}")
    both = "Fine-tuning it anew on two labels at once: the category, and the sentiment, which is harder"
    with course.stage("both labels", both):
        together = stages.train_together(data, settings)
        shared = Shared(**{label: stages.evaluate(each, data, label, settings) for label, each in together.items()})
    for label, found in (("category", shared.category), ("sentiment", shared.sentiment)):
        course.say(f"{label}: {story.accuracy(found)}; {story.calibration_in_short(found)} ({test})")
    with course.stage("few texts", f"Showing it {settings.shots} texts of each category, and no more"):
        few = stages.learn_from_few(data, settings)
    course.say(f"accuracy {story.with_interval(few.report.accuracy, 2)} (on the test texts)")
    with course.stage("search", f"Indexing all {sum(counts.values())} texts with the model as it comes, and searching"):
        searched = stages.search(data, folder / INDEX)
    for query in searched.queries:
        course.say(f"“{query.query}”: {story.beginning(query.hits[0].text)}")
    with course.stage("attention", "Looking at one attention head, with and without a causal mask"):
        attended = stages.attend()
    surroundings = _surroundings(trained.classifier.model.device)
    return Results(settings, surroundings, counts, category, shared, few, told, searched, attended, course.seconds)


def _surroundings(device: torch.device) -> Surroundings:
    names = ("bothways", "torch", "tokenizers", "numpy")
    versions = (("Python", platform.python_version()), *((name, version(name)) for name in names))
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
    return Surroundings(versions, kind, torch.get_num_threads())


def _figures(results: Results) -> dict[str, object]:
    """The figures for machines; the report says what they mean."""
    return {
        "made_by": MADE_BY,
        "versions": dict(results.surroundings.versions),
        "device": results.surroundings.device,
        "model": MODEL,
        "seed": results.settings.seed,
        "seconds": {name: round(value, 2) for name, value in results.seconds.items()},
        **{
            name: {
                "temperature": asdict(each.temperature),
                "training": each.record.to_dict(),
                "test_uncalibrated": each.before.to_dict(),
                "test": each.after.to_dict(),
            }
            for name, each in (
                ("category", results.category),
                ("category_beside_sentiment", results.shared.category),
                ("sentiment", results.shared.sentiment),
            )
        },
        "few_shot": {"texts": results.few.texts, "test": results.few.report.to_dict()},
        "nearest_text_has_the_same_category": results.searched.agreement,
    }
