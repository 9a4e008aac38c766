"""Warnings about a poor training, as sentences, and the wrong predictions to look at first."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten

import numpy as np
from numpy.typing import NDArray

from bothways.choices import LabelValue
from bothways.data import Example
from bothways.data.columns import texts_in
from bothways.data.known_rows import normalised
from bothways.data.label_rows import DECIMAL
from bothways.evaluation.calibration import Calibration
from bothways.evaluation.metrics.tagging import TaggedWords
from bothways.evaluation.report import Validation
from bothways.evaluation.temperature import Temperature
from bothways.progress import figure
from bothways.tasks.heads.targets import AnyExample, Logits, MultiLabel, Regression, SingleLabel, Target, Truth
from bothways.training.state import TrainingRecord

FEW_UPDATES, FEW_ROWS = 50, 50

LEARNT_BEFORE = (
    "The previous training used all of its rows: if some of them are held out now, the metrics are optimistic. Give "
    "validation data that the model has never seen."
)
KEPT_FROZEN = "Fine-tuning did worse in cross-validation than a linear model of the frozen encoder, which is kept: "

# Temperatures outside this range mean very wrong probabilities before the calibration.
_USUAL_TEMPERATURES = (1 / 3, 3.0)

MOST_MISTAKES, _MOST_LISTED = 10, 20

_WIDTH = 70  # characters of a text that are shown


@dataclass(frozen=True, slots=True)
class LabelIssue:
    """A confident prediction on a held-out row that contradicts its label: the label may be wrong.

    Attributes:
        where: The row, or a word in it.
        text: The text or texts of the row.
        label: The label in the data, in its type; several labels as a string.
        predicted: The prediction; for multi-label data, "x" if only the prediction has the label x, else "not x".
        probability: Probability of the prediction.
    """

    where: str
    text: str | tuple[str, ...]
    label: LabelValue
    predicted: LabelValue
    probability: float

    def __str__(self) -> str:
        shown = shorten(" | ".join(texts_in(self.text)), _WIDTH, placeholder=" ...")
        return f"{self.where}: {self.label!r}, but {self.predicted!r} with {figure(self.probability, 3)}: {shown}"


def notes_on_training(
    record: TrainingRecord, held_out: int, validate: Callable[[], Validation], enough: int = FEW_UPDATES
) -> list[str]:
    """Return warnings about a training, as sentences.

    More updates are advised if there were fewer than ``enough`` and the score was still rising at the end. Nothing is
    advised if the validation of the kept model, which ``validate`` returns, is perfect.
    """
    notes = []
    if record.kept_epoch == 0:
        worse = f"Fine-tuning did not do better than the {record.baseline}, which is kept"
        notes.append(f"{worse}: {advice_for_kept(validate(), ' more than more epochs')}")
    if record.updates < enough and record.was_rising and not validate().perfect:
        notes.append(
            f"The training had only {record.updates} updates, and its last epoch was the best: try more epochs, or "
            "smaller batches."
        )
    if held_out < FEW_ROWS:
        notes.append(f"There were only {held_out} held-out rows, so the metrics are imprecise.")
    return notes


def note_on_frozen(validation: Validation) -> str:
    """Return the note on a linear model of the frozen encoder that is kept after a cross-validation."""
    return KEPT_FROZEN + advice_for_kept(validation)


def advice_for_kept(validation: Validation, than: str = "") -> str:
    """Return the end of a sentence on a baseline that is kept: what would help, if anything can."""
    if validation.perfect:
        return "its validation score is the highest possible."
    return f"more rows, or another encoder, would help{than}."


def notes_on_labels(target: Target, logits_NC: Logits, truth: Truth, calibration: Calibration | None) -> list[str]:
    """Return warnings about a classifier or a regression model, from its predictions on held-out rows."""
    match target:
        case SingleLabel():
            learnt = _notes_on_classes(target.labels, logits_NC.argmax(1), truth, "row", "label")
            return [*learnt, *_notes_on_numeric_labels(target), *_notes_on_temperature(calibration)]
        case MultiLabel():
            given_NC = target.probabilities(logits_NC, calibration) >= target.thresholds_C
            return _notes_on_several_labels(target, given_NC, truth)
        case Regression():
            return _notes_on_numbers(target, logits_NC[:, 0], truth)


def _notes_on_classes(labels: Sequence[str], predicted_N: Truth, truth: Truth, unit: str, name: str) -> list[str]:
    """Return warnings about predictions of one label per row, or one tag per word."""
    accuracy, counts_C = float((predicted_N == truth).mean()), np.bincount(truth, minlength=len(labels))
    usual, most = labels[int(counts_C.argmax())], float(counts_C.max() / len(truth))
    if most == 1:
        note = f"All held-out {unit}s have the {name} {usual!r}: the metrics do not cover the other {name}s."
        return [note] if len(truth) > 1 else []
    if len(set(predicted_N.tolist())) == 1:
        only = labels[int(predicted_N[0])]
        return [f"The model predicts the same {name}, {only!r}, for every held-out {unit}: it is a constant."]
    if accuracy <= most:
        note = f"always predicting {usual!r} has accuracy {figure(most)}, the model {figure(accuracy)}."
        return [f"The model is not better than the most frequent {name}: {note}"]
    return []


def _notes_on_numeric_labels(target: SingleLabel) -> list[str]:
    if target.outputs < 3 or not all(map(DECIMAL.fullmatch, target.labels)):
        return []
    numbers = sorted(map(float, target.labels))
    if numbers == list(range(target.outputs)):  # class indices
        return []
    return [
        f"All {target.outputs} labels are numbers, but the model treats them as unordered classes: for a regression, "
        "name their column with score (--score)."
    ]


def _notes_on_several_labels(target: MultiLabel, given_NC: NDArray[np.bool_], truth: Truth) -> list[str]:
    if len(given_NC) < 2:
        return []
    if (truth == truth[0]).all():
        names = tuple(name for name, given in zip(target.labels, truth[0], strict=True) if given)
        return [f"All held-out rows have the same labels ({_named(names)}): the metrics do not cover others."]
    if (given_NC != given_NC[0]).any():
        return []
    names = tuple(name for name, given in zip(target.labels, given_NC[0], strict=True) if given)
    return [f"The model predicts the same labels for every held-out row ({_named(names)}): it is a constant."]


def _notes_on_numbers(target: Regression, numbers_N: Logits, truth: Truth) -> list[str]:
    if target.training_mean is None:
        return []
    error, usual = (float(((truth - each) ** 2).mean()) for each in (numbers_N, target.training_mean))
    if error < usual or not error:
        return []
    return [
        "The model is not better than the mean of the training labels: always predicting "
        f"{target.training_mean:.4g} has a mean squared error of {usual:.4g}, the model {error:.4g}."
    ]


def _notes_on_temperature(calibration: Calibration | None) -> list[str]:
    low, high = _USUAL_TEMPERATURES
    match calibration:
        case Temperature(value) if not low <= value <= high:
            sure = "overconfident" if value > 1 else "underconfident"
            return [
                f"Before calibration the model was very {sure} (temperature {value:.2f}): its probabilities depend on "
                "the calibration."
            ]
        case _:
            return []


def contradictions(examples: Sequence[Example[object]]) -> list[str]:
    """Return a sentence that names the rows with equal texts and different labels; empty if there are none.

    Texts are compared in the normal form of `bothways.data.known_rows`.
    """
    rows: dict[str, dict[object, str]] = defaultdict(dict)
    for example in examples:
        rows[normalised(example.text)].setdefault(example.label, example.where)
    doubtful = [list(labels.items()) for labels in rows.values() if len(labels) > 1]
    if not doubtful:
        return []
    listed = "; ".join(
        " and ".join(f"{where} ({_named(label)})" for label, where in labels) for labels in doubtful[:_MOST_LISTED]
    )
    more = f"; and {len(doubtful) - _MOST_LISTED:,} more" if len(doubtful) > _MOST_LISTED else ""
    return [f"Texts that occur with different labels: {listed}{more}."]


def _named(label: object) -> str:
    """Return a label, or several labels joined."""
    match label:
        case tuple(names):
            return ", ".join(map(repr, names)) or "no label"
        case _:
            return repr(label)


def confident_mistakes(
    target: Target, probabilities_NC: Logits, truth: Truth, examples: Sequence[AnyExample]
) -> tuple[LabelIssue, ...]:
    """Return the wrong predictions on held-out rows, the most probable first; none for regression."""
    match target:
        case SingleLabel(names, values):
            labels = values or names
            best_N, stated_N = probabilities_NC.argmax(1), probabilities_NC.max(1)
            return tuple(
                _mistake(examples[row], labels[truth[row]], labels[best_N[row]], stated_N[row])
                for row in _most_probable(stated_N, best_N != truth)
            )
        case MultiLabel(labels):
            given_NC = probabilities_NC >= target.thresholds_C
            stated_NC = np.where(given_NC, probabilities_NC, 1 - probabilities_NC)
            wrong = _most_probable(stated_NC.ravel(), (given_NC != (truth > 0)).ravel())
            return tuple(
                _mistake(
                    examples[row],
                    ", ".join(examples[row].label),
                    labels[column] if given_NC[row, column] else f"not {labels[column]}",
                    stated_NC[row, column],
                )
                for row, column in (divmod(place, target.outputs) for place in wrong)
            )
        case Regression():
            return ()


def diagnostics_of_words(
    labels: Sequence[str], words: TaggedWords, examples: Sequence[Example[object]]
) -> tuple[list[str], tuple[LabelIssue, ...]]:
    """Return warnings about a tagger from held-out words, and its wrong tags, the most probable first."""
    notes = _notes_on_classes(labels, words.predicted_W, words.truth_W, "word", "tag")
    first_N = np.searchsorted(words.text_W, np.arange(words.texts))
    mistakes = []
    for word in _most_probable(words.probability_W, words.predicted_W != words.truth_W):
        text = int(words.text_W[word])
        example, place = examples[text], word - int(first_N[text])
        where = f"{example.where}, word {place + 1} ({example.text.listed()[place]!r})"
        true, predicted = (labels[int(tags_W[word])] for tags_W in (words.truth_W, words.predicted_W))
        mistakes.append(LabelIssue(where, example.text.text, true, predicted, float(words.probability_W[word])))
    return notes, tuple(mistakes)


def _most_probable(stated_N: Logits, wrong_N: NDArray[np.bool_]) -> list[int]:
    """Return the indices of the most probable wrong predictions."""
    wrong = np.flatnonzero(wrong_N)
    order: list[int] = wrong[np.argsort(-stated_N[wrong], kind="stable")][:MOST_MISTAKES].tolist()
    return order


def _mistake(example: Example[object], label: LabelValue, predicted: LabelValue, probability: float) -> LabelIssue:
    return LabelIssue(example.where, example.text, label, predicted, float(probability))
