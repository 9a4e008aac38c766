"""Speed and memory of models on this machine, each built at random weights in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bothways.advice.cards import full_name
from bothways.errors import BothwaysError, InvalidInput, OutOfMemory, UnsupportedConfig
from bothways.families import FAMILIES
from bothways.families.catalogue import find_published

WORKER = ("-m", "bothways.advice.worker")


@dataclass(frozen=True, slots=True)
class Job:
    """A measurement for a process to make.

    Attributes:
        name: The model's hub name.
        family: Its family.
        settings: What its ``config.json`` says.
        lengths: Tokens of a text; speed is measured at each.
        batch: Texts in a batch.
        seconds: Time to spend on each figure.
        kind: Forward passes, or training steps at the greatest length (memory only).
    """

    name: str
    family: str
    settings: Mapping[str, object]
    lengths: tuple[int, ...] = (128,)
    batch: int = 8
    seconds: float = 0.5
    kind: Literal["inference", "training"] = "inference"


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed at one length: medians over repeats.

    Attributes:
        length: Tokens of a text.
        latency_ms: Of one text alone, tokenisation not included.
        tokens_per_second: Of a batch.
    """

    length: int
    latency_ms: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one process.

    Attributes:
        name: The model's hub name.
        batch: Texts in a batch.
        threads: CPU threads that torch used.
        speeds: For each length; empty for training.
        runtime_bytes: Resident memory before the model was built; None where the system does not say.
        peak_bytes: Most resident memory of the process; None where the system does not say.
    """

    name: str
    batch: int
    threads: int
    speeds: tuple[Speed, ...]
    runtime_bytes: int | None
    peak_bytes: int | None


def job_for(
    name: str, *, lengths: Sequence[int] = (128,), batch: int = 8, seconds: float = 0.5, training: bool = False
) -> Job:
    """Return the job that measures a model of the catalogue.

    Raises:
        UnknownModel: No such model in the catalogue.
        UnsupportedConfig: Its family is not built here.
        InvalidInput: A length is below 1 or more than the model reads, or the batch or time is not positive.
    """
    full = full_name(name)
    found = find_published(FAMILIES.values(), full)
    if found is None:
        raise UnsupportedConfig(f"{full} is of a family that is not built here, so it cannot be measured.")
    family, published = found
    limit = family.config(published.settings).max_length
    if not lengths or min(lengths) < 1 or (limit is not None and max(lengths) > limit):
        raise InvalidInput(f"lengths must lie from 1 to {limit or 'any number'} for {full}, but they are {lengths}.")
    if batch < 1 or not seconds > 0:
        raise InvalidInput(f"batch must be at least 1 and seconds above 0, but they are {batch} and {seconds}.")
    kind: Literal["inference", "training"] = "training" if training else "inference"
    return Job(full, family.model_type, published.settings, tuple(lengths), batch, seconds, kind)


def measure(job: Job) -> Measured:
    """Do one job in a process of its own.

    Raises:
        OutOfMemory: The system ended the process, or it could not get the memory it needed.
        BothwaysError: The process failed otherwise; the message is its last line.
    """
    done = subprocess.run(
        [sys.executable, *WORKER],
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return _measured(job, json.loads(done.stdout))
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode == -9 or "can't allocate memory" in last or last.startswith("MemoryError"):
        raise OutOfMemory(
            f"{job.name} with {job.batch} texts of {max(job.lengths)} tokens does not fit into the memory of this "
            "machine. Take fewer or shorter texts, or a smaller model."
        )
    raise BothwaysError(f"measuring {job.name} failed: {last}")


def _measured(job: Job, found: Mapping[str, Any]) -> Measured:
    return Measured(
        name=job.name,
        batch=job.batch,
        threads=found["threads"],
        speeds=tuple(Speed(**speed) for speed in found["speeds"]),
        runtime_bytes=found["runtime_bytes"],
        peak_bytes=found["peak_bytes"],
    )
