"""The training of labels for whole texts and pairs: data, loss, confidence, diagnostics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bothways.choices import ClassWeights, Merge
from bothways.confidence.confidence import Confidence, ConfidenceOptions
from bothways.confidence.fitting import learn_classification
from bothways.data import Example, Source, read_examples
from bothways.data.windows import digest_of
from bothways.encoder import ScoreHead
from bothways.errors import InvalidInput
from bothways.evaluation.calibration import ConformalInterval
from bothways.evaluation.detectors import DetectorInput
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import Temperature, fit_sigmoid_temperature
from bothways.progress import phase
from bothways.tasks.card import BALANCED, COVERAGE_IS_APPROXIMATE, EPOCH_AND_CALIBRATION, NOTICES_NOTHING, optimistic
from bothways.tasks.classification.outputs import LabelOutputs, LabelScores, logits_of_all
from bothways.tasks.classification.rankings import PairRanking
from bothways.tasks.classification.spec import LabelFitting, LabelOpening
from bothways.tasks.columns import PairColumns, TextColumns
from bothways.tasks.heads.contrastive import FEW_TEXTS, MAX_TEXTS
from bothways.tasks.heads.diagnostics import LabelIssue, confident_mistakes, contradictions, notes_on_labels
from bothways.tasks.heads.inputs import StoredInputs
from bothways.tasks.heads.learner import Identity, Learner
from bothways.tasks.heads.linear_start import STRENGTH
from bothways.tasks.heads.objective import LabelLoss, LossUnits
from bothways.tasks.heads.target_training import (
    TextLoss,
    balanced_weights,
    standardize,
    target_of,
    unstandardize,
    validate,
    with_fitted_thresholds,
)
from bothways.tasks.heads.targets import (
    MultiLabel,
    Regression,
    SingleLabel,
    Target,
    Truth,
    at_threshold,
    converter,
)
from bothways.tasks.outputs import check_merge
from bothways.tasks.spec import options_of
from bothways.tasks.splits import TrainingData, hold_out
from bothways.tasks.torch_backend import HeadModel, TorchBackend

MAX_DETECTOR_ROWS = 20_000
"""Training rows that a detector is fitted on, drawn from more."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelLearner(Learner[LabelOutputs, Truth, None]):
    """The training side of one label, several labels or a number for each text.

    Attributes:
        outputs: The outputs.
        options: The confidence to fit on held-out rows.
        class_weights: Weight of each label's rows in the loss; None for equal weights.
        ranking: The questions of held-out pairs, if the pairs are a ranking.
    """

    outputs: LabelOutputs
    options: ConfidenceOptions = ConfidenceOptions()  # noqa: RUF009 (frozen)
    class_weights: ClassWeights | None = None
    ranking: PairRanking | None = None

    @classmethod
    def from_data(
        cls,
        backend: TorchBackend,
        data: TrainingData,
        columns: TextColumns | PairColumns,
        options: LabelFitting,
        seed: int,
        before: LabelOutputs | None,
    ) -> tuple[Self, list[Example[object]], list[Example[object]]]:
        """Read labelled rows; rows with the same text, or the same first text, are held out together."""
        opening = options_of(LabelOpening, backend.options)
        if None not in (options.target, opening.target) and options.target != opening.target:
            raise InvalidInput(
                f"the model was opened for the target {opening.target!r}, so it is not fitted for {options.target!r}."
            )
        kind = options.target or opening.target or "single"
        if kind == "regression" and options.class_weights is not None:
            raise InvalidInput("class_weights need labels, and numbers have none: leave them out.")
        variant, pairs = converter(kind), isinstance(columns, PairColumns)

        def read(source: Source) -> list[Example[object]]:
            return read_examples(source, text=columns.inputs, label=columns.label, convert=variant.convert)

        examples = read(data.train)
        merge: Merge = check_merge(opening.merge or "weighted_mean") if before is None else before.merge
        if data.validation is not None:
            held_out = read(data.validation)
        elif before is None and kind == "single" and not pairs and learns_all(backend, options, examples):
            held_out = []
        else:
            # The same text on both sides would give its label away.
            examples, held_out = hold_out(
                examples, 0.1, seed, variant.names, group=lambda each: each.text[0] if pairs else each.text
            )
        target = target_of(kind, examples, None if before is None else before.target)
        target = at_threshold(target, opening.threshold)
        ranking = PairRanking.of(target, held_out) if pairs else None
        return cls(LabelOutputs(target, merge), options, options.class_weights, ranking), examples, held_out

    @property
    def target(self) -> Target:
        """One label, several labels, or a number."""
        return self.outputs.target

    def check_data(self, training: StoredInputs, held: StoredInputs) -> tuple[int, ...]:
        """Check that the held-out rows are enough to fit the calibration."""
        del training
        check_calibration(self.target, self.options, held.truth)
        return ()

    # --- the head ---

    def is_compatible_with(self, before: LabelOutputs) -> bool:
        """Return True if target and labels are the same."""
        same = self.target.kind == before.target.kind
        return same and self.outputs.labels == before.labels

    def standardize(self, head: ScoreHead) -> None:
        """Make a regression head predict standardised numbers."""
        standardize(self.target, head)

    def unstandardize(self, head: ScoreHead) -> Self:
        """Make a regression head predict numbers in their own units again."""
        return self.with_target(unstandardize(self.target, head))

    @property
    def start_strength(self) -> float:
        """The inverse penalty of scikit-learn's classifiers; with several labels the loss is a mean, not a sum."""
        return STRENGTH * (self.outputs.size if self.target.kind == "multi" else 1)

    def contrast_classes(self, stored: StoredInputs) -> NDArray[np.int64] | None:
        """Return the labels if there are few enough single-label texts, some of them with the same label."""
        truth: NDArray[np.int64] = stored.truth
        contrasted = self.target.kind == "single" and len(truth) <= MAX_TEXTS
        return truth if contrasted and np.bincount(truth).max() > 1 else None

    # --- the loss ---

    def loss(self, stored: StoredInputs) -> LabelLoss:
        """Return the targets of windows; the windows of a text share its weight."""
        weights_NK = None if self.class_weights is None else balanced_weights(self.target, stored.truth)
        return TextLoss(self.target, stored.truth, stored.store, weights_NK)

    def validate(self, scores: Sequence[LabelScores], truth: Truth) -> Validation:
        """Return accuracy, F1 or squared error; for a ranking also the mean average precision, which decides."""
        logits_NC = logits_of_all(scores)
        found = validate(self.target, logits_NC, truth, balanced=self.class_weights is not None)
        if self.ranking is None:
            return found
        precision, error = self.ranking.validate(logits_NC, truth)
        return Validation({"map": precision, **found.metrics}, precision, error)

    def unit(self, truth: Truth) -> float:
        """Return the variance of the training numbers; 1 for labels."""
        return float(np.var(truth)) or 1.0 if self.target.kind == "regression" else 1.0

    @property
    def identity(self) -> Identity:
        """Target, labels, merging rule, scale of numbers, and class weights."""
        more: dict[str, str | float] = {}
        match self.target:
            case Regression(_, mean, scale):
                more = {"mean of the numbers": mean, "scale of the numbers": scale}
        if self.class_weights is not None:
            more = {"class weights": self.class_weights}
        if self.ranking is not None:
            more = {**more, "judged by": "map"}
        labels = ", ".join(map(repr, self.outputs.labels))
        return {"target": self.target.kind, "labels": labels, "merge": self.outputs.merge, **more}

    # --- after the training ---

    def fit_confidence(
        self, model: HeadModel, training: StoredInputs, held: StoredInputs, seed: int, tokens: int
    ) -> tuple[Self, list[LabelScores]]:
        """Fit calibration, coverage and the out-of-domain detector."""
        layers = self.options.layers(model.encoder.config.layers) if self.target.kind == "single" else 0
        outputs = replace(self.outputs, layers=layers)
        with_states = HeadModel(model.encoder, model.head, layers).eval()

        def training_evidence() -> tuple[DetectorInput, Truth]:
            part = training
            if training.store.texts > MAX_DETECTOR_ROWS:
                drawn_N = np.random.default_rng(seed).permutation(training.store.texts)[:MAX_DETECTOR_ROWS]
                part = training.take(np.sort(drawn_N))
            return outputs.evidence(part.scores(outputs, with_states, tokens)), part.truth

        phase("reading the held-out rows")
        scores = held.scores(outputs, with_states, tokens)
        confidence = fit_label_confidence(
            self.target, outputs.evidence(scores), held.truth, self.options, seed, training_evidence
        )
        target = with_fitted_thresholds(self.target, logits_of_all(scores), held.truth, confidence.calibration)
        outputs = replace(outputs, target=target, confidence=confidence)
        return replace(self, outputs=outputs, ranking=None), scores

    def fit_confidence_of_folds(self, scores: Sequence[LabelScores], truth: Truth, seed: int) -> Self:
        """Fit calibration, coverage and a detector that reads logits only: the folds' models share no features."""
        options, evidence = replace(self.options, detector="energy"), self.outputs.evidence(scores)
        confidence = fit_label_confidence(self.target, evidence, truth, options, seed, lambda: (evidence, truth))
        return self.with_outputs(replace(self.outputs, confidence=confidence))

    def data_facts(self, stored: StoredInputs) -> dict[str, object]:
        """Return SHA-256 of the encoded labels."""
        return {"labels_sha256": digest_of(stored.truth)}

    @property
    def limits(self) -> tuple[str, ...]:
        """Limits of the card's metrics, in sentences."""
        confidence, thresholds = self.outputs.confidence, self.target.kind == "multi"
        chose = "the epoch to keep, the calibration and the thresholds" if thresholds else EPOCH_AND_CALIBRATION
        return (
            optimistic("rows", chose),
            "Metrics, probabilities and coverage hold for texts like the validation rows.",
            *([COVERAGE_IS_APPROXIMATE] if confidence.conformal is not None else []),
            *([NOTICES_NOTHING] if confidence.out_of_domain is None else []),
            *([BALANCED] if self.class_weights is not None else []),
        )

    def card(self) -> dict[str, object]:
        """Return class weights, confidence and thresholds."""
        weights = {} if self.class_weights is None else {"class_weights": self.class_weights}
        return {**weights, "confidence": self.outputs.confidence.to_card(), **self.outputs.stored_thresholds()}

    def diagnostics(
        self,
        scores: Sequence[LabelScores],
        truth: Truth,
        training: Sequence[Example[object]],
        held_out: Sequence[Example[object]],
    ) -> tuple[list[str], tuple[LabelIssue, ...]]:
        """Return warnings about labels and predictions, and the most confident predictions that contradict a label."""
        logits_NC, calibration = logits_of_all(scores), self.outputs.confidence.calibration
        notes = notes_on_labels(self.target, logits_NC, truth, calibration)
        if self.target.kind == "regression":
            return notes, ()
        notes += contradictions([*training, *held_out])
        probabilities_NC = self.target.probabilities(logits_NC, calibration)
        return notes, confident_mistakes(self.target, probabilities_NC, truth, held_out)

    # --- distillation ---

    def with_target(self, target: Target) -> Self:
        """Return the learner with another target."""
        return self.with_outputs(replace(self.outputs, target=target))

    def without_confidence(self) -> Self:
        """Return the learner without calibration, thresholds and detector."""
        outputs = self.without_calibration().outputs
        return self.with_outputs(replace(outputs, confidence=Confidence(), layers=0))

    def without_calibration(self) -> Self:
        """Return the learner without calibration, thresholds and coverage."""
        confidence = Confidence(out_of_domain=self.outputs.confidence.out_of_domain)
        target = self.target.without_thresholds()
        return self.with_outputs(replace(self.outputs, target=target, confidence=confidence))

    def loss_units(self, stored: StoredInputs) -> LossUnits:
        """Return the loss units: one for each window."""
        return LossUnits.of_texts(stored.store)

    def decided(self, scores: Sequence[LabelScores]) -> Truth:
        """Return the predicted labels, or numbers, of texts."""
        return self.target.decided(logits_of_all(scores), self.outputs.confidence.calibration)


def learns_all(backend: TorchBackend, options: LabelFitting, rows: Sequence[Example[object]]) -> bool:
    """Return True if a new classifier trains on all rows and is measured by cross-validation.

    With so few rows, a tenth would be too small to measure or calibrate anything, and the training would miss it. If
    an option needs held-out rows, some are held out nevertheless.
    """
    default = ConfidenceOptions()
    as_usual = (options.calibration, options.detector, options.in_domain_share) == (
        default.calibration,
        default.detector,
        default.in_domain_share,
    )
    labels = Counter(each.label for each in rows)
    few = len(rows) <= FEW_TEXTS and min(labels.values(), default=0) > 1
    return few and as_usual and backend.reads_mean and not backend.shared


def check_calibration(target: Target, options: ConfidenceOptions, truth: Truth) -> None:
    """Check before the training that the held-out rows can calibrate the model.

    Args:
        target: The target.
        options: The confidence to fit.
        truth: The encoded labels of the held-out rows.

    Raises:
        InvalidInput: The method does not fit the target, or needs rows of every label and one has none.
    """
    match target, options.calibration:
        case SingleLabel(labels), "isotonic" as method:
            rows_C = np.bincount(truth, minlength=target.outputs)
            if not rows_C.all():
                raise InvalidInput(
                    f"calibration by {method!r} needs held-out rows of every label, and of "
                    f"{labels[int(rows_C.argmin())]!r} there is none: give validation data that have some, or choose "
                    "'temperature' or 'auto'."
                )
        case MultiLabel(), method if method not in ("auto", "temperature", None):
            raise InvalidInput(
                f"several labels for a text are calibrated by a temperature, not by {method!r}: "
                "choose 'temperature' or 'auto'."
            )
        case Regression(), method if method not in ("auto", None):
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
