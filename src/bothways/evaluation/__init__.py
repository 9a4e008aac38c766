"""Metrics with confidence intervals, comparisons of two models, and calibration, computed from numeric arrays.

`bothways.evaluation.outcomes.Outcomes` holds the results of one model on labelled rows. ``outcomes.report()`` returns
a `bothways.evaluation.report.Report`, and `bothways.evaluation.comparison.compare` compares two models.
"""
