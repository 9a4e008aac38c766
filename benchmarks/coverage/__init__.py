"""Coverage and width of prediction-powered intervals, by simulation from populations whose truth is known.

``python -m benchmarks coverage`` draws 10,000 samples from each population, with 20, 50, 150 and 300 labels and 2,000
other rows, and counts how many intervals at 95 % hold the truth. Scores and numbers, of which every row is drawn, have
4,000 draws; the bootstrap, quantiles and the test of the labelled rows, which take one sample at a time, 500.
``--contestants proportions strata`` measures these parts alone.
"""

from collections.abc import Callable
from dataclasses import asdict
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
from benchmarks.coverage.tables import Draws, text
from benchmarks.harness import Options, say, write_results

DRAWS = 10_000
ROW_DRAWS = 4_000
SLOW_DRAWS = 500

__all__ = ["run"]


def run(options: Options) -> Path:
    """Simulate and write the results."""
    counts = Draws(200, 200, 20) if options.quick else Draws(DRAWS, ROW_DRAWS, SLOW_DRAWS)
    parts: dict[str, tuple[Callable[[int, np.random.Generator], list[Row]], int]] = {
        "proportions": (proportions, counts.fast),
        "bootstrap": (bootstrap, counts.slow),
        "scores": (scores, counts.rows),
        "differences": (differences, counts.fast),
        "strata": (strata, counts.fast),
        "quantiles": (quantiles, counts.slow),
        "not_at_random": (not_at_random, counts.slow),
    }
    figures: dict[str, list[Row]] = {}
    for seed, (name, (measure, count)) in enumerate(parts.items()):
        if name not in options.chosen([*parts]):
            continue
        say(f"coverage: {name}")
        figures[name] = measure(count, np.random.default_rng(seed))
    return write_results("coverage", options, {"draws": asdict(counts), **figures}, text(figures, counts))
