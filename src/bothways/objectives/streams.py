"""The sequences of an update as a function of its number, so that a run can go on at any update."""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from bothways.errors import InvalidInput
from bothways.objectives.lanes import Lanes
from bothways.objectives.order import PassOrder
from bothways.objectives.sequences import EpochSequences, SequenceSource


class SequenceStream(Protocol):
    """Sequences in the order of the updates.

    Attributes:
        digest: A checksum of the sequences and their order.
        identity: Settings of the order and the batch size that a resumed run must share.
    """

    @property
    def digest(self) -> str: ...  # noqa: D102 (above)

    @property
    def identity(self) -> Mapping[str, str | int]: ...  # noqa: D102 (above)

    def read(self, update: int) -> list[EpochSequences]:
        """Return the sequences of an update, counted from 0 over the whole run."""


class EpochStream:
    """Whole passes over a source; the last update of each has the remainder.

    Args:
        source: The source.
        batch_size: Items in an update.
        seed: Orders each pass.
    """

    def __init__(self, source: SequenceSource, batch_size: int, seed: int) -> None:
        self.source = source
        self.batch_size = batch_size
        self._order = PassOrder(len(source), seed)

    @property
    def digest(self) -> str:
        """A checksum of the source."""
        return self.source.digest

    @property
    def identity(self) -> Mapping[str, str | int]:
        """The batch size and the kind of order."""
        return {"batch size": self.batch_size, "order": PassOrder.name}

    @property
    def updates_per_epoch(self) -> int:
        """Updates in a pass."""
        return -(-len(self.source) // self.batch_size)

    def read(self, update: int) -> list[EpochSequences]:
        """Return the sequences of an update."""
        epoch, number = divmod(update, self.updates_per_epoch)
        places = self._order.of(epoch, number * self.batch_size, (number + 1) * self.batch_size)
        return [EpochSequences(epoch, self.source.read(places, epoch))]


@dataclass(frozen=True, slots=True)
class BatchGrowth:
    """A batch size that rises evenly over the first updates, with equally many updates at each size (ModernBERT).

    Attributes:
        first: Items in the first update.
        updates: Updates until the batch is full.
    """

    first: int
    updates: int

    def before(self, update: int, full: int) -> int:
        """Return the number of items before an update, in batches that grow to ``full``."""
        rising = min(update, self.updates)
        more = _floor_sum(rising, full - self.first, self.updates)
        return rising * self.first + more + (update - rising) * full


@dataclass(frozen=True, slots=True)
class StreamPhase:
    """Updates that read one source.

    Attributes:
        source: The source.
        updates: Number of updates.
        batch_size: Items in each.
        memory: Tokens of its document that a sequence remembers, which are read in lanes; 0 for items in random order.
        growth: Growth of the batch to its size, if any.

    Raises:
        InvalidInput: The batch grows, and sequences are read in lanes.
    """

    source: SequenceSource
    updates: int
    batch_size: int
    memory: int = 0
    growth: BatchGrowth | None = None

    def __post_init__(self) -> None:
        if self.memory and self.growth is not None:
            raise InvalidInput(
                "sequences with a memory are read in lanes, one for each sequence of a batch, so the batch cannot "
                "grow: drop its warm-up."
            )

    def __str__(self) -> str:
        growth = "" if self.growth is None else f", from {self.growth.first} over {self.growth.updates}"
        return f"{self.updates} updates of {self.batch_size}{growth}"

    def before(self, update: int) -> int:
        """Return the number of items before an update."""
        return update * self.batch_size if self.growth is None else self.growth.before(update, self.batch_size)


class PhasedStream:
    """Sources one after another, each read in passes that follow each other without a break within an update.

    Args:
        phases: Sources with numbers of updates.
        seed: Orders each pass.

    Raises:
        InvalidInput: There is no phase, or a phase without updates or items.
    """

    def __init__(self, phases: Sequence[StreamPhase], seed: int) -> None:
        if not phases or any(min(each.updates, each.batch_size, len(each.source)) < 1 for each in phases):
            raise InvalidInput("expected phases with at least one update of one sequence each, from sources with text.")
        self.phases = tuple(phases)
        self.seed = seed
        self._ends = list(accumulate(each.updates for each in phases))
        self._readers = [_reader(each, seed + number) for number, each in enumerate(phases)]

    @property
    def updates(self) -> int:
        """Updates in all."""
        return self._ends[-1]

    @property
    def digest(self) -> str:
        """A checksum of the sources and of their order."""
        parts = [str(self.seed), *(each.source.digest for each in self.phases)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    @property
    def identity(self) -> Mapping[str, str | int]:
        """Updates and batch size of each phase, the kind of order, and the remembered tokens."""
        phases = ", ".join(map(str, self.phases))
        memories = ", ".join(str(each.memory) for each in self.phases)
        remembered = {"memory": memories} if any(each.memory for each in self.phases) else {}
        return {"phases": phases, "order": PassOrder.name, **remembered}

    def read(self, update: int) -> list[EpochSequences]:
        """Return the sequences of an update, which may be the last of a pass and the first of the next.

        Raises:
            InvalidInput: The update is beyond the last phase.
        """
        if not 0 <= update < self.updates:
            raise InvalidInput(f"expected an update from 0 to {self.updates - 1}, got {update}.")
        number = bisect_right(self._ends, update)
        return self._readers[number].read(update - (self._ends[number - 1] if number else 0))


class _Passes:
    """Passes over a source that follow each other without a break within an update."""

    def __init__(self, phase: StreamPhase, seed: int) -> None:
        self._phase = phase
        self._order = PassOrder(len(phase.source), seed)

    def read(self, update: int) -> list[EpochSequences]:
        begin, end = self._phase.before(update), self._phase.before(update + 1)
        source, found = self._phase.source, []
        while begin < end:
            epoch, place = divmod(begin, len(source))
            places = self._order.of(epoch, place, place + end - begin)
            found.append(EpochSequences(epoch, source.read(places, epoch)))
            begin += len(places)
        return found


def _reader(phase: StreamPhase, seed: int) -> _Passes | Lanes:
    if phase.memory:
        return Lanes(phase.source, phase.batch_size, phase.memory, seed)
    return _Passes(phase, seed)


def _floor_sum(count: int, factor: int, divisor: int) -> int:
    """Return the sum of ``factor * i // divisor`` over i below ``count``, in steps of Euclid's algorithm."""
    total, rest = 0, 0
    while True:
        total += count * (count - 1) // 2 * (factor // divisor) + count * (rest // divisor)
        factor, rest = factor % divisor, rest % divisor
        highest = factor * count + rest
        if highest < divisor:
            return total
        count, rest = divmod(highest, divisor)
        factor, divisor = divisor, factor
