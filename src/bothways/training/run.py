"""Running a training on a pretrained encoder."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from bothways.checkpoints.files import fingerprint
from bothways.interrupts import interruption
from bothways.training import loop
from bothways.training.objective import Objective, Payload
from bothways.training.options import TrainingOptions
from bothways.training.record import TrainingRecord

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder


def run_training(objective: Objective[Payload], model: PretrainedEncoder, options: TrainingOptions) -> TrainingRecord:
    """Train an objective on an encoder; see `bothways.training.loop.train`."""
    per_epoch = objective.updates_per_epoch()
    tokens = sum(each.tokens for each in objective.updates(0, 0)) if options.total_tokens else None
    resolved = options.resolved(
        model.config.hidden,
        model.device,
        updates_per_epoch=per_epoch,
        min_updates=objective.min_updates,
        tokens_per_update=None if tokens is None else tokens / per_epoch,
    )
    return loop.train(objective, resolved, origin=None if options.checkpoints is None else _origin(model))


def train_within(objective: Objective[Payload], model: PretrainedEncoder, options: TrainingOptions) -> None:
    """Train an objective as a part of another training: without log and checkpoints, to its end or not at all."""
    alone = replace(options, log=None, checkpoints=None, checkpoint_every_updates=None, resume=False)
    record = run_training(objective, model, replace(alone, keep_diverged=False))
    if record.interrupted:
        raise interruption(record.signal)


def _origin(model: PretrainedEncoder) -> dict[str, str]:
    """Identify the starting model by its weights on disk.

    The same weights may lie in another folder, and those in memory change: a run may also be resumed by the object that
    was interrupted.
    """
    folder = model.folder
    weights = hashlib.sha256(fingerprint(folder).encode()).hexdigest()[:16] if folder.is_dir() else model.name
    return {"starting model (its weights)": weights}
