"""Metrics with confidence intervals, comparisons of two models, and calibration, from arrays of numbers.

`Outcomes` holds the results of one model on labelled rows; ``outcomes.report()`` makes a `Report` of it and `compare`
sets two of them side by side. Fitting and testing use SciPy and scikit-learn, everything else NumPy alone.
Estimates from few human labels and many judged rows are in `bothways.evaluation.prediction_powered`.
"""

from bothways.evaluation.adaptive import fit_adaptive_temperature
from bothways.evaluation.answer_confidence import answer_probabilities, best_threshold, fit_answer_temperature
from bothways.evaluation.answers import AnswerScores, answer_outcomes, score_answers
from bothways.evaluation.bootstrap import Estimate, bootstrap_estimates
from bothways.evaluation.calibrating import (
    Calibration,
    CalibrationMethod,
    ChosenCalibration,
    HeldOutRows,
    MethodScore,
    calibration_from,
    choose_calibration,
    fit_calibration,
    held_out_probabilities,
    method_of,
    stored_form,
)
from bothways.evaluation.calibration import (
    Temperature,
    apply_sigmoid_temperature,
    apply_temperature,
    fit_sigmoid_temperature,
    fit_temperature,
    sigmoid,
    softmax,
)
from bothways.evaluation.classes import class_outcomes, label_outcomes
from bothways.evaluation.comparing import ComparisonReport, MetricDifference, check_labels, compare, naming_hint
from bothways.evaluation.conformal import (
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
    DetectorKind,
    Energy,
    Mahalanobis,
    MaxSoftmax,
    Neighbours,
)
from bothways.evaluation.embedding import agreement_outcomes, rank_outcomes
from bothways.evaluation.masked_lm import token_outcomes
from bothways.evaluation.metrics import multi_label_nll, negative_log_likelihood
from bothways.evaluation.operating_points import operating_point
from bothways.evaluation.out_of_domain import out_of_domain_report, out_of_domain_threshold, threshold_between
from bothways.evaluation.outcomes import Outcomes, mean_outcomes
from bothways.evaluation.paired import PairedTest
from bothways.evaluation.rankings import MEASURES as RANKING_MEASURES
from bothways.evaluation.rankings import ranking_differences, ranking_outcomes
from bothways.evaluation.regression import (
    mean_squared_error,
    number_outcomes,
    r2,
    similarity_outcomes,
    spearman,
    undefined_correlation,
)
from bothways.evaluation.reliability import ReliabilityBin
from bothways.evaluation.report import ClassRow, OperatingPoint, Report, TextsRead
from bothways.evaluation.standard_errors import correlation_error, mean_error, share_error
from bothways.evaluation.tag_counts import TaggedWords, span_counts
from bothways.evaluation.tagging import span_outcomes, tag_outcomes
from bothways.evaluation.thresholds import fit_common_threshold, fit_thresholds

__all__ = [
    "RANKING_MEASURES",
    "Adaptive",
    "AnswerScores",
    "Calibration",
    "CalibrationMethod",
    "ChosenCalibration",
    "ClassRow",
    "ComparisonReport",
    "ConformalInterval",
    "ConformalSets",
    "Cosine",
    "Detector",
    "DetectorInput",
    "DetectorKind",
    "Energy",
    "Estimate",
    "HeldOutRows",
    "LabelSets",
    "LeastAmbiguous",
    "Mahalanobis",
    "MaxSoftmax",
    "MethodScore",
    "MetricDifference",
    "Neighbours",
    "OperatingPoint",
    "Outcomes",
    "PairedTest",
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
    "choose_calibration",
    "class_outcomes",
    "compare",
    "correlation_error",
    "fit_adaptive_temperature",
    "fit_answer_temperature",
    "fit_calibration",
    "fit_common_threshold",
    "fit_sigmoid_temperature",
    "fit_temperature",
    "fit_thresholds",
    "held_out_probabilities",
    "label_outcomes",
    "mean_error",
    "mean_outcomes",
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
