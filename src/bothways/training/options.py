"""The options of a training run: plain data, checked on construction; importing them needs no torch."""

import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, get_args

from bothways.errors import InvalidInput
from bothways.training.schedules import LinearDecay, Schedule

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "bfloat16"]
OptimizerName = Literal["adamw", "lamb"]

# The default length: so many epochs, and more where the updates would be too few; small data have small updates.
EPOCHS = 3
FEW_ROWS, FEW_IN_UPDATE, IN_UPDATE = 2000, 16, 32

# The default learning rate: wider encoders want smaller steps.
NARROW, RATE_OF_NARROW, RATE_OF_WIDE = 512, 1e-4, 3e-5

# The options that decide the course of a run. Logs, cards and checkpoints hold these, in this order: a checkpoint is
# resumed only under the same values. Batch size and token budget belong to the identity of the objective.
_RECORDED = (
    "epochs",
    "updates",
    "optimizer",
    "learning_rate",
    "layer_decay",
    "schedule",
    "warmup_fraction",
    "weight_decay",
    "betas",
    "eps",
    "max_gradient_norm",
    "precision",
    "patience",
    "seed",
    "log_every_updates",
    "checkpoint_every_updates",
)


class TrainingArguments(TypedDict, total=False):
    """The fields of `TrainingOptions` as keyword arguments: ``fit(**options: Unpack[TrainingArguments])``."""

    epochs: int | None
    updates: int | None
    total_tokens: int | None
    optimizer: OptimizerName
    learning_rate: float | None
    layer_decay: float | None
    batch_size: int | None
    seed: int
    schedule: Schedule
    warmup_fraction: float
    weight_decay: float
    max_gradient_norm: float | None
    patience: int | None
    precision: Precision | None
    max_tokens: int
    activation_checkpointing: bool
    betas: tuple[float, float]
    eps: float
    log_every_updates: int
    checkpoint_every_updates: int | None
    log: str | Path | None
    checkpoints: str | Path | None
    resume: bool
    keep_diverged: bool
    skipped_updates: int
    shard: bool
    show_progress: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """The options of a training run, whatever task is trained.

    Attributes:
        epochs: Passes over the training data; kept is the latest epoch whose validation score is within a standard
            error of the best (of masked language models: the best). By default 3; on small data a head is trained for
            150 updates at least (of long texts, as many as read 600,000 tokens), in epochs of 15 that pass through the
            data several times, and on up to 100 texts above a sentence embedder for 20. Before that, 20 updates bring
            up to 100 texts of a label together there, and 40 up to 2,000.
        updates: Optimizer steps in all, in place of a number of epochs; the last epoch may end early.
        total_tokens: Tokens to read in all, in place of epochs or updates: as many updates as read so many on average.
            Special tokens count; there is no padding.
        optimizer: ``"adamw"``, or ``"lamb"`` for updates of thousands of rows.
        learning_rate: Peak of the schedule; by default 1e-4 for encoders up to 512 wide, 3e-5 for wider ones.
        layer_decay: Factor of the learning rate from one layer to the one below it, such as 0.8; a head has the full
            rate. By default all layers have.
        batch_size: Rows in one update; by default 32, for heads 16 up to 2,000 training rows.
        seed: Seed of Python, numpy and torch for the run: new heads, order of the rows, dropout, masking.
        schedule: Course of the learning rate after the warm-up.
        warmup_fraction: Part of all updates in which the rate rises from 0 to the peak.
        weight_decay: Decoupled decay of the weight matrices; biases and norms have none.
        max_gradient_norm: The gradient of an update is scaled down to this 2-norm; None leaves it.
        patience: Stop after this many epochs in a row without a better validation score; by default never.
        precision: ``"bfloat16"`` runs the loss under autocast; parameters and optimizer stay float32. A CPU accepts it,
            and gains only if it has bfloat16 instructions (AMX or AVX512-BF16). None: bfloat16 on a GPU that has it,
            else float32.
        max_tokens: Token budget of one forward and backward pass; larger batches are accumulated. On a CPU at
            most 1,024 are computed at once by a head and by pre-training, which is as fast and takes less memory.
        activation_checkpointing: Keep each layer's input alone for the backward pass, which computes the layer again
            (gradient checkpointing in transformers): the same gradients in a fifth to a third more time, and an eighth
            to a third of the memory of activations. It pays on a GPU, with long texts and with deep encoders; a CPU
            computes few tokens at once.
        betas: Decay rates of the optimizer's two moments.
        eps: Added to the denominator of its step.
        log_every_updates: Updates summed up by one line of the log; on a GPU also how often losses are read.
        checkpoint_every_updates: Checkpoints within an epoch, besides the one after each; None writes no others.
        log: JSON Lines file for the course of the run; an older one is replaced, except by a resumed run.
        checkpoints: Folder for the newest checkpoint, written after each epoch and every ``checkpoint_every_updates``.
        resume: Continue from the newest checkpoint; without one yet, begin afresh.
        keep_diverged: End the run where it diverges after a finished epoch, with the weights kept so far, instead of
            raising `TrainingDiverged`; ``diverged`` of the record gives the reason.
        skipped_updates: Updates of a run that are left out where their loss or gradient is not finite; one more is a
            divergence.
        shard: Divide parameters, gradients and the optimizer's moments among the processes of a run (FSDP2), for models
            that are too large for each device to hold all of them.
        show_progress: Force the progress bar on or off; None shows it on a terminal only.

    Raises:
        InvalidInput: A value is out of its range.
    """

    epochs: int | None = None
    updates: int | None = None
    total_tokens: int | None = None
    optimizer: OptimizerName = "adamw"
    learning_rate: float | None = None
    layer_decay: float | None = None
    batch_size: int | None = None
    seed: int = 0
    schedule: Schedule = dataclasses.field(default_factory=LinearDecay)
    warmup_fraction: float = 0.1
    weight_decay: float = 0.01
    max_gradient_norm: float | None = 1.0
    patience: int | None = None
    precision: Precision | None = None
    max_tokens: int = 8192
    activation_checkpointing: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    log_every_updates: int = 10
    checkpoint_every_updates: int | None = None
    log: str | Path | None = None
    checkpoints: str | Path | None = None
    resume: bool = False
    keep_diverged: bool = False
    skipped_updates: int = 0
    shard: bool = False
    show_progress: bool | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        if self.batch_size is not None and not _is_integer(self.batch_size, 1):
            raise InvalidInput(f"batch_size must be a whole number, at least 1, but it is {self.batch_size!r}.")
        for name in ("max_tokens", "log_every_updates"):
            self._check_integer(name, minimum=1)
        for name in ("epochs", "updates", "total_tokens", "patience", "checkpoint_every_updates"):
            self._check_integer(name, minimum=1, optional=True)
        if self.total_tokens is not None and (self.epochs is not None or self.updates is not None):
            given = {"epochs": self.epochs, "updates": self.updates, "total_tokens": self.total_tokens}
            listed = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
            raise InvalidInput(
                f"expected one of epochs, updates and total_tokens, got {listed}: they all are the length."
            )
        self._check_integer("seed", minimum=0)
        self._check_integer("skipped_updates", minimum=0)
        self._check("seed", self.seed < 2**32, "less than 2**32 (numpy's limit)")
        self._check_positive("eps")
        self._check_positive("learning_rate", optional=True)
        self._check_positive("max_gradient_norm", optional=True)
        layer_decay_fits = self.layer_decay is None or (_is_number(self.layer_decay, 1.0) and self.layer_decay > 0.0)
        self._check("layer_decay", layer_decay_fits, "a number above 0 and up to 1, or None")
        self._check("warmup_fraction", _is_number(self.warmup_fraction, 1.0), "a fraction from 0 to 1")
        self._check("weight_decay", _is_number(self.weight_decay), "0 or more, and finite")
        betas_fit = len(self.betas) == 2 and all(_is_number(beta) and beta < 1.0 for beta in self.betas)
        self._check("betas", betas_fit, "two numbers in [0, 1)")
        precisions = get_args(Precision)
        self._check("precision", self.precision in (*precisions, None), f"one of {precisions}, or None")
        optimizers = get_args(OptimizerName)
        self._check("optimizer", self.optimizer in optimizers, f"one of {optimizers}")
        schedules = "LinearDecay, CosineDecay, ConstantRate or StableDecay"
        self._check("schedule", isinstance(self.schedule, Schedule), schedules)
        for name in ("log", "checkpoints"):
            self._check(name, isinstance(getattr(self, name), str | os.PathLike | None), "a path, or None")
        for name in ("activation_checkpointing", "resume", "keep_diverged", "shard"):
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        self._check("show_progress", isinstance(self.show_progress, bool | None), "True, False or None")
        if self.resume and self.checkpoints is None:
            raise InvalidInput("resuming needs the folder of the checkpoints: pass checkpoints=<folder>.")

    @property
    def has_length(self) -> bool:
        """True where epochs, updates or tokens are given."""
        return (self.epochs, self.updates, self.total_tokens) != (None, None, None)

    def rows_in_update(self, rows: int | None = None) -> int:
        """Return the batch size, chosen by the number of training rows where it is None and they are known."""
        if self.batch_size is not None:
            return self.batch_size
        return FEW_IN_UPDATE if rows is not None and rows <= FEW_ROWS else IN_UPDATE

    def resolved(
        self,
        hidden: int,
        device: "torch.device",
        *,
        updates_per_epoch: int = 1,
        least_updates: int = 0,
        tokens_per_update: float | None = None,
    ) -> Self:
        """Return the options with epochs, learning rate and precision chosen where they are None.

        A number of tokens becomes one of updates.

        Args:
            hidden: Width of the encoder.
            device: Where it is trained.
            updates_per_epoch: Of the training.
            least_updates: Epochs that are not given are as many as these take, and at least 3.
            tokens_per_update: On average; it makes updates of a number of tokens.

        Raises:
            InvalidInput: Both epochs and updates are given, or tokens that cannot be counted.
        """
        rate, precision, epochs, updates = self.learning_rate, self.precision, self.epochs, self.updates
        if self.total_tokens is not None:
            if tokens_per_update is None:
                raise InvalidInput("the length of this training is a number of epochs or updates, not of tokens.")
            updates = max(1, math.ceil(self.total_tokens / tokens_per_update))
        if updates is not None:
            if epochs is not None:
                raise InvalidInput(f"expected epochs or updates, got both: {epochs} and {updates}.")
            epochs = -(-updates // max(1, updates_per_epoch))
        if epochs is None:
            epochs = max(EPOCHS, -(-least_updates // max(1, updates_per_epoch)))
        if rate is None:
            rate = RATE_OF_NARROW if hidden <= NARROW else RATE_OF_WIDE
        if precision is None:
            from bothways.devices import fast_precision

            precision = fast_precision(device)
        return dataclasses.replace(
            self, epochs=epochs, updates=updates, total_tokens=None, learning_rate=rate, precision=precision
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what decides the course of the run as JSON values; the schedule's class goes under ``"kind"``.

        Paths, ``activation_checkpointing``, ``resume``, ``keep_diverged``, ``skipped_updates``, ``shard`` and
        ``show_progress`` do not, and batch size and token budget are recorded by the objective.
        """
        values = {name: getattr(self, name) for name in _RECORDED}
        schedule = {"kind": type(self.schedule).__name__, **dataclasses.asdict(self.schedule)}
        return {**values, "schedule": schedule, "betas": list(self.betas)}

    def _check_integer(self, name: str, *, minimum: int, optional: bool = False) -> None:
        value = getattr(self, name)
        wanted = f"a whole number, {minimum} or more" + (", or None" if optional else "")
        self._check(name, _is_integer(value, minimum) or (optional and value is None), wanted)

    def _check_positive(self, name: str, *, optional: bool = False) -> None:
        value = getattr(self, name)
        wanted = "a finite number above 0" + (", or None" if optional else "")
        self._check(name, (_is_number(value) and value > 0.0) or (optional and value is None), wanted)

    def _check(self, name: str, fits: bool, wanted: str) -> None:
        if not fits:
            raise InvalidInput(f"training setting {name!r} must be {wanted}; got {getattr(self, name)!r}.")


def _is_integer(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _is_number(value: object, most: float = math.inf) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and 0.0 <= value <= most
