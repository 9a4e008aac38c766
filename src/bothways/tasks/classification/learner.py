"""The training of classifiers and regression models: data, loss, confidence, diagnostics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from bothways.choices import Merge
from bothways.confidence.confidence import Confidence, ConfidenceOptions
from bothways.confidence.fitting import learn_classification
from bothways.data import Example, Source
from bothways.data.known_rows import normalised
from bothways.data.label_rows import class_label
from bothways.data.labels import declared
from bothways.data.sources import LabelReading, category_names
from bothways.data.windows import digest_of
from bothways.errors import InvalidInput
from bothways.evaluation.calibration import ConformalInterval
from bothways.evaluation.detectors import DetectorInput
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import Temperature, fit_sigmoid_temperature
from bothways.progress import stage
from bothways.tasks.card import BALANCED, COVERAGE_IS_APPROXIMATE, EPOCH_AND_CALIBRATION, NOTICES_NOTHING, optimistic
from bothways.tasks.classification.outputs import (
    LabelOutputs,
    LabelScores,
    read_labelled,
    stored_thresholds,
)
from bothways.tasks.classification.spec import LabelFitting, LabelOpening
from bothways.tasks.columns import AnyColumns, PairColumns
from bothways.tasks.heads.contrastive import FEW_TEXTS, MAX_TEXTS
from bothways.tasks.heads.diagnostics import LabelIssue, confident_mistakes, contradictions, notes_on_labels
from bothways.tasks.heads.learner import Identity, Learner
from bothways.tasks.heads.linear_start import STRENGTH
from bothways.tasks.heads.objective import LabelLoss, LossUnits, StoredInputs
from bothways.tasks.heads.splits import TrainingData, hold_out
from bothways.tasks.heads.target_training import (
    TextLoss,
    balanced_weights,
    constant_logits,
    fitted_temperature,
    target_of,
    validate,
    with_fitted_thresholds,
)
from bothways.tasks.heads.targets import (
    Logits,
    MultiLabel,
    Regression,
    SingleLabel,
    Target,
    Truth,
    at_threshold,
    converter,
    without_thresholds,
)
from bothways.tasks.outputs import logits_of_all
from bothways.tasks.spec import options_of
from bothways.tasks.torch_backend import HeadModel, TorchBackend, reads_mean

MAX_DETECTOR_ROWS = 20_000
"""Maximum training rows that a detector is fitted on; a sample is drawn from more."""


# Minimum mean number of pairs per query in a ranking; premises in natural language inference have one or two pairs.
_FEWEST = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class PairRanking:
    """The queries of held-out pairs that form a ranking.

    The query of a pair is its first text; ``questions_N`` has its index. ``relevant`` is the index of the rarer label.
    """

    questions_N: NDArray[np.int64]
    relevant: int

    @classmethod
    def of(cls, target: Target, pairs: Sequence[Example[object]]) -> Self | None:
        """Return the queries of held-out pairs; None if the pairs are not a ranking.

        Pairs are a ranking if there are two labels, and at least half of the pairs belong to queries with both labels,
        which have at least three pairs on average.
        """
        match target:
            case SingleLabel((_, _)):
                pass
            case _:
                return None
        truth_N = target.encode(pairs)
        numbers: dict[str, int] = {}
        questions_N = np.array([numbers.setdefault(each.text[0], len(numbers)) for each in pairs], np.int64)
        rows_Q, positive_Q = np.bincount(questions_N), np.bincount(questions_N, truth_N)
        telling_Q = (positive_Q > 0) & (positive_Q < rows_Q)
        if not telling_Q.any() or rows_Q[telling_Q].mean() < _FEWEST or rows_Q[telling_Q].sum() < len(pairs) / 2:
            return None
        return cls(questions_N, int(truth_N.mean() <= 0.5))

    def validate(self, logits_NC: Logits, truth_N: Truth) -> tuple[float, float]:
        """Return the mean average precision over the queries that have both labels, and its standard error."""
        from sklearn.metrics import average_precision_score

        if not np.isfinite(logits_NC).all():
            return float("nan"), 0.0
        scores_N = logits_NC[:, self.relevant] - logits_NC[:, 1 - self.relevant]
        order_N = np.argsort(self.questions_N, kind="stable")
        parts = np.split(order_N, np.cumsum(np.bincount(self.questions_N))[:-1])
        telling = [part for part in parts if 0 < truth_N[part].sum() < len(part)]
        values = [average_precision_score(truth_N[part] == self.relevant, scores_N[part]) for part in telling]
        error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        return float(np.mean(values)), float(error)


@dataclass(frozen=True, slots=True, eq=False)
class LabelLearner(Learner[LabelOutputs, Truth, None]):
    """The training code of classification and regression of texts.

    ``ranking`` has the queries of held-out pairs, if the pairs are a ranking.
    """

    options: LabelFitting = LabelFitting()  # noqa: RUF009 (frozen)
    ranking: PairRanking | None = None

    distills: ClassVar = True

    @classmethod
    def from_data(
        cls,
        backend: TorchBackend,
        data: TrainingData,
        columns: AnyColumns,
        options: object,
        before: LabelOutputs | None,
    ) -> tuple[Self, list[Example[object]], list[Example[object]]]:
        """Read labelled rows; rows with the same text, or pairs with the same first text, are held out together."""
        given, opening = options_of(LabelFitting, options), options_of(LabelOpening, backend.options)
        if None not in (given.target, opening.target) and given.target != opening.target:
            raise InvalidInput(
                f"the model was opened with target {opening.target!r} and cannot be fitted with {given.target!r}: "
                "drop one."
            )
        kind = given.target or opening.target or "single"
        if kind == "regression" and before is None and opening.labels is not None:
            raise InvalidInput("labels name classes, but this model predicts a number: leave labels out.")
        if kind == "regression" and given.class_weights is not None:
            raise InvalidInput("class_weights need labels, but this model predicts a number: leave class_weights out.")
        variant, pairs = converter(kind), isinstance(columns, PairColumns)
        labels = declared(opening.labels) if before is None and opening.labels is not None else ()
        known = tuple(map(class_label, labels)) if before is None else before.labels
        reading = LabelReading(known) if before is None else before.target.reading
        reading = reading.with_options(given.normalise_labels)

        def read(source: Source, known: Sequence[str]) -> list[Example[object]]:
            return read_labelled(source, columns, variant, given.unlabelled, known, reading)

        examples = read(data.train, known)
        merge: Merge = (opening.merge or "weighted_mean") if before is None else before.merge
        if data.validation is not None:
            names: Callable[..., tuple[str, ...]] = variant.names
            known = known or tuple({name for each in examples for name in names(each.label)})
            held_out = read(data.validation, known)
        elif before is None and kind == "single" and not pairs and learns_all(backend, given, examples):
            held_out = []
        else:
            # A text in both the training and the held-out rows would leak its label.
            examples, held_out = hold_out(
                examples,
                0.1,
                data.seed,
                variant.names,
                group=lambda each: normalised(each.text[0] if pairs else each.text),
            )
        held_out = data.unshared(examples, held_out, given.shared)
        categories = category_names(data.train, columns.truth)
        target = target_of(kind, examples, None if before is None else before.target, labels, categories, reading)
        target = at_threshold(target, opening.threshold)
        ranking = PairRanking.of(target, held_out) if pairs else None
        return cls(LabelOutputs(target, merge), given, ranking), examples, held_out

    @override
    def check_data(self, training: StoredInputs, held: StoredInputs) -> tuple[int, ...]:
        del training
        check_calibration(self.outputs.target, self.options, held.truth)
        return ()

    # --- the head ---

    @override
    def is_compatible_with(self, before: LabelOutputs) -> bool:
        return self.outputs.target.kind == before.target.kind and self.outputs.labels == before.labels

    @override
    def with_target(self, target: Target) -> Self:
        return replace(self, outputs=replace(self.outputs, target=target))

    @property
    def start_strength(self) -> float:
        """Inverse penalty (scikit-learn's C); larger for multi-label targets, whose loss is a mean over labels."""
        return STRENGTH * (len(self.outputs.labels) if self.outputs.target.kind == "multi" else 1)

    @override
    def contrast_classes(self, stored: StoredInputs) -> NDArray[np.int64] | None:
        truth: NDArray[np.int64] = stored.truth
        contrasted = self.outputs.target.kind == "single" and len(truth) <= MAX_TEXTS
        return truth if contrasted and np.bincount(truth).max() > 1 else None

    # --- the loss ---

    @override
    def loss(self, stored: StoredInputs) -> LabelLoss:
        target = self.outputs.target
        weights_NK = None if self.options.class_weights is None else balanced_weights(target, stored.truth)
        return TextLoss(target, stored.truth, stored.store, weights_NK)

    def validate(self, scores: Sequence[LabelScores], truth: Truth) -> Validation:
        """Return accuracy, F1 or squared error; for a ranking, also the mean average precision, which is the score."""
        logits_NC = logits_of_all(scores)
        found = validate(self.outputs.target, logits_NC, truth, balanced=self.options.class_weights is not None)
        if self.ranking is None:
            return found
        precision, error = self.ranking.validate(logits_NC, truth)
        return Validation({"map": precision, **found.metrics}, precision, error)

    @property
    @override
    def identity(self) -> Identity:
        target, more = self.outputs.target, dict[str, str | float]()
        match target:
            case Regression(_, mean, scale):
                more = {"mean of the numbers": mean, "scale of the numbers": scale}
        if self.options.class_weights is not None:
            more["class weights"] = self.options.class_weights
        if self.ranking is not None:
            more["judged by"] = "map"
        labels = ", ".join(map(repr, target.labels))
        return {"target": target.kind, "labels": labels, "merge": self.outputs.merge, **more}

    # --- after the training ---

    def fit_confidence(
        self, model: HeadModel, training: StoredInputs, held: StoredInputs, seed: int, tokens: int
    ) -> tuple[Self, list[LabelScores]]:
        """Fit calibration, coverage and the out-of-domain detector."""
        target = self.outputs.target
        layers = self.options.layers(model.encoder.config.layers) if target.kind == "single" else 0
        outputs = replace(self.outputs, layers=layers)
        with_states = HeadModel(model.encoder, model.head, layers).eval()

        def training_evidence() -> tuple[DetectorInput, Truth]:
            part = training
            if training.store.texts > MAX_DETECTOR_ROWS:
                drawn_N = np.random.default_rng(seed).permutation(training.store.texts)[:MAX_DETECTOR_ROWS]
                part = training.take(np.sort(drawn_N))
            scores = part.scores(outputs, with_states, tokens, "reading the training rows for the detector")
            return outputs.evidence(scores), part.truth

        scores = held.scores(outputs, with_states, tokens, "reading the held-out rows")
        evidence = outputs.evidence(scores)
        confidence = fit_label_confidence(target, evidence, held.truth, self.options, seed, training_evidence)
        target = with_fitted_thresholds(target, logits_of_all(scores), held.truth, confidence.calibration)
        outputs = replace(outputs, target=target, confidence=confidence)
        return replace(self, outputs=outputs, ranking=None), scores

    @override
    def rows_read_afterwards(self, rows: int) -> int:
        reads = self.outputs.target.kind == "single" and self.options.layers(1) > 0
        return min(rows, MAX_DETECTOR_ROWS) if reads else 0

    @override
    def calibrated(self, scores: Sequence[LabelScores], truth: Truth) -> LabelOutputs:
        target, logits_NC = self.outputs.target, logits_of_all(scores)
        calibration = None if self.options.calibration is None else fitted_temperature(target, logits_NC, truth)
        target = with_fitted_thresholds(target, logits_NC, truth, calibration)
        return replace(self.outputs, target=target, confidence=Confidence(calibration))

    @override
    def constant(self, stored: StoredInputs) -> tuple[float, ...]:
        return constant_logits(self.outputs.target, stored.truth)

    def fit_confidence_of_folds(self, scores: Sequence[LabelScores], truth: Truth, seed: int) -> Self:
        """Fit calibration, coverage and an energy detector, which needs no hidden states (they differ by fold)."""
        options, evidence = replace(self.options, detector="energy"), self.outputs.evidence(scores)
        target = self.outputs.target
        confidence = fit_label_confidence(target, evidence, truth, options, seed, lambda: (evidence, truth))
        return replace(self, outputs=replace(self.outputs, confidence=confidence))

    @override
    def data_facts(self, stored: StoredInputs) -> dict[str, object]:
        return {"labels_sha256": digest_of(stored.truth)}

    @property
    @override
    def limits(self) -> tuple[str, ...]:
        confidence, thresholds = self.outputs.confidence, self.outputs.target.kind == "multi"
        chose = "the epoch to keep, the calibration and the thresholds" if thresholds else EPOCH_AND_CALIBRATION
        return (
            optimistic("rows", chose),
            "Metrics, probabilities and coverage hold for texts like the validation rows.",
            *([COVERAGE_IS_APPROXIMATE] if confidence.conformal is not None else []),
            *([NOTICES_NOTHING] if confidence.out_of_domain is None else []),
            *([BALANCED] if self.options.class_weights is not None else []),
        )

    def card(self) -> dict[str, object]:
        """Return class weights, confidence and thresholds."""
        weights = {} if self.options.class_weights is None else {"class_weights": self.options.class_weights}
        confidence = self.outputs.confidence.to_card()
        return {**weights, "confidence": confidence, **stored_thresholds(self.outputs.target)}

    @override
    def diagnostics(
        self,
        scores: Sequence[LabelScores],
        truth: Truth,
        training: Sequence[Example[object]],
        held_out: Sequence[Example[object]],
    ) -> tuple[list[str], tuple[LabelIssue, ...]]:
        logits_NC, calibration = logits_of_all(scores), self.outputs.confidence.calibration
        target = self.outputs.target
        notes = notes_on_labels(target, logits_NC, truth, calibration)
        if target.kind == "regression":
            return notes, ()
        notes += contradictions([*training, *held_out])
        probabilities_NC = target.probabilities(logits_NC, calibration)
        return notes, confident_mistakes(target, probabilities_NC, truth, held_out)

    # --- distillation ---

    @override
    def uncalibrated(self, *, detects: bool = False) -> Self:
        outputs, detector = self.outputs, self.outputs.confidence.out_of_domain
        confidence, layers = (Confidence(out_of_domain=detector), outputs.layers) if detects else (Confidence(), 0)
        target = without_thresholds(outputs.target)
        return replace(self, outputs=replace(outputs, target=target, confidence=confidence, layers=layers))

    @override
    def loss_units(self, stored: StoredInputs) -> LossUnits:
        return LossUnits.of_texts(stored.store)

    @override
    def decided(self, scores: Sequence[LabelScores]) -> Truth:
        return self.outputs.target.decided(logits_of_all(scores), self.outputs.confidence.calibration)


def learns_all(backend: TorchBackend, options: LabelFitting, rows: Sequence[Example[object]]) -> bool:
    """Return True if a new classifier trains on all rows and is evaluated by cross-validation.

    This is done with few rows: a tenth of them would be too few for metrics and calibration, and the training needs
    every row. If calibration or detector options are not the defaults, rows are held out nevertheless.
    """
    default = ConfidenceOptions()
    as_usual = (options.calibration, options.detector, options.in_domain_share) == (
        default.calibration,
        default.detector,
        default.in_domain_share,
    )
    labels = Counter(each.label for each in rows)
    few = len(rows) <= FEW_TEXTS and min(labels.values(), default=0) > 1
    return few and as_usual and reads_mean(backend) and not backend.shared


def check_calibration(target: Target, options: ConfidenceOptions, truth: Truth) -> None:
    """Raise `InvalidInput` if the calibration does not suit the target, or needs a label that no held-out row has."""
    match target, options.calibration:
        case SingleLabel(labels), "isotonic" as method:
            rows_C = np.bincount(truth, minlength=target.outputs)
            if not rows_C.all():
                raise InvalidInput(
                    f"calibration by {method!r} needs held-out rows of every label, and "
                    f"{labels[int(rows_C.argmin())]!r} has none: give validation data with this label, or choose "
                    "'temperature' or 'auto'."
                )
        case MultiLabel(), method if method not in ("auto", "temperature", None):
            raise InvalidInput(
                f"multi-label models are calibrated by a temperature, not by {method!r}: "
                "choose 'temperature' or 'auto'."
            )
        case Regression(), method if method not in ("auto", None):
            raise InvalidInput(
                f"regression models have no probabilities to calibrate by {method!r}: choose 'auto' or None."
            )


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
            with stage("calibrating"):
                return Confidence(Temperature(fit_sigmoid_temperature(held_out.logits_NC, truth.astype(np.int64))))
        case Regression():
            with stage("fitting prediction intervals"):
                return Confidence(conformal=ConformalInterval.fit(held_out.logits_NC[:, 0], truth))
