"""Speed and memory of models on this machine, each built with random weights in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from bothways.advice.cards import ModelCard, card, find_config, find_model
from bothways.advice.costs import flops_per_token
from bothways.advice.ranking import YARDSTICKS, published_accuracy
from bothways.errors import BothwaysError, InvalidInput, OutOfMemory
from bothways.progress import progress

WORKER = ("-m", "bothways.advice.worker")

# The models that people usually choose between.
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
class Job:
    """A measurement to run in a separate process."""

    name: str  # the model's hub name
    family: str  # its ``model_type``
    settings: Mapping[str, object]  # its ``config.json``
    lengths: tuple[int, ...]  # tokens of a text; speed is measured at each
    batch: int  # texts in a batch
    seconds: float  # time to spend on each timing


@dataclass(frozen=True, slots=True)
class Speed:
    """Median speed at one length.

    Attributes:
        length: Tokens of a text.
        latency_ms: Time for one text, without tokenisation.
        tokens_per_second: Speed of a batch.
    """

    length: int
    latency_ms: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured speed and memory of one model.

    Attributes:
        name: The model's hub name.
        batch: Texts in a batch.
        threads: CPU threads that torch used.
        speeds: Speed at each length.
        runtime_bytes: Resident memory before the model was built; None if the system does not report it.
        peak_bytes: Peak resident memory of the process; None if the system does not report it.
    """

    name: str
    batch: int
    threads: int
    speeds: tuple[Speed, ...]
    runtime_bytes: int | None
    peak_bytes: int | None


def job_for(name: str, *, lengths: Sequence[int] = (128,), batch: int = 8, seconds: float = 0.5) -> Job:
    """Return the job that measures a model of the catalogue."""
    family, published = find_model(name)
    limit = family.config(published.settings).max_length
    if not lengths or min(lengths) < 1 or (limit is not None and max(lengths) > limit):
        allowed = "at least 1" if limit is None else f"from 1 to {limit}"
        raise InvalidInput(f"the lengths for {published.name} must be {allowed}, got {lengths}.")
    if batch < 1 or not seconds > 0:
        raise InvalidInput(f"batch must be at least 1 and seconds above 0, got {batch} and {seconds}.")
    return Job(published.name, family.model_type, published.settings, tuple(lengths), batch, seconds)


def measure(job: Job) -> Measured:
    """Run a job in a separate process; raise `OutOfMemory`, or a `BothwaysError` with the last line of its output."""
    done = subprocess.run(
        [sys.executable, *WORKER], input=json.dumps(asdict(job)), capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        found = json.loads(done.stdout)
        speeds = tuple(Speed(**speed) for speed in found.pop("speeds"))
        return Measured(name=job.name, batch=job.batch, speeds=speeds, **found)
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode == -9 or "can't allocate memory" in last or last.startswith("MemoryError"):
        raise OutOfMemory(
            f"{job.name} with {job.batch} texts of {max(job.lengths)} tokens does not fit into the memory of this "
            "machine. Give fewer or shorter texts, or a smaller model."
        )
    raise BothwaysError(f"measuring {job.name} failed: {last}")


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One model of a comparison."""

    card: ModelCard
    flops_per_token: tuple[float, ...]  # at each length of the comparison
    measured: Measured
    accuracy: float | None  # published accuracy on the comparison's yardstick; None if unpublished


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """Models measured under the same conditions.

    Attributes:
        models: In the order of the request.
        lengths: Text lengths in tokens.
        batch: Texts in a batch.
        yardstick: Benchmark, split and metric of the published accuracies.
    """

    models: tuple[ComparedModel, ...]
    lengths: tuple[int, ...]
    batch: int
    yardstick: str


def compare_models(
    names: Sequence[str] = (),
    *,
    lengths: Sequence[int] = (32, 128, 512),
    batch: int = 8,
    seconds: float = 0.5,
    show_progress: bool | None = None,
) -> ModelComparison:
    """Measure models one after the other, each with random weights in a process of its own.

    Args:
        names: Models of the catalogue; `USUAL` when empty.
        lengths: Text lengths in tokens.
        batch: Texts in a batch.
        seconds: Time to spend on each timing.
        show_progress: Force the progress bar on or off; by default it shows on a terminal only.

    Raises:
        UnknownModel: A name is not in the catalogue.
        InvalidInput: A length, the batch or the time is out of range, or a model is named twice.
        OutOfMemory: A model does not fit into memory.
    """
    ordered = tuple(sorted(set(lengths)))
    jobs = [job_for(name, lengths=ordered, batch=batch, seconds=seconds) for name in names or USUAL]
    if len({job.name for job in jobs}) < len(jobs):
        raise InvalidInput(f"expected each model only once, got {', '.join(job.name for job in jobs)}.")
    found: list[Measured] = []
    with progress("measuring", len(jobs), show=show_progress) as bar:
        for job in jobs:
            bar.advance(0, job.name)
            found.append(measure(job))
            bar.advance(1)
    models = tuple(_compared(each, ordered) for each in found)
    return ModelComparison(models, ordered, batch, str(YARDSTICKS["english"]))


def _compared(measured: Measured, lengths: Sequence[int]) -> ComparedModel:
    known, (_, config) = card(measured.name), find_config(measured.name)
    operations = tuple(flops_per_token(config, length) for length in lengths)
    score = published_accuracy(known, "english")
    return ComparedModel(known, operations, measured, None if score is None else score.value)
