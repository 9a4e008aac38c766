"""The training loop.

Training of whatever an `Objective` holds, by AdamW or LAMB: warm-up and schedule, gradient accumulation, clipping,
optional bfloat16 autocast, early stopping, choice of the epoch to keep, Ctrl-C, JSON Lines log, exact resume. One
process, or several with a device each (`bothways.training.workers`), of which the first writes.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Generic

import torch

from bothways.encoder.encoder import activation_checkpointing
from bothways.errors import InvalidInput, TrainingDiverged
from bothways.products import matrix_product
from bothways.progress import Progress, duration, progress
from bothways.training.interrupts import Interrupts, interruption
from bothways.training.log import TrainingLog
from bothways.training.meter import Meter
from bothways.training.objective import Baseline, Objective, Payload, Recurrent, Update, Validation
from bothways.training.optimizers import NamedOptimizer
from bothways.training.options import TrainingOptions
from bothways.training.record import EpochValidation, TrainingRecord, finite_or_none
from bothways.training.rows import sparse_tables
from bothways.training.seeding import RandomState, seeded
from bothways.training.sharding import ParameterLayout, laid_out
from bothways.training.state import (
    CheckpointFolder,
    Checkpoints,
    RunState,
    TrainingCheckpoint,
    check_conditions,
    differences,
)
from bothways.training.step import Stepper
from bothways.training.weights import Weights, copy_weights, live_weights, restore_weights
from bothways.training.workers import LOST, Workers, current_workers, naming_losses, share


def train(
    objective: Objective[Payload],
    options: TrainingOptions,
    *,
    origin: Mapping[str, str] | None = None,
    undo_unfinished: bool = False,
    on_keep: Callable[[], None] | None = None,
) -> TrainingRecord:
    """Train ``objective.module`` in place and leave it in ``eval()`` mode with the weights to keep.

    Those are of the latest epoch whose validation score is within a standard error of the highest (`kept_of`), epoch 0
    being the module as it came, where that has a worth of its own; without validation the last weights stay. Ctrl-C or
    SIGTERM ends the run after the current update (at once during validation), with a checkpoint if there is a folder
    for it, and likewise leaves the kept weights, or the last if nothing was validated yet; a second one does not wait
    for the update. A run that fails leaves the kept weights, without validation those of the latest epoch, and in its
    first epoch those that it began with. The
    global random generators are seeded for the run and put back afterwards.

    Args:
        objective: Model, data and loss.
        options: The options of the run, with learning rate and precision chosen: see `TrainingOptions.resolved`.
        origin: What the module was before the training. A checkpoint is continued only from the same.
        undo_unfinished: Also after a Ctrl-C in the first epoch leave the weights that it began with.
        on_keep: Called whenever other weights than those that the run began with are to be left.

    Raises:
        InvalidInput: The objective or options are unusable, or the checkpoint is of another run.
        TrainingDiverged: A loss, gradient or score is not finite, unless ``keep_diverged`` makes it an end of the run;
            the model has the weights kept so far either way.
        OutputExists: ``checkpoints`` holds an earlier run and ``resume`` is false.
        OutOfDisk: A checkpoint could not be written; the one before is intact.
        CorruptCheckpoint: The checkpoint to resume from is damaged.
        IncompatibleWeights: It is of another model.
        WorkerLost: Another process of the run is gone.
    """
    workers = current_workers()
    first = workers.rank == 0
    log = None if options.log is None or not first else Path(options.log)
    with ExitStack() as stack:
        folder = _folder(options, workers)
        if folder is not None:
            stack.callback(folder.close)
        stack.enter_context(seeded(options.seed + workers.rank))
        share(objective.module, workers)
        if workers.count == 1:  # sums over processes are of dense gradients
            stack.enter_context(sparse_tables(objective.module))
        if options.activation_checkpointing:
            stack.enter_context(activation_checkpointing(objective.module))
        layout = laid_out(objective.module, workers, shard=options.shard)
        interrupts = stack.enter_context(Interrupts())
        run = _Run(objective, options, folder, interrupts, origin or {}, on_keep, workers, layout)
        stack.push(run.fall_back)
        run.check_alike()
        resumed_from = run.resume() if options.resume else None
        run.log = stack.enter_context(TrainingLog(log, keep_lines=run.state.log_lines))
        run.bar = stack.enter_context(
            progress("training", run.total, done=run.state.updates, show=options.show_progress if first else False)
        )
        run.announce(resumed_from)
        with naming_losses(*LOST):
            interrupted = run.to_the_end(undo_unfinished=undo_unfinished)
        return run.record(interrupted=interrupted, resumed_from=resumed_from)


def recorded_arithmetic() -> dict[str, Any]:
    """Return what decides the last bits of a sum on a CPU: threads split sums, and libraries order them."""
    return {"threads": torch.get_num_threads(), "matrix_product": matrix_product().library}


def _folder(options: TrainingOptions, workers: Workers) -> Checkpoints | None:
    """Return the folder of the checkpoints."""
    if options.checkpoints is None:
        return None
    path = Path(options.checkpoints)
    if workers.count == 1:
        return CheckpointFolder(path, resume=options.resume)
    from bothways.training.shared_checkpoints import SharedCheckpoints

    return SharedCheckpoints(path, resume=options.resume, workers=workers)


class _Run(Generic[Payload]):
    """One call of `train`."""

    def __init__(
        self,
        objective: Objective[Payload],
        options: TrainingOptions,
        folder: Checkpoints | None,
        interrupts: Interrupts,
        origin: Mapping[str, str],
        on_keep: Callable[[], None] | None,
        workers: Workers,
        layout: ParameterLayout,
    ) -> None:
        self.objective = objective
        self.workers = workers
        self.layout = layout
        self.options = options
        self.module = objective.module
        self.folder = folder
        self.interrupts = interrupts
        self.origin = origin
        self.on_keep = on_keep
        self.optimizer = NamedOptimizer(self.module, options)
        self.device = self.optimizer.parameters[0].device
        self.per_epoch = objective.updates_per_epoch()
        if self.per_epoch < 1:
            raise InvalidInput(f"there is nothing to train on: an epoch has {self.per_epoch} updates.")
        if options.epochs is None:
            raise InvalidInput("expected a number of epochs, got None: pass options.resolved(hidden, device).")
        self.epochs = options.epochs
        self.total = self.epochs * self.per_epoch if options.updates is None else options.updates
        self.stepper = Stepper(self.optimizer, options, self.total, workers, layout)
        self.state = RunState()
        self.meter = Meter()
        self.log = TrainingLog(None)
        self.bar: Progress | None = None
        self.between_updates = True
        self.diverged: str | None = None
        # What a diverged run falls back to: the start, then the epoch kept so far (without validation the latest).
        self.kept = copy_weights(self.module)
        self.started = time.perf_counter()
        if isinstance(objective, Recurrent):
            objective.carry({})

    def conditions(self) -> dict[str, Any]:
        """Return what a continuation must share with this run."""
        identity = {**self.origin, **self.objective.identity, "updates_per_epoch": self.per_epoch}
        conditions: dict[str, Any] = {
            "settings": self.options.to_dict(),
            "identity": identity,
            "device": self.device.type,
        }
        if self.device.type == "cpu" and self.workers.count == 1:  # several processes never repeat it
            conditions |= recorded_arithmetic()
        return conditions

    def check_alike(self) -> None:
        """Check that all processes train the same.

        Raises:
            InvalidInput: One has other options, data or code than the first.
        """
        first, *others = self.workers.gather({**self.conditions(), "shard": self.layout.sharded})
        for rank, each in enumerate(others, start=1):
            found = [f"{name} is {here!r} in the first and {there!r}" for name, here, there in differences(first, each)]
            if found:
                raise InvalidInput(
                    f"the processes of a run must train the same, but process {rank} does not: {'; '.join(found)}. "
                    "Start all of them with the same command, code and data."
                )

    def resume(self) -> int | None:
        """Take over the newest checkpoint; the updates done by then, or None if there is none."""
        checkpoint = None if self.folder is None else self.folder.load()
        if checkpoint is None:
            return None
        now, before = self.conditions(), dict(checkpoint.conditions)
        # A run of several processes has no arithmetic of its own to repeat, neither before nor now.
        for name in {"threads", "matrix_product"} - (now.keys() & before.keys()):
            now.pop(name, None)
            before.pop(name, None)
        check_conditions(before, now)
        checkpoint.state.check(epochs=self.epochs, per_epoch=self.per_epoch, total=self.total)
        restore_weights(self.module, checkpoint.weights)
        self.optimizer.load(checkpoint.optimizer, checkpoint.state.updates)
        if isinstance(self.objective, Recurrent):
            self.objective.carry(checkpoint.carried)
        self._restore_random(checkpoint)
        self.state = checkpoint.state
        if checkpoint.kept is not None:  # in its first epoch a run falls back to the start, which is not the checkpoint
            self._keep(checkpoint.kept)
        self.started = time.perf_counter() - self.state.seconds
        return self.state.updates

    def _restore_random(self, checkpoint: TrainingCheckpoint) -> None:
        states = (checkpoint.random, *checkpoint.others)
        if len(states) == self.workers.count or self.workers.rank == 0:
            states[self.workers.rank].restore()
        else:  # another number of processes, whose dropout goes on somewhere
            torch.manual_seed(self.options.seed + self.workers.rank + checkpoint.state.updates)

    def announce(self, resumed_from: int | None) -> None:
        """Open the log and the bar."""
        if resumed_from is None:
            self.log.write("start", updates=self.total, settings=self.options.to_dict())
        else:
            self.log.write("resumed", update=resumed_from, epoch=self.state.epoch + 1)
        self.meter.go_on()

    def to_the_end(self, *, undo_unfinished: bool) -> bool:
        """Train until the epochs or the patience are used up, or Ctrl-C; whether there was a Ctrl-C."""
        interrupted = False
        try:
            interrupted = self._epochs()
        except TrainingDiverged as error:
            if not (self.options.keep_diverged and self.state.epoch):
                raise
            self.diverged = str(error)
        unfinished = undo_unfinished and self.state.epoch == 0
        if self.state.kept_epoch is not None or unfinished or self.diverged is not None:
            restore_weights(self.module, self.kept)
        if self.folder is not None:
            self.folder.settle()
        self._leave()
        # One that was held back after the last update was not looked at yet.
        interrupted = interrupted or self.interrupts.requested
        self.log.write(
            self._ending(interrupted=interrupted),
            update=self.state.updates,
            kept_epoch=self.state.kept_epoch,
            seconds=self._seconds(),
        )
        return interrupted

    def _epochs(self) -> bool:
        """Train all epochs that are left; whether Ctrl-C came before the last was finished."""
        try:
            if self.objective.baseline is not None and not self.state.updates and not self.state.validations:
                self._validate_start(self.objective.baseline)
            while self.state.epoch < self.epochs and not self.state.out_of_patience(self.options.patience):
                self._epoch()
        except KeyboardInterrupt:
            self._settle_interruption()
            return True
        return False

    def _ending(self, *, interrupted: bool) -> str:
        """Return the name in the log for how the run ended."""
        if self.diverged is not None:
            return "diverged"
        if interrupted:
            return "interrupted"
        return "stopped_early" if self.state.out_of_patience(self.options.patience) else "finished"

    def fall_back(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the weights kept so far where the run fails, at whatever moment; the last step of an exit stack."""
        del kind, trace
        if error is None:
            return
        if self.layout.sharded and not isinstance(error, TrainingDiverged):
            return  # the other processes, which hold the rest of the weights, need not have failed
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
        """Return what the run leaves behind."""
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
            diverged=self.diverged,
            baseline=self._baseline_name(),
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
                f"the objective announced {self.per_epoch} updates per epoch and gave {self.state.update_in_epoch} in "
                f"epoch {self.state.epoch + 1}: updates_per_epoch() and updates() must agree."
            )
        self._report()
        self._validate()
        self._checkpoint()

    def _check_interrupts(self) -> None:
        """Stop where a signal was held back, all processes behind the same update."""
        if self.workers.count == 1:
            self.interrupts.check()
            return
        requested = torch.tensor([float(self.interrupts.requested)])
        self.workers.add([requested])
        if requested.item():
            raise interruption(self.interrupts.received)

    def _update(self, update: Update[Payload]) -> None:
        """One optimizer step, and its place in the books."""
        state = self.state
        self.between_updates = False
        self.meter.add(self.stepper.step(self.objective, update, state.updates))
        state.updates += 1
        state.update_in_epoch += 1
        state.tokens += update.tokens
        self.between_updates = True
        self._advance_bar(1)
        if state.updates % self.options.log_every_updates == 0:
            self._report()
        elif self.device.type == "cpu":  # where reading costs nothing
            self._read()

    def _read(self) -> None:
        """Take the losses off the device.

        Raises:
            TrainingDiverged: More of them are not finite than may be skipped.
        """
        for one in self.meter.read():
            if one.finite:
                self.state.losses.append(one.loss)
                continue
            self.state.skipped += 1
            if self.state.skipped > self.options.skipped_updates:
                raise one.diverged()
            found = finite_or_none({"loss": one.loss, "gradient_norm": one.gradient_norm})
            self.log.write("skipped", update=one.update, **found)

    def _report(self) -> None:
        """Write what happened since the last report to the log and behind the bar."""
        self._read()
        summary = self.meter.summary()
        if summary is not None:
            self.log.write("update", epoch=self.state.epoch + 1, **summary)
            self._advance_bar(0, f"loss {summary['loss']:.4f} · {summary['tokens_per_second']:,.0f} tokens/s")

    def _baseline_name(self) -> str | None:
        baseline = self.objective.baseline
        return baseline.name if baseline and any(not each.epoch for each in self.state.validations) else None

    def _validate_start(self, baseline: Baseline) -> None:
        """Validate what there is before the first update, as epoch 0."""
        validation = self._validation(baseline.validate)
        if validation is not None:
            error = -baseline.margin * validation.standard_error
            self._validated(dataclasses.replace(validation, standard_error=error), epoch=0)
            self._say(baseline.name, validation.metrics)
        self.meter.go_on()

    def _validate(self) -> None:
        """End the epoch: validate, and keep the weights if they are to be kept."""
        validation = self._validation()
        state = self.state
        if validation is not None:
            self._validated(validation, epoch=state.epoch + 1)
        self._say_epoch(validation)
        state.epoch, state.update_in_epoch = state.epoch + 1, 0
        if validation is None or state.kept_epoch == state.epoch:
            with self.interrupts.unbroken():
                self._keep(copy_weights(self.module, self.kept))
        self.meter.go_on()

    def _validation(self, validate: Callable[[], Validation | None] | None = None) -> Validation | None:
        """Validate the module as it is, or what stands for it; the time does not count as training."""
        self.meter.pause()
        random = RandomState.capture()
        self.module.eval()
        try:
            # Several processes stop together, behind an update.
            with self.interrupts.at_once() if self.workers.count == 1 else nullcontext(), torch.no_grad():
                return self.layout.run_whole(validate or self.objective.validate)
        except KeyboardInterrupt:
            random.restore()  # so that a checkpoint made now is one between two updates
            raise

    def _keep(self, weights: Weights) -> None:
        self.kept = weights
        if self.on_keep is not None:
            self.on_keep()

    def _validated(self, validation: Validation, *, epoch: int) -> None:
        """Put a validation on record."""
        state = self.state
        if not math.isfinite(validation.score):
            raise TrainingDiverged(
                f"the validation score of epoch {epoch} is {validation.score}: it must be a finite number, for the "
                "epoch to keep is chosen by it. Look at the metrics and the validation data."
            )
        score, standard_error = float(validation.score), float(validation.standard_error)
        entry = EpochValidation(epoch, state.updates, score, dict(validation.metrics), standard_error=standard_error)
        state.validations.append(entry)
        self.log.write("epoch", **entry.to_dict())

    def _say_epoch(self, validation: Validation | None) -> None:
        epoch = self.state.epoch + 1
        losses = self.state.losses[-self.state.update_in_epoch :]
        metrics = {"training loss": sum(losses) / max(1, len(losses)), **(validation.metrics if validation else {})}
        self._say(f"epoch {epoch} of {self.epochs}, {duration(self._seconds())}", metrics)

    def _say(self, what: str, metrics: Mapping[str, float]) -> None:
        if self.bar is not None:
            self.bar.say(f"{what}: {', '.join(f'{name} {value:.4f}' for name, value in metrics.items())}")

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        self._report()
        self.meter.pause()
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
        self.meter.go_on()

    def _settle_interruption(self) -> None:
        """Account for the updates that were done; write a checkpoint if none was cut short."""
        self._report()
        if self.between_updates:
            self._checkpoint()

    def _advance_bar(self, amount: int, note: str = "") -> None:
        if self.bar is not None:
            self.bar.advance(amount, note)

    def _seconds(self) -> float:
        return time.perf_counter() - self.started
