"""How every task is fine-tuned: the options of ``fit``, and the run of the training loop that they make."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Generic, TypedDict, TypeVar

from bothways.checkpoints import PretrainedEncoder, fingerprint
from bothways.tasks.settings import FitSettings
from bothways.training.loop import train
from bothways.training.objective import Objective, Payload
from bothways.training.options import TrainingOptions
from bothways.training.record import TrainingRecord

ObjectiveT = TypeVar("ObjectiveT")


class FitOptions(TypedDict, total=False):
    """How long and how fast to train, and where to keep the course of it; see `FitPlan`."""

    epochs: int
    learning_rate: float | None
    batch_size: int
    seed: int
    settings: FitSettings
    log: str | Path | None
    checkpoints: str | Path | None
    resume: bool
    keep_diverged: bool
    show_progress: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """How long and how fast to train, and where to keep the course of it.

    Attributes:
        epochs: Passes over the training data.
        learning_rate: Peak of the schedule; 1e-4 for encoders up to 512 wide and 3e-5 for wider ones when None.
        batch_size: Rows in one update.
        seed: Of the new head, the order of the rows, and dropout.
        settings: The finer settings.
        log: JSON Lines file for the course of the training.
        checkpoints: Folder for checkpoints that training can be resumed from.
        resume: Continue from the newest checkpoint.
        keep_diverged: Where a training diverges after a finished epoch, finish the task from the weights kept so far
            instead of raising `TrainingDiverged`; ``diverged`` of the record says what was wrong.
        show_progress: Force the progress bar on or off.
        options: All of it that the training loop takes.

    Raises:
        InvalidInput: A setting is out of range.
    """

    epochs: int = 3
    learning_rate: float | None = None
    batch_size: int = 32
    seed: int = 0
    settings: FitSettings = field(default_factory=FitSettings)
    log: str | Path | None = None
    checkpoints: str | Path | None = None
    resume: bool = False
    keep_diverged: bool = False
    show_progress: bool | None = None
    options: TrainingOptions = field(init=False)

    def __post_init__(self) -> None:
        """Check every value now, and not when a whole corpus was read."""
        options = TrainingOptions(
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            seed=self.seed,
            schedule=self.settings.schedule,
            warmup_fraction=self.settings.warmup_fraction,
            weight_decay=self.settings.weight_decay,
            max_gradient_norm=self.settings.max_gradient_norm,
            patience=self.settings.patience,
            precision=self.settings.precision,
            max_tokens=self.settings.tokens,
            checkpoint_every_updates=self.settings.checkpoint_every_updates,
            log=self.log,
            checkpoints=self.checkpoints,
            resume=self.resume,
            keep_diverged=self.keep_diverged,
            show_progress=self.show_progress,
        )
        object.__setattr__(self, "options", options)

    def train(
        self, objective: Objective[Payload], model: PretrainedEncoder, *, on_keep: Callable[[], None] | None = None
    ) -> TrainingRecord:
        """Train an objective above this encoder; where no epoch is finished its weights are as they were.

        ``on_keep`` is called when they no longer will be.

        Raises:
            InvalidInput: A setting is out of range. And everything that `bothways.training.loop.train` raises.
        """
        return train(
            objective,
            self.options.resolved(model.config.hidden, model.device),
            origin=None if self.checkpoints is None else _origin(model),
            undo_unfinished=True,
            on_keep=on_keep,
        )


def fit_plan(task: object, options: FitOptions) -> FitPlan:
    """The options that the ``fit`` of a task was called with.

    Raises:
        TypeError: One of them is none, in Python's own words for the method that was called.
        InvalidInput: A setting is out of range.
    """
    known = [each.name for each in fields(FitPlan) if each.init]
    for name in options:
        if name not in known:
            raise TypeError(
                f"{type(task).__name__}.fit() got an unexpected keyword argument {name!r}. Of every training, the "
                f"options are {', '.join(known)}."
            )
    return FitPlan(**options)


@dataclass(frozen=True, slots=True)
class Preparation(Generic[ObjectiveT]):
    """A task that is ready to be trained, by itself or with others above one encoder.

    Attributes:
        objective: What to train.
        finish: To be called with the record of the training: calibrates, and writes the card.
        unit: What its validation score is to be divided by, to be set beside those of other tasks.
    """

    objective: ObjectiveT
    finish: Callable[[TrainingRecord], None]
    unit: float = 1.0


class Attempt:
    """A training that may come to nothing, and what is put back then: a head that learnt nothing is no trained one.

    Attributes:
        kept: Whether an epoch was finished and its weights are the task's now, however the training ended.
    """

    def __init__(self, put_back: Callable[[], None]) -> None:
        self.kept = False
        self._put_back = put_back

    def train(self, plan: FitPlan, objective: Objective[Payload], model: PretrainedEncoder) -> TrainingRecord:
        """`FitPlan.train`; where Ctrl-C ended it before an epoch was finished, which is no error, all is put back."""
        try:
            record = plan.train(objective, model, on_keep=self._keep)
        finally:
            if self.kept:  # a run that is resumed begins with what it began with before
                model.trainings = max(model.trainings, 1) if plan.resume else model.trainings + 1
        if record.finished_no_epoch:
            self._put_back()
        return record

    def _keep(self) -> None:
        self.kept = True


@contextmanager
def undone_on_failure(task: object, *names: str) -> Iterator[Attempt]:
    """Put attributes of a task back where a training fails before an epoch was finished.

    After one its weights stay, so what was learnt of the older ones must not come back.
    """
    before = {name: getattr(task, name) for name in names}

    def put_back() -> None:
        for name, value in before.items():
            setattr(task, name, value)

    attempt = Attempt(put_back)
    try:
        yield attempt
    except BaseException:  # whatever it was, the head is none
        if not attempt.kept:
            put_back()
        raise


def _origin(model: PretrainedEncoder) -> dict[str, str]:
    """Which model a run begins with; the same weights may lie in another folder.

    The weights in memory do not tell it: a run may be resumed by the object that was interrupted.
    """
    folder = model.folder
    weights = hashlib.sha256(fingerprint(folder).encode()).hexdigest()[:16] if folder.is_dir() else model.name
    return {"starting model (its weights)": weights}
