"""Outputs of classification and regression of texts and pairs. Does not import torch.

Shapes: N inputs, W windows of one text, C outputs, L layers that a detector reads, H hidden, K = C + L H.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from bothways.checkpoints.schema import (
    StoredLabels,
    damaged,
    different_names,
    label_settings,
    numbered_names,
    placeholders,
)
from bothways.choices import LabelValue, Merge, Unlabelled
from bothways.confidence.confidence import Confidence, OutOfDomain, coverage_guarantee
from bothways.confidence.fitting import open_confidence, write_confidence
from bothways.data import Example, Source, class_label, read_examples
from bothways.data.label_rows import values_of
from bothways.data.labels import declared, names_of
from bothways.data.sources import PLAIN_READING, LabelReading
from bothways.errors import CorruptCheckpoint, InvalidInput, LabelsUnnamed, UnsupportedConfig, shown
from bothways.evaluation.calibration import LabelSets
from bothways.evaluation.detectors import DetectorInput
from bothways.evaluation.outcomes import Outcomes
from bothways.inference import Rows, TextRows
from bothways.tasks.backend import Backend
from bothways.tasks.classification.spec import LabelOpening, LabelPrediction
from bothways.tasks.columns import AnyColumns, PairColumns, TextColumns
from bothways.tasks.heads.targets import (
    Classification,
    MultiLabel,
    Prediction,
    Regression,
    RegressionPrediction,
    SingleLabel,
    Target,
    Truth,
    at_threshold,
    reading_settings,
    stored_label_reading,
    uncalibrated_target,
)
from bothways.tasks.outputs import Outputs, logits_of_all
from bothways.tasks.scores import Scores, TokensRead, texts_read
from bothways.tasks.spec import NamedLabelData, options_of
from bothways.text.windows import Text

LabelScores: TypeAlias = Scores[None]


@dataclass(frozen=True, slots=True, eq=False)
class LabelOutputs(Outputs[Text, Truth, None, Prediction]):
    """Outputs for each text or pair: a single label, multiple labels, or a regression value.

    ``merge`` is the method for merging the windows of a long text. Hidden states of ``layers`` layers are appended to
    the logits, for the out-of-domain detector.
    """

    target: Target
    merge: Merge = "weighted_mean"
    confidence: Confidence = Confidence()  # noqa: RUF009 (frozen)
    layers: int = 0

    head: ClassVar = "sequence"
    head_title: ClassVar = "classification head"

    @property
    @override
    def row_target(self) -> Target:
        return self.target

    @property
    def two_classes(self) -> tuple[str, ...]:
        """Names of the two classes of a binary classifier; else empty."""
        match self.target:
            case SingleLabel((_, _) as names):
                return names
            case _:
                return ()

    @override
    def read(self, data: Source, columns: AnyColumns, options: object = None) -> list[Example[object]]:
        given = options_of(NamedLabelData, options)
        reading = self.target.reading.with_options(given.normalise_labels, given.labels)
        if reading.names and self.target.kind == "regression":
            raise InvalidInput("labels name classes, but this model predicts a number: leave labels out.")
        return read_labelled(data, columns, self.target, given.unlabelled, self.labels, reading)

    @override
    def encode(self, examples: Sequence[Example[object]]) -> Truth:
        return self.target.encode(examples)

    # --- from rows to predictions ---

    @override
    def scores(self, value: Text, rows: Sequence[Rows], options: object = None) -> LabelScores:
        del value, options
        match rows:
            case [TextRows(rows_WK, lengths, dropped)]:
                size = len(self.target.labels)
                merged_K = merge_windows(rows_WK, np.asarray(lengths), self.merge, size)
                logits_C, features = merged_K[:size], merged_K[size:]
                features_LH = features.reshape(self.layers, -1) if self.layers else None
                return Scores(logits_C[None], None, TokensRead(len(lengths), dropped), features_LH)
            case _:
                raise TypeError("expected one text, with a row of scores for each window")

    @override
    def decide(self, scores: Sequence[LabelScores], options: object = None) -> list[Prediction]:
        given = options_of(LabelPrediction, options)
        if given.top is not None and self.target.kind == "regression":
            raise InvalidInput("top needs labels, but this model predicts a number: leave top out.")
        calibration, target = self.confidence.calibration, self.target
        if given.calibrated is False:
            calibration, target = None, uncalibrated_target(target, calibration)
        if given.threshold is not None:
            target = at_threshold(target, given.threshold)
        guarantee = None if given.coverage is None else coverage_guarantee(self.confidence.conformal, given.coverage)
        predictions = []
        for each in scores:
            prediction = target.predict(each.logits_RC[0], calibration, each.read)
            if guarantee is not None:
                prediction = _with_coverage(prediction, guarantee)
            if self.confidence.out_of_domain is not None or each.votes is not None:
                prediction = self._with_domain(prediction, each)
            predictions.append(prediction if given.top is None else _with_top(prediction, given.top))
        return predictions

    def _with_domain(self, prediction: Prediction, scores: LabelScores) -> Prediction:
        match prediction, self.confidence.out_of_domain:
            case Classification(), _ if scores.votes is not None:
                return replace(prediction, out_of_domain=scores.votes > 0.5, out_of_domain_score=scores.votes)
            case Classification(), OutOfDomain() as detector:
                score, beyond = detector.detect(self.evidence([scores]))
                return replace(prediction, out_of_domain=beyond, out_of_domain_score=score)
            case _:
                return prediction

    @override
    def outcomes(self, scores: Sequence[Scores[object]], truth: Truth, *, calibrated: bool | None = None) -> Outcomes:
        calibration, target = self.confidence.calibration, self.target
        if calibrated is False:
            calibration, target = None, uncalibrated_target(target, calibration)
        found = target.outcomes(logits_of_all(scores), truth, calibration)
        return replace(found, tokens_read=texts_read(each.read for each in scores))

    def evidence(self, scores: Sequence[Scores[object]]) -> DetectorInput:
        """Return the logits and features that an out-of-domain detector reads."""
        features = [each.features_LH for each in scores if each.features_LH is not None]
        return DetectorInput(logits_of_all(scores), np.stack(features) if features else np.zeros((len(scores), 0, 0)))

    @override
    def facts(self) -> dict[str, object]:
        confidence, calibration = self.confidence, self.confidence.calibration
        numbers = {} if confidence.temperature is None else asdict(confidence.temperature)
        method = None if calibration is None else {"method": calibration.method, **numbers}
        facts: dict[str, object] = {"labels": list(self.target.values or self.labels), "calibration": method}
        match self.target:
            case MultiLabel(thresholds_C=thresholds_C):
                thresholds = thresholds_C.tolist()
                facts |= {"threshold": thresholds[0]} if len(set(thresholds)) == 1 else {"thresholds": thresholds}
        return facts

    # --- on disk ---

    @classmethod
    @override
    def check_untrained(cls, backend: Backend) -> None:
        options = options_of(LabelOpening, backend.options)
        if options.labels is not None and options.target == "regression":
            raise InvalidInput("labels name classes, but target 'regression' predicts a number: leave labels out.")

    @classmethod
    @override
    def open(cls, backend: Backend, size: int, *, ours: bool) -> Self:
        options = options_of(LabelOpening, backend.options)
        target = stored_target(backend.files.settings, options.labels, size, named=ours)
        if options.target is not None and options.target != target.kind:
            raise InvalidInput(
                f"expected a model with the target {options.target!r}, got {target.kind!r}: leave target out."
            )
        stored = StoredLabels.of(backend.files.extras if ours else {})
        match target:
            case Regression():
                target = Regression(stored.training_mean)
            case SingleLabel() | MultiLabel():
                values = stored.label_values if options.labels is None else None
                target = with_stored_thresholds(_with_values(target, values), stored.thresholds)
        target = at_threshold(target, options.threshold)
        merge = options.merge or stored.merge or "weighted_mean"
        encoder = backend.config
        confidence = open_confidence(stored, backend.files.folder, target.outputs, encoder.layers, encoder.hidden)
        match target:
            case SingleLabel() | MultiLabel():
                target = replace(target, reading=stored_label_reading(stored, options.labels, target.labels))
        return cls(target, merge, confidence, confidence.layers)

    @override
    def settings(self) -> Mapping[str, object]:
        return {"problem_type": self.target.problem_type, **label_settings(self.labels)}

    @override
    def write(self, folder: Path) -> dict[str, object]:
        match self.target:
            case Regression(training_mean):
                own: dict[str, object] = {"training_mean": training_mean}
            case _:
                values = {"label_values": list(self.target.values)} if self.target.values else {}
                own = {**values, **stored_thresholds(self.target)}
        own |= reading_settings(self.target.reading)
        return {"merge": self.merge, "target": self.target.kind, **own, **write_confidence(folder, self.confidence)}


def merge_windows(
    rows_WK: NDArray[np.floating], lengths_W: NDArray[np.int64], merge: Merge, outputs: int
) -> NDArray[np.float64]:
    """Merge the rows of a text's windows (W, K) into one (K); a row has ``outputs`` logits, then hidden states."""
    rows = rows_WK.astype(np.float64)
    merged_K: NDArray[np.float64]
    match merge:
        case "first":
            merged_K = rows[0]
        case "max":
            merged_K = rows.max(axis=0)
        case "maxp":
            merged_K = rows[_most_probable(rows[:, :outputs])]
        case "mean":
            merged_K = rows.sum(axis=0) / len(rows)
        case "weighted_mean":
            merged_K = (rows * lengths_W[:, None]).sum(axis=0) / lengths_W.sum()
    return merged_K


def _most_probable(logits_WC: NDArray[np.float64]) -> int:
    """Return the window in which the last output has the highest odds.

    MaxP of Dai and Callan (2019), "Deeper text understanding for IR with contextual neural language modeling": a
    document is as relevant as its most relevant passage.
    """
    odds_W = logits_WC[:, -1]
    if logits_WC.shape[1] > 1:
        odds_W = odds_W - np.logaddexp.reduce(logits_WC[:, :-1], axis=1)
    return int(odds_W.argmax())


def read_labelled(
    data: Source,
    columns: AnyColumns,
    target: Target | type[SingleLabel] | type[MultiLabel] | type[Regression],
    unlabelled: Unlabelled = "error",
    known: Collection[str] = (),
    reading: LabelReading = PLAIN_READING,
) -> list[Example[object]]:
    """Return labelled texts or pairs; see `bothways.data.read_examples`."""
    match columns:
        case TextColumns() | PairColumns():
            return read_examples(
                data,
                text=columns,
                label=columns.label,
                convert=target.convert,
                unlabelled=unlabelled,
                known=known,
                names=reading.names,
                normalise=reading.normalise,
            )
        case _:
            raise TypeError(f"expected columns of texts or pairs, got {type(columns).__name__}")


def _with_top(prediction: Prediction, top: int) -> Prediction:
    """Keep the ``top`` most probable labels."""
    match prediction:
        case RegressionPrediction():
            return prediction
        case _:
            return replace(prediction, probabilities=dict(itertools.islice(prediction.probabilities.items(), top)))


def _with_coverage(prediction: Prediction, guarantee: LabelSets | float) -> Prediction:
    """Add the label set, or the ends of the interval, of a coverage guarantee."""
    match prediction, guarantee:
        case RegressionPrediction(), float():
            return replace(prediction, low=prediction.value - guarantee, high=prediction.value + guarantee)
        case Classification(), LabelSets():
            # Probabilities are in descending order, and so are the labels of the set.
            included_C = guarantee.includes(np.array([list(prediction.probabilities.values())]))[0]
            names = zip(prediction.probabilities, included_C, strict=True)
            return replace(prediction, label_set=tuple(name for name, included in names if included))
        case _:
            return prediction


# --- targets on disk ---


def stored_target(
    settings: Mapping[str, object], labels: Sequence[LabelValue] | None, classes: int, *, named: bool = False
) -> Target:
    """Return the target of a trained head, with the caller's label names or else those of ``config.json``.

    If the caller names the labels of ``config.json`` in another order, they keep their order: it is that of vectors.
    ``named`` is True if a user chose names such as LABEL_0; otherwise these names mean that the labels have no names.
    """
    problem = settings.get("problem_type")
    if problem not in (None, *(kind.problem_type for kind in (SingleLabel, MultiLabel, Regression))):
        raise UnsupportedConfig(
            f"config.json sets problem_type to {shown(problem)}, which is not supported; only "
            f"{SingleLabel.problem_type}, {MultiLabel.problem_type} and {Regression.problem_type} are."
        )
    if problem == Regression.problem_type or (problem is None and classes == 1):
        if classes != 1:
            raise CorruptCheckpoint(f"expected 1 output of the regression head, got {classes}: correct config.json.")
        if labels is not None:
            raise InvalidInput("labels name classes, but this checkpoint's head predicts a number: leave labels out.")
        return Regression()
    stored = (different_names if labels is None else numbered_names)(settings.get("id2label") or {})
    given = () if labels is None else declared(labels)
    names = names_of(given) or stored or placeholders(classes)
    if set(names) == set(stored):
        names = stored
    if not given and not named and names == placeholders(classes):
        warnings.warn(
            "config.json does not name the classes of its trained head, so they are called "
            f"{', '.join(names[:3])}{' ...' * (len(names) > 3)}. To name them, pass labels=[...] in the order "
            "of the outputs, or --labels on the command line.",
            LabelsUnnamed,
            stacklevel=2,
        )
    if len(names) != classes or len(set(names)) != classes:
        raise InvalidInput(
            f"the trained head has {classes} outputs, so it needs {classes} different labels, got {list(names)}."
        )
    values = values_of(names, given)
    return MultiLabel(names, values=values) if problem == MultiLabel.problem_type else SingleLabel(names, values)


def _with_values(target: SingleLabel | MultiLabel, stored: Sequence[LabelValue] | None) -> SingleLabel | MultiLabel:
    """Return the target with the saved types of its labels; raise `CorruptCheckpoint` if they are of other labels."""
    if not stored:
        return target
    try:
        names = tuple(map(class_label, stored))
    except InvalidInput:
        names = ()
    if names != target.labels:
        raise damaged("label_values", f"the labels {', '.join(target.labels)}", stored)
    return replace(target, values=tuple(stored))


def with_stored_thresholds(target: Target, stored: Sequence[float] | None) -> Target:
    """Return the target with its saved thresholds; raise `CorruptCheckpoint` if their number is wrong."""
    match target, stored:
        case MultiLabel(), [_, *_]:
            if len(stored) != target.outputs:
                raise damaged("thresholds", f"a list of {target.outputs} numbers from 0 to 1", stored)
            return replace(target, thresholds=tuple(stored))
        case _:
            return target


def stored_thresholds(target: Target) -> dict[str, object]:
    """Return the multi-label thresholds, for ``bothways.json`` and the card."""
    match target:
        case MultiLabel(thresholds=thresholds):
            return {"thresholds": list(thresholds)}
        case _:
            return {}
