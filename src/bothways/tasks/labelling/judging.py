"""What a model learns on held-out rows about its answers, and what it then says of them.

Shapes: N texts, C classes, H hidden, K = C + H where features are read, else C.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bothways.encoder.heads import read_rows
from bothways.errors import InvalidInput, NotCalibrated
from bothways.evaluation import (
    CalibrationMethod,
    ChosenCalibration,
    ConformalInterval,
    ConformalSets,
    Cosine,
    Detector,
    DetectorKind,
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
from bothways.tasks.settings import FitSettings
from bothways.tasks.targets import Logits, MultiLabel, Regression, SingleLabel, Target, Truth

Promise: TypeAlias = LabelSets | float
"""Sets of labels, or half the width of an interval."""


MOST_TRAINING = 20_000
"""Training rows that a detector is fitted on, drawn from more."""


class FeatureModel(HeadModel):
    """Gives beside the scores the last hidden states that the head reads."""

    def forward(self, packed: Packed) -> Tensor:
        """Scores and features (B, C + H)."""
        hidden_BH = read_rows(self.head.kind.read, self.encoder, packed)
        return torch.cat([self.head(hidden_BH), hidden_BH], dim=1)


def forward_of(module: HeadModel, trust: Trust) -> HeadModel:
    """What has to be run for everything that the model says of a text."""
    return FeatureModel(module.encoder, module.head).eval() if reads_features(trust) else module


def reads_features(trust: Trust) -> bool:
    """Whether a model's detector reads more than its logits."""
    return trust.border is not None and needs_features(trust.border.detector)


def needs_features(detector: Detector | DetectorKind) -> bool:
    """Whether a detector reads more than logits."""
    return detector not in ("max_softmax", "energy") and not isinstance(detector, MaxSoftmax | Energy)


def evidence_of(rows_NK: Logits, classes: int) -> Evidence:
    """Logits, and the features behind them where there are any."""
    features_NH = rows_NK[:, classes:]
    return Evidence(rows_NK[:, :classes], features_NH[:, None])


def learn_trust(
    target: Target,
    held_out_NK: Logits,
    truth: Truth,
    settings: FitSettings,
    seed: int,
    training: Callable[[], tuple[Logits, Truth]],
) -> Trust:
    """What held-out rows say of a model's answers.

    Args:
        target: What it predicts.
        held_out_NK: Its logits for held-out rows, and its features behind them if the detector reads those.
        truth: The encoded labels of those rows.
        settings: What is to be learnt.
        seed: Of what is drawn on the way.
        training: Logits with features, and labels, of the training rows; called if the detector reads features.

    Raises:
        InvalidInput: The method of calibration is none for the target.
    """
    match target:
        case SingleLabel():
            evidence = evidence_of(held_out_NK, target.outputs)
            trust = _classification(evidence.logits_NC, truth, settings.calibration, seed)
            if settings.detector is None:
                return trust
            detector = storable(_detector(settings.detector, target.outputs, training))
            return replace(trust, border=Border.keeping(detector, evidence, settings.kept))
        case MultiLabel():
            if settings.calibration is None:
                return Trust()
            if settings.calibration not in ("auto", "temperature"):
                raise InvalidInput(
                    f"several labels for a text are calibrated by a temperature, not by {settings.calibration!r}: "
                    "choose 'temperature' or 'auto'."
                )
            return Trust(Temperature(fit_sigmoid_temperature(held_out_NK, truth.astype(np.int64))))
        case Regression():
            return Trust(conformal=ConformalInterval.fit(held_out_NK[:, 0], truth))


def promise_of(trust: Trust, coverage: float | None) -> Promise | None:
    """What to add to predictions so that they hold the truth this often.

    Raises:
        NotCalibrated: The model has learnt no such thing.
        InvalidInput: The coverage is no share, or one that so few held-out rows cannot promise.
    """
    match trust.conformal:
        case _ if coverage is None:
            return None
        case ConformalSets():
            return trust.conformal.at(coverage)
        case ConformalInterval():
            return trust.conformal.half_width(coverage)
        case None:
            raise NotCalibrated(
                "a coverage was asked for, but this model can promise none: that takes one label or a number for each "
                "text, and a model that was fitted here."
            )


def judged(
    prediction: Prediction, row_K: Logits, classes: int, promise: Promise | None, border: Border | None
) -> Prediction:
    """A prediction with the labels or numbers that keep a promise, and whether its text is from elsewhere."""
    match prediction, promise:
        case Score(), float():
            return replace(prediction, low=prediction.value - promise, high=prediction.value + promise)
        case Classification(), _:
            changes: dict[str, object] = {}
            if isinstance(promise, LabelSets):
                # Probabilities come most probable first, and so do the labels of the set.
                included_C = promise.includes(np.array([list(prediction.probabilities.values())]))[0]
                names = zip(prediction.probabilities, included_C, strict=True)
                changes["label_set"] = tuple(name for name, included in names if included)
            if border is not None:
                score = float(border.detector.score(evidence_of(row_K[None], classes))[0])
                changes |= {"outside_score": score, "outside": score > border.threshold}
            return replace(prediction, **changes) if changes else prediction  # type: ignore[arg-type]
        case _:
            return prediction


def _classification(
    logits_NC: Logits, truth_N: Truth, method: CalibrationMethod | Literal["auto"] | None, seed: int
) -> Trust:
    if method is None:
        return Trust(conformal=ConformalSets.fit(Temperature(1.0).apply(logits_NC), truth_N))
    match method:
        case "auto":
            chosen = choose_calibration(logits_NC, truth_N, seed=seed)
        case "temperature" | "vector" | "platt" | "isotonic":
            chosen = ChosenCalibration(fit_calibration(method, logits_NC, truth_N), method, ())
    # Not what the calibration itself states, which has seen these rows.
    stated_NC = held_out_probabilities(chosen.method, logits_NC, truth_N, seed=seed)
    return Trust(chosen.calibration, chosen.scores, ConformalSets.fit(stated_NC, truth_N))


def _detector(kind: DetectorKind, classes: int, training: Callable[[], tuple[Logits, Truth]]) -> Detector:
    if kind == "max_softmax":
        return MaxSoftmax()
    if kind == "energy":
        return Energy()
    rows_NK, labels_N = training()
    features_N1H = rows_NK[:, None, classes:]
    match kind:
        case "mahalanobis":
            return Mahalanobis.fit(features_N1H, labels_N, classes)
        case "cosine":
            return Cosine.fit(features_N1H, labels_N, classes)
        case "neighbours":
            return Neighbours.fit(features_N1H, min(10, len(features_N1H)))
