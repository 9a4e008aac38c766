"""Metrics with confidence intervals, comparisons of two models, and calibration, from arrays of numbers.

`Outcomes` holds the results of one model on labelled rows; ``outcomes.report()`` makes a `Report` of it and `compare`
sets two of them side by side. Fitting and testing use SciPy and scikit-learn, everything else NumPy alone.
Estimates from few human labels and many judged rows are in `bothways.evaluation.prediction_powered`.
"""

from bothways.evaluation.calibration import (
    Calibration,
    ChosenCalibration,
    HeldOutRows,
    MethodScore,
    calibration_from,
    method_of,
    stored_form,
)
from bothways.evaluation.comparison import (
    ComparisonReport,
    check_labels,
    compare,
    naming_hint,
)
from bothways.evaluation.coverage import (
    Adaptive,
    ConformalInterval,
    ConformalSets,
    LabelSets,
    LeastAmbiguous,
    SetScore,
)
from bothways.evaluation.detectors import (
    Cosine,
    Detector,
    DetectorInput,
    Energy,
    Mahalanobis,
    MaxSoftmax,
    Neighbours,
)
from bothways.evaluation.intervals import Estimate, bootstrap_estimates, correlation_error, mean_error, share_error
from bothways.evaluation.metrics.classification import class_outcomes, label_outcomes
from bothways.evaluation.metrics.masked_lm import token_outcomes
from bothways.evaluation.metrics.question_answering import (
    AnswerScores,
    answer_outcomes,
    answer_probabilities,
    best_threshold,
    fit_answer_temperature,
    score_answers,
)
from bothways.evaluation.metrics.ranking import MEASURES as RANKING_MEASURES
from bothways.evaluation.metrics.ranking import rank_outcomes, ranking_differences, ranking_outcomes
from bothways.evaluation.metrics.regression import (
    agreement_outcomes,
    mean_squared_error,
    number_outcomes,
    r2,
    similarity_outcomes,
    spearman,
    undefined_correlation,
)
from bothways.evaluation.metrics.scores import multi_label_nll, negative_log_likelihood
from bothways.evaluation.metrics.tagging import TaggedWords, span_counts, span_outcomes, tag_outcomes
from bothways.evaluation.out_of_domain import out_of_domain_report, out_of_domain_threshold, threshold_between
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.reliability import ReliabilityBin
from bothways.evaluation.report import OperatingPoint, Report, TextsRead
from bothways.evaluation.temperature import (
    Temperature,
    apply_sigmoid_temperature,
    apply_temperature,
    fit_adaptive_temperature,
    fit_sigmoid_temperature,
    fit_temperature,
    sigmoid,
    softmax,
)
from bothways.evaluation.thresholds import fit_common_threshold, fit_thresholds, operating_point

__all__ = [
    "RANKING_MEASURES",
    "Adaptive",
    "AnswerScores",
    "Calibration",
    "ChosenCalibration",
    "ComparisonReport",
    "ConformalInterval",
    "ConformalSets",
    "Cosine",
    "Detector",
    "DetectorInput",
    "Energy",
    "Estimate",
    "HeldOutRows",
    "LabelSets",
    "LeastAmbiguous",
    "Mahalanobis",
    "MaxSoftmax",
    "MethodScore",
    "Neighbours",
    "OperatingPoint",
    "Outcomes",
    "ReliabilityBin",
    "Report",
    "SetScore",
    "TaggedWords",
    "Temperature",
    "TextsRead",
    "agreement_outcomes",
    "answer_outcomes",
    "answer_probabilities",
    "apply_sigmoid_temperature",
    "apply_temperature",
    "best_threshold",
    "bootstrap_estimates",
    "calibration_from",
    "check_labels",
    "class_outcomes",
    "compare",
    "correlation_error",
    "fit_adaptive_temperature",
    "fit_answer_temperature",
    "fit_common_threshold",
    "fit_sigmoid_temperature",
    "fit_temperature",
    "fit_thresholds",
    "label_outcomes",
    "mean_error",
    "mean_squared_error",
    "method_of",
    "multi_label_nll",
    "naming_hint",
    "negative_log_likelihood",
    "number_outcomes",
    "operating_point",
    "out_of_domain_report",
    "out_of_domain_threshold",
    "r2",
    "rank_outcomes",
    "ranking_differences",
    "ranking_outcomes",
    "score_answers",
    "share_error",
    "sigmoid",
    "similarity_outcomes",
    "softmax",
    "span_counts",
    "span_outcomes",
    "spearman",
    "stored_form",
    "tag_outcomes",
    "threshold_between",
    "token_outcomes",
    "undefined_correlation",
]
