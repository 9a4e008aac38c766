"""Classifiers and regression models as members of an ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from bothways.checkpoints.schema import StoredEnsemble
from bothways.confidence.confidence import Confidence
from bothways.confidence.fitting import stored_temperature, unseen_conformal_sets
from bothways.data.windows import digest_of, digest_of_texts
from bothways.evaluation.calibration import ConformalInterval, ConformalSets, HeldOutRows
from bothways.tasks.classification.outputs import (
    LabelOutputs,
    LabelScores,
    stored_thresholds,
    with_stored_thresholds,
)
from bothways.tasks.heads.combination import Combiner
from bothways.tasks.heads.target_training import fitted_temperature, validate, with_fitted_thresholds
from bothways.tasks.heads.targets import (
    Logits,
    MultiLabel,
    Regression,
    SingleLabel,
    Truth,
    calibrated_logits,
    without_thresholds,
)
from bothways.tasks.outputs import logits_of_all
from bothways.text.windows import Text


@dataclass(frozen=True, slots=True, eq=False)
class LabelCombiner(Combiner[LabelOutputs, Text, Truth, None]):
    """Combines the label scores of several models."""

    @property
    def shared_settings(self) -> Mapping[str, str]:
        """The kind of target, which must be the same for all members."""
        return {"target": self.outputs.row_target.kind}

    def calibrated_scores(self, scores: LabelScores) -> LabelScores:
        """Return scores with the calibration applied, and with the vote of the out-of-domain detector, if any."""
        confidence = self.outputs.confidence
        detector = confidence.out_of_domain
        votes = None if detector is None else float(detector.detect(self.outputs.evidence([scores]))[1])
        logits_1C = calibrated_logits(self.outputs.row_target, scores.logits_RC, confidence.calibration)
        return replace(scores, logits_RC=logits_1C, features_LH=None, votes=votes)

    def uncalibrated(self, members: Sequence[Self]) -> Self:
        """Return the combiner without calibration; for regression, with the members' training mean if it is equal."""
        target = without_thresholds(self.outputs.row_target)
        match target:
            case Regression() if not all(each.outputs.row_target == target for each in members):
                target = Regression()
        return replace(self, outputs=replace(self.outputs, target=target, confidence=Confidence(), layers=0))

    def calibrated(self, scores: Sequence[LabelScores], truth: Truth) -> Self:
        """Return the combiner with fitted temperature, multi-label thresholds and coverage."""
        logits_NC = logits_of_all(scores)
        temperature = fitted_temperature(self.outputs.row_target, logits_NC, truth)
        target = with_fitted_thresholds(self.outputs.row_target, logits_NC, truth, temperature)
        confidence = Confidence(temperature, conformal=self._conformal(logits_NC, truth))
        return replace(self, outputs=replace(self.outputs, target=target, confidence=confidence))

    def metrics(self, scores: Sequence[LabelScores], truth: Truth) -> Mapping[str, float]:
        """Return metrics of calibrated scores, at the current thresholds."""
        return validate(self.outputs.row_target, logits_of_all(scores), truth, fits_threshold=False).metrics

    def _conformal(self, logits_NC: Logits, truth: Truth) -> ConformalSets | ConformalInterval | None:
        match self.outputs.row_target:
            case SingleLabel():
                return unseen_conformal_sets(HeldOutRows.from_arrays(logits_NC, truth), truth, "temperature", 0)
            case MultiLabel():
                return None
            case Regression():
                return ConformalInterval.fit(logits_NC[:, 0], truth)

    def state(self) -> dict[str, object]:
        """Return the conformal scores of held-out rows, for coverage, and the multi-label thresholds."""
        conformal = self.outputs.confidence.conformal
        held_out = None if conformal is None else conformal.held_out_M.tolist()
        return {"conformal": held_out, **stored_thresholds(self.outputs.row_target)}

    def restored(self, stored: StoredEnsemble) -> Self:
        """Return the combiner with the stored temperature, thresholds and coverage."""
        target = with_stored_thresholds(self.outputs.row_target, stored.thresholds)
        kind = ConformalInterval if target.kind == "regression" else ConformalSets
        conformal = None if stored.conformal is None else kind(np.sort(np.array(stored.conformal)))
        confidence = Confidence(stored_temperature(stored), conformal=conformal)
        return replace(self, outputs=replace(self.outputs, target=target, confidence=confidence))

    def data_facts(self, inputs: Sequence[Text], truth: Truth) -> dict[str, object]:
        """Return the number of texts, and the SHA-256 of the texts and of their encoded labels."""
        return {"rows": len(inputs), "texts_sha256": digest_of_texts(inputs), "labels_sha256": digest_of(truth)}

    def card(self) -> dict[str, object]:
        """Return the number of rows that the coverage was fitted on."""
        conformal = self.outputs.confidence.conformal
        return {"coverage_from_rows": None if conformal is None else len(conformal.held_out_M)}
