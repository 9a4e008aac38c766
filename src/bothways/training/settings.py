"""The settings of a training run: plain data, checked when made."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from bothways.errors import InvalidInput
from bothways.training.schedules import LinearDecay, Schedule

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """How to train, whatever is trained.

    Attributes:
        epochs: Passes over the training data.
        learning_rate: Peak of the schedule.
        schedule: What follows the warm-up.
        warmup_fraction: Part of all updates in which the rate rises from 0 to the peak.
        weight_decay: Decoupled decay of the weight matrices; biases and norms have none.
        betas: Decay rates of AdamW's two moments.
        eps: Added to the denominator of AdamW.
        max_gradient_norm: The gradient of an update is scaled down to this 2-norm; None leaves it.
        precision: ``"bfloat16"`` runs the loss under autocast; parameters and optimizer stay float32. It is meant for
            a GPU; a CPU accepts it, and gains only if it has bfloat16 instructions (AMX or AVX512-BF16).
        patience: Stop after this many epochs in a row without a better validation score; None never stops early.
        seed: Seeds Python, numpy and torch for the run (dropout, masking).
        log_every_updates: Updates summed up by one line of the log; on a GPU also how often losses are read.
        checkpoint_every_updates: Checkpoints within an epoch, besides the one after each; None writes no others.

    Raises:
        InvalidInput: A value is out of its range.
    """

    epochs: int = 3
    learning_rate: float = 2e-5
    schedule: Schedule = dataclasses.field(default_factory=LinearDecay)
    warmup_fraction: float = 0.1
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    max_gradient_norm: float | None = 1.0
    precision: Precision = "float32"
    patience: int | None = None
    seed: int = 0
    log_every_updates: int = 10
    checkpoint_every_updates: int | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        self._check_integer("epochs", minimum=1)
        self._check_integer("patience", minimum=1, optional=True)
        self._check_integer("log_every_updates", minimum=1)
        self._check_integer("checkpoint_every_updates", minimum=1, optional=True)
        self._check_integer("seed", minimum=0)
        self._check("seed", self.seed < 2**32, "less than 2**32 (numpy's limit)")
        self._check_number("learning_rate", above=0.0)
        self._check_number("eps", above=0.0)
        self._check_number("max_gradient_norm", above=0.0, optional=True)
        self._check("warmup_fraction", 0.0 <= self.warmup_fraction <= 1.0, "a fraction from 0 to 1")
        self._check("weight_decay", 0.0 <= self.weight_decay < math.inf, "0 or more, and finite")
        betas_fit = len(self.betas) == 2 and all(0.0 <= beta < 1.0 for beta in self.betas)
        self._check("betas", betas_fit, "two numbers in [0, 1)")
        self._check("precision", self.precision in get_args(Precision), f"one of {get_args(Precision)}")
        self._check("schedule", isinstance(self.schedule, Schedule), "LinearDecay, CosineDecay or ConstantRate")

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values; the schedule's class goes under ``"kind"``."""
        values = dataclasses.asdict(self)
        values["schedule"] = {"kind": type(self.schedule).__name__, **values["schedule"]}
        values["betas"] = list(self.betas)
        return values

    def _check_integer(self, name: str, *, minimum: int, optional: bool = False) -> None:
        value = getattr(self, name)
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
        wanted = f"a whole number, {minimum} or more" + (", or None" if optional else "")
        self._check(name, fits or (optional and value is None), wanted)

    def _check_number(self, name: str, *, above: float, optional: bool = False) -> None:
        value = getattr(self, name)
        fits = isinstance(value, int | float) and math.isfinite(value) and value > above
        wanted = f"a finite number above {above:g}" + (", or None" if optional else "")
        self._check(name, fits or (optional and value is None), wanted)

    def _check(self, name: str, fits: bool, wanted: str) -> None:
        if not fits:
            raise InvalidInput(f"training setting {name!r} must be {wanted}; got {getattr(self, name)!r}.")
