"""Notes on a training that did not go well, in sentences, and the answers to look at first."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bothways.data import Example
from bothways.evaluation import Calibration, Temperature
from bothways.tasks.targets import Logits, SingleLabel, Target, Truth
from bothways.training.record import TrainingRecord

FEW_UPDATES, FEW_ROWS = 50, 50

# Temperatures outside of these say that probabilities were far off before they were calibrated.
_USUAL_TEMPERATURES = (1 / 3, 3.0)

MOST_MISTAKES, _MOST_LISTED = 10, 5


@dataclass(frozen=True, slots=True)
class Mistake:
    """A confident answer on a held-out row that its label contradicts: the label may be the mistake.

    Attributes:
        where: The row.
        text: What it says, or its two texts.
        label: Its label.
        predicted: The answer.
        probability: Of the answer.
    """

    where: str
    text: Any
    label: str
    predicted: str
    probability: float


def notes_on_training(record: TrainingRecord, held_out: int) -> list[str]:
    """Return what the course of a training says against it.

    Args:
        record: The course.
        held_out: Number of held-out rows.
    """
    notes = []
    if record.kept_epoch == 0:
        notes.append(
            f"Fine-tuning did not do better than the {record.baseline}, which is kept: more rows, or another encoder, "
            "would help more than more epochs."
        )
    if record.updates < FEW_UPDATES and record.kept_epoch != 0:
        notes.append(f"The training had only {record.updates} updates: try more epochs, or smaller batches.")
    if held_out < FEW_ROWS:
        notes.append(f"There were only {held_out} held-out rows, so that the metrics are rough.")
    return notes


def notes_on_labels(target: Target, logits_NC: Logits, truth: Truth, calibration: Calibration | None) -> list[str]:
    """Return what the answers on held-out rows say against a classifier of one label."""
    if not isinstance(target, SingleLabel):
        return []
    predicted_N = logits_NC.argmax(1)
    accuracy, counts_C = float((predicted_N == truth).mean()), np.bincount(truth, minlength=target.outputs)
    usual, most = target.labels[int(counts_C.argmax())], float(counts_C.max() / len(truth))
    notes = []
    if most == 1:
        if len(truth) > 1:
            notes.append(f"All held-out rows have the label {usual!r}: the metrics say nothing about the others.")
    elif len(set(predicted_N.tolist())) == 1:
        only = target.labels[int(predicted_N[0])]
        notes.append(f"The model gives every held-out row the same label, {only!r}: it has learnt to tell nothing.")
    elif accuracy <= most:
        notes.append(
            f"The model is not better than the most frequent label: always {usual!r} has accuracy {most:.4f}, the "
            f"model {accuracy:.4f}."
        )
    low, high = _USUAL_TEMPERATURES
    if isinstance(calibration, Temperature) and not low <= calibration.value <= high:
        sure = "sure" if calibration.value > 1 else "unsure"
        notes.append(
            f"Before calibration the model was far too {sure} (temperature {calibration.value:.2f}): its probabilities "
            "rest on the calibration."
        )
    return notes


def contradictions(examples: Sequence[Example[Any]]) -> list[str]:
    """Rows with the same text and different labels, in sentences."""
    rows: dict[Hashable, dict[Any, str]] = defaultdict(dict)
    for example in examples:
        rows[example.text].setdefault(example.label, example.where)
    doubtful = [list(labels.items()) for labels in rows.values() if len(labels) > 1]
    if not doubtful:
        return []
    listed = "; ".join(
        " and ".join(f"{where} ({_named(label)})" for label, where in labels) for labels in doubtful[:_MOST_LISTED]
    )
    more = f"; and {len(doubtful) - _MOST_LISTED:,} more" if len(doubtful) > _MOST_LISTED else ""
    return [f"Texts that occur with different labels: {listed}{more}."]


def _named(label: str | tuple[str, ...]) -> str:
    """A label, or the labels of a row that may have several."""
    return ", ".join(map(repr, (label,) if isinstance(label, str) else label)) or "no label"


def confident_mistakes(
    target: Target, probabilities_NC: Logits, truth: Truth, examples: Sequence[Example[Any]]
) -> tuple[Mistake, ...]:
    """Return the answers on held-out rows that are wrong, the most probable first."""
    if not isinstance(target, SingleLabel):
        return ()
    best_N, stated_N = probabilities_NC.argmax(1), probabilities_NC.max(1)
    wrong = np.flatnonzero(best_N != truth)
    order = wrong[np.argsort(-stated_N[wrong], kind="stable")][:MOST_MISTAKES]
    return tuple(
        Mistake(
            examples[row].where,
            examples[row].text,
            target.labels[int(truth[row])],
            target.labels[int(best_N[row])],
            float(stated_N[row]),
        )
        for row in order.tolist()
    )
