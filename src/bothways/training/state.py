"""Checkpoints of a run: all that an exact continuation needs, without pickle.

A checkpoint is a folder ``checkpoint-<number>`` that appears by one rename, so whenever the process is killed the
newest such folder is complete. The one before is removed only then::

    checkpoint-00000007/
        weights.safetensors       the model now
        kept.safetensors          the model at the epoch that is kept so far, after the first
        optimizer.safetensors     "<kind>/<parameter>": the moments and step counters of AdamW
        state.json                position, losses, validations, random generators, settings, identity
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from bothways.errors import CorruptCheckpoint, InvalidInput, OutputExists
from bothways.storage import new_folder
from bothways.training.record import EpochValidation, highest_of, kept_of
from bothways.training.seeding import RandomState
from bothways.training.weights import Weights

_FORMAT = 3
_PREFIX = "checkpoint-"


@dataclass(slots=True)
class RunState:
    """Where a run stands between two updates.

    Attributes:
        epoch: Epochs that are finished, their validation included.
        update_in_epoch: Updates done of the epoch that is not.
        updates: Updates done in all.
        tokens: Tokens read in them.
        seconds: Wall time of the run.
        log_lines: Lines written to the log.
        losses: Mean loss per unit, for each update.
        validations: One for each validated epoch.
    """

    epoch: int = 0
    update_in_epoch: int = 0
    updates: int = 0
    tokens: int = 0
    seconds: float = 0.0
    log_lines: int = 0
    losses: list[float] = field(default_factory=list)
    validations: list[EpochValidation] = field(default_factory=list)

    @property
    def kept_epoch(self) -> int | None:
        """The epoch, from 1, whose weights would be kept now."""
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
        """The state that ``dataclasses.asdict`` made JSON values of."""
        validations = [EpochValidation(**validation) for validation in values["validations"]]
        return cls(**{**values, "validations": validations})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that an exact continuation needs.

    Attributes:
        weights: The model's.
        kept: The model's at the epoch that is kept so far, without validation the latest; None in the first epoch.
        optimizer: Its state, flat, by name.
        random: The global generators.
        state: Where the run stands.
        conditions: Settings and identity of the run, which a continuation must share.
    """

    weights: Weights
    kept: Weights | None
    optimizer: dict[str, Tensor]
    random: RandomState
    state: RunState
    conditions: Mapping[str, Any]


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
        for leftover in [*path.glob(f".{_PREFIX}*"), *found[:-1]]:
            shutil.rmtree(leftover)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write ``checkpoint``, then remove the one before it.

        Raises:
            OutOfDisk: The disk is full; the checkpoint before is intact.
        """
        before = self._complete()
        number = int(before[-1].name.removeprefix(_PREFIX)) + 1 if before else 1
        with new_folder(self._path / f"{_PREFIX}{number:08d}") as folder:
            for name, content in _files(checkpoint):
                _write(folder / name, content)
        for older in before:
            shutil.rmtree(older)

    def load(self) -> Checkpoint | None:
        """The newest checkpoint; None if no complete one was ever written.

        Raises:
            CorruptCheckpoint: A file is missing or damaged.
        """
        complete = self._complete()
        if not complete:
            return None
        folder = complete[-1]
        try:
            values = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            if values["format"] != _FORMAT:
                raise CorruptCheckpoint(
                    f"the checkpoint {str(folder)!r} has format {values['format']!r}; this version reads {_FORMAT}."
                )
            state = RunState.from_dict(values["state"])
            return Checkpoint(
                weights=load_file(folder / "weights.safetensors"),
                kept=load_file(folder / "kept.safetensors") if state.epoch else None,
                optimizer=load_file(folder / "optimizer.safetensors"),
                random=RandomState.from_dict(values["random"]),
                state=state,
                conditions=values["conditions"],
            )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpoint(
                f"the checkpoint {str(folder)!r} cannot be read ({error}). Remove it and train again."
            ) from error

    def _complete(self) -> list[Path]:
        found = (path for path in self._path.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit())
        return sorted(found)


def check_conditions(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a run under other conditions.

    Raises:
        InvalidInput: They differ; the message names each difference.
    """
    before, after = dict(_flat(stored)), dict(_flat(json.loads(json.dumps(now))))
    differences = [
        f"{name} was {before.get(name, 'absent')!r} and is now {after.get(name, 'absent')!r}"
        for name in sorted(before.keys() | after.keys())
        if name not in before or name not in after or before[name] != after[name]
    ]
    if differences:
        raise InvalidInput(
            f"this run cannot be resumed, it is not the one that was checkpointed: {'; '.join(differences)}. "
            "Resume under the same conditions, or train into another checkpoint folder."
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _files(checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file, one in memory at a time."""
    values = {
        "format": _FORMAT,
        "state": dataclasses.asdict(checkpoint.state),
        "random": checkpoint.random.to_dict(),
        "conditions": checkpoint.conditions,
    }
    yield "state.json", json.dumps(values).encode()
    yield "weights.safetensors", _tensors(checkpoint.weights)
    yield "optimizer.safetensors", _tensors(checkpoint.optimizer)
    if checkpoint.kept is not None:
        yield "kept.safetensors", _tensors(checkpoint.kept)


def _tensors(tensors: Mapping[str, Tensor]) -> bytes:
    return tensors_to_bytes({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


def _write(path: Path, content: bytes) -> None:
    # Not safetensors' save_file: it reports a full disk by an error of its own, which storage would not recognise.
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
