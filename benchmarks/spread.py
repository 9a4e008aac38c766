"""Means over seeds with their spread, and what differences between sides come to.

Shared by the tables of all benchmarks that train. A difference is formed seed by seed, on the same training and test
rows, and is a tie where its mean is not larger than its standard deviation.
"""

import statistics
from collections.abc import Mapping, Sequence


def spread(values: Sequence[float], form: str = ".4f") -> str:
    """Return ``mean ± standard deviation``; of one value, the value."""
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{deviation}"


def differences(ours: Mapping[int, float], peer: Mapping[int, float]) -> list[float]:
    """Return ours minus the peer's figure for each seed that both have."""
    return [ours[seed] - peer[seed] for seed in sorted(ours) if seed in peer]


def verdict(found: Sequence[float]) -> str:
    """Return ``"ahead"``, ``"behind"`` or ``"tie"``; one seed decides nothing."""
    if len(found) < 2:
        return "one seed"
    mean = statistics.mean(found)
    if abs(mean) <= statistics.stdev(found):
        return "tie"
    return "ahead" if mean > 0 else "behind"


def lead(ours: Mapping[int, float], peer: Mapping[int, float], *, lower_is_better: bool = False) -> str:
    """Return the difference with its spread and its verdict; empty where no seed is common."""
    found = differences(ours, peer)
    if not found:
        return ""
    return f"{spread(found, '+.4f')}, {verdict([-each for each in found] if lower_is_better else found)}"
