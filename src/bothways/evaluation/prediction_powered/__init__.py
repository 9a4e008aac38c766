"""Prediction-powered inference: estimates from few human labels and many judged rows, with intervals that hold.

A judge's scores on all rows make the interval of a mean narrower, and a few human labels correct the judge's bias
(Angelopoulos et al. 2023). The interval holds however bad the judge is, if the labelled rows are a random sample.
"""

from bothways.evaluation.prediction_powered.estimates import (
    PoweredEstimate,
    estimate_difference,
    estimate_mean,
    stratified_mean,
)
from bothways.evaluation.prediction_powered.planning import (
    kendall_tau,
    labels_to_separate,
    probability_better,
    rows_to_label,
)
from bothways.evaluation.prediction_powered.quantiles import estimate_quantile
from bothways.evaluation.prediction_powered.samples import Sample

__all__ = [
    "PoweredEstimate",
    "Sample",
    "estimate_difference",
    "estimate_mean",
    "estimate_quantile",
    "kendall_tau",
    "labels_to_separate",
    "probability_better",
    "rows_to_label",
    "stratified_mean",
]
