"""Our export without torch: a new process to its first vector and its memory, then throughput and latency."""

from pathlib import Path

from benchmarks.embedders import BASELINE, LIGHT_NAMES, OURS, OURS_LIGHT
from benchmarks.embedding import measured
from benchmarks.harness import Options
from benchmarks.startup import started


def run(options: Options) -> Path:
    """Measure both, and write two pages."""
    started("light-start", options, (OURS, OURS_LIGHT, BASELINE))
    return measured("light", options, LIGHT_NAMES)
