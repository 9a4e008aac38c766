"""Metrics with confidence intervals, comparisons of two models, and calibration, from numeric arrays.

`bothways.evaluation.outcomes.Outcomes` holds the results of one model on labelled rows; ``outcomes.report()``
makes a `bothways.evaluation.report.Report` of them, and `bothways.evaluation.comparison.compare` compares two of them.
"""
