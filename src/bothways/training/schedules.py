"""Learning-rate schedules: a linear warm-up, then one of these.

Each class gives the fraction of the peak rate at ``progress``, the share (0 to 1) of the updates after the warm-up.
With ``floor=0`` the rates are those of transformers' schedulers of the same names.
"""

import math
from dataclasses import dataclass

from bothways.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class LinearDecay:
    """A line from the peak down to ``floor`` (a fraction of the peak)."""

    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_floor(self.floor)

    def fraction(self, progress: float) -> float:
        """Return the fraction of the peak rate."""
        return self.floor + (1.0 - self.floor) * (1.0 - progress)


@dataclass(frozen=True, slots=True)
class CosineDecay:
    """Half a cosine from the peak down to ``floor`` (Loshchilov & Hutter 2016, arXiv:1608.03983, eq. 5, one run)."""

    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_floor(self.floor)

    def fraction(self, progress: float) -> float:
        """Return the fraction of the peak rate."""
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True)
class ConstantRate:
    """The peak rate."""

    def fraction(self, progress: float) -> float:  # noqa: ARG002 (one signature for the whole axis)
        """Return 1."""
        return 1.0


@dataclass(frozen=True, slots=True)
class StableDecay:
    """The peak rate, then a decay to 0 in the last updates as 1 - sqrt(x), with x the share of them done.

    With the warm-up it is trapezoidal (Zhai et al. 2021, arXiv:2106.04560; the decay: Haegele et al. 2024,
    arXiv:2405.18392, eq. 4).

    Attributes:
        decay: Share of the updates after the warm-up in which the rate decays.
    """

    decay: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 < self.decay <= 1.0:
            raise InvalidInput(f"the decay of a schedule must be a share of its updates in (0, 1], got {self.decay!r}.")

    def fraction(self, progress: float) -> float:
        """Return the fraction of the peak rate."""
        return 1.0 - math.sqrt(max(0.0, 1.0 - (1.0 - progress) / self.decay))


Schedule = LinearDecay | CosineDecay | ConstantRate | StableDecay


def warmup_updates(total: int, fraction: float) -> int:
    """Return the number of warm-up updates: ``fraction`` of ``total``, rounded up, but never all.

    The first one has rate 0, so a run of one update would learn nothing.
    """
    return min(math.ceil(total * fraction), total - 1)


def rate_fraction(schedule: Schedule, update: int, *, warmup: int, total: int) -> float:
    """Return the fraction of the peak rate for one update.

    Args:
        schedule: The schedule after the warm-up.
        update: Number of the update, from 0. With a warm-up, update 0 has rate 0.
        warmup: Updates of linear warm-up.
        total: Updates of the whole run.
    """
    if update < warmup:
        return update / warmup
    return schedule.fraction(min(1.0, (update - warmup) / max(1, total - warmup)))


def _check_floor(floor: float) -> None:
    if not 0.0 <= floor < 1.0:
        raise InvalidInput(f"the floor of a schedule must be a fraction of the peak rate in [0, 1), got {floor!r}.")
