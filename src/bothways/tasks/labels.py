"""Labels of whole texts and pairs: what a head's outputs mean that gives one label, several labels or a number.

Shapes: N inputs, W windows of one text, B sequences, C outputs, L layers that a detector reads, H hidden, K = C + L H.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.schema import StoredEnsemble, StoredLabels
from bothways.choices import ClassWeights, Merge, TargetKind
from bothways.confidence.confidence import Confidence, coverage_guarantee, learn_conformal_sets
from bothways.confidence.files import open_confidence, stored_temperature, write_confidence
from bothways.confidence.options import ConfidenceOptions
from bothways.data import Example, Source, read_examples
from bothways.data.windows import digest_of, digest_of_texts
from bothways.errors import InvalidInput
from bothways.evaluation import (
    Calibration,
    ConformalInterval,
    ConformalSets,
    DetectorInput,
    LabelSets,
    Outcomes,
    Temperature,
    method_of,
)
from bothways.inference import TextRows
from bothways.progress import phase
from bothways.tasks.card import BALANCED
from bothways.tasks.columns import PairColumns, TextColumns
from bothways.tasks.findings import Mistake, confident_mistakes, contradictions, notes_on_labels
from bothways.tasks.head import StoredInputs, TrainingData
from bothways.tasks.label_confidence import check_calibration, confidence_limits, learn_confidence
from bothways.tasks.label_options import LabelLearning, LabelOpening, LabelPrediction
from bothways.tasks.merging import check_merge, merge_windows
from bothways.tasks.opened import Opened
from bothways.tasks.outputs import Identity, Rows
from bothways.tasks.predictions import Classification, Prediction, RegressionPrediction
from bothways.tasks.rankings import PairRanking
from bothways.tasks.scores import Scores, TokensRead, texts_read
from bothways.tasks.splits import hold_out
from bothways.tasks.target_settings import stored_target, target_settings, with_stored_thresholds
from bothways.tasks.targets import (
    Logits,
    MultiLabel,
    Regression,
    SingleLabel,
    Target,
    Truth,
    at_threshold,
    calibrated_logits,
    continued,
    converter,
    fitted_temperature,
    target_of,
)
from bothways.tasks.together import CombinableOutputs, DistillableOutputs
from bothways.text.texts import Text
from bothways.training.objective import Validation

if TYPE_CHECKING:
    from bothways.encoder import ScoreHead
    from bothways.tasks.objective import Answers, HeadModel, Scoring, Units
    from bothways.tasks.opening import OpenedModel

LabelScores: TypeAlias = Scores[None]

MOST_TRAINING = 20_000
"""Training rows that a detector is fitted on, drawn from more."""


def learns_all(
    opened: OpenedModel,
    columns: TextColumns | PairColumns,
    options: LabelLearning,
    rows: Sequence[Example[Any]],
) -> bool:
    """Return whether a new classifier of one label learns from all rows, and is measured by cross-validation.

    A tenth of so few would measure and calibrate nothing, and be missed by the training. Where something is asked for
    that only held-out rows teach, some are held out all the same.
    """
    from bothways.tasks.contrast import FEW_TEXTS

    usual = ConfidenceOptions()
    as_usual = (options.calibration, options.detector, options.in_domain_share) == (
        usual.calibration,
        usual.detector,
        usual.in_domain_share,
    )
    labels = Counter(each.label for each in rows)
    few = len(rows) <= FEW_TEXTS and isinstance(columns, TextColumns) and min(labels.values(), default=0) > 1
    return few and as_usual and opened.reads_mean and not opened.shared


@dataclass(frozen=True, slots=True, eq=False)
class LabelOutputs(CombinableOutputs[Text, None], DistillableOutputs):
    """Labels, or a number, for each text or pair.

    Attributes:
        target: What is predicted: one label, several labels, or a number.
        merge: How the scores of a long text's windows become one.
        confidence: What held-out rows taught.
        layers: Layers whose hidden states stand behind the logits, for the out-of-domain detector.
        options: What is to be learnt from held-out rows.
        class_weights: How much the rows of each label count in the loss; None for all alike.
        ranking: The questions of held-out pairs that rank, until the training has ended.
    """

    target: Target
    merge: Merge = "weighted_mean"
    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)
    layers: int = 0
    options: ConfidenceOptions = ConfidenceOptions()  # noqa: RUF009 (frozen)
    class_weights: ClassWeights | None = None
    ranking: PairRanking | None = None

    head: ClassVar = "sequence"
    head_title: ClassVar = "classification head"
    merges: ClassVar = True

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the outputs."""
        return self.target.labels

    @property
    def size(self) -> int:
        """C."""
        return self.target.outputs

    @property
    def two_classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the classes, where every input is of one of two."""
        return self.labels if isinstance(self.target, SingleLabel) and self.size == 2 else ()

    def class_probabilities(self, scores: Sequence[LabelScores]) -> Logits:
        """Return the probabilities of the classes (N, C), calibrated where the model is."""
        return self.target.probabilities(logits_of_all(scores), self.confidence.calibration)

    # --- from inputs to answers ---

    def forward(self, model: HeadModel) -> Scoring:
        """Return the module that gives scores, with the hidden states that the detector reads."""
        from bothways.tasks.feature_model import FeatureModel

        return FeatureModel(model.encoder, model.head, self.layers).eval() if self.layers else model

    def scores(self, value: Text, rows: Sequence[Rows], options: Any = None) -> LabelScores:  # noqa: ANN401 (unused)
        """Merge the windows' rows into the logits and features of the text."""
        del value, options
        (only,) = rows
        if not isinstance(only, TextRows):
            raise TypeError("labels of whole texts are read from a row for each window")
        lengths_W = np.asarray(only.lengths)
        merged_K = merge_windows(only.rows_WK, lengths_W, np.zeros(len(lengths_W), dtype=np.int64), self.merge)[0]
        return self.scored(merged_K, TokensRead(len(only.lengths), only.dropped_tokens))

    def scored(self, row_K: Logits, read: TokensRead) -> LabelScores:
        """Return the scores of a row of logits, with features behind them or without."""
        logits_C, features = row_K[: self.size], row_K[self.size :]
        return Scores(logits_C[None], None, read, features.reshape(self.layers, -1) if self.layers else None)

    def decide(self, scores: Iterable[LabelScores], options: LabelPrediction | None = None) -> Iterator[Prediction]:
        """Yield a prediction for each text."""
        chosen = options or LabelPrediction()
        if chosen.top is not None and isinstance(self.target, Regression):
            raise InvalidInput("top asks for labels, but this model predicts a number: leave it out.")
        calibration, target = self._calibration(calibrated=chosen.calibrated)
        target = at_threshold(target, chosen.threshold)
        guarantee = coverage_guarantee(self.confidence.conformal, chosen.coverage)
        for each in scores:
            prediction = target.predict(each.logits_RC[0], calibration, each.read)
            yield _with_top(self._with_domain(_with_coverage(prediction, guarantee), each), chosen.top)

    def _calibration(self, *, calibrated: bool | None) -> tuple[Calibration | None, Target]:
        """Return the calibration to apply, and the target with the thresholds of the probabilities that it gives."""
        calibration = self.confidence.calibration
        if calibrated is not False:
            return calibration, self.target
        return None, self.target.without(calibration) if isinstance(self.target, MultiLabel) else self.target

    def _with_domain(self, prediction: Prediction, scores: LabelScores) -> Prediction:
        if not isinstance(prediction, Classification):
            return prediction
        if scores.votes is not None:
            return replace(prediction, out_of_domain=scores.votes > 0.5, out_of_domain_score=scores.votes)
        if self.confidence.out_of_domain is None:
            return prediction
        score, beyond = self.confidence.out_of_domain.detect(self.evidence([scores]))
        return replace(prediction, out_of_domain=beyond, out_of_domain_score=score)

    def outcomes(self, scores: Sequence[LabelScores], truth: Truth, *, calibrated: bool | None = None) -> Outcomes:
        """Return the outcomes of labelled texts, calibrated where the model is."""
        calibration, target = self._calibration(calibrated=calibrated)
        found = target.outcomes(logits_of_all(scores), truth, calibration)
        return replace(found, tokens_read=texts_read(each.read for each in scores))

    def evidence(self, scores: Sequence[LabelScores]) -> DetectorInput:
        """Return the logits, and the features that the detector reads."""
        features = [each.features_LH for each in scores if each.features_LH is not None]
        return DetectorInput(logits_of_all(scores), np.stack(features) if features else np.zeros((len(scores), 0, 0)))

    def facts(self) -> dict[str, object]:
        """Return labels, calibration and thresholds."""
        calibration = self.confidence.calibration
        numbers = asdict(calibration) if isinstance(calibration, Temperature) else {}
        facts: dict[str, object] = {
            "labels": list(self.labels),
            "calibration": None if calibration is None else {"method": method_of(calibration), **numbers},
        }
        if isinstance(self.target, MultiLabel):
            thresholds = self.target.thresholds_C.tolist()
            facts |= {"threshold": thresholds[0]} if len(set(thresholds)) == 1 else {"thresholds": thresholds}
        return facts

    # --- learning ---

    @classmethod
    def begin(
        cls,
        opened: OpenedModel,
        data: TrainingData,
        columns: TextColumns | PairColumns,
        options: LabelLearning,
        seed: int,
        before: Self | None,
    ) -> tuple[Self, list[Example[Any]], list[Example[Any]]]:
        """Read labelled rows; rows with the same text, or the same first text, are held out together."""
        opened_for: TargetKind | None = getattr(opened.options, "target", None)
        if None not in (options.target, opened_for) and options.target != opened_for:
            raise InvalidInput(
                f"the model was opened for the target {opened_for!r}, so it is not fitted for {options.target!r}."
            )
        kind: TargetKind = options.target or opened_for or "single"
        if kind == "regression" and options.class_weights is not None:
            raise InvalidInput("class_weights are for labels, and numbers have none: leave them out.")
        variant = converter(kind)

        def read(source: Source) -> list[Example[Any]]:
            return read_examples(source, text=columns.inputs, label=columns.label, convert=variant.convert)

        examples = read(data.train)
        asked: Merge | None = getattr(opened.options, "merge", None)
        merge = check_merge(asked or "weighted_mean") if before is None else before.merge
        if data.validation is not None:
            held_out = read(data.validation)
        elif before is None and kind == "single" and learns_all(opened, columns, options, examples):
            held_out = []
        else:
            # The same text on both sides would give away what is asked of it.
            first = isinstance(columns, PairColumns)
            examples, held_out = hold_out(
                examples, 0.1, seed, variant.names, group=lambda each: each.text[0] if first else each.text
            )
        target = continued(target_of(kind, examples), None if before is None else before.target)
        target = at_threshold(target, getattr(opened.options, "threshold", None))
        ranking = PairRanking.of(target, held_out) if isinstance(columns, PairColumns) else None
        outputs = cls(target, merge, options=options, class_weights=options.class_weights, ranking=ranking)
        return outputs, examples, held_out

    def read(self, data: Source, columns: TextColumns | PairColumns, options: object = None) -> list[Example[Any]]:
        """Return labelled texts, or pairs."""
        del options
        return read_examples(data, text=columns.inputs, label=columns.label, convert=self.target.convert)

    def encode(self, examples: Sequence[Example[Any]]) -> Truth:
        """Return the encoded labels: class numbers (N), 0 or 1 for each label (N, C), or numbers (N)."""
        return self.target.encode(examples)

    def check_data(self, training: StoredInputs, held: StoredInputs) -> tuple[int, ...]:
        """Refuse a calibration that held-out rows cannot teach."""
        del training
        check_calibration(self.target, self.options, held.truth)
        return ()

    def standardize(self, head: ScoreHead) -> None:
        """Change a head that gives numbers into one that gives standardised numbers."""
        if isinstance(self.target, Regression):
            self.target.standardize(head)

    def unstandardize(self, head: ScoreHead) -> Self:
        """Change a head that gives standardised numbers into one that gives numbers."""
        return replace(self, target=self.target.unstandardize(head)) if isinstance(self.target, Regression) else self

    def continues(self, before: Self) -> bool:
        """Return whether the kind of target and the labels are the same."""
        return (self.target.kind, self.labels) == (before.target.kind, before.labels)

    @property
    def start_strength(self) -> float:
        """The log loss of scikit-learn's classifiers; for several labels a mean where theirs is a sum."""
        from bothways.tasks.linear_start import STRENGTH

        return STRENGTH * (self.size if isinstance(self.target, MultiLabel) else 1)

    def contrasted_classes(self, stored: StoredInputs) -> NDArray[np.int64] | None:
        """Return the labels of texts with one each, of which some share theirs, where they are not too many."""
        from bothways.tasks.contrast import MOST_TEXTS

        contrasted = isinstance(self.target, SingleLabel) and len(stored.truth) <= MOST_TEXTS
        return stored.truth if contrasted and np.bincount(stored.truth).max() > 1 else None

    def learn_from(self, scores: Sequence[LabelScores], truth: Truth, seed: int) -> Self:
        """Learn calibration, coverage and a detector that reads logits: scores of several models share no features."""
        options, evidence = replace(self.options, detector="energy"), self.evidence(scores)
        confidence = learn_confidence(self.target, evidence, truth, options, seed, lambda: (evidence, truth))
        return replace(self, confidence=confidence)

    def answers(self, stored: StoredInputs) -> Answers:
        """Return the labels of windows; those of one text share its weight."""
        from bothways.tasks.objective import TextAnswers

        weights_NK = None
        if self.class_weights is not None and not isinstance(self.target, Regression):
            weights_NK = self.target.balanced_weights(stored.truth)
        return TextAnswers(self.target, stored.truth, stored.store, weights_NK)

    def validate(self, scores: Sequence[LabelScores], truth: Truth) -> Validation:
        """Return accuracy, F1 or squared error; of pairs that rank also the mean average precision, which decides."""
        logits_NC = logits_of_all(scores)
        if self.ranking is not None:
            precision, error = self.ranking.validate(logits_NC, truth)
            return Validation({"map": precision, **self._validated(logits_NC, truth).metrics}, precision, error)
        return self._validated(logits_NC, truth)

    def _validated(self, logits_NC: Logits, truth: Truth) -> Validation:
        if isinstance(self.target, SingleLabel) and self.class_weights is not None:
            return self.target.validate(logits_NC, truth, balanced=True)
        return self.target.validate(logits_NC, truth)

    def learn(
        self, model: HeadModel, training: StoredInputs, held: StoredInputs, seed: int, tokens: int
    ) -> tuple[Self, list[LabelScores]]:
        """Learn calibration, coverage and the out-of-domain detector."""
        single = isinstance(self.target, SingleLabel)
        layers = self.options.layers(model.encoder.config.layers) if single else 0
        reading = replace(self, layers=layers, ranking=None)
        module = reading.forward(model)

        def drawn() -> tuple[DetectorInput, Truth]:
            part = training
            if training.store.texts > MOST_TRAINING:
                part = training.take(
                    np.sort(np.random.default_rng(seed).permutation(training.store.texts)[:MOST_TRAINING])
                )
            return reading.evidence(part.scores(reading, module, tokens)), part.truth

        phase("reading the held-out rows")
        scores = held.scores(reading, module, tokens)
        confidence = learn_confidence(self.target, reading.evidence(scores), held.truth, self.options, seed, drawn)
        target = self._with_thresholds(scores, held.truth, confidence.calibration)
        return replace(reading, target=target, confidence=confidence), scores

    def _with_thresholds(self, scores: Sequence[LabelScores], truth: Truth, calibration: Calibration | None) -> Target:
        """Return the target with the thresholds that held-out rows teach, where it has some and none were given."""
        if not isinstance(self.target, MultiLabel) or self.target.thresholds:
            return self.target
        return self.target.learnt(logits_of_all(scores), truth, calibration)

    @property
    def identity(self) -> Identity:
        """Target, labels, merge, the units that numbers are learnt in, and class weights."""
        more: dict[str, str | float] = {}
        if isinstance(self.target, Regression):
            more = {"mean of the numbers": self.target.mean, "scale of the numbers": self.target.scale}
        if self.class_weights is not None:
            more = {"class weights": self.class_weights}
        if self.ranking is not None:
            more = {**more, "judged by": "map"}
        return {"target": self.target.kind, "labels": ", ".join(map(repr, self.labels)), "merge": self.merge, **more}

    def part(self, stored: StoredInputs) -> dict[str, object]:
        """Return SHA-256 of the encoded labels."""
        return {"labels_sha256": digest_of(stored.truth)}

    def unit(self, truth: Truth) -> float:
        """Return the variance of numbers that are learnt from; 1 for labels."""
        # Of what is learnt from, which is more: a single number that is held out has no variance.
        return float(np.var(truth)) or 1.0 if isinstance(self.target, Regression) else 1.0

    @property
    def limits(self) -> tuple[str, ...]:
        """Limits that a reader of the card's metrics has to know."""
        limits = confidence_limits(self.confidence, thresholds=isinstance(self.target, MultiLabel))
        return limits if self.class_weights is None else (*limits, BALANCED)

    def card(self) -> dict[str, Any]:
        """Return what held-out rows taught."""
        weights = {} if self.class_weights is None else {"class_weights": self.class_weights}
        return {**weights, "confidence": self.confidence.to_card(), **self._stored_thresholds()}

    def _stored_thresholds(self) -> dict[str, object]:
        return {"thresholds": list(self.target.thresholds)} if isinstance(self.target, MultiLabel) else {}

    def findings(
        self,
        scores: Sequence[LabelScores],
        truth: Truth,
        training: Sequence[Example[Any]],
        held_out: Sequence[Example[Any]],
    ) -> tuple[list[str], tuple[Mistake, ...]]:
        """Return what speaks against the labels, and the most confident answers that they contradict."""
        logits_NC, calibration = logits_of_all(scores), self.confidence.calibration
        notes = notes_on_labels(self.target, logits_NC, truth, calibration)
        if isinstance(self.target, Regression):
            return notes, ()
        notes += contradictions([*training, *held_out])
        stated_NC = self.target.probabilities(logits_NC, calibration)
        return notes, confident_mistakes(self.target, stated_NC, truth, held_out)

    # --- taught to a smaller model ---

    def unlearnt(self) -> Self:
        """Return the same without calibration, thresholds and detector."""
        return replace(self.uncalibrated(), confidence=Confidence(), layers=0)

    def uncalibrated(self) -> Self:
        """Return the same without calibration, thresholds and coverage."""
        target = MultiLabel(self.labels) if isinstance(self.target, MultiLabel) else self.target
        return replace(self, target=target, confidence=Confidence(out_of_domain=self.confidence.out_of_domain))

    def units(self, stored: StoredInputs) -> Units:
        """Return the windows."""
        from bothways.tasks.objective import Units

        return Units.of_texts(stored.store)

    def decided(self, scores: Sequence[LabelScores]) -> Truth:
        """Return the labels, or numbers, of texts."""
        return self.target.decided(logits_of_all(scores), self.confidence.calibration)

    # --- several models together ---

    @property
    def row_target(self) -> Target:
        """The target."""
        return self.target

    @property
    def common(self) -> Mapping[str, str]:
        """The kind of target."""
        return {"target": self.target.kind}

    def stated(self, scores: LabelScores) -> LabelScores:
        """Return scores with the calibration in them, and whether the input is out of domain."""
        detector = self.confidence.out_of_domain
        votes = None if detector is None else float(detector.detect(self.evidence([scores]))[1])
        logits_1C = calibrated_logits(self.target, scores.logits_RC, self.confidence.calibration)
        return replace(scores, logits_RC=logits_1C, features_LH=None, votes=votes)

    def together(self, members: Sequence[Self]) -> Self:
        """Return the same without what the first member learnt; a baseline stays where all members have it."""
        target = self.target
        if isinstance(target, MultiLabel):
            target = MultiLabel(target.labels)
        elif isinstance(target, Regression) and not all(each.target == target for each in members):
            target = Regression()
        return replace(self, target=target, confidence=Confidence(), layers=0)

    def calibrated_on(self, scores: Sequence[LabelScores], truth: Truth) -> Self:
        """Return the same with a temperature, thresholds of several labels, and coverage of one label or a number."""
        logits_NC = logits_of_all(scores)
        temperature = fitted_temperature(self.target, logits_NC, truth)
        target = self._with_thresholds(scores, truth, temperature)
        confidence = Confidence(temperature, conformal=self._conformal(logits_NC, truth))
        return replace(self, target=target, confidence=confidence)

    def metrics(self, scores: Sequence[LabelScores], truth: Truth) -> Mapping[str, float]:
        """Return metrics of scores that were `stated`, at the thresholds as they are."""
        if isinstance(self.target, MultiLabel):
            return self.target.metrics(logits_of_all(scores), truth)
        return self.validate(scores, truth).metrics

    def _conformal(self, logits_NC: Logits, truth: Truth) -> ConformalSets | ConformalInterval | None:
        match self.target:
            case SingleLabel():
                return learn_conformal_sets(logits_NC, truth, "temperature", seed=0)
            case MultiLabel():
                return None
            case Regression():
                return ConformalInterval.fit(logits_NC[:, 0], truth)

    def stored_together(self) -> dict[str, object]:
        """Return the scores of held-out rows that guarantee coverage, and the thresholds of several labels."""
        conformal = self.confidence.conformal
        held_out = None if conformal is None else conformal.held_out_M.tolist()
        return {"conformal": held_out, **self._stored_thresholds()}

    def restored_together(self, stored: StoredEnsemble) -> Self:
        """Return the same with temperature, thresholds and coverage."""
        target = with_stored_thresholds(self.target, stored.thresholds)
        kind = ConformalInterval if isinstance(self.target, Regression) else ConformalSets
        conformal = None if stored.conformal is None else kind(np.sort(np.array(stored.conformal)))
        return replace(self, target=target, confidence=Confidence(stored_temperature(stored), conformal=conformal))

    def part_together(self, inputs: Sequence[Text], truth: Truth) -> dict[str, object]:
        """Return how many texts, and SHA-256 of them and of their encoded labels."""
        return {"rows": len(inputs), "texts_sha256": digest_of_texts(inputs), "labels_sha256": digest_of(truth)}

    def card_together(self) -> dict[str, object]:
        """Return how many rows taught the coverage."""
        conformal = self.confidence.conformal
        return {"coverage_from_rows": None if conformal is None else len(conformal.held_out_M)}

    # --- on disk ---

    @classmethod
    def open(cls, opened: Opened, options: LabelOpening, size: int, *, ours: bool) -> Self:
        """Return the labels of a trained head, by name or as the caller calls them."""
        target = stored_target(opened.settings, options.labels, size, named=ours)
        if options.target is not None and options.target != target.kind:
            raise InvalidInput(
                f"expected a model with the target {options.target!r}, but this one has {target.kind!r}."
            )
        stored = StoredLabels.of(opened.extras if ours else {})
        if isinstance(target, Regression):
            target = Regression(stored.training_mean)
        target = with_stored_thresholds(target, stored.thresholds)
        target = at_threshold(target, options.threshold)
        merge = check_merge(options.merge or stored.merge or "weighted_mean")
        encoder = opened.config
        confidence = open_confidence(stored, opened.folder, target.outputs, encoder.layers, encoder.hidden)
        return cls(target, merge, confidence, confidence.layers)

    def settings(self) -> dict[str, object]:
        """Return the problem type and names of labels."""
        return target_settings(self.target)

    def write(self, folder: Path) -> dict[str, object]:
        """Write arrays; return target, merge and confidence."""
        own = self._stored_thresholds()
        if isinstance(self.target, Regression):
            own = {"training_mean": self.target.training_mean}
        return {"merge": self.merge, "target": self.target.kind, **own, **write_confidence(folder, self.confidence)}


def logits_of_all(scores: Sequence[LabelScores]) -> Logits:
    """Return the logits of all inputs (N, C)."""
    return np.concatenate([each.logits_RC for each in scores])


def _with_top(prediction: Prediction, top: int | None) -> Prediction:
    """Keep the probabilities of so many labels; they come most probable first."""
    if top is None or isinstance(prediction, RegressionPrediction):
        return prediction
    return replace(prediction, probabilities=dict(itertools.islice(prediction.probabilities.items(), top)))


def _with_coverage(prediction: Prediction, guarantee: LabelSets | float | None) -> Prediction:
    """Add the labels, or the ends of an interval, that keep a coverage guarantee."""
    match prediction, guarantee:
        case RegressionPrediction(), float():
            return replace(prediction, low=prediction.value - guarantee, high=prediction.value + guarantee)
        case Classification(), LabelSets():
            # Probabilities come most probable first, and so do the labels of the set.
            included_C = guarantee.includes(np.array([list(prediction.probabilities.values())]))[0]
            names = zip(prediction.probabilities, included_C, strict=True)
            return replace(prediction, label_set=tuple(name for name, included in names if included))
        case _:
            return prediction
