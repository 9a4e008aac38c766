"""Options of a training run, checked on construction; optimizers and schedules. Does not import torch."""

import dataclasses
import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict, get_args

from bothways.choices import TrackerName
from bothways.errors import InvalidInput, MissingDependency

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LinearDecay:
    """Linear decay from the peak rate to ``floor``, a fraction of the peak."""

    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_floor(self.floor)

    def fraction(self, progress: float) -> float:
        return self.floor + (1.0 - self.floor) * (1.0 - progress)


@dataclass(frozen=True, slots=True)
class CosineDecay:
    """Cosine decay from the peak rate to ``floor`` (Loshchilov & Hutter 2016, arXiv:1608.03983, eq. 5, no restarts)."""

    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_floor(self.floor)

    def fraction(self, progress: float) -> float:
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True)
class ConstantRate:
    """A constant rate, the peak."""

    def fraction(self, progress: float) -> float:  # noqa: ARG002 (the same signature in all schedules)
        return 1.0


@dataclass(frozen=True, slots=True)
class StableDecay:
    """The peak rate, then a decay to 0 as 1 - sqrt(x), where x is the finished fraction of the decay's updates.

    With a warm-up, the schedule is trapezoidal (Zhai et al. 2021, arXiv:2106.04560; the decay: Haegele et al. 2024,
    arXiv:2405.18392, eq. 4).

    Attributes:
        decay: Fraction of the updates after the warm-up during which the rate decays.
    """

    decay: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 < self.decay <= 1.0:
            raise InvalidInput(f"`decay` must be a fraction of the updates in (0, 1], got {self.decay!r}.")

    def fraction(self, progress: float) -> float:
        """Return the fraction of the peak rate; ``progress`` is the share of updates done after the warm-up."""
        return 1.0 - math.sqrt(max(0.0, 1.0 - (1.0 - progress) / self.decay))


Schedule = LinearDecay | CosineDecay | ConstantRate | StableDecay


def warmup_updates(total: int, fraction: float) -> int:
    """Return the number of warm-up updates: ``fraction`` of ``total``, rounded up, but at most ``total - 1``.

    The first warm-up update has rate 0, so a run of one update could not learn with a warm-up.
    """
    return min(math.ceil(total * fraction), total - 1)


def rate_fraction(schedule: Schedule, update: int, *, warmup: int, total: int) -> float:
    """Return the fraction of the peak rate for one update, numbered from 0; with a warm-up, update 0 has rate 0."""
    if update < warmup:
        return update / warmup
    return schedule.fraction(min(1.0, (update - warmup) / max(1, total - warmup)))


def _check_floor(floor: float) -> None:
    if not 0.0 <= floor < 1.0:
        raise InvalidInput(f"`floor` must be a fraction of the peak rate in [0, 1), got {floor!r}.")


@dataclass(frozen=True, slots=True)
class _Adam:
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        fit = len(self.betas) == 2 and all(_is_number(beta) and beta < 1.0 for beta in self.betas)
        _check(self, "betas", fit, "two numbers in [0, 1)")
        _check(self, "eps", _is_number(self.eps) and self.eps > 0.0, "a finite number above 0")
        _check(self, "weight_decay", _is_number(self.weight_decay), "a finite number of at least 0")


@dataclass(frozen=True, slots=True)
class AdamW(_Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2017, arXiv:1711.05101, algorithm 2).

    Attributes:
        betas: Decay rates of the two moments.
        eps: Added to the denominator of a step.
        weight_decay: Decoupled decay of the weight matrices; biases and norms have none.
    """

    name: ClassVar = "adamw"


@dataclass(frozen=True, slots=True)
class Lamb(_Adam):
    """AdamW with each tensor's step scaled by the norm of its weights, for batches of thousands of rows.

    You et al. 2019, arXiv:1904.00962, algorithm 2.

    Attributes:
        betas: Decay rates of the two moments.
        eps: Added to the denominator of a step, before it is scaled.
        weight_decay: Decoupled decay of the weight matrices; biases and norms have none.
    """

    name: ClassVar = "lamb"


Optimizer = AdamW | Lamb
Precision = Literal["float32", "bfloat16"]

# Default number of epochs; default batch sizes: small data sets get smaller batches.
STAGES = "checkpoint-stages"
"""Folder for the results of finished stages, within the folder of the checkpoints."""

EPOCHS = 3
SMALL_DATA_ROWS, SMALL_BATCH, USUAL_BATCH = 2000, 16, 32

# Default learning rate: wider encoders need smaller steps.
NARROW, RATE_OF_NARROW, RATE_OF_WIDE = 512, 1e-4, 3e-5

# Options that affect the result of a run, in the order of logs, cards and checkpoints. A checkpoint is resumed only
# with the same values. Batch size and token budget belong to the identity of the objective.
_RECORDED = (
    *("epochs", "updates", "optimizer", "learning_rate", "layer_decay", "schedule", "warmup_fraction", "weight_decay"),
    *("betas", "eps", "max_gradient_norm", "precision", "patience", "seed"),
    *("log_every_updates", "checkpoint_every_updates"),
)


class TrainingArguments(TypedDict, total=False):
    """The fields of `TrainingOptions` as keyword arguments: ``fit(**options: Unpack[TrainingArguments])``."""

    epochs: int | None
    updates: int | None
    total_tokens: int | None
    optimizer: Optimizer
    learning_rate: float | None
    layer_decay: float | None
    batch_size: int | None
    seed: int
    schedule: Schedule
    warmup_fraction: float
    max_gradient_norm: float | None
    patience: int | None
    precision: Precision | None
    max_tokens: int
    activation_checkpointing: bool
    log_every_updates: int
    checkpoint_every_updates: int | None
    log: str | Path | None
    log_to: TrackerName | None
    checkpoints: str | Path | None
    resume: bool
    keep_diverged: bool
    skipped_updates: int
    shard: bool
    show_progress: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """The options of a training run, for any task.

    Attributes:
        epochs: Passes over the training data. The latest epoch within a standard error of the best validation score is
            kept (for masked language models, the best epoch). Default: 3. On small data, a head is trained for at least
            150 updates, or 600,000 tokens if that is less, in epochs of about 15 updates. If the encoder is a
            sentence embedder, training begins with a contrastive warm-up: 20 updates for up to 100 texts (followed by
            only 20 training updates), 40 updates for up to 2,000 texts.
        updates: Total number of optimizer steps, instead of epochs; the last epoch may be incomplete.
        total_tokens: Total number of training tokens, instead of epochs or updates; converted to updates by the mean
            tokens per update. Special tokens count; there is no padding.
        optimizer: `AdamW`, or `Lamb` for batches of thousands of rows, with their betas and weight decay.
        learning_rate: Peak learning rate. Default: 1e-4 for hidden sizes up to 512, 3e-5 above.
        layer_decay: Factor by which the learning rate falls from each layer to the one below it, such as 0.8; a head
            has the full rate. Default: the same rate everywhere.
        batch_size: Rows per update. Default: 32, or 16 for heads with up to 2,000 training rows.
        seed: Seed of Python, numpy and torch for the run: new heads, order of the rows, dropout, masking.
        schedule: Learning rate schedule after the warm-up.
        warmup_fraction: Fraction of all updates during which the learning rate rises from 0 to its peak.
        max_gradient_norm: Maximum 2-norm of an update's gradient; larger ones are scaled down. None: no limit.
        patience: Stop after this many epochs in a row without a better validation score. Default: never.
        precision: ``"bfloat16"`` computes the loss under autocast; parameters and optimizer stay float32. On a CPU it
            is faster only with bfloat16 instructions (AMX or AVX512-BF16). None: bfloat16 on a GPU that supports it,
            else float32.
        max_tokens: Token budget of one forward and backward pass; larger batches use gradient accumulation. On a CPU,
            heads and pre-training use at most 1,024, which is as fast and takes less memory.
        activation_checkpointing: Keep only each layer's input for the backward pass, which recomputes the layer (as
            gradient checkpointing in transformers). Gradients are the same, time grows by a fifth to a third, and
            activations take an eighth to a third of the memory. Use it on a GPU for long texts and deep encoders; a CPU
            computes few tokens at once, so it gains little.
        log_every_updates: Updates per line of the log. On a GPU, losses are copied to the host only that often.
        checkpoint_every_updates: Updates between checkpoints within an epoch. None: only one after each epoch.
        log: JSON Lines file for the log of the run. An existing file is replaced; a resumed run continues it.
        log_to: Also log the run to this experiment tracker, which must be installed and is configured by its own
            environment variables.
        checkpoints: Folder of the newest checkpoint, written after each epoch and every ``checkpoint_every_updates``.
        resume: Continue from the newest checkpoint, or start a new run if there is none.
        keep_diverged: If the run diverges after the first epoch, end it with the last kept weights instead of raising
            `TrainingDiverged`; ``diverged`` in the record gives the reason.
        skipped_updates: Maximum number of updates to skip if loss or gradient are not finite; one more ends the run.
        shard: Shard parameters, gradients and optimizer moments over the processes of a run (FSDP2), for models too
            large for one device.
        show_progress: Force the progress bar on or off. None: show it on a terminal only.

    Raises:
        InvalidInput: A value is out of its range.
    """

    epochs: int | None = None
    updates: int | None = None
    total_tokens: int | None = None
    optimizer: Optimizer = dataclasses.field(default_factory=AdamW)
    learning_rate: float | None = None
    layer_decay: float | None = None
    batch_size: int | None = None
    seed: int = 0
    schedule: Schedule = dataclasses.field(default_factory=LinearDecay)
    warmup_fraction: float = 0.1
    max_gradient_norm: float | None = 1.0
    patience: int | None = None
    precision: Precision | None = None
    max_tokens: int = 8192
    activation_checkpointing: bool = False
    log_every_updates: int = 10
    checkpoint_every_updates: int | None = None
    log: str | Path | None = None
    log_to: TrackerName | None = None
    checkpoints: str | Path | None = None
    resume: bool = False
    keep_diverged: bool = False
    skipped_updates: int = 0
    shard: bool = False
    show_progress: bool | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "updates", "total_tokens", "patience", "checkpoint_every_updates"):
            self._check_integer(name, 1, optional=True)
        for name, minimum in (("max_tokens", 1), ("log_every_updates", 1), ("seed", 0), ("skipped_updates", 0)):
            self._check_integer(name, minimum)
        if self.total_tokens is not None and (self.epochs is not None or self.updates is not None):
            given = {"epochs": self.epochs, "updates": self.updates, "total_tokens": self.total_tokens}
            listed = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
            raise InvalidInput(f"expected only one of epochs, updates and total_tokens, got {listed}: keep one.")
        self._check("seed", self.seed < 2**32, "less than 2**32 (numpy's limit)")
        for name in ("learning_rate", "max_gradient_norm"):
            value = getattr(self, name)
            fits = value is None or (_is_number(value) and value > 0.0)
            self._check(name, fits, "a finite number above 0, or None")
        decays = self.layer_decay is None or (_is_number(self.layer_decay, 1.0) and self.layer_decay > 0.0)
        self._check("layer_decay", decays, "a number above 0 and at most 1, or None")
        self._check("warmup_fraction", _is_number(self.warmup_fraction, 1.0), "a fraction from 0 to 1")
        for name, choices in (("precision", get_args(Precision)), ("log_to", get_args(TrackerName))):
            self._check(name, getattr(self, name) in (None, *choices), f"one of {choices}, or None")
        self._check("optimizer", isinstance(self.optimizer, Optimizer), f"AdamW(...) or Lamb(...) from {__name__}")
        schedules = f"LinearDecay(...), CosineDecay(...), ConstantRate() or StableDecay(...) from {__name__}"
        self._check("schedule", isinstance(self.schedule, Schedule), schedules)
        for name in ("log", "checkpoints"):
            self._check(name, isinstance(getattr(self, name), str | os.PathLike | None), "a path, or None")
        for name in ("activation_checkpointing", "resume", "keep_diverged", "shard"):
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        self._check("show_progress", isinstance(self.show_progress, bool | None), "True, False or None")
        if self.log_to is not None and find_spec(self.log_to) is None:
            raise MissingDependency(
                f"logging to {self.log_to} needs the package {self.log_to!r}, which is not installed: "
                f"pip install {self.log_to}"
            )
        if self.resume and self.checkpoints is None:
            raise InvalidInput("resume=True needs a checkpoint folder: pass checkpoints=<folder>.")

    def _check_integer(self, name: str, minimum: int, *, optional: bool = False) -> None:
        value = getattr(self, name)
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
        expected = f"a whole number, at least {minimum}" + (", or None" if optional else "")
        self._check(name, fits or (optional and value is None), expected)

    def _check(self, name: str, fits: bool, expected: str) -> None:
        _check(self, name, fits, expected)


def rows_in_update(options: TrainingOptions, rows: int | None = None) -> int:
    """Return the batch size; if it is None, the default for the number of training rows."""
    if options.batch_size is not None:
        return options.batch_size
    return SMALL_BATCH if rows is not None and rows <= SMALL_DATA_ROWS else USUAL_BATCH


def check_one_length(epochs: int | None, updates: int | None) -> None:
    """Raise InvalidInput if a training is given both a number of epochs and one of updates."""
    if epochs is not None and updates is not None:
        raise InvalidInput(f"expected epochs or updates, got both: {epochs} and {updates}. Pass only one.")


def resolved(
    options: TrainingOptions,
    hidden: int,
    device: "torch.device",
    *,
    updates_per_epoch: int = 1,
    min_updates: int = 0,
    tokens_per_update: float | None = None,
) -> TrainingOptions:
    """Set epochs, learning rate and precision if they are None, and convert total tokens to updates.

    The default length is 3 epochs, or more if 3 have fewer than ``min_updates`` updates. ``total_tokens`` needs the
    mean ``tokens_per_update``.
    """
    rate, precision, epochs, updates = options.learning_rate, options.precision, options.epochs, options.updates
    if options.total_tokens is not None:
        if tokens_per_update is None:
            raise InvalidInput("total_tokens is not supported for this training: pass epochs or updates.")
        updates = max(1, math.ceil(options.total_tokens / tokens_per_update))
    if updates is not None:
        check_one_length(epochs, updates)
        epochs = -(-updates // max(1, updates_per_epoch))
    if epochs is None:
        epochs = max(EPOCHS, -(-min_updates // max(1, updates_per_epoch)))
    if rate is None:
        rate = RATE_OF_NARROW if hidden <= NARROW else RATE_OF_WIDE
    if precision is None:
        from bothways.devices import fast_precision  # loads torch

        precision = fast_precision(device)
    return dataclasses.replace(
        options, epochs=epochs, updates=updates, total_tokens=None, learning_rate=rate, precision=precision
    )


def recorded_options(options: TrainingOptions) -> dict[str, object]:
    """Return the options that affect the result of a run as JSON values, except those in `Objective.identity`."""
    optimizer = options.optimizer
    parts = {
        "optimizer": optimizer.name,
        "schedule": {"kind": type(options.schedule).__name__, **dataclasses.asdict(options.schedule)},
        "weight_decay": optimizer.weight_decay,
        "betas": list(optimizer.betas),
        "eps": optimizer.eps,
    }
    return {name: parts[name] if name in parts else getattr(options, name) for name in _RECORDED}


def _check(options: object, name: str, fits: bool, expected: str) -> None:
    if not fits:
        raise InvalidInput(f"`{name}` must be {expected}, got {getattr(options, name)!r}.")


def _is_number(value: object, maximum: float = math.inf) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and 0.0 <= value <= maximum
