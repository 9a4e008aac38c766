"""The length of a pre-training in phases, and its optimizer settings."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from bothways.errors import InvalidInput
from bothways.objectives.streams import BatchGrowth
from bothways.training.options import AdamW, LinearDecay, Optimizer, Schedule


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a training with one sequence length (special tokens included); the batch may grow to ``batch``."""

    updates: int
    batch: int
    length: int
    growth: BatchGrowth | None = None

    @property
    def sequences(self) -> int:
        """Total number of sequences."""
        return self.updates * self.batch if self.growth is None else self.growth.before(self.updates, self.batch)

    @property
    def tokens(self) -> int:
        """Total number of tokens, if all sequences are full."""
        return self.sequences * self.length

    def scaled(self, updates: int, batch: int) -> "Phase":
        """Return a phase with other updates and batch size; the batch growth is scaled in proportion."""
        growth = self.growth
        if growth is not None:
            over = max(1, round(growth.updates * updates / self.updates))
            growth = BatchGrowth(max(1, round(growth.first * batch / self.batch)), over)
        return replace(self, updates=updates, batch=batch, growth=growth)


@dataclass(frozen=True, slots=True)
class BatchWarmup:
    """Growth of the batch from ``first`` sequences to its full size, over a number of updates or tokens.

    Raises:
        InvalidInput: A number is below 1, or not exactly one of updates and tokens is given.
    """

    first: int
    updates: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        given = [each for each in (self.updates, self.tokens) if each is not None]
        if len(given) != 1 or min(self.first, *given) < 1:
            raise InvalidInput(
                "a batch warm-up needs `first` and either `updates` or `tokens`, each at least 1, got "
                f"first={self.first}, updates={self.updates}, tokens={self.tokens}."
            )

    def growth(self, batch: int, length: float) -> BatchGrowth:
        """Return the growth in updates, for a full batch of ``batch`` sequences of ``length`` tokens each."""
        if self.first > batch:
            raise InvalidInput(
                f"expected a full batch of at least {self.first} sequences, the size of the first batch, got {batch}."
            )
        if self.updates is not None:
            return BatchGrowth(self.first, self.updates)
        return BatchGrowth(self.first, math.ceil((self.tokens or 0) / ((self.first + batch) / 2 * length)))


@dataclass(frozen=True, slots=True)
class Course:
    """Length and optimizer of a training; one schedule covers all phases, ``warmup`` is its fraction of warm-up."""

    phases: tuple[Phase, ...]
    learning_rate: float
    warmup: float
    optimizer: Optimizer = field(default_factory=lambda: AdamW(eps=1e-6))
    schedule: Schedule = field(default_factory=LinearDecay)
    max_gradient_norm: float | None = 1.0

    @property
    def updates(self) -> int:
        """Total number of updates."""
        return sum(phase.updates for phase in self.phases)

    @property
    def tokens(self) -> int:
        return sum(phase.tokens for phase in self.phases)

    def lasting(
        self,
        *,
        updates: int | None = None,
        tokens: int | None = None,
        warmup: BatchWarmup | None = None,
        real: Mapping[int, float] | None = None,
    ) -> "Course":
        """Return a course of another length, with the same proportions of its phases.

        With ``tokens``, it has the fewest updates that read at least that many. ``warmup`` replaces the batch growth.
        ``real`` maps the length of a phase to the mean number of tokens in its sequences; by default, they are full.
        """
        found = {phase.length: float(phase.length) for phase in self.phases} if real is None else real

        def of(count: int) -> tuple[Phase, ...]:
            first, *others = _shared_out(self.phases, count)
            if warmup is not None:
                first = replace(first, growth=warmup.growth(first.batch, found[first.length]))
            return (first, *others)

        def read(phases: tuple[Phase, ...]) -> int:
            return math.floor(sum(phase.sequences * found[phase.length] for phase in phases))

        if tokens is not None:
            # Each sequence has at least one token, so this many updates are enough.
            updates = 1 + bisect_left(range(1, tokens), tokens, key=lambda count: read(of(count)))
        phases = of(self.updates if updates is None else updates)
        growth, most = phases[0].growth, phases[0].updates
        if growth is not None and growth.updates > most:
            raise InvalidInput(
                f"the batch warm-up takes {growth.updates:,} updates, but the first phase has only {most:,}: train "
                "longer or shorten the batch warm-up."
            )
        return replace(self, phases=phases)


def _shared_out(phases: tuple[Phase, ...], updates: int) -> tuple[Phase, ...]:
    """Divide ``updates`` among the phases in proportion, and drop phases that get none."""
    total = sum(phase.updates for phase in phases)
    ends = [round(updates * done / total) for done in accumulate(phase.updates for phase in phases)]
    counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return tuple(phase.scaled(count, phase.batch) for phase, count in zip(phases, counts, strict=True) if count)
