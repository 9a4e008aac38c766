"""Metrics of each task: formulas, and the outcomes that reports and comparisons are computed from."""
