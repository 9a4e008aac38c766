"""The demo's settings and news texts, and the check of its output folder."""

import json
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from bothways.errors import OutputExists
from bothways.storage import already_there, check_folder_place

QUERIES = ("somebody stole personal data", "an athlete comes back after an injury", "a late goal decides the match")
# The pronoun comes before its noun, so only a model that attends to the right can resolve it.
SENTENCE, PRONOUN = "Because it was tired, the cat sat on the mat.", "it"
COVERAGE = 0.9

SPLITS = ("train", "validation", "test")
Row = dict[str, Any]

MADE_BY = "bothways demo"
FIGURES, REPORT, MODEL_FOLDER, INDEX, DATA = "demo.json", "report.html", "model", "index", "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Settings of training and evaluation.

    Attributes:
        seed: Seed of the training. The bootstrap uses the default seed of ``bothways evaluate`` for the same intervals.
        epochs: Passes over the training texts, for the category classifier.
        epochs_of_two_labels: Passes over the training texts for each label of the model that learns two labels.
        learning_rate: Peak learning rate of the schedule.
        batch_size: Number of texts per update.
        resamples: Number of bootstrap resamples.
        rows: Maximum number of rows to read of each news file.
        shots: Texts per category for training the few-shot classifier.
    """

    seed: int = 1
    epochs: int = 2
    epochs_of_two_labels: int = 1
    learning_rate: float = 1e-4
    batch_size: int = 16
    resamples: int = 1000
    rows: int | None = None
    shots: int = 5


def check_replaceable(output: Path, *, overwrite: bool) -> None:
    """Raise OutputExists if ``output`` is an earlier demo, unless ``overwrite``, or has files of anything else."""
    advice = "Choose another folder for the demo, or move this one away."
    if output.is_dir():
        found = {path.name for path in output.iterdir()}
        if found and not _made_here(output / FIGURES):
            raise OutputExists(f"{str(output)!r} is a folder that was not written by the demo. {advice}")
        others = sorted(found - {FIGURES, REPORT, MODEL_FOLDER, INDEX, DATA})
        if others:
            raise OutputExists(f"{str(output)!r} has files not written by the demo: {', '.join(others[:5])}. {advice}")
        if found and not overwrite:
            raise already_there(output, "the demo")
    elif output.exists():
        raise OutputExists(f"{str(output)!r} is a file, but the demo writes a folder. {advice}")
    check_folder_place(output)


def copy_news(folder: Path, rows: int | None) -> dict[str, Path]:
    """Copy the news files (at most ``rows`` rows of each) and their data card into ``folder``; return the paths."""
    folder.mkdir()
    shipped = files("bothways.demo") / "data"
    (folder / "README.md").write_bytes((shipped / "README.md").read_bytes())
    news = {split: folder / f"news.{split}.jsonl" for split in SPLITS}
    for path in news.values():
        path.write_bytes(b"".join((shipped / path.name).read_bytes().splitlines(keepends=True)[:rows]))
    return news


def read_rows(path: Traversable) -> list[Row]:
    """Return the rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def headlines() -> list[Row]:
    """Return headlines that are in none of the news files; ``category`` is None if no category fits."""
    return read_rows(files("bothways.demo") / "data" / "headlines.jsonl")


def _made_here(path: Path) -> bool:
    try:
        figures = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(figures, dict) and figures.get("made_by") == MADE_BY
