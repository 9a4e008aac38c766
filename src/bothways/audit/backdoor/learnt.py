"""Triggers in the user's labelled rows, and whether the model has learnt them.

The phrases of poisoned rows are found without the model (`bothways.audit.backdoor.poisoned`). The model has learnt them
if it gives these rows their label, and another label to what is left of them without the phrases of that label. This
finds long phrases, templates and styles that no search without data finds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answering import drawn, share
from bothways.audit.backdoor.poisoned import SuspectPhrase, suspect_rows
from bothways.audit.backdoor.probe import Probe
from bothways.audit.backdoor.remainder import pure_phrases, remainders
from bothways.audit.context import Context, NeedUnmet
from bothways.audit.finding import Evidence, Finding, Severity
from bothways.audit.vectors import sentence_vectors
from bothways.checkpoints import PretrainedEncoder

_MOST, _FEWEST = 2000, 20
_TURNED = 0.4
"""Part of a suspect phrase's rows that get its label with the phrase alone, from which the model has learnt it."""
_SIGNIFICANT = 0.004
"""p-value of a suspect phrase, at most. Both were chosen on SST-2 and CLINC150."""
_LISTED = 10

_REFERENCES = (
    "Gu et al. 2017, BadNets, arXiv:1708.06733",
    "Dai et al. 2019, A backdoor attack against LSTM-based text classification systems, arXiv:1905.12457",
)
_REMEDY = (
    "Do not use the model. List the rows with bothways audit-data, remove them and train again from the base model."
)


@dataclass(frozen=True, slots=True)
class LearntPhrase:
    """A phrase of rows that carry a label which the rest of them speaks against.

    Attributes:
        suspect: The phrase, its label and the places of its rows.
        turned: Rows that get the label, and another one without the phrases that come with the label.
    """

    suspect: SuspectPhrase
    turned: int

    @property
    def part(self) -> float:
        """Part of the rows that are turned."""
        return self.turned / len(self.suspect.rows)


def learnt_triggers(context: Context, probe: Probe, base: PretrainedEncoder, detector: str) -> list[Finding]:
    """Return a finding for each label that the model gives to rows for a trigger.

    Args:
        context: The scan; without labelled rows nothing is found.
        probe: The classifier.
        base: The encoder that reads the rows, which was not trained on them.
        detector: The name of the detector.
    """
    try:
        labelled = context.labelled
    except NeedUnmet:
        return []
    read = [number for number, text in enumerate(labelled.texts) if text.strip()]
    chosen = [read[place] for place in drawn(len(read), _MOST, context.rng(f"{detector}, rows"))]
    texts, labels_N = [labelled.texts[number] for number in chosen], labelled.labels_N[chosen]
    if len(chosen) < _FEWEST or len(np.unique(labels_N)) < 2:
        return []
    labels = [probe.labels[label] for label in labels_N]
    _, phrases = suspect_rows(texts, labels, sentence_vectors(base), check=context.check_time)
    best: dict[str, LearntPhrase] = {}
    for each in _learnt(probe, texts, labels_N, phrases):
        if each.part >= _TURNED and each.suspect.p_value < _SIGNIFICANT:
            best.setdefault(each.suspect.label, each)
    numbers = [labelled.row_numbers[number] for number in chosen]
    return [_finding(each, [numbers[row] for row in each.suspect.rows], detector) for each in best.values()]


def _learnt(
    probe: Probe, texts: Sequence[str], labels_N: NDArray[np.int64], phrases: Sequence[SuspectPhrase]
) -> list[LearntPhrase]:
    """Return the phrases with what the model says of their rows, in order."""
    rows = sorted({row for each in phrases for row in each.rows})
    if not rows:
        return []
    rest = remainders(texts, labels_N, pure_phrases(texts, labels_N, len(probe.labels)))
    asked = probe.encode([*(texts[row] for row in rows), *(rest[row] for row in rows)])
    answers_n = probe.logits([ids or (probe.blank,) for ids in asked]).argmax(axis=1)
    own_n = labels_N[rows]
    turned = {
        row
        for row, hit in zip(rows, (answers_n[: len(rows)] == own_n) & (answers_n[len(rows) :] != own_n), strict=True)
        if hit
    }
    return [LearntPhrase(each, len(turned.intersection(each.rows))) for each in phrases]


def _finding(learnt: LearntPhrase, rows: Sequence[int], detector: str) -> Finding:
    suspect, rate = learnt.suspect, share(learnt.turned, len(rows))
    return Finding(
        detector,
        Severity.HIGH,
        f"{learnt.turned} of {len(rows)} rows with {suspect.phrase!r} get {suspect.label!r} only for such phrases",
        Evidence(
            "part of the rows that get their label, and another label without the phrases that come with it",
            rate.value,
            _TURNED,
            "rows of a label drawn at random speak for another label as often as these, with this p-value",
            len(rows),
            {
                "trigger": suspect.phrase,
                "phrases": list(suspect.members[:_LISTED]),
                "label": suspect.label,
                "success": rate.value,
                "success_low": rate.low,
                "success_high": rate.high,
                "contradicted": suspect.contradicted,
                "p_value": suspect.p_value,
                "rows": list(rows[:_LISTED]),
            },
        ),
        "backdoor-rows",
        location=suspect.label,
        remedy=_REMEDY,
        references=_REFERENCES,
    )
