"""The sequences of an update as a function of its number, so a run can resume at any update.

`PassOrder` orders the items of a pass, `Lanes` reads documents continuously across updates with a memory, and
`PhasedStream` reads several sources one after another.

Shapes: N items or groups of a source, M requested ones, C chains of groups.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from bothways.data.shards.corpus import runs
from bothways.errors import InvalidInput
from bothways.objectives.corpus import PieceSource
from bothways.objectives.sequences import EpochSequences, Link, SequenceSource


class PassOrder:
    """A random order of N items for each pass: a keyed permutation that is computed position by position.

    It is the swap-or-not shuffle (Hoang, Morris & Rogaway 2012, arXiv:1208.1176, figure 1). In each round an item has a
    partner, (key - item) mod N, and a bit computed from the pair alone decides if the two swap. This is a permutation
    of any N numbers without a table: a pass over a billion sequences takes no memory, and a run can resume at any
    position. The seed and the number of the pass determine the order.
    """

    name: ClassVar = "swap-or-not"

    def __init__(self, items: int, seed: int) -> None:
        self._items, self._seed = items, seed

    def of(self, epoch: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return the items at positions ``begin`` to ``end`` (exclusive) of a pass (M); fewer at its end."""
        # NumPy guarantees the same output in all versions for seed sequences, but not for its generators.
        words = np.random.SeedSequence([self._seed, epoch]).generate_state(2 * _ROUNDS, np.uint64)
        items_M = np.arange(begin, min(end, self._items))
        for key, salt in zip((words[:_ROUNDS] % np.uint64(self._items)).tolist(), words[_ROUNDS:], strict=True):
            partners_M = key - items_M
            partners_M += (partners_M < 0) * self._items
            bits_M = _top_bits(np.maximum(items_M, partners_M).astype(np.uint64) + salt)
            items_M = np.where(bits_M, partners_M, items_M)
        return items_M


def _top_bits(words_M: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Hash each 64-bit word to one bit that depends on all of its bits (Steele et al. 2014, SplitMix64's finalizer)."""
    words_M = (words_M ^ (words_M >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words_M = (words_M ^ (words_M >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((words_M ^ (words_M >> np.uint64(31))) >> np.uint64(63), dtype=bool)


_ROUNDS = 48
"""After r rounds, each item is at each position with probability 1 / N, to within 2 ** -r; a round takes 20 µs."""


class Lanes:
    """Documents read continuously in lanes: one half of a batch (rounded up) reads forward, the other backward.

    The published code of XLNet concatenates all documents and cuts them into as many rows as the batch has
    (zihangdai/xlnet, data_utils.py, ``batchify``); each update reads the next tokens of every row, with the memory of
    the previous ones. With ``bi_data``, one half of a batch reads the rows from beginning to end, the other half the
    same rows from end to beginning (section 3.1 of arXiv:1906.08237). Memories are zeros at the beginning of a row and
    continue from one document to the next. Here a row is called a lane. It reads one group of pieces after another, and
    its memory is empty at the beginning of each document (section 2.5) and of each run.

    Consecutive groups of one document form a chain, and a pass over the source reads the chains in a random order.
    Passes are concatenated and cut into sections of equal length, one for each forward lane; a lap over these sections
    takes about as many updates as a pass. A backward lane reads the section of its forward lane from the end.
    """

    def __init__(self, source: SequenceSource, lanes: int, memory: int, seed: int) -> None:
        if not isinstance(source, PieceSource):
            raise InvalidInput(f"expected document pieces, such as CorpusPieces, got {type(source).__name__}.")
        self._source, self._lanes, self._memory, self._seed = source, lanes, memory, seed
        self._forward = lanes - lanes // 2
        self._continued = source.framed.pieces.continued()
        self._steps = -(-len(source) // self._forward)
        # A lap is hardly longer than a pass, so its groups are from at most three passes.
        self._order = lru_cache(maxsize=3)(self._ordered)

    def read(self, update: int) -> list[EpochSequences]:
        lap, step = divmod(update, self._steps)
        return [self._read(lap, lane, step) for lane in range(self._lanes)]

    def _read(self, lap: int, lane: int, step: int) -> EpochSequences:
        backward = lane >= self._forward
        before, now, after = (self._group(lap, lane, step + shift) for shift in (-1, 0, 1))
        assert now is not None  # the step is within the lap
        epoch = 2 * now[0] + backward
        read = self._memory * self._goes_on(before, now, backward=backward)
        kept = self._memory * self._goes_on(now, after, backward=backward)
        sequences = self._source.read_group(now[1], epoch, backward=backward)
        last = len(sequences) - 1
        linked = [
            replace(each, link=Link(lane, read * (place == 0), kept * (place == last), backward))
            for place, each in enumerate(sequences)
        ]
        return EpochSequences(epoch, linked)

    def _group(self, lap: int, lane: int, step: int) -> tuple[int, int] | None:
        """Return the pass and the group that a lane reads in a step of a lap; None outside of the lap."""
        if not 0 <= step < self._steps:
            return None
        if lane >= self._forward:
            lane, step = lane - self._forward, self._steps - 1 - step
        number, place = divmod((lap * self._forward + lane) * self._steps + step, len(self._source))
        return number, int(self._order(number)[place])

    def _goes_on(self, first: tuple[int, int] | None, second: tuple[int, int] | None, *, backward: bool) -> bool:
        if first is None or second is None or first[0] != second[0]:
            return False
        earlier, later = sorted((first[1], second[1]))
        in_order = (first[1] > second[1]) == backward
        return in_order and later == earlier + 1 and bool(self._continued[later])

    def _ordered(self, number: int) -> NDArray[np.int64]:
        """Return the groups of a pass (N), with the chains in a random order."""
        begins_C = np.flatnonzero(~self._continued)
        sizes_C = np.diff(begins_C, append=len(self._continued))
        drawn_C = PassOrder(len(begins_C), self._seed).of(number, 0, len(begins_C))
        return runs(begins_C[drawn_C], sizes_C[drawn_C])


class SequenceStream(Protocol):
    """The sequences of each update; `digest` is a checksum of the sequences.

    `identity` has the settings of order and batch size, which a resumed run must share with its checkpoint.
    """

    @property
    def digest(self) -> str: ...

    @property
    def identity(self) -> Mapping[str, str | int]: ...

    def read(self, update: int) -> list[EpochSequences]:
        """Return the sequences of an update, counted from 0 over the whole run."""


class EpochStream:
    """Whole passes over a source; the last update of a pass has the remaining items."""

    def __init__(self, source: SequenceSource, batch_size: int, seed: int) -> None:
        self.source = source
        self.batch_size = batch_size
        self._order = PassOrder(len(source), seed)

    @property
    def digest(self) -> str:
        return self.source.digest

    @property
    def identity(self) -> Mapping[str, str | int]:
        return {"batch size": self.batch_size, "order": PassOrder.name}

    @property
    def updates_per_epoch(self) -> int:
        return -(-len(self.source) // self.batch_size)

    def read(self, update: int) -> list[EpochSequences]:
        epoch, number = divmod(update, self.updates_per_epoch)
        places = self._order.of(epoch, number * self.batch_size, (number + 1) * self.batch_size)
        return [EpochSequences(epoch, self.source.read(places, epoch))]


@dataclass(frozen=True, slots=True)
class BatchGrowth:
    """A batch size that rises linearly from `first` over `updates` updates (ModernBERT)."""

    first: int
    updates: int

    def before(self, update: int, full: int) -> int:
        """Return the number of items of all updates before this one, if batches grow to ``full`` items."""
        rising = min(update, self.updates)
        more = _floor_sum(rising, full - self.first, self.updates)
        return rising * self.first + more + (update - rising) * full


@dataclass(frozen=True, slots=True)
class StreamPhase:
    """Consecutive updates that read one source, ``batch_size`` items each.

    With ``memory``, documents are read in lanes, each with a memory of this many tokens. Otherwise items come in random
    order, and ``growth`` may increase the batch up to its size.
    """

    source: SequenceSource
    updates: int
    batch_size: int
    memory: int = 0
    growth: BatchGrowth | None = None

    def __post_init__(self) -> None:
        if self.memory and self.growth is not None:
            raise InvalidInput(
                "expected a memory or a batch warm-up, got both: each row of the next batch continues a sequence of "
                "this one, so the batch size must stay the same. Drop the batch warm-up."
            )

    def __str__(self) -> str:
        growth = "" if self.growth is None else f", from {self.growth.first} over {self.growth.updates}"
        return f"{self.updates} updates of {self.batch_size}{growth}"

    def before(self, update: int) -> int:
        """Return the number of items of all updates before this one."""
        return update * self.batch_size if self.growth is None else self.growth.before(update, self.batch_size)


class PhasedStream:
    """Sources read one after another, each in consecutive passes; an update may span the end of a pass."""

    def __init__(self, phases: Sequence[StreamPhase], seed: int) -> None:
        if not phases or any(min(each.updates, each.batch_size, len(each.source)) < 1 for each in phases):
            raise InvalidInput("expected at least one phase, each with text, and batch_size and updates of at least 1.")
        self.phases = tuple(phases)
        self.seed = seed
        self._ends = list(accumulate(each.updates for each in phases))
        self._readers = [
            Lanes(each.source, each.batch_size, each.memory, seed + number)
            if each.memory
            else _Passes(each, seed + number)
            for number, each in enumerate(phases)
        ]

    @property
    def updates(self) -> int:
        return self._ends[-1]

    @property
    def digest(self) -> str:
        parts = [str(self.seed), *(each.source.digest for each in self.phases)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    @property
    def identity(self) -> Mapping[str, str | int]:
        phases = ", ".join(map(str, self.phases))
        memories = ", ".join(str(each.memory) for each in self.phases)
        remembered = {"memory": memories} if any(each.memory for each in self.phases) else {}
        return {"phases": phases, "order": PassOrder.name, **remembered}

    def read(self, update: int) -> list[EpochSequences]:
        """Return the sequences of an update, grouped by the pass over the corpus, or the lane, that they come from."""
        if not 0 <= update < self.updates:
            raise InvalidInput(f"expected an update from 0 to {self.updates - 1}, got {update}.")
        number = bisect_right(self._ends, update)
        return self._readers[number].read(update - (self._ends[number - 1] if number else 0))


class _Passes:
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


def _floor_sum(count: int, factor: int, divisor: int) -> int:
    """Return the sum of ``factor * i // divisor`` for i in range(count), by Euclid's algorithm."""
    total, rest = 0, 0
    while True:
        total += count * (count - 1) // 2 * (factor // divisor) + count * (rest // divisor)
        factor, rest = factor % divisor, rest % divisor
        highest = factor * count + rest
        if highest < divisor:
            return total
        count, rest = divmod(highest, divisor)
        factor, divisor = divisor, factor
