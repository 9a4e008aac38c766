"""The record of a run, besides the trained model."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bothways.training.options import TrainingOptions


@dataclass(frozen=True, slots=True)
class EpochValidation:
    """The validation after one epoch.

    Attributes:
        epoch: Counted from 1; 0 before the first update.
        update: Updates done by then.
        score: Higher is better.
        metrics: By name.
        standard_error: Of the score, as an estimate from the held-out data; 0 where it is not known. Of epoch 0 it is
            by how much a later epoch may be worse, negative where it must be better.
    """

    epoch: int
    update: int
    score: float
    metrics: Mapping[str, float]
    standard_error: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the validation as JSON values; a metric that is not finite becomes None."""
        return {**dataclasses.asdict(self), "metrics": finite_or_none(self.metrics)}


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """The course of a training run.

    Attributes:
        losses: Mean loss per unit (example or target token) of each update that was not skipped.
        validations: One for each epoch that was validated.
        kept_epoch: Epoch, from 1, whose weights the model has now (see `kept_of`), or 0 for those that it began with;
            None if nothing was validated, and then it has the last weights, after a divergence those of the latest
            epoch.
        updates: Optimizer steps done.
        tokens: Tokens read in training.
        seconds: Wall time of training, validation and checkpoints, without what lay between an interruption and the
            checkpoint that was resumed.
        stopped_early: Patience ended the run.
        interrupted: Ctrl-C or SIGTERM ended the run, or came at its end.
        resumed_from: Updates done at the checkpoint that this run continued; None if it began afresh.
        settings: The options of the run.
        epochs: Epochs that were finished, their validation included.
        diverged: What was not finite and ended the run after them; None of all other runs.
        baseline: What the model was before the first update, in words, where that was validated (as epoch 0).
        signal: Number of the signal that interrupted the run; None of all other runs, and where no signal did.
        skipped: Updates whose loss or gradient was not finite, and which were left out.
    """

    losses: tuple[float, ...]
    validations: tuple[EpochValidation, ...]
    kept_epoch: int | None
    updates: int
    tokens: int
    seconds: float
    stopped_early: bool
    interrupted: bool
    resumed_from: int | None
    settings: TrainingOptions
    epochs: int
    diverged: str | None = None
    baseline: str | None = None
    signal: int | None = None
    skipped: int = 0

    @property
    def finished_no_epoch(self) -> bool:
        """True where an interruption ended the run before an epoch was finished."""
        return self.interrupted and self.epochs == 0

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values; a metric that is not finite becomes None."""
        # asdict would copy the settings without naming the schedule's class.
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "signal"}
        return {
            **values,
            "losses": list(self.losses),
            "validations": [validation.to_dict() for validation in self.validations],
            "settings": self.settings.to_dict(),
        }


def highest_of(validations: list[EpochValidation]) -> EpochValidation | None:
    """Return the validation with the highest score, the earliest of equals."""
    return max(validations, key=lambda validation: validation.score, default=None)


def kept_of(validations: list[EpochValidation]) -> EpochValidation | None:
    """Return the latest validation within one standard error below the highest score, and below that of the start.

    The rule of one standard error (Breiman et al. 1984, section 3.4.3): what is likelier to be good beforehand is
    preferred unless the data clearly speak against it. Here that is the longer training, whose last steps the schedule
    makes small; the highest of several scores from few rows is often that of a lucky early epoch. One more validation
    never makes an epoch before the kept one the kept one.
    """
    highest = highest_of(validations)
    if highest is None:
        return None
    start = validations[0] if validations[0].epoch == 0 else highest
    least = max(each.score - each.standard_error for each in (highest, start))
    return next((each for each in reversed(validations) if each.score >= least), start)


def finite_or_none(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """``metrics`` as JSON can carry them."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
