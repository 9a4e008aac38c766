"""Fine-tuning on few rows, ours at its defaults beside everybody at their best: ``python -m benchmarks small_data``."""

from benchmarks.small_data.cells import run

__all__ = ["run"]
