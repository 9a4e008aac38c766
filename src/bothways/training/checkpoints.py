"""Checkpoints of a run: everything needed to resume it exactly, without pickle.

A checkpoint is written under a temporary name and renamed to ``checkpoint-<number>`` when it is complete, so every
folder of that name is complete, even if the process is killed. The previous checkpoint is removed after the rename::

    checkpoint-00000007/
        weights.safetensors       the current weights
        kept.safetensors          the weights of the epoch to keep, see `kept_of`; absent in the first epoch
        optimizer.safetensors     "<kind>/<parameter>": the moments and step counters of the optimizer
        carried.safetensors       tensors that one update passes to the next, if any
        state.json                progress, losses, validations, random states, settings, identity
        checksums.json            SHA-256 of each of these files

If a run has several processes, each writes its part of the tensors, see `bothways.training.shared_checkpoints`.
"""

import dataclasses
import hashlib
import json
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bothways.checkpoints.files import (
    fingerprint,
    read_json,
    read_safetensors,
    sha256_of,
    verify_checksums,
    write_json,
    write_tensors,
)
from bothways.errors import CorruptCheckpoint, InvalidInput, OutputExists, UnknownModel
from bothways.products import matrix_product
from bothways.storage import new_folder, remove_leftovers
from bothways.training.state import ADVICE, STATE, RandomState, RunState
from bothways.training.workers import Weights, Workers

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder

_FORMAT, _IN_PARTS = 4, 5
_PREFIX = "checkpoint-"
_CHECKSUMS = "checksums.json"
_WEIGHTS, _OPTIMIZER, _KEPT = "weights.safetensors", "optimizer.safetensors", "kept.safetensors"
_CARRIED = "carried.safetensors"


@dataclass(frozen=True, slots=True)
class TrainingCheckpoint:
    """Everything needed to resume a run exactly.

    `kept` has the weights of the epoch to keep (`kept_of`; without validation, the latest), None in the first epoch.
    `random` is the random state of process 0, `others` has those of the other processes. `carried` has the tensors
    passed from update to update: when saving, those of this process; after loading, those of all processes.
    """

    weights: Weights
    kept: Weights | None
    optimizer: dict[str, Tensor]
    random: RandomState
    state: RunState
    conditions: Mapping[str, object]
    others: tuple[RandomState, ...] = ()
    carried: Mapping[str, Tensor] = field(default_factory=dict)


class CheckpointFolder:
    """The folder of a run's newest checkpoint, created when the first one is saved."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        found = self._complete()
        if found and not resume:
            raise OutputExists(
                f"the folder {str(path)!r} holds checkpoints of an earlier run. Resume that run (resume=True, "
                "--resume), choose another folder, or remove the checkpoints."
            )
        # A killed process may have left an incomplete checkpoint, or a complete older one.
        remove_leftovers(path, rf"{_PREFIX}\d+")
        for older in found[:-1]:
            shutil.rmtree(older)

    def save(self, checkpoint: TrainingCheckpoint) -> None:
        with self.next_one() as folder:
            describe(folder, checkpoint, in_parts=False)
            write_tensors(folder / _WEIGHTS, checkpoint.weights)
            write_tensors(folder / _OPTIMIZER, checkpoint.optimizer)
            if checkpoint.kept is not None:
                write_tensors(folder / _KEPT, checkpoint.kept)
            if checkpoint.carried:
                write_tensors(folder / _CARRIED, checkpoint.carried)
            seal(folder)

    def settle(self) -> None: ...

    def close(self) -> None: ...

    @contextmanager
    def next_one(self) -> Iterator[Path]:
        """Yield a new folder, which becomes the newest checkpoint on exit; then remove the previous checkpoint."""
        before = self._complete()
        number = int(before[-1].name.removeprefix(_PREFIX)) + 1 if before else 1
        with new_folder(self._path / f"{_PREFIX}{number:08d}") as folder:
            yield folder
        for older in before:
            shutil.rmtree(older)

    def load(self) -> TrainingCheckpoint | None:
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
            raise CorruptCheckpoint(f"the checkpoint {str(folder)!r} cannot be read: {error} {ADVICE}") from error

    def _complete(self) -> list[Path]:
        found = (path for path in self._path.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit())
        return sorted(found)


def differences(first: Mapping[str, object], second: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    """Yield (name, first value, second value) for each entry that differs; a missing value is ``"absent"``."""
    one, other = (dict(_flat(json.loads(json.dumps(each)))) for each in (first, second))
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other or one[name] != other[name]:
            yield name, one.get(name, "absent"), other.get(name, "absent")


def recorded_arithmetic() -> dict[str, object]:
    """Return the settings that affect rounding on a CPU: the number of threads and the matrix library."""
    return {"threads": torch.get_num_threads(), "matrix_product": matrix_product().library}


def weights_on_disk(model: "PretrainedEncoder") -> dict[str, str]:
    """Return an identity of the initial model from its weights; its folder may move before the run is resumed."""
    folder = model.folder
    weights = hashlib.sha256(fingerprint(folder).encode()).hexdigest()[:16] if folder.is_dir() else model.name
    return {"starting model (its weights)": weights}


def check_conditions(stored: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raise InvalidInput, listing the differences, unless a run has the same conditions as its checkpoint."""
    # Runs of several processes record neither of these two settings: compare them only if both runs have them.
    unrecorded = {"threads", "matrix_product"} - (stored.keys() & now.keys())
    kept = ({name: value for name, value in each.items() if name not in unrecorded} for each in (stored, now))
    found = [f"{name} was {before!r} and is now {after!r}" for name, before, after in differences(*kept)]
    if found:
        raise InvalidInput(
            f"this run cannot be resumed, because it differs from the run of the checkpoint: {'; '.join(found)}. "
            "Resume under the same conditions, or start again (--overwrite, or another checkpoint folder)."
        )


def check_alike(workers: Workers, conditions: Mapping[str, object]) -> None:
    """Raise InvalidInput, listing the differences, unless all processes of a run have the same conditions."""
    first, *others = workers.gather(conditions)
    for rank, each in enumerate(others, start=1):
        found = [f"{name} is {there!r}, not {here!r}" for name, here, there in differences(first, each)]
        if found:
            raise InvalidInput(
                f"all processes of a run must have the same settings and data, but process {rank} differs from process "
                f"0: {'; '.join(found)}. Start all of them with the same command, code and data."
            )


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def describe(folder: Path, checkpoint: TrainingCheckpoint, *, in_parts: bool) -> None:
    """Write ``state.json`` of a checkpoint; the caller writes the tensors, whole or (``in_parts``) in parts."""
    values = {
        "format": _IN_PARTS if in_parts else _FORMAT,
        "state": dataclasses.asdict(checkpoint.state),
        "random": checkpoint.random.to_dict(),
        "others": [each.to_dict() for each in checkpoint.others],
        "conditions": checkpoint.conditions,
    }
    write_json(folder / STATE, values)


def seal(folder: Path) -> None:
    """Write the checksums of a checkpoint's files."""
    write_json(folder / _CHECKSUMS, {path.name: sha256_of(path) for path in sorted(folder.iterdir())})


def check_sealed(folder: Path, needed: str) -> dict[str, object]:
    """Return the checksums of a sealed folder's files, ``needed`` among them; raise CorruptCheckpoint if wrong."""
    checksums = read_json(folder / _CHECKSUMS)
    verify_checksums(folder, {needed: "none", **checksums})
    return checksums


def tensors_of(checkpoint: TrainingCheckpoint) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint by ``"<table>/<name>"``; tables are weights, kept, optimizer and carried."""
    tables: dict[str, Mapping[str, Tensor]] = {
        "weights": checkpoint.weights,
        "kept": checkpoint.kept or {},
        "optimizer": checkpoint.optimizer,
        "carried": checkpoint.carried,
    }
    return {f"{table}/{name}": value for table, values in tables.items() for name, value in values.items()}


def _read(folder: Path) -> TrainingCheckpoint:
    checksums = check_sealed(folder, STATE)
    values: dict[str, Any] = read_json(folder / STATE)
    if values["format"] not in (_FORMAT, _IN_PARTS):
        raise CorruptCheckpoint(f"expected the checkpoint format {_FORMAT} or {_IN_PARTS}, got {values['format']!r}.")
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
        others=tuple(map(RandomState.from_dict, values["others"])),
        carried=tables["carried"],
    )


def _whole_tables(folder: Path, checksums: Collection[str], *, kept: bool) -> dict[str, Weights]:
    files = {"weights": _WEIGHTS, "optimizer": _OPTIMIZER} | ({"kept": _KEPT} if kept else {})
    if {*checksums} - {_CARRIED} != {STATE, *files.values()}:
        listed = ", ".join(sorted([*files.values(), STATE]))
        raise CorruptCheckpoint(f"{_CHECKSUMS} must list {listed} {'after' if kept else 'in'} the first epoch.")
    files |= {"carried": _CARRIED} if _CARRIED in checksums else {}
    return {"carried": {}, **{table: read_safetensors(folder / file) for table, file in files.items()}}


def _tables_in_parts(folder: Path, checksums: Collection[str], *, kept: bool) -> dict[str, Weights]:
    """Read the tensors that several processes wrote in parts, and join the parts."""
    # Imported here, since runs of one process do not need torch.distributed.
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    if {path.name for path in folder.glob("*.safetensors")} != {*checksums} - {STATE}:
        raise CorruptCheckpoint(f"{_CHECKSUMS} must list exactly the safetensors files of its folder.")
    reader = HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        for name, each in stored.items()
        if isinstance(each, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # not needed to read
        load(tensors, storage_reader=reader, no_dist=True)
    tables: dict[str, Weights] = {
        table: {} for table in ("weights", "optimizer", "carried", *(["kept"] if kept else []))
    }
    for key, value in tensors.items():
        table, _, name = key.partition("/")
        tables[table][name] = value
    return tables
