"""What a model learns on held-out rows about its answers, and what it then says of them.

Shapes: N texts, B sequences, T tokens, C classes, H hidden, L layers that a detector reads, K = C + L H.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bothways.encoder import Encoder, ScoreHead
from bothways.encoder.heads import layer_rows, read_rows
from bothways.errors import InvalidInput, NotCalibrated
from bothways.evaluation import (
    CalibrationMethod,
    ChosenCalibration,
    ConformalInterval,
    ConformalSets,
    Cosine,
    Detector,
    Energy,
    Evidence,
    LabelSets,
    Mahalanobis,
    MaxSoftmax,
    Neighbours,
    Temperature,
    choose_calibration,
    fit_calibration,
    fit_sigmoid_temperature,
    held_out_probabilities,
)
from bothways.packing import Packed
from bothways.tasks.labelling.trust import Border, Trust, storable
from bothways.tasks.objective import HeadModel
from bothways.tasks.predictions import Classification, Prediction, Score
from bothways.tasks.settings import ALL_LAYERS, DetectorChoice, FitSettings
from bothways.tasks.targets import Logits, MultiLabel, Regression, SingleLabel, Target, Truth

Promise: TypeAlias = LabelSets | float
"""Sets of labels, or half the width of an interval."""


MOST_TRAINING = 20_000
"""Training rows that a detector is fitted on, drawn from more."""


class FeatureModel(HeadModel):
    """Gives beside the scores the hidden states that the head reads.

    Args:
        encoder: The encoder.
        head: The head.
        layers: 1 for the last layer's states, or as many as the encoder has, for those of all of them.
    """

    def __init__(self, encoder: Encoder, head: ScoreHead, layers: int) -> None:
        super().__init__(encoder, head)
        self.layers = layers

    def forward(self, packed: Packed) -> Tensor:
        """Scores and features (B, C + L H), of the last layer first."""
        read = self.head.kind.read
        states = layer_rows(read, self.encoder, packed) if self.layers > 1 else (read_rows(read, self.encoder, packed),)
        return torch.cat([self.head(states[0]), *states], dim=1)


def forward_of(module: HeadModel, trust: Trust) -> HeadModel:
    """What has to be run for everything that the model says of a text."""
    layers = layers_read(trust)
    return FeatureModel(module.encoder, module.head, layers).eval() if layers else module


def layers_read(trust: Trust) -> int:
    """How many layers a model's detector reads beside the logits."""
    return 0 if trust.border is None else layers_of(trust.border.detector)


def layers_of(detector: Detector) -> int:
    """How many layers a detector reads; none where it reads logits."""
    match detector:
        case MaxSoftmax() | Energy():
            return 0
        case Mahalanobis():
            return len(detector.roots_LDD)
        case Cosine() | Neighbours():
            return 1


def layers_wanted(choice: DetectorChoice | None, layers: int) -> int:
    """How many of a model's layers a detector of this name will read."""
    if choice in (None, "max_softmax", "energy"):
        return 0
    return layers if choice == ALL_LAYERS else 1


def evidence_of(rows_NK: Logits, classes: int, layers: int) -> Evidence:
    """Logits, and the features of some layers behind them."""
    logits_NC, features_NK = rows_NK[:, :classes], rows_NK[:, classes:]
    return Evidence(logits_NC, features_NK.reshape(len(rows_NK), layers, features_NK.shape[1] // max(1, layers)))


def check_calibration(target: Target, method: CalibrationMethod | Literal["auto"] | None, truth: Truth) -> None:
    """Refuse before the training what could not be learnt after it.

    Args:
        target: What is predicted.
        method: Of calibration.
        truth: The encoded labels of the rows that it will be learnt from.

    Raises:
        InvalidInput: The method of calibration is none for the target, or learns something of each label and there is
            one without a row.
    """
    if isinstance(target, SingleLabel) and method in ("vector", "platt", "isotonic"):
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


def learn_trust(
    target: Target,
    held_out_NK: Logits,
    truth: Truth,
    settings: FitSettings,
    seed: int,
    training: Callable[[], tuple[Logits, Truth]],
    layers: int,
) -> Trust:
    """What held-out rows say of a model's answers.

    Args:
        target: What it predicts.
        held_out_NK: Its logits for held-out rows, and its features behind them if the detector reads those.
        truth: The encoded labels of those rows.
        settings: What is to be learnt.
        seed: Of what is drawn on the way.
        training: Logits with features, and labels, of the training rows; called if the detector reads features.
        layers: Of how many layers the features are.
    """
    match target:
        case SingleLabel():
            evidence = evidence_of(held_out_NK, target.outputs, layers)
            trust = _classification(target, evidence.logits_NC, truth, settings.calibration, seed)
            if settings.detector is None:
                return trust
            detector = storable(_detector(settings.detector, target.outputs, training, layers))
            return replace(trust, border=Border.keeping(detector, evidence, settings.kept))
        case MultiLabel():
            if settings.calibration is None:
                return Trust()
            return Trust(Temperature(fit_sigmoid_temperature(held_out_NK, truth.astype(np.int64))))
        case Regression():
            return Trust(conformal=learn_promise(target, held_out_NK, truth, None, seed))


def learn_promise(
    target: Target, held_out_NC: Logits, truth: Truth, method: CalibrationMethod | None, seed: int
) -> ConformalSets | ConformalInterval | None:
    """What promises a coverage of one label, or of a number; None for several labels.

    Args:
        target: What is predicted.
        held_out_NC: Uncalibrated logits of held-out rows.
        truth: The encoded labels of those rows.
        method: How probabilities will be calibrated; here those of each row are by a fit on the others.
        seed: Of the folds.
    """
    match target:
        case SingleLabel():
            # Not what the calibration itself states, which has seen these rows.
            stated_NC = (
                Temperature(1.0).apply(held_out_NC)
                if method is None
                else held_out_probabilities(method, held_out_NC, truth, seed=seed)
            )
            return ConformalSets.fit(stated_NC, truth)
        case MultiLabel():
            return None
        case Regression():
            return ConformalInterval.fit(held_out_NC[:, 0], truth)


def promise_of(learnt: ConformalSets | ConformalInterval | None, coverage: float | None) -> Promise | None:
    """What to add to predictions so that they hold the truth this often, by what held-out rows taught.

    Raises:
        NotCalibrated: The model has learnt no such thing.
        InvalidInput: The coverage is no share, or one that so few held-out rows cannot promise.
    """
    match learnt:
        case _ if coverage is None:
            return None
        case ConformalSets():
            return learnt.at(coverage)
        case ConformalInterval():
            return learnt.half_width(coverage)
        case None:
            raise NotCalibrated(
                "a coverage was asked for, but this model can promise none: that takes one label or a number for each "
                "text, and a model that was fitted here and learnt it from held-out rows."
            )


def outside_of(border: Border, row_K: Logits, classes: int) -> tuple[float, bool]:
    """How little a text is like those of the domain, and whether it lies outside of it."""
    evidence = evidence_of(row_K[None], classes, layers_of(border.detector))
    score = float(border.detector.score(evidence)[0])
    return score, score > border.threshold


def promised(prediction: Prediction, promise: Promise | None) -> Prediction:
    """A prediction with the labels or numbers that keep a promise."""
    match prediction, promise:
        case Score(), float():
            return replace(prediction, low=prediction.value - promise, high=prediction.value + promise)
        case Classification(), LabelSets():
            # Probabilities come most probable first, and so do the labels of the set.
            included_C = promise.includes(np.array([list(prediction.probabilities.values())]))[0]
            names = zip(prediction.probabilities, included_C, strict=True)
            return replace(prediction, label_set=tuple(name for name, included in names if included))
        case _:
            return prediction


def judged(
    prediction: Prediction, row_K: Logits, classes: int, promise: Promise | None, border: Border | None
) -> Prediction:
    """A prediction with what keeps a promise, and whether its text is from elsewhere."""
    found = promised(prediction, promise)
    if border is None or not isinstance(found, Classification):
        return found
    score, outside = outside_of(border, row_K, classes)
    return replace(found, outside_score=score, outside=outside)


def _classification(
    target: SingleLabel,
    logits_NC: Logits,
    truth_N: Truth,
    method: CalibrationMethod | Literal["auto"] | None,
    seed: int,
) -> Trust:
    if method is None:
        return Trust(conformal=learn_promise(target, logits_NC, truth_N, None, seed))
    match method:
        case "auto":
            chosen = choose_calibration(logits_NC, truth_N, seed=seed)
        case "temperature" | "vector" | "platt" | "isotonic":
            chosen = ChosenCalibration(fit_calibration(method, logits_NC, truth_N), method, ())
    promise = learn_promise(target, logits_NC, truth_N, chosen.method, seed)
    return Trust(chosen.calibration, chosen.scores, promise)


def _detector(
    kind: DetectorChoice, classes: int, training: Callable[[], tuple[Logits, Truth]], layers: int
) -> Detector:
    if kind == "max_softmax":
        return MaxSoftmax()
    if kind == "energy":
        return Energy()
    rows_NK, labels_N = training()
    features_NLH = evidence_of(rows_NK, classes, layers).features_NLD
    match kind:
        case "mahalanobis" | "mahalanobis_layers":
            return Mahalanobis.fit(features_NLH, labels_N, classes)
        case "cosine":
            return Cosine.fit(features_NLH, labels_N, classes)
        case "neighbours":
            return Neighbours.fit(features_NLH, min(10, len(features_NLH)))
