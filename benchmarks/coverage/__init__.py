"""Coverage and width of prediction-powered intervals, by simulation from populations whose truth is known.

``python -m benchmarks coverage`` draws 10,000 samples from each population, with 20, 50, 150 and 300 labels and 2,000
other rows, and counts how many intervals at 95 % hold the truth. The bootstrap, quantiles and the test of the labelled
rows run one sample at a time, with 1,000 draws.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.coverage.cases import (
    Row,
    bootstrap,
    differences,
    not_at_random,
    proportions,
    quantiles,
    scores,
    strata,
)
from benchmarks.coverage.tables import text
from benchmarks.harness import Options, say, write_results

DRAWS = 10_000
SLOW_DRAWS = 1_000

__all__ = ["run"]


def run(options: Options) -> Path:
    """Simulate and write the results."""
    draws, slow = (200, 20) if options.quick else (DRAWS, SLOW_DRAWS)
    generator = np.random.default_rng(0)
    parts: dict[str, tuple[Callable[[int, np.random.Generator], list[Row]], int]] = {
        "proportions": (proportions, draws),
        "bootstrap": (bootstrap, slow),
        "scores": (scores, draws),
        "differences": (differences, draws),
        "strata": (strata, draws),
        "quantiles": (quantiles, slow),
        "not_at_random": (not_at_random, slow),
    }
    figures: dict[str, list[Row]] = {}
    for name, (measure, count) in parts.items():
        say(f"coverage: {name}")
        figures[name] = measure(count, generator)
    about = {"draws": draws, "slow_draws": slow}
    return write_results("coverage", options, {**about, **figures}, text(figures, draws, slow))
