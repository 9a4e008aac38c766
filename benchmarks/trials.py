"""The batch that a careful user of a peer would choose: the fastest of a short trial before anything is measured."""

from collections.abc import Callable
from dataclasses import dataclass

BATCHES = (1, 2, 4, 8, 16, 32)
# Time falls with the calls that are saved and rises with padding and with tensors that leave the cache: beyond this
# multiple of the fastest, a larger batch is not tried.
HOPELESS = 1.25


@dataclass(frozen=True)
class Trial:
    """What was tried.

    Attributes:
        batch: The fastest.
        seconds: Those of one run by batch, smallest batch first.
    """

    batch: int
    seconds: dict[int, float]

    @classmethod
    def of(cls, seconds_at: Callable[[int], float], most: int) -> "Trial":
        """Run once at each batch up to ``most`` sequences, ending early where more of them only slow it down."""
        seconds: dict[int, float] = {}
        for batch in BATCHES:
            if seconds and (batch > most or seconds[max(seconds)] > HOPELESS * min(seconds.values())):
                break
            seconds[batch] = seconds_at(batch)
        return cls(min(seconds, key=seconds.__getitem__), seconds)
