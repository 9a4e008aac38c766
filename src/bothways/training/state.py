"""Checkpoints of a run: all that an exact continuation needs, without pickle.

A checkpoint is a folder ``checkpoint-<number>`` that appears by one rename, so whenever the process is killed the
newest such folder is complete. The one before is removed only then::

    checkpoint-00000007/
        weights.safetensors       the model now
        kept.safetensors          the model at the epoch that is kept so far, after the first
        optimizer.safetensors     "<kind>/<parameter>": the moments and step counters of AdamW
        carried.safetensors       what an update leaves for the next one, where there is something
        state.json                position, losses, validations, random generators, settings, identity
        checksums.json            SHA-256 of each of these files; checkpoints of format 3 have none

Several processes write the tensors in parts instead, see `bothways.training.shared_checkpoints`.
"""

import dataclasses
import json
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from bothways.checkpoints.files import read_json, read_safetensors, sha256_of, verify_checksums
from bothways.checkpoints.save import write_json, write_tensors
from bothways.errors import CorruptCheckpoint, InvalidInput, OutputExists, UnknownModel
from bothways.storage import new_folder, remove_leftovers
from bothways.training.record import EpochValidation, highest_of, kept_of
from bothways.training.seeding import RandomState
from bothways.training.weights import Weights

_FORMAT, _WITHOUT_CHECKSUMS, _IN_PARTS = 4, 3, 5
_PREFIX = "checkpoint-"
_STATE, _CHECKSUMS = "state.json", "checksums.json"
_WEIGHTS, _OPTIMIZER, _KEPT = "weights.safetensors", "optimizer.safetensors", "kept.safetensors"
_CARRIED = "carried.safetensors"


_ADVICE = "Remove the folder of the checkpoints and train again."


@dataclass(slots=True)
class RunState:
    """State of a run between two updates.

    Attributes:
        epoch: Epochs that are finished, their validation included.
        update_in_epoch: Updates done of the epoch that is not.
        updates: Updates done in all.
        tokens: Tokens read in them.
        seconds: Wall time of the run.
        log_lines: Lines written to the log.
        losses: Mean loss per unit, for each update that was not skipped.
        validations: One for each validated epoch.
        skipped: Updates that were not taken, as their loss or gradient was not finite.
    """

    epoch: int = 0
    update_in_epoch: int = 0
    updates: int = 0
    tokens: int = 0
    seconds: float = 0.0
    log_lines: int = 0
    losses: list[float] = field(default_factory=list)
    validations: list[EpochValidation] = field(default_factory=list)
    skipped: int = 0

    @property
    def kept_epoch(self) -> int | None:
        """The epoch, from 1, whose weights would be kept now; 0 for those that the run began with."""
        kept = kept_of(self.validations)
        return None if kept is None else kept.epoch

    def out_of_patience(self, patience: int | None) -> bool:
        """Return True after ``patience`` epochs in a row without a better score."""
        highest = highest_of(self.validations)
        if patience is None or highest is None:
            return False
        return self.validations[-1].epoch - highest.epoch >= patience

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RunState":
        """Return the state that ``dataclasses.asdict`` made JSON values of."""
        validations = [EpochValidation(**validation) for validation in values["validations"]]
        return cls(**{**values, "validations": validations})

    def check(self, *, epochs: int, per_epoch: int, total: int) -> None:
        """Refuse a state to which no run of so many epochs, of so many updates each, can have come.

        The last epoch has fewer where the total says so.

        Raises:
            CorruptCheckpoint: A value is out of its range, or contradicts another.
        """
        counts = ("epoch", "update_in_epoch", "updates", "tokens", "log_lines", "skipped")
        wrong = next((name for name in counts if not _is_count(getattr(self, name))), None) or next(
            (name for name, fits in self._fits(epochs, per_epoch, total) if not fits), None
        )
        if wrong is not None:
            raise CorruptCheckpoint(
                f"the {_STATE} of the checkpoint has {wrong} {getattr(self, wrong)!r:.80}, which a run of {epochs} "
                f"epochs of {per_epoch} updates cannot have come to. {_ADVICE}"
            )

    def _fits(self, epochs: int, per_epoch: int, total: int) -> Iterator[tuple[str, bool]]:
        """Names of values, and whether they fit those before them."""
        yield "epoch", self.epoch <= epochs
        yield "update_in_epoch", self.update_in_epoch <= (0 if self.epoch == epochs else per_epoch)
        yield "updates", self.updates == min(self.epoch * per_epoch, total) + self.update_in_epoch <= total
        yield "seconds", _is_finite(self.seconds) and self.seconds >= 0
        yield "losses", _are_finite(self.losses) and len(self.losses) == self.updates - self.skipped
        finished = [each.epoch for each in self.validations]
        rising = all(_is_count(epoch) and epoch <= self.epoch for epoch in finished) and finished == sorted(
            set(finished)
        )
        yield "validations", rising and all(_is_of(each, per_epoch, total) for each in self.validations)


@dataclass(frozen=True, slots=True)
class TrainingCheckpoint:
    """All that an exact continuation needs.

    Attributes:
        weights: The model's.
        kept: The model's at the epoch that is kept so far, without validation the latest; None in the first epoch.
        optimizer: Its state, flat, by name.
        random: The global generators.
        state: Where the run stands.
        conditions: Settings and identity of the run, which a continuation must share.
        others: The global generators of the other processes of the run, by rank.
        carried: What the last update left for the next one, by name: in this process when it is saved, in all when it
            is loaded.
    """

    weights: Weights
    kept: Weights | None
    optimizer: dict[str, Tensor]
    random: RandomState
    state: RunState
    conditions: Mapping[str, Any]
    others: tuple[RandomState, ...] = ()
    carried: Mapping[str, Tensor] = field(default_factory=dict)


class Checkpoints(Protocol):
    """The checkpoints of a run."""

    def save(self, checkpoint: TrainingCheckpoint) -> None:
        """Write ``checkpoint``, now or meanwhile, then remove the one before it."""

    def load(self) -> TrainingCheckpoint | None:
        """Return the newest checkpoint, or None."""

    def settle(self) -> None:
        """Wait until what was saved is in its place."""

    def close(self) -> None:
        """End their use."""


class CheckpointFolder:
    """The folder where one run keeps its newest checkpoint.

    Args:
        path: The folder; made when the first checkpoint is written.
        resume: Whether a checkpoint that is there is to be continued.

    Raises:
        OutputExists: There are checkpoints, and ``resume`` is false.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        found = self._complete()
        if found and not resume:
            raise OutputExists(
                f"the folder {str(path)!r} has checkpoints of an earlier run. Resume it, choose another folder, or "
                "remove them."
            )
        # What a killed process was writing, or had no time to remove.
        remove_leftovers(path, rf"{_PREFIX}\d+")
        for leftover in [*path.glob(f".{_PREFIX}????????.????????"), *found[:-1]]:  # the first as once named
            shutil.rmtree(leftover)

    def save(self, checkpoint: TrainingCheckpoint) -> None:
        """Write ``checkpoint``, then remove the one before it.

        Raises:
            OutOfDisk: The disk is full; the checkpoint before is intact.
        """
        with self.next_one() as folder:
            describe(folder, checkpoint, in_parts=False)
            write_tensors(folder / _WEIGHTS, checkpoint.weights)
            write_tensors(folder / _OPTIMIZER, checkpoint.optimizer)
            if checkpoint.kept is not None:
                write_tensors(folder / _KEPT, checkpoint.kept)
            if checkpoint.carried:
                write_tensors(folder / _CARRIED, checkpoint.carried)
            seal(folder)

    def settle(self) -> None:
        """Return at once: what was saved is in its place."""

    def close(self) -> None:
        """End the use of the folder."""

    @contextmanager
    def next_one(self) -> Iterator[Path]:
        """Give a folder to be filled, which becomes the newest checkpoint; then the one before is removed.

        Raises:
            OutOfDisk: The disk is full; the checkpoint before is intact.
        """
        before = self._complete()
        number = int(before[-1].name.removeprefix(_PREFIX)) + 1 if before else 1
        with new_folder(self._path / f"{_PREFIX}{number:08d}") as folder:
            yield folder
        for older in before:
            shutil.rmtree(older)

    def load(self) -> TrainingCheckpoint | None:
        """Return the newest checkpoint; None if no complete one was ever written.

        Raises:
            CorruptCheckpoint: A file is missing, damaged, or not the one that was written.
        """
        complete = self._complete()
        if not complete:
            return None
        folder = complete[-1]
        try:
            return _read(folder)
        except (
            *(CorruptCheckpoint, UnknownModel),
            *(AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError),
        ) as error:
            raise CorruptCheckpoint(f"the checkpoint {str(folder)!r} cannot be read: {error} {_ADVICE}") from error

    def _complete(self) -> list[Path]:
        found = (path for path in self._path.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit())
        return sorted(found)


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    """Yield the names of conditions that are not the same, with both values; ``"absent"`` for one that is not there."""
    one, other = (dict(_flat(json.loads(json.dumps(each)))) for each in (first, second))
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other or one[name] != other[name]:
            yield name, one.get(name, "absent"), other.get(name, "absent")


def check_conditions(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a run under other conditions.

    Raises:
        InvalidInput: They differ; the message names each difference.
    """
    found = [f"{name} was {before!r} and is now {after!r}" for name, before, after in differences(stored, now)]
    if found:
        raise InvalidInput(
            f"this run cannot be resumed, it is not the one that was checkpointed: {'; '.join(found)}. "
            "Resume under the same conditions, or begin again (--overwrite, or another checkpoint folder)."
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def describe(folder: Path, checkpoint: TrainingCheckpoint, *, in_parts: bool) -> None:
    """Write all of a checkpoint but its tensors, which follow whole or in parts."""
    values = {
        "format": _IN_PARTS if in_parts else _FORMAT,
        "state": dataclasses.asdict(checkpoint.state),
        "random": checkpoint.random.to_dict(),
        "others": [each.to_dict() for each in checkpoint.others],
        "conditions": checkpoint.conditions,
    }
    write_json(folder / _STATE, values)


def seal(folder: Path) -> None:
    """Write the checksums of a checkpoint's files, as the last one."""
    write_json(folder / _CHECKSUMS, {path.name: sha256_of(path) for path in sorted(folder.iterdir())})


def tensors_of(checkpoint: TrainingCheckpoint) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint in one table, as those that are written in parts."""
    tables: dict[str, Mapping[str, Tensor]] = {
        "weights": checkpoint.weights,
        "kept": checkpoint.kept or {},
        "optimizer": checkpoint.optimizer,
        "carried": checkpoint.carried,
    }
    return {f"{table}/{name}": value for table, values in tables.items() for name, value in values.items()}


def _read(folder: Path) -> TrainingCheckpoint:
    checksums: dict[str, Any] | None = read_json(folder / _CHECKSUMS) if (folder / _CHECKSUMS).is_file() else None
    verify_checksums(folder, {_STATE: "none", **checksums} if checksums is not None else {})
    values: dict[str, Any] = read_json(folder / _STATE)
    expected = (_WITHOUT_CHECKSUMS,) if checksums is None else (_FORMAT, _IN_PARTS)
    if values["format"] not in expected:
        problem = (
            f"it lacks its {_CHECKSUMS}" if values["format"] in (_FORMAT, _IN_PARTS) else "another version wrote it"
        )
        raise CorruptCheckpoint(f"{problem}: expected format {expected[0]}, got {values['format']!r}.")
    state = RunState.from_dict(values["state"])
    whole = values["format"] != _IN_PARTS
    tables = (_whole_tables if whole else _tables_in_parts)(folder, checksums, kept=state.epoch > 0)
    return TrainingCheckpoint(
        weights=tables["weights"],
        kept=tables["kept"] if state.epoch else None,
        optimizer=tables["optimizer"],
        random=RandomState.from_dict(values["random"]),
        state=state,
        conditions=dict(values["conditions"]),
        others=tuple(map(RandomState.from_dict, values.get("others", []))),
        carried=tables["carried"],
    )


def _whole_tables(folder: Path, checksums: Mapping[str, Any] | None, *, kept: bool) -> dict[str, Weights]:
    """Read the tensors that one process has written."""
    files = {"weights": _WEIGHTS, "optimizer": _OPTIMIZER} | ({"kept": _KEPT} if kept else {})
    if checksums is not None and {*checksums} - {_CARRIED} != {_STATE, *files.values()}:
        listed = ", ".join(sorted([*files.values(), _STATE]))
        raise CorruptCheckpoint(f"{_CHECKSUMS} must list {listed} after {'an' if kept else 'no'} epoch.")
    files |= {"carried": _CARRIED} if checksums and _CARRIED in checksums else {}
    return {"carried": {}, **{table: read_safetensors(folder / file) for table, file in files.items()}}


def _tables_in_parts(folder: Path, checksums: Mapping[str, Any] | None, *, kept: bool) -> dict[str, Weights]:
    """Read the tensors that several processes have written, and put their parts together."""
    # Only here: runs of one process do without torch.distributed.
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    if {path.name for path in folder.glob("*.safetensors")} != {*(checksums or {})} - {_STATE}:
        raise CorruptCheckpoint(f"{_CHECKSUMS} must list all of its safetensors files, and no others.")
    reader = HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        for name, each in stored.items()
        if isinstance(each, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it should be
        load(tensors, storage_reader=reader, no_dist=True)
    tables: dict[str, Weights] = {
        table: {} for table in ("weights", "optimizer", "carried", *(["kept"] if kept else []))
    }
    for key, value in tensors.items():
        table, _, name = key.partition("/")
        tables[table][name] = value
    return tables


def _is_of(validation: EpochValidation, per_epoch: int, total: int) -> bool:
    """Return whether a validation can have come after the updates of its epoch."""
    error, metrics = validation.standard_error, validation.metrics
    return (
        validation.update == min(validation.epoch * per_epoch, total)
        and _is_finite(validation.score)
        and (_is_finite(error) and (error >= 0 or validation.epoch == 0))
        and isinstance(metrics, dict)
        and all(type(value) in (int, float) for value in metrics.values())
    )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _are_finite(values: object) -> bool:
    return isinstance(values, list) and all(map(_is_finite, values))
