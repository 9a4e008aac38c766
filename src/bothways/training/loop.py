"""The training loop.

It trains the module of an `Objective` with AdamW or LAMB: warm-up and schedule, gradient accumulation, clipping,
optional bfloat16 autocast, early stopping, choice of the epoch to keep, Ctrl-C, JSON Lines log, exact resume. It runs
in one process, or in several with one device each (`bothways.training.workers`); only the first writes the log.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Generic

import torch

from bothways.encoder.encoder import activation_checkpointing
from bothways.errors import InvalidInput, TrainingDiverged
from bothways.evaluation.report import Validation
from bothways.interrupts import Interrupts, interruption
from bothways.progress import Progress, add_time, duration, figure, shown, stage
from bothways.training.checkpoints import (
    CheckpointFolder,
    TrainingCheckpoint,
    check_alike,
    check_conditions,
    recorded_arithmetic,
    weights_on_disk,
)
from bothways.training.forecast import Forecast, Reads
from bothways.training.log import Meter, TrainingLog, open_tracker
from bothways.training.objective import Baseline, Objective, Payload, Recurrent, Update
from bothways.training.optimizers import NamedOptimizer, Stepper, sparse_tables
from bothways.training.options import TrainingOptions, recorded_options, resolved
from bothways.training.state import EpochValidation, RandomState, RunState, TrainingRecord, finite_or_none, seeded
from bothways.training.workers import (
    LOST,
    WholeParameters,
    Workers,
    copy_weights,
    current_workers,
    laid_out,
    live_weights,
    naming_losses,
    restore_weights,
    share,
)

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder
    from bothways.training.shared_checkpoints import SharedCheckpoints


def train(
    objective: Objective[Payload],
    options: TrainingOptions,
    model: "PretrainedEncoder | None" = None,
    *,
    origin: Mapping[str, str] | None = None,
    bar: Progress | None = None,
    reads: Callable[[], Reads] | None = None,
) -> TrainingRecord:
    """Train ``objective.module`` in place and leave it in ``eval()`` mode with the kept weights.

    The kept weights are those of the latest epoch whose validation score is within a standard error of the highest
    (`kept_of`), or the last ones if nothing was validated. With a baseline, the initial module is epoch 0.
    Ctrl-C or SIGTERM ends the run after the current update (during validation, immediately) and writes a checkpoint if
    ``checkpoints`` is set; a second signal does not wait for the update. If the run fails, the module gets the weights
    of the kept epoch (without validation, of the latest), or the initial ones. The global generators are restored.

    Args:
        objective: Model, data and loss.
        options: The options of the run. Without ``model``, they must be a result of `resolved`.
        model: The encoder that is trained; determines options that are None.
        origin: Identity of the initial module, which a resumed run must share with its checkpoint. Default: the weights
            of ``model`` on disk.
        bar: Progress bar for the updates. Default: a new one.
        reads: Returns what the training reads besides its updates, to show an estimate of its duration.

    Raises:
        TrainingDiverged: A loss, gradient or score is not finite, and ``keep_diverged`` is false.
        OutputExists: ``checkpoints`` holds an earlier run and ``resume`` is false.
        OutOfDisk: A checkpoint could not be written; the previous one is intact.
    """
    if model is not None:
        options = resolved_for(objective, options, model)
        if origin is None and options.checkpoints is not None:
            origin = weights_on_disk(model)
    workers = current_workers()
    first = workers.rank == 0
    log = None if options.log is None or not first else Path(options.log)
    with ExitStack() as stack:
        folder = _folder(options, workers)
        if folder is not None:
            stack.callback(folder.close)
        stack.enter_context(seeded(options.seed + workers.rank))
        share(objective.module, workers)
        if workers.count == 1:  # several processes can sum only dense gradients
            stack.enter_context(sparse_tables(objective.module))
        if options.activation_checkpointing:
            stack.enter_context(activation_checkpointing(objective.module))
        layout = laid_out(objective.module, workers, shard=options.shard)
        interrupts = stack.enter_context(Interrupts())
        run = _Run(objective, options, folder, interrupts, origin or {}, workers, layout)
        stack.push(run.fall_back)
        run.check_alike()
        resumed_from = run.resume() if options.resume else None
        tracker = open_tracker(options.log_to, recorded_options(options)) if options.log_to and first else None
        run.log = stack.enter_context(TrainingLog(log, keep_lines=run.state.log_lines, tracker=tracker))
        run.bar = bar or stack.enter_context(run.shown(reads))
        with naming_losses(*LOST):
            interrupted = run.to_the_end(resumed_from)
        return run.record(interrupted=interrupted, resumed_from=resumed_from)


def _folder(options: TrainingOptions, workers: Workers) -> "CheckpointFolder | SharedCheckpoints | None":
    if options.checkpoints is None:
        return None
    if workers.count == 1:
        return CheckpointFolder(Path(options.checkpoints), resume=options.resume)
    from bothways.training.shared_checkpoints import SharedCheckpoints

    return SharedCheckpoints(Path(options.checkpoints), resume=options.resume, workers=workers)


class _Run(Generic[Payload]):
    """One call of `train`."""

    def __init__(
        self,
        objective: Objective[Payload],
        options: TrainingOptions,
        folder: "CheckpointFolder | SharedCheckpoints | None",
        interrupts: Interrupts,
        origin: Mapping[str, str],
        workers: Workers,
        layout: WholeParameters,
    ) -> None:
        self.objective = objective
        self.workers = workers
        self.layout = layout
        self.options = options
        self.module = objective.module
        self.folder = folder
        self.interrupts = interrupts
        self._origin = origin
        self.optimizer = NamedOptimizer(self.module, options)
        self.device = self.optimizer.parameters[0].device
        self.per_epoch = objective.updates_per_epoch()
        if self.per_epoch < 1:
            raise InvalidInput(f"expected at least 1 update in an epoch, got {self.per_epoch}: give training rows.")
        if options.epochs is None:
            raise InvalidInput("expected a number of epochs, got None: pass resolved(options, hidden, device).")
        self.epochs = options.epochs
        self.total = self.epochs * self.per_epoch if options.updates is None else options.updates
        self._stepper = Stepper(self.optimizer, options, self.total, workers, layout)
        self.state = RunState()
        self._meter = Meter()
        self.log: TrainingLog
        self.bar: Progress
        self.forecast: Forecast | None = None
        self._between_updates = True
        self._diverged: str | None = None
        self.kept = copy_weights(self.module)
        """Weights to restore if the run fails: the initial ones, then those of the kept (or latest) epoch."""
        self._started = time.perf_counter()
        if isinstance(objective, Recurrent):
            objective.carry({})

    def conditions(self) -> dict[str, object]:
        """Return the settings and identity that a resumed run must share with its checkpoint."""
        identity = {**self._origin, **self.objective.identity, "updates_per_epoch": self.per_epoch}
        conditions = {"settings": recorded_options(self.options), "identity": identity, "device": self.device.type}
        if self.device.type == "cpu" and self.workers.count == 1:  # runs of several processes are not bit-exact
            conditions |= recorded_arithmetic()
        return conditions

    def shown(self, reads: Callable[[], Reads] | None) -> AbstractContextManager[Progress]:
        if reads and shown():
            self.forecast = Forecast(reads(), self.epochs, self.per_epoch, self.total)
        show = self.options.show_progress if self.workers.rank == 0 else False
        return stage("training", self.total, done=self.state.updates, show=show)

    def check_alike(self) -> None:
        if self.workers.count > 1:
            check_alike(self.workers, {**self.conditions(), "shard": self.layout.sharded})

    def resume(self) -> int | None:
        """Load the newest checkpoint; return its number of updates, or None if there is none."""
        checkpoint = None if self.folder is None else self.folder.load()
        if checkpoint is None:
            return None
        check_conditions(checkpoint.conditions, self.conditions())
        checkpoint.state.check(epochs=self.epochs, per_epoch=self.per_epoch, total=self.total)
        restore_weights(self.module, checkpoint.weights)
        self.optimizer.load(checkpoint.optimizer, checkpoint.state.updates)
        if isinstance(self.objective, Recurrent):
            self.objective.carry(checkpoint.carried)
        states = (checkpoint.random, *checkpoint.others)
        if len(states) == self.workers.count or self.workers.rank == 0:
            states[self.workers.rank].restore()
        else:  # stored for another number of processes: dropout is seeded anew
            torch.manual_seed(self.options.seed + self.workers.rank + checkpoint.state.updates)
        self.state = checkpoint.state
        if checkpoint.kept is not None:  # else the run falls back to the initial weights
            self.kept = checkpoint.kept
        self._started = time.perf_counter() - self.state.seconds
        add_time("training", self.state.seconds)
        return self.state.updates

    def to_the_end(self, resumed_from: int | None) -> bool:
        """Train until the last epoch, early stopping or an interruption; return True if interrupted."""
        if resumed_from is None:
            self.log.write("start", updates=self.total, settings=recorded_options(self.options))
        else:
            self.log.write("resumed", update=resumed_from, epoch=self.state.epoch + 1)
        self._meter.go_on()
        interrupted = False
        try:
            interrupted = self._epochs()
        except TrainingDiverged as error:
            if not (self.options.keep_diverged and self.state.epoch):
                raise
            self._diverged = str(error)
        if self.state.kept_epoch is not None or self._diverged is not None:
            restore_weights(self.module, self.kept)
        if self.folder is not None:
            self.folder.settle()
        self._leave()
        interrupted = interrupted or self.interrupts.requested  # held back after the last update
        stopped_early = self.state.out_of_patience(self.options.patience)
        ending = "interrupted" if interrupted else "stopped_early" if stopped_early else "finished"
        ending = ending if self._diverged is None else "diverged"
        self.log.write(ending, update=self.state.updates, kept_epoch=self.state.kept_epoch, seconds=self._seconds())
        return interrupted

    def _epochs(self) -> bool:
        """Train the remaining epochs; return True if interrupted before the end of the last one."""
        try:
            if self.objective.baseline is not None and not self.state.updates and not self.state.validations:
                self._validate_start(self.objective.baseline)
            while self.state.epoch < self.epochs and not self.state.out_of_patience(self.options.patience):
                self._epoch()
        except KeyboardInterrupt:
            self._report()
            if self._between_updates:  # else the interruption was in the middle of an update
                self._checkpoint()
            return True
        return False

    def fall_back(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the kept weights if the run fails (an ``ExitStack`` callback)."""
        del kind, trace
        if error is None:
            return
        if self.layout.sharded and not isinstance(error, TrainingDiverged):
            return  # the other processes hold the rest of the weights and may still be running
        restore_weights(self.module, self.kept)
        self._leave()
        if isinstance(error, TrainingDiverged):
            # Without validation the latest epoch is the one to keep.
            kept = self.state.kept_epoch
            error.kept_epoch = (self.state.epoch or None) if kept is None else kept

    def _leave(self) -> None:
        self.optimizer.forget_gradients()
        self.layout.undo()
        self.module.eval()

    def record(self, *, interrupted: bool, resumed_from: int | None) -> TrainingRecord:
        baseline = self.objective.baseline
        validated_start = any(not each.epoch for each in self.state.validations)
        return TrainingRecord(
            losses=tuple(self.state.losses),
            validations=tuple(self.state.validations),
            kept_epoch=self.state.kept_epoch,
            updates=self.state.updates,
            tokens=self.state.tokens,
            seconds=self._seconds(),
            stopped_early=not interrupted and self.state.out_of_patience(self.options.patience),
            interrupted=interrupted,
            resumed_from=resumed_from,
            settings=self.options,
            epochs=self.state.epoch,
            diverged=self._diverged,
            baseline=baseline.name if baseline and validated_start else None,
            signal=self.interrupts.received,
            skipped=self.state.skipped,
        )

    def _epoch(self) -> None:
        self.module.train()
        every = self.options.checkpoint_every_updates
        length = min(self.per_epoch, self.total - self.state.epoch * self.per_epoch)
        updates = self.objective.updates(self.state.epoch, self.state.update_in_epoch)
        for update in islice(updates, length - self.state.update_in_epoch):
            self._update(update)
            if every is not None and self.state.updates % every == 0:
                self._checkpoint()
            self._check_interrupts()
        if self.state.update_in_epoch != length:
            raise InvalidInput(
                f"expected {length} updates in epoch {self.state.epoch + 1} (updates_per_epoch()), got "
                f"{self.state.update_in_epoch} from updates(): both must agree."
            )
        self._report()
        self._validate()
        self._checkpoint()

    def _check_interrupts(self) -> None:
        """Stop if any process received a signal; all processes stop after the same update."""
        if self.workers.count == 1:
            self.interrupts.check()
            return
        requested = torch.tensor([float(self.interrupts.requested)])
        self.workers.add([requested])
        if requested.item():
            raise interruption(self.interrupts.received)

    def _update(self, update: Update[Payload]) -> None:
        state = self.state
        self._between_updates = False
        self._meter.add(self._stepper.step(self.objective, update, state.updates))
        state.updates += 1
        state.update_in_epoch += 1
        state.tokens += update.tokens
        self._between_updates = True
        self.bar.advance(1)
        if state.updates % self.options.log_every_updates == 0:
            self._report()
        elif self.device.type == "cpu" or (self.forecast is not None and self.forecast.measuring):
            self._read()  # on a CPU this needs no synchronisation
        if self.forecast is not None:
            self.forecast.update(state.updates, update.tokens, self.bar)

    def _read(self) -> None:
        for one in self._meter.read():
            if one.finite:
                self.state.losses.append(one.loss)
                continue
            self.state.skipped += 1
            if self.state.skipped > self.options.skipped_updates:
                raise one.diverged()
            found = finite_or_none({"loss": one.loss, "gradient_norm": one.gradient_norm})
            self.log.write("skipped", update=one.update, **found)

    def _report(self) -> None:
        """Write a summary of the updates since the last report to the log and the progress bar."""
        self._read()
        summary = self._meter.summary()
        if summary is not None:
            self.log.write("update", epoch=self.state.epoch + 1, **summary)
            self.bar.advance(0, f"loss {figure(summary['loss'])} · {summary['tokens_per_second']:,.0f} tokens/s")

    def _validate_start(self, baseline: Baseline) -> None:
        validation = self._validation(baseline.validate)
        if validation is not None:
            error = -baseline.margin * validation.standard_error
            self._validated(dataclasses.replace(validation, standard_error=error), epoch=0)
            self._say(baseline.name, validation.metrics)
        self._meter.go_on()

    def _validate(self) -> None:
        """End the epoch: validate, and copy the weights if this is now the epoch to keep."""
        validation = self._validation()
        state = self.state
        if validation is not None:
            self._validated(validation, epoch=state.epoch + 1)
        losses = state.losses[-state.update_in_epoch :]
        metrics = {"training loss": sum(losses) / max(1, len(losses)), **(validation.metrics if validation else {})}
        self._say(f"epoch {state.epoch + 1} of {self.epochs}, {duration(self._seconds())}", metrics)
        if self.forecast is not None:
            self.forecast.epoch(state.updates, self.bar)
        state.epoch, state.update_in_epoch = state.epoch + 1, 0
        if validation is None or state.kept_epoch == state.epoch:
            with self.interrupts.unbroken():
                self.kept = copy_weights(self.module, self.kept)
        self._meter.go_on()

    def _validation(self, validate: Callable[[], Validation | None] | None = None) -> Validation | None:
        """Validate the module, or call ``validate``; the time does not count as training time."""
        self._meter.pause()
        random = RandomState.capture()
        self.module.eval()
        try:
            # Several processes stop together, after an update.
            with self.interrupts.at_once() if self.workers.count == 1 else nullcontext(), torch.no_grad():
                return self.layout.run_whole(validate or self.objective.validate)
        except KeyboardInterrupt:
            random.restore()  # so that a checkpoint written now has the state between two updates
            raise

    def _validated(self, validation: Validation, *, epoch: int) -> None:
        state = self.state
        if not math.isfinite(validation.score):
            raise TrainingDiverged(
                f"expected a finite validation score, got {validation.score} in epoch {epoch}. Check the metrics "
                "and the validation data."
            )
        score, standard_error = float(validation.score), float(validation.standard_error)
        entry = EpochValidation(epoch, state.updates, score, dict(validation.metrics), standard_error=standard_error)
        state.validations.append(entry)
        self.log.write("epoch", **entry.to_dict())

    def _say(self, what: str, metrics: Mapping[str, float]) -> None:
        self.bar.say(f"{what}: {', '.join(f'{name} {figure(value)}' for name, value in metrics.items())}")

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        self._report()
        self._meter.pause()
        self.state.seconds, self.state.log_lines = self._seconds(), self.log.lines
        random, *others = self.workers.gather(RandomState.capture())
        checkpoint = TrainingCheckpoint(
            weights=live_weights(self.module),
            kept=self.kept if self.state.epoch else None,
            optimizer=self.optimizer.state(),
            random=random,
            state=self.state,
            conditions=self.conditions(),
            others=tuple(others),
            carried=dict(self.objective.carried()) if isinstance(self.objective, Recurrent) else {},
        )
        self.folder.save(checkpoint)
        self._meter.go_on()

    def _seconds(self) -> float:
        return time.perf_counter() - self._started


def resolved_for(
    objective: Objective[Payload], options: TrainingOptions, model: "PretrainedEncoder"
) -> TrainingOptions:
    """Return the options with those that are None determined by the objective and the encoder, see `resolved`."""
    per_epoch = objective.updates_per_epoch()
    tokens = sum(each.tokens for each in objective.updates(0, 0)) if options.total_tokens else None
    return resolved(
        options,
        model.config.hidden,
        model.device,
        updates_per_epoch=per_epoch,
        min_updates=objective.min_updates,
        tokens_per_update=None if tokens is None else tokens / per_epoch,
    )
