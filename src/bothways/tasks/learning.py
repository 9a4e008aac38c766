"""A fit from the first check to the trained value: nothing of the task changes before it has succeeded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from bothways.checkpoints.files import fingerprint
from bothways.training.objective import Objective, Payload
from bothways.training.options import TrainingOptions
from bothways.training.record import TrainingRecord

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder

ObjectiveT = TypeVar("ObjectiveT")
FittedT = TypeVar("FittedT", covariant=True)


@dataclass(frozen=True, slots=True)
class Preparation(Generic[ObjectiveT, FittedT]):
    """A task that is ready to be trained, by itself or with others above one encoder.

    Attributes:
        objective: What to train.
        finish: Makes the trained value when the training has ended: calibrates it and writes its card.
        unit: What its validation score is divided by, to be compared with those of other tasks.
    """

    objective: ObjectiveT
    finish: Callable[[TrainingRecord], FittedT]
    unit: float = 1.0


def run_training(objective: Objective[Payload], model: PretrainedEncoder, options: TrainingOptions) -> TrainingRecord:
    """Train an objective above an encoder.

    Raises:
        InvalidInput: An option is out of range. And everything that `bothways.training.loop.train` raises.
    """
    from bothways.training.loop import train  # no prediction needs the loop

    per_epoch = objective.updates_per_epoch()
    tokens = sum(each.tokens for each in objective.updates(0, 0)) if options.total_tokens else None
    resolved = options.resolved(
        model.config.hidden,
        model.device,
        updates_per_epoch=per_epoch,
        least_updates=objective.least_updates,
        tokens_per_update=None if tokens is None else tokens / per_epoch,
    )
    return train(objective, resolved, origin=None if options.checkpoints is None else _origin(model))


def train_within(objective: Objective[Payload], model: PretrainedEncoder, options: TrainingOptions) -> None:
    """Train an objective as a part of another training: without log and checkpoints, to its end or not at all.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM ended it. And everything that `run_training` raises.
    """
    alone = replace(options, log=None, checkpoints=None, checkpoint_every_updates=None, resume=False)
    record = run_training(objective, model, replace(alone, keep_diverged=False))
    if record.interrupted:
        from bothways.training.interrupts import interruption

        raise interruption(record.signal)


def _origin(model: PretrainedEncoder) -> dict[str, str]:
    """Return which model a run begins with; the same weights may lie in another folder.

    The weights in memory do not tell it: a run may be resumed by the object that was interrupted.
    """
    folder = model.folder
    weights = hashlib.sha256(fingerprint(folder).encode()).hexdigest()[:16] if folder.is_dir() else model.name
    return {"starting model (its weights)": weights}
