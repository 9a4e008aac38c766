"""Lanes: runs of text that one row of the updates reads on from update to update, with a memory.

The published code of XLNet lays all documents end to end and cuts them into as many rows as a batch has
(zihangdai/xlnet, data_utils.py, ``batchify``); each update reads the next tokens of every row, with the memory of those
before. With ``bi_data``, one half of a batch reads the rows from beginning to end, the other half the same rows from
end to beginning (section 3.1 of arXiv:1906.08237). Memories are zeros at the beginning of a row, and go on from one
document to the next. Here a row, a lane, reads group after group of pieces of documents, and a memory begins empty with
each document (section 2.5) and each lane.

Shapes: N groups of a source, C chains of them.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bothways.data.shards.pieces import runs
from bothways.errors import InvalidInput
from bothways.objectives.corpus import FramedCorpus
from bothways.objectives.order import PassOrder
from bothways.objectives.sequences import EpochSequences, Link, SequenceSource, TrainingSequence


@runtime_checkable
class LaneSource(SequenceSource, Protocol):
    """A source of pieces of documents.

    Attributes:
        framed: Its corpus.
    """

    @property
    def framed(self) -> FramedCorpus: ...  # noqa: D102 (above)

    def read_group(self, place: int, epoch: int, *, backward: bool) -> list[TrainingSequence]:
        """Return the sequences of a group in the order of reading."""


class Lanes:
    """Groups of a source in lanes, read forward by one half of an update and backward by the other.

    Groups that continue the document of the group before form a chain, and a pass over the source has the chains in a
    random order. Passes follow one another and are cut into runs of equal length, one for each forward lane; such a lap
    takes about as many updates as a pass. A backward lane reads the same run as its forward one.

    Args:
        source: The source.
        lanes: Groups in an update, at least 1; half of them, rounded down, are read backward.
        memory: Tokens that a lane remembers.
        seed: Orders each pass.

    Raises:
        InvalidInput: The source has no pieces of documents.
    """

    def __init__(self, source: SequenceSource, lanes: int, memory: int, seed: int) -> None:
        if not isinstance(source, LaneSource):
            raise InvalidInput(f"expected pieces of documents to be read in lanes, got {type(source).__name__}.")
        self._source, self._lanes, self._memory, self._seed = source, lanes, memory, seed
        self._forward = lanes - lanes // 2
        self._continued = source.framed.pieces.continued()
        self._steps = -(-len(source) // self._forward)
        # A lap is hardly longer than a pass, so it reads at most three.
        self._order = lru_cache(maxsize=3)(self._ordered)

    def read(self, update: int) -> list[EpochSequences]:
        """Return the sequences of an update, lane by lane."""
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
        """Return the pass and the group of a lane's step; None outside of its run."""
        if not 0 <= step < self._steps:
            return None
        if lane >= self._forward:
            lane, step = lane - self._forward, self._steps - 1 - step
        number, place = divmod((lap * self._forward + lane) * self._steps + step, len(self._source))
        return number, int(self._order(number)[place])

    def _goes_on(self, first: tuple[int, int] | None, second: tuple[int, int] | None, *, backward: bool) -> bool:
        """Tell whether the second group of a lane continues the document of the first."""
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
