"""Confidence of labels and numbers: what held-out rows can teach of it, and what a card says of that.

Shapes: N rows.
"""

from collections.abc import Callable

import numpy as np

from bothways.confidence.confidence import Confidence
from bothways.confidence.fitting import learn_classification
from bothways.confidence.options import ConfidenceOptions
from bothways.errors import InvalidInput
from bothways.evaluation.coverage import ConformalInterval
from bothways.evaluation.detectors import DetectorInput
from bothways.evaluation.temperature import Temperature, fit_sigmoid_temperature
from bothways.progress import phase
from bothways.tasks.card import COVERAGE_IS_APPROXIMATE, NOTICES_NOTHING, optimistic
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel, Target, Truth


def check_calibration(target: Target, options: ConfidenceOptions, truth: Truth) -> None:
    """Refuse before the training what could not be learnt after it.

    Args:
        target: What is predicted.
        options: What is to be learnt.
        truth: The encoded labels of the held-out rows.

    Raises:
        InvalidInput: The method of calibration is none for the target, or learns something of each label and there is
            one without a row.
    """
    method = options.calibration
    if isinstance(target, SingleLabel) and method == "isotonic":
        rows_C = np.bincount(truth, minlength=target.outputs)
        if not rows_C.all():
            label = target.labels[int(rows_C.argmin())]
            raise InvalidInput(
                f"calibration by {method!r} needs held-out rows of every label, and of {label!r} there is none: give "
                "validation data that have some, or choose 'temperature' or 'auto'."
            )
    if isinstance(target, MultiLabel) and method not in ("auto", "temperature", None):
        raise InvalidInput(
            f"several labels for a text are calibrated by a temperature, not by {method!r}: "
            "choose 'temperature' or 'auto'."
        )
    if isinstance(target, Regression) and method not in ("auto", None):
        raise InvalidInput(f"numbers have no probabilities to calibrate by {method!r}: choose 'auto', or None.")


def fit_label_confidence(
    target: Target,
    held_out: DetectorInput,
    truth: Truth,
    options: ConfidenceOptions,
    seed: int,
    training: Callable[[], tuple[DetectorInput, Truth]],
) -> Confidence:
    """Fit calibration, coverage and the out-of-domain detector on held-out rows; see `bothways.confidence`."""
    match target:
        case SingleLabel():
            return learn_classification(held_out, truth, options, seed=seed, training=training)
        case MultiLabel():
            if options.calibration is None:
                return Confidence()
            phase("calibrating")
            return Confidence(Temperature(fit_sigmoid_temperature(held_out.logits_NC, truth.astype(np.int64))))
        case Regression():
            phase("learning intervals with a coverage")
            return Confidence(conformal=ConformalInterval.fit(held_out.logits_NC[:, 0], truth))


def confidence_limits(confidence: Confidence, *, thresholds: bool = False) -> tuple[str, ...]:
    """Return what a reader of a card has to know of metrics on rows that also taught the confidence."""
    chose = "the epoch to keep, the calibration and the thresholds" if thresholds else None
    return (
        optimistic("rows", chose or "the epoch to keep and the calibration"),
        "Metrics, probabilities and coverage hold for texts like the validation rows.",
        *([COVERAGE_IS_APPROXIMATE] if confidence.conformal is not None else []),
        *([NOTICES_NOTHING] if confidence.out_of_domain is None else []),
    )
