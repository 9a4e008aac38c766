"""A head's numbers with what was learnt about them: how they become answers, and how far these can be trusted.

Shapes: N texts, C outputs, K numbers that the model gives for a text: C, and the features that its detector reads.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from bothways.errors import InvalidInput, NotCalibrated
from bothways.evaluation import (
    Calibration,
    Evidence,
    Report,
    Temperature,
    method_of,
    out_of_domain_report,
)
from bothways.tasks.calibrated import wants_calibration
from bothways.tasks.labelling.judging import evidence_of, judged, layers_read, promise_of
from bothways.tasks.labelling.trust import Border, Trust
from bothways.tasks.predictions import Prediction, Reading
from bothways.tasks.targets import Logits, Target, Truth


@dataclass(frozen=True, slots=True)
class Trusted:
    """What is predicted, and how far to trust it.

    Attributes:
        name: The model's.
        target: What is predicted.
        trust: What was learnt on held-out rows: calibration, coverage, and the border of the domain.
    """

    name: str
    target: Target
    trust: Trust

    def calibration(self, calibrated: bool | None = None) -> Calibration | None:
        """What makes probabilities of logits, where that is wanted and there is one.

        Raises:
            NotCalibrated: It is insisted on and there is none.
        """
        found = self.trust.calibration
        return found if wants_calibration(found is not None, calibrated, self.name) else None

    def judge(
        self, *, calibrated: bool | None = None, coverage: float | None = None
    ) -> Callable[[Logits, Reading], Prediction]:
        """What makes a prediction of a text's numbers (K).

        Raises:
            NotCalibrated: Calibrated probabilities or a coverage are asked for, and the model has none.
            InvalidInput: A coverage is asked for together with probabilities that are not calibrated.
        """
        target, calibration = self.target, self.calibration(calibrated)
        promise, border = promise_of(self.trust.conformal, coverage), self.trust.border
        if coverage is not None and calibrated is False:
            raise InvalidInput("a coverage is promised of calibrated probabilities: leave calibrated out.")

        def predicted(row_K: Logits, reading: Reading) -> Prediction:
            prediction = target.predict(row_K[: target.outputs], calibration, reading)
            return judged(prediction, row_K, target.outputs, promise, border)

        return predicted

    def report(
        self, logits_NC: Logits, truth: Truth, *, calibrated: bool | None = None, resamples: int = 1000, seed: int = 0
    ) -> Report:
        """Metrics of uncalibrated logits, with the calibration or without."""
        outcomes = self.target.outcomes(logits_NC, truth, self.calibration(calibrated))
        return outcomes.report(resamples=resamples, seed=seed)

    def evidence(self, rows_NK: Logits) -> Evidence:
        """Logits, and what the detector reads beside them."""
        return evidence_of(rows_NK, self.target.outputs, layers_read(self.trust))

    def border(self) -> Border:
        """Where texts stop being like those of the training.

        Raises:
            NotCalibrated: The model has no detector.
        """
        if self.trust.border is None:
            raise NotCalibrated(
                f"{self.name!r} cannot tell texts of its domain from others: that takes a model with one label for "
                "each text that was fitted here, with a detector and held-out rows."
            )
        return self.trust.border

    def told_from(self, others: Evidence) -> Trust:
        """The trust with the border where it tells held-out texts of the domain best from these others.

        Raises:
            NotCalibrated: The model has no detector.
        """
        return replace(self.trust, border=self.border().between(others))

    def out_of_domain(self, inside: Evidence, others: Evidence, *, resamples: int, seed: int) -> Report:
        """How well texts of the domain and others are told apart.

        Raises:
            NotCalibrated: The model has no detector.
        """
        border = self.border()
        scores = border.detector.score(inside), border.detector.score(others)
        return out_of_domain_report(*scores, threshold=border.threshold, resamples=resamples, seed=seed)

    def facts(self) -> dict[str, object]:
        """Labels and calibration, as JSON values."""
        calibration = self.trust.calibration
        numbers = asdict(calibration) if isinstance(calibration, Temperature) else {}
        return {
            "labels": list(self.target.labels),
            "calibration": None if calibration is None else {"method": method_of(calibration), **numbers},
        }
