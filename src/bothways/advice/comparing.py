"""Several models measured side by side on this machine, with what is counted and published of them."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bothways.advice.advising import YARDSTICKS
from bothways.advice.cards import ModelCard, card
from bothways.advice.costs import find_config
from bothways.advice.measuring import Measured, job_for, measure
from bothways.advice.ranking import flops_per_token
from bothways.errors import InvalidInput
from bothways.families import FAMILIES
from bothways.families.catalogue import find_published
from bothways.progress import progress

# What people choose between; those whose family is not built here are passed over.
USUAL = (
    "google-bert/bert-base-uncased",
    "distilbert/distilbert-base-uncased",
    "albert/albert-base-v2",
    "FacebookAI/roberta-base",
    "google/electra-small-discriminator",
    "microsoft/deberta-v3-small",
    "answerdotai/ModernBERT-base",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of the measurements."""

    processor: str
    cores: int
    threads: int
    python: str
    torch: str


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One model of a comparison.

    Attributes:
        card: What is counted and published of it.
        flops_per_token: Counted, for each of the comparison's lengths.
        measured: Its speed at each length, and its memory.
        accuracy: Published, on the yardstick of English models; None where nobody published one.
    """

    card: ModelCard
    flops_per_token: tuple[float, ...]
    measured: Measured
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """Models measured in the same way.

    Attributes:
        models: In the order that was asked for.
        lengths: Tokens of a text.
        batch: Texts in a batch.
        yardstick: What the published accuracies are of.
        machine: Where it was measured.
    """

    models: tuple[ComparedModel, ...]
    lengths: tuple[int, ...]
    batch: int
    yardstick: str
    machine: Machine


def usual_models() -> tuple[str, ...]:
    """Return the usual choices, as far as they can be built here."""
    return tuple(name for name in USUAL if find_published(FAMILIES.values(), name) is not None)


def compare_models(
    names: Sequence[str] = (),
    *,
    lengths: Sequence[int] = (32, 128, 512),
    batch: int = 8,
    seconds: float = 0.5,
    show_progress: bool | None = None,
) -> ModelComparison:
    """Measure models one after the other, each at random weights in a process of its own.

    Args:
        names: Models of the catalogue; the usual ones when none is given.
        lengths: Tokens of a text.
        batch: Texts in a batch.
        seconds: Time to spend on each figure.
        show_progress: Force the progress bar on or off; by default it shows on a terminal only.

    Raises:
        UnknownModel: A name is not in the catalogue.
        UnsupportedConfig: A model's family is not built here.
        InvalidInput: A length, the batch or the time makes no sense, or a model is named twice.
        OutOfMemory: A model does not fit.
    """
    ordered = tuple(sorted(set(lengths)))
    jobs = [job_for(name, lengths=ordered, batch=batch, seconds=seconds) for name in names or usual_models()]
    if len({job.name for job in jobs}) < len(jobs):
        raise InvalidInput(f"each model may be named once, but the names are {', '.join(job.name for job in jobs)}.")
    found: list[Measured] = []
    with progress("measuring", len(jobs), show=show_progress) as bar:
        for job in jobs:
            bar.advance(0, job.name)
            found.append(measure(job))
            bar.advance(1)
    models = tuple(_compared(each, ordered) for each in found)
    return ModelComparison(models, ordered, batch, str(YARDSTICKS["english"]), _machine(found[0].threads))


def _compared(measured: Measured, lengths: Sequence[int]) -> ComparedModel:
    known = card(measured.name)
    _, config = find_config(measured.name)
    scores = [score.value for score in known.scores if score.measure == YARDSTICKS["english"]]
    operations = tuple(flops_per_token(config, length) for length in lengths)
    return ComparedModel(known, operations, measured, scores[0] if scores else None)


def _machine(threads: int) -> Machine:
    import torch

    return Machine(_processor(), os.cpu_count() or 1, threads, platform.python_version(), torch.__version__)


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
