"""Records of a run, its state between two updates, and the state of the global random generators."""

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bothways.errors import CorruptCheckpoint
from bothways.progress import duration, figure
from bothways.training.options import TrainingOptions, recorded_options


@dataclass(frozen=True, slots=True)
class EpochValidation:
    """The validation after one epoch.

    Attributes:
        epoch: Counted from 1; 0 for the initial model.
        update: Number of updates before the validation.
        score: Validation score; higher is better.
        standard_error: Standard error of the score, estimated on the held-out rows; 0 if unknown. For epoch 0, the
            amount by which a later epoch may score lower; negative if it must score higher.
    """

    epoch: int
    update: int
    score: float
    metrics: Mapping[str, float]
    standard_error: float = 0.0

    def to_dict(self) -> dict[str, object]:
        return {**dataclasses.asdict(self), "metrics": finite_or_none(self.metrics)}


@dataclass(frozen=True, slots=True, repr=False)
class TrainingRecord:
    """The record of a training run.

    Attributes:
        losses: Mean loss per unit (example or target token) of each update that was not skipped.
        validations: Results of the validated epochs, in order.
        kept_epoch: The epoch that the final weights are from, from 1 (see `kept_of`); 0: the initial weights. None if
            nothing was validated; the weights are then the last ones, or those of the latest epoch after a divergence.
        updates: Number of optimizer steps.
        tokens: Number of training tokens read.
        seconds: Wall time of everything, from reading the data to calibration, without pauses between interruption and
            resumption.
        stopped_early: True if patience ended the run.
        interrupted: True if Ctrl-C or SIGTERM ended the run, or arrived after the last update.
        resumed_from: Number of updates at the checkpoint that this run resumed; None for a new run.
        settings: The options of the run.
        epochs: Number of finished (and validated) epochs.
        diverged: Error message if a loss, gradient or score was not finite and ended the run; else None.
        baseline: Name of the initial model, if it was validated (as epoch 0).
        signal: Number of the signal that interrupted the run, or None.
        skipped: Number of updates skipped because their loss or gradient was not finite.
        stages: Seconds of each stage by name; updates with their validations and checkpoints are the stage "training".
        notes: Warnings on the data and the training, as sentences.
        look_at: Held-out rows whose labels may be wrong, as sentences.
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
    stages: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    look_at: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"TrainingRecord({', '.join([self.course, *self._outcome()])})"

    @property
    def course(self) -> str:
        """Number of updates and duration, with the stages that took most of it."""
        longest = sorted(self.stages.items(), key=lambda each: -each[1])[:_NAMED]
        named = [f"{name} {duration(each)}" for name, each in longest if each >= _SHARE * self.seconds]
        stages = f" ({', '.join(named)})" if named[1:] or longest[len(named) :] else ""
        stopped = ", stopped early" * self.stopped_early
        skipped = f", {self.skipped} skipped as their loss was not finite" if self.skipped else ""
        return f"{self.updates:,} updates in {duration(self.seconds)}{stages}{stopped}{skipped}"

    def summary(self) -> str:
        """Return lines on the duration, the kept epoch, its metrics and the baseline's, notes and rows to look at."""
        kept = {each.epoch: _listed(each.metrics) for each in self.validations}
        lines = [f"trained      {self.course}"]
        kept_epoch = f"{self.kept_epoch} of {self.epochs}: {self.kept_because}"
        lines += [f"kept epoch   {kept_epoch}"] * (self.kept_epoch is not None)
        lines += [f"validation   {kept[epoch]}" for epoch in (self.kept_epoch,) if epoch in kept]
        lines += [f"baseline     {kept[0]} ({self.baseline})"] * (self.baseline is not None)
        lines += [f"note         {each}" for each in self.notes]
        return "\n".join([*lines, *(f"look at      {each}" for each in self.look_at)])

    def _outcome(self) -> Iterator[str]:
        if self.kept_epoch is not None:
            yield f"kept epoch {self.kept_epoch} of {self.epochs}"
        yield from (_listed(each.metrics) for each in self.validations if each.epoch == self.kept_epoch)
        if self.interrupted:
            yield "interrupted"
        if self.diverged is not None:
            yield "diverged"

    @property
    def finished_no_epoch(self) -> bool:
        """True if an interruption ended the run before the end of the first epoch."""
        return self.interrupted and self.epochs == 0

    @property
    def kept_because(self) -> str:
        """The reason for keeping the epoch, to be read after its number; empty if nothing was validated."""
        kept, highest = kept_of(self.validations), highest_of(self.validations)
        if kept is None or highest is None:
            return ""
        if kept.epoch == 0:
            reason = f"its validation score is {figure(kept.score)}, and no later epoch"
            if kept.standard_error < 0:
                return f"{reason} is better by {figure(-kept.standard_error)}"
            return f"{reason} reached {figure(kept.score - kept.standard_error)}"
        if kept.score == highest.score:
            return f"the best validation score, {figure(kept.score)}"
        best = f"{figure(highest.score)} in epoch {highest.epoch}"
        return f"the latest validation score ({figure(kept.score)}) within a standard error of the best ({best})"

    @property
    def was_rising(self) -> bool:
        """True if the last epoch has the best score of all: a longer training may be better."""
        return len(self.validations) > 1 and highest_of(self.validations) is self.validations[-1]

    def to_dict(self) -> dict[str, object]:
        """Return the record as JSON values; a metric that is not finite becomes None."""
        # asdict would lose the class of the schedule.
        left_out = ("signal", "notes", "look_at")  # the card has them
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **{name: value for name, value in values.items() if name not in left_out},
            "losses": list(self.losses),
            "validations": [validation.to_dict() for validation in self.validations],
            "kept_because": self.kept_because,
            "settings": recorded_options(self.settings),
        }


_NAMED, _SHARE = 3, 0.1  # maximum number of stages that are named, and minimum share of the time


def _listed(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {figure(value)}" for name, value in metrics.items())


def highest_of(validations: Sequence[EpochValidation]) -> EpochValidation | None:
    """Return the validation with the highest score; of equal ones, the earliest."""
    return max(validations, key=lambda validation: validation.score, default=None)


def kept_of(validations: Sequence[EpochValidation]) -> EpochValidation | None:
    """Return the latest validation within a standard error of the highest score and, if it exists, of epoch 0's score.

    This is the one-standard-error rule (Breiman et al. 1984, section 3.4.3): prefer the option that is better a priori
    unless the data clearly contradict it. Here longer training is preferred: the last steps of the schedule are small,
    and with few rows an early epoch often has the highest of several scores by chance. A further validation never moves
    the choice to an earlier epoch.
    """
    highest = highest_of(validations)
    if highest is None:
        return None
    start = validations[0] if validations[0].epoch == 0 else highest
    threshold = max(each.score - each.standard_error for each in (highest, start))
    return next((each for each in reversed(validations) if each.score >= threshold), start)


def finite_or_none(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return ``metrics`` for JSON; values that are not finite become None."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}


STATE = "state.json"
ADVICE = "Remove the checkpoint folder and train again."


@dataclass(slots=True)
class RunState:
    """State of a run between two updates; ``epoch`` counts finished epochs, ``update_in_epoch`` updates after them."""

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
        """The epoch to keep if the run ended now, counted from 1; 0 for the initial weights."""
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
        """Return the state from the JSON values of ``dataclasses.asdict``."""
        validations = [EpochValidation(**validation) for validation in values["validations"]]
        return cls(**{**values, "validations": validations})

    def check(self, *, epochs: int, per_epoch: int, total: int) -> None:
        """Raise CorruptCheckpoint if a run of this length, ``total`` updates in all, cannot have this state."""
        counts = ("epoch", "update_in_epoch", "updates", "tokens", "log_lines", "skipped")
        wrong = next((name for name in counts if not _is_count(getattr(self, name))), None) or next(
            (name for name, fits in self._fits(epochs, per_epoch, total) if not fits), None
        )
        if wrong is not None:
            raise CorruptCheckpoint(
                f"the {STATE} of the checkpoint has {wrong} {getattr(self, wrong)!r:.80}, which is impossible in a run "
                f"of {epochs} epochs of {per_epoch} updates. {ADVICE}"
            )

    def _fits(self, epochs: int, per_epoch: int, total: int) -> Iterator[tuple[str, bool]]:
        """Yield the name of each value, and True if it is consistent with the values before it."""
        yield "epoch", self.epoch <= epochs
        yield "update_in_epoch", self.update_in_epoch <= (0 if self.epoch == epochs else per_epoch)
        yield "updates", self.updates == min(self.epoch * per_epoch, total) + self.update_in_epoch <= total
        yield "seconds", _is_finite(self.seconds) and self.seconds >= 0
        finite = isinstance(self.losses, list) and all(map(_is_finite, self.losses))
        yield "losses", finite and len(self.losses) == self.updates - self.skipped
        finished = [each.epoch for each in self.validations]
        rising = all(_is_count(epoch) and epoch <= self.epoch for epoch in finished) and finished == sorted(
            set(finished)
        )
        yield "validations", rising and all(_is_plausible(each, per_epoch, total) for each in self.validations)


def _is_plausible(validation: EpochValidation, per_epoch: int, total: int) -> bool:
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


@dataclass(frozen=True, slots=True)
class RandomState:
    """State of the random generators of Python, numpy and torch (CPU, each CUDA device, MPS)."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch_cpu: bytes
    torch_cuda: tuple[bytes, ...]
    torch_mps: bytes = b""

    @classmethod
    def capture(cls) -> "RandomState":
        """Return the current state of the global generators."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        return cls(
            python=random.getstate(),
            # The only way to read the global generator of numpy.random.
            numpy=dict(np.random.get_state(legacy=False)),
            torch_cpu=torch.get_rng_state().numpy().tobytes(),
            torch_cuda=tuple(state.numpy().tobytes() for state in cuda),
            torch_mps=torch.mps.get_rng_state().numpy().tobytes() if torch.backends.mps.is_available() else b"",
        )

    def restore(self) -> None:
        """Set the generators to this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(_tensor(self.torch_cpu))
        for device, state in zip(range(torch.cuda.device_count()), self.torch_cuda, strict=False):
            torch.cuda.set_rng_state(_tensor(state), device)
        if self.torch_mps and torch.backends.mps.is_available():
            torch.mps.set_rng_state(_tensor(self.torch_mps))

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        version, words, gauss = self.python
        inner = self.numpy["state"]
        return {
            "python": [version, list(words), gauss],
            "numpy": {**self.numpy, "state": {"key": [int(word) for word in inner["key"]], "pos": int(inner["pos"])}},
            "torch_cpu": self.torch_cpu.hex(),
            "torch_cuda": [state.hex() for state in self.torch_cuda],
            **({"torch_mps": self.torch_mps.hex()} if self.torch_mps else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RandomState":
        """Return the state from the result of `to_dict`, checked."""
        version, words, gauss = values["python"]
        inner = values["numpy"]["state"]
        key = np.array(inner["key"], dtype=np.uint32)
        state = cls(
            python=(version, tuple(words), gauss),
            numpy={**values["numpy"], "state": {"key": key, "pos": inner["pos"]}},
            torch_cpu=bytes.fromhex(values["torch_cpu"]),
            torch_cuda=tuple(bytes.fromhex(state) for state in values["torch_cuda"]),
            torch_mps=bytes.fromhex(values.get("torch_mps", "")),
        )
        state.check()
        return state

    def check(self) -> None:
        """Raise ValueError if a generator does not accept its state."""
        if self.numpy["state"]["key"].shape != (624,) or self.numpy["state"]["pos"] not in range(625):
            raise ValueError("the state of numpy's generator must have 624 words and a position from 0 to 624.")
        try:
            random.Random().setstate(self.python)
            np.random.RandomState().set_state(self.numpy)
            torch.Generator().set_state(_tensor(self.torch_cpu))
        except (RuntimeError, TypeError, OverflowError) as error:
            raise ValueError(f"a random generator does not accept its state: {error}") from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python, numpy and torch for the block, then restore their states; ``seed`` is below 2**32."""
    before = RandomState.capture()
    try:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)  # seeds every CUDA device as well
        yield
    finally:
        before.restore()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
