"""The stages of a training besides its updates, such as a linear start, a warm-up, or a pass over the held-out rows.

Each is shown by its name and measured. If the training has a folder for checkpoints, the result of a finished stage is
stored there, and a resumed run reads it instead of repeating the stage. The name of its folder is a checksum of
everything that determines the result, such as weights, tokens and options::

    checkpoint-stages/
        4f0a1b2c3d4e5f60/
            result.safetensors    the tensors of the result, and the seconds that it took
            checksums.json        SHA-256 of this file
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.checkpoints.files import read_safetensors, write_tensors
from bothways.errors import CorruptCheckpoint, UnknownModel
from bothways.interrupts import interruption
from bothways.progress import Progress, Times, add_time, reporting, stage, timed
from bothways.storage import new_folder, remove_leftovers
from bothways.training.checkpoints import CheckpointFolder, check_sealed, recorded_arithmetic, seal
from bothways.training.forecast import Forecast, Reads
from bothways.training.loop import resolved_for
from bothways.training.loop import train as train
from bothways.training.objective import Objective, Payload
from bothways.training.options import STAGES, TrainingOptions, check_one_length
from bothways.training.state import TrainingRecord
from bothways.training.workers import copy_weights, current_workers, restore_weights

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder

_RESULT, _SECONDS = "result.safetensors", "seconds"
_MOST_SHOWN = 5  # rows to look at

# Number of updates that the speed of a machine is measured with, and maximum part of the training that they are.
_TRIED, _MOST_TRIED = 3, 0.1

Tensors: TypeAlias = Mapping[str, Tensor]
Part: TypeAlias = nn.Module | Tensor | str  # something that determines the result of a stage
ResultT = TypeVar("ResultT")

_FOLDER: ContextVar[Path | None] = ContextVar("folder of stages", default=None)


@contextmanager
def stages_of(options: TrainingOptions) -> Iterator[Times]:
    """Show and measure the stages of a training within the block, and keep their results beside its checkpoints.

    Raises:
        InvalidInput: Both epochs and updates are given.
        OutputExists: The folder holds an earlier run and ``resume`` is false.
    """
    check_one_length(options.epochs, options.updates)
    folder = None if options.checkpoints is None else Path(options.checkpoints) / STAGES
    if folder is not None and current_workers().rank == 0:
        CheckpointFolder(folder.parent, resume=options.resume)
        remove_leftovers(folder, "[0-9a-f]{16}")
        if not options.resume:
            shutil.rmtree(folder, ignore_errors=True)
    with _stored_in(folder), reporting(options.show_progress), timed() as times:
        yield times


@contextmanager
def _stored_in(folder: Path | None) -> Iterator[None]:
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


class Carded(Protocol):
    """A trained model with its card."""

    @property
    def card(self) -> Mapping[str, object]: ...


@runtime_checkable
class Diagnosed(Protocol):
    """A trained model with held-out rows whose labels may be wrong, as sentences."""

    @property
    def issues(self) -> Sequence[object]: ...


def measured(record: TrainingRecord, times: Times, fitted: Carded | None = None) -> TrainingRecord:
    """Return the record with the times of all stages, and with notes and rows to look at of the model."""
    notes = () if fitted is None else tuple(_notes(fitted.card))
    issues: Sequence[object] = fitted.issues if isinstance(fitted, Diagnosed) else ()
    look_at = tuple(str(each) for each in issues[:_MOST_SHOWN])
    return replace(record, seconds=times.seconds, stages=dict(times.stages), notes=notes, look_at=look_at)


def _notes(card: Mapping[str, object], name: str = "") -> Iterator[str]:
    """Yield the notes of a card; those of the cards of several tasks begin with the name of the task."""
    for key, part in card.items():
        match key, part:
            case "notes", list(notes):
                yield from (f"{name}{note}" for note in notes)
            case _, Mapping():
                yield from _notes(part, f"{name}{key}: ")


@dataclass(frozen=True, slots=True)
class Kind(Generic[ResultT]):
    """Converts the result of a stage to tensors, and back."""

    stored: Callable[[ResultT], Tensors]
    restored: Callable[[Tensors], ResultT]


TENSORS: Kind[Tensors] = Kind(lambda tensors: tensors, lambda tensors: tensors)


def _of_rows(rows: Sequence[NDArray[np.float64]]) -> Tensors:
    counts = [-1 if each.ndim == 1 else len(each) for each in rows]
    return {
        "rows": torch.from_numpy(np.concatenate([np.atleast_2d(each) for each in rows])),
        "counts": torch.tensor(counts),
    }


def _to_rows(tensors: Tensors) -> list[NDArray[np.float64]]:
    counts = tensors["counts"].tolist()
    parts = np.split(tensors["rows"].numpy(), np.cumsum([abs(count) for count in counts])[:-1])
    return [part[0] if count < 0 else part for part, count in zip(parts, counts, strict=True)]


ARRAY: Kind[NDArray[np.float32]] = Kind(
    lambda array: {"array": torch.from_numpy(array)}, lambda tensors: tensors["array"].numpy()
)
ROWS = Kind(_of_rows, _to_rows)
"""Arrays (C), or (n, C) with any n, of the same C."""


def kept(
    name: str,
    kind: Kind[ResultT],
    compute: Callable[[Progress], ResultT],
    *parts: Part,
    total: int | None = None,
) -> ResultT:
    """Return the stored result of a stage, or compute and store it.

    Args:
        name: The stage in plain words, for the progress bar.
        kind: How the result is stored.
        compute: Computes the result; its argument is the progress bar.
        parts: Everything that determines the result: modules by their weights, tensors, and texts.
        total: Number of units for the progress bar; None if unknown.
    """
    folder, workers = _FOLDER.get(), current_workers()
    if folder is not None:
        folder = folder / _digest([name, str(recorded_arithmetic()), *parts])
    found = None if folder is None else _read(folder)
    if all(workers.gather(found is not None)) and found is not None:
        add_time(name, found.pop(_SECONDS).item())
        return kind.restored(found)
    with _stored_in(None), timed() as times, stage(name, total) as bar:  # stages within it are stored with it
        result = compute(bar)
    if folder is not None and workers.rank == 0:
        tensors = {name: tensor.contiguous() for name, tensor in kind.stored(result).items()}
        tensors[_SECONDS] = torch.tensor(times.seconds, dtype=torch.float64)
        shutil.rmtree(folder, ignore_errors=True)
        with new_folder(folder) as new:
            write_tensors(new / _RESULT, tensors)
            seal(new)
    return result


def train_within(
    objective: Objective[Payload],
    options: TrainingOptions,
    model: "PretrainedEncoder",
    bar: Progress | None = None,
) -> None:
    """Train an objective as a stage of another training, without log or checkpoints, and show the updates on its bar.

    Raises KeyboardInterrupt on a signal.
    """
    options = replace(options, resume=False, keep_diverged=False)
    alone = replace(options, log=None, log_to=None, checkpoints=None, checkpoint_every_updates=None)
    record = train(objective, alone, model, bar=bar)
    if record.interrupted:
        raise interruption(record.signal)


class _Clock:
    """A progress bar that records when each update ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def advance(self, amount: int = 1, note: str = "") -> None:
        if note and not amount:  # the report of an update, which waits for the device
            self.ends.append(time.perf_counter())

    def say(self, line: str) -> None:
        pass


def announce(
    objective: Objective[Payload],
    trial: Objective[Payload],
    tokens: float,
    options: TrainingOptions,
    model: "PretrainedEncoder",
    reads: Reads,
    measure: Callable[[], tuple[float, float]],
) -> Reads:
    """Show the estimated duration of a training, measured on a few updates, and restore the weights.

    A training of few updates or of several processes is not measured.

    Args:
        objective: The objective of the training.
        trial: The same without a validation, with updates that may be smaller.
        tokens: Tokens of an update of the training.
        options: The options of the training.
        model: The encoder that is trained.
        reads: The tokens that the training reads besides those of its updates.
        measure: Returns the seconds to read a token, and those of everything before the training but reading.

    Returns:
        ``reads`` with the measured cost.
    """
    length, per_epoch = resolved_for(objective, options, model), objective.updates_per_epoch()
    epochs = length.epochs or 1
    total = length.updates or epochs * per_epoch
    updates = (update.tokens for epoch in range(_TRIED) for update in trial.updates(epoch, 0))
    tried = list(islice(updates, _TRIED))
    trained = (total * tokens + reads.warm_up) * (1 + reads.folds)
    if sum(tried) > _MOST_TRIED * trained or current_workers().count > 1:
        return reads
    few = replace(options, epochs=None, updates=_TRIED, total_tokens=None, patience=None, log_every_updates=1)
    with stage("measuring the speed of this machine"):
        weights, clock = copy_weights(trial.module), _Clock()
        try:
            train_within(trial, few, model, clock)
        finally:
            restore_weights(trial.module, weights)
        seconds = (clock.ends[-1] - clock.ends[0]) / sum(tried[1:])  # the first update also allocates memory
        read, besides = measure()
    reads = replace(reads, cost=read / seconds)
    Forecast(reads, epochs, per_epoch, total).before(seconds, tokens, besides)
    return reads


def second_time(compute: Callable[[], object]) -> float:
    """Return the seconds of a computation; the first time, which also allocates memory, is left out."""
    compute()
    began = time.perf_counter()
    compute()
    return time.perf_counter() - began


def _read(folder: Path) -> dict[str, Tensor] | None:
    """Return a stored result; None if there is none, or it is damaged."""
    try:
        if not folder.is_dir():
            return None
        check_sealed(folder, _RESULT)
        return read_safetensors(folder / _RESULT)
    except (CorruptCheckpoint, UnknownModel, TypeError, ValueError):
        return None


def _digest(parts: Iterable[Part]) -> str:
    content = hashlib.sha256()
    for part in parts:
        match part:
            case nn.Module():
                named = part.state_dict().items()
            case Tensor():
                named = {"": part}.items()
            case _:
                named = {part: torch.empty(0)}.items()
        for name, tensor in named:
            content.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            content.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:16]
