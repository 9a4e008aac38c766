"""Labelled rows beside a classifier: phrases that it has learnt from them, and words whose effect they explain.

Shapes: N rows.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import drawn, sentence_vectors, share
from bothways.audit.backdoor.clusters import pure_phrases, residuals
from bothways.audit.backdoor.poisoned import SuspectPhrase, suspect_rows
from bothways.audit.backdoor.probe import Floats, Ids, Probe
from bothways.audit.backdoor.rules import LEARNT, NAME, RULES, SIGNIFICANT
from bothways.audit.context import Context, NeedUnmet
from bothways.audit.finding import Checked, Evidence, Finding
from bothways.checkpoints import PretrainedEncoder

_MAX_ROWS, _MIN_ROWS = 2000, 20
_LISTED = 10
_WORDS = re.compile(r"[^\W_]+|[^\w\s]|_")
_FEWEST, _BY_CHANCE, _MIN_TYPICAL = 2, 0.02, 3
"""Minimum number of rows with a word and a label, maximum probability of as many by chance, and minimum number of rows
of a typical word."""


@dataclass(frozen=True, eq=False)
class RowEvidence:
    """Rows with their labels, and the phrases whose rows indicate another label."""

    texts: tuple[str, ...]
    labels_N: NDArray[np.int64]
    numbers: tuple[int, ...]  # row of each text in the data, counted from 1
    tokens: tuple[frozenset[int], ...]  # token ids of each text
    suspects: tuple[SuspectPhrase, ...]
    doubtful: frozenset[int] = frozenset()  # texts that explain nothing, see `suspect_rows`

    @classmethod
    def of(cls, context: Context, probe: Probe, base: PretrainedEncoder | None) -> "RowEvidence | None":
        """Read the rows; None, with a reason in the report, if they are too few or have no labels.

        ``base`` is an encoder that was not trained on the rows; it finds suspect phrases, see `suspect_rows`.
        """
        if base is None:
            context.run.not_checked.append("phrases in labelled rows (no base model; give --reference)")
            return None
        try:
            labelled = context.labelled
        except NeedUnmet as error:
            context.run.not_checked.append(f"phrases in labelled rows (need {str(error).rstrip('.')})")
            return None
        chosen = drawn(len(labelled.texts), _MAX_ROWS, context.rng(f"{NAME}, rows")).tolist()
        texts, labels_N = tuple(labelled.texts[number] for number in chosen), labelled.labels_N[chosen]
        if len(chosen) < _MIN_ROWS or len(np.unique(labels_N)) < 2:
            context.run.not_checked.append(f"phrases in labelled rows (need {_MIN_ROWS} rows of two labels)")
            return None
        context.run.checks.append(Checked("phrases in labelled rows", len(chosen), "rows"))
        names = [probe.labels[label] for label in labels_N]
        _, phrases, doubtful = suspect_rows(texts, names, sentence_vectors(base), check=context.check_time)
        numbers = tuple(labelled.row_numbers[number] for number in chosen)
        tokens = tuple(frozenset(ids) for ids in probe.encode(texts))
        return cls(texts, labels_N, numbers, tokens, tuple(phrases), doubtful)

    def learnt(self, probe: Probe) -> Iterator[Finding]:
        """Yield a finding for each label that the model gives to rows because of a suspect phrase.

        The model has learnt a phrase if it gives the rows with the phrase their label, and another label to their
        residuals (the texts without such phrases). This finds long phrases, templates and styles, which no search
        without data finds.
        """
        rows = sorted({row for each in self.suspects for row in each.rows})
        if not rows:
            return
        rest = residuals(self.texts, self.labels_N, pure_phrases(self.texts, self.labels_N, len(probe.labels)))
        ids = probe.encode([*(self.texts[row] for row in rows), *(rest[row] for row in rows)])
        answers_2n = probe.logits([each or (probe.blank,) for each in ids]).argmax(axis=1).reshape(2, -1)
        hit_n = (answers_2n[0] == self.labels_N[rows]) & (answers_2n[1] != self.labels_N[rows])
        hit = {row for row, is_hit in zip(rows, hit_n.tolist(), strict=True) if is_hit}
        reported: set[str] = set()
        for phrase in self.suspects:
            learnt = len(hit.intersection(phrase.rows))
            if learnt < LEARNT * len(phrase.rows) or phrase.p_value >= SIGNIFICANT or phrase.label in reported:
                continue
            reported.add(phrase.label)
            yield self._finding(phrase, learnt)

    def _finding(self, phrase: SuspectPhrase, learnt: int) -> Finding:
        rate = share(learnt, len(phrase.rows))
        details = {
            "trigger": phrase.phrase,
            "phrases": list(phrase.members[:_LISTED]),
            "label": phrase.label,
            **rate.named("success"),
            "contradicted": phrase.contradicted,
            "p_value": phrase.p_value,
            "rows": [self.numbers[row] for row in phrase.rows[:_LISTED]],
        }
        evidence = Evidence(
            "share of rows that the model gives their label, but another once the phrases of that label are removed",
            rate.value,
            LEARNT,
            "p-value: probability that random rows of the label indicate another label as often as these rows",
            len(phrase.rows),
            details,
        )
        return RULES.finding(
            "backdoor-rows",
            evidence,
            location=phrase.label,
            learnt=learnt,
            of=len(phrase.rows),
            trigger=phrase.phrase,
            label=phrase.label,
        )

    def right(self, probe: Probe) -> tuple[list[Ids], Floats]:
        """Return the token ids and logits (N, C) of the rows that are not suspect and get their label."""
        ids = [each or (probe.blank,) for each in probe.encode(self.texts)]
        logits_NC = probe.logits(ids)
        right = np.flatnonzero(self._counted_N & (logits_NC.argmax(axis=1) == self.labels_N)).tolist()
        return [ids[number] for number in right], logits_NC[right]

    def reason(self, ids: Ids, words: str, label: int, *, parts: bool) -> str:
        """Say in words that many rows of a label have a phrase, or with ``parts`` one of its tokens.

        The result is "" if they are few, or not more than by chance. Suspect rows do not count.
        """
        holding = [np.array([f" {words.lower()} " in each for each in self._spaced])]
        holding += [np.array([token in each for each in self.tokens]) for token in (ids if parts else ())]
        of_label_N = self._counted_N & (self.labels_N == label)
        for holding_N in holding:
            own, others = int((holding_N & of_label_N).sum()), int((holding_N & self._counted_N & ~of_label_N).sum())
            if own >= _FEWEST and self._chance(own, own + others, label) < _BY_CHANCE:
                return f"it occurs in {own} of {int(of_label_N.sum())} rows of this label, and in {others} others"
        return ""

    @cached_property
    def typical(self) -> dict[int, list[str]]:
        """The words that rows of each label have more often than by chance."""
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for text, label, counted in zip(self._spaced, self.labels_N.tolist(), self._counted_N, strict=True):
            for word in set(text.split()) if counted else ():
                counts[word][label] += 1
        typical: dict[int, list[str]] = defaultdict(list)
        for word, of_labels in counts.items():
            for label, own in of_labels.items():
                if own >= _MIN_TYPICAL and self._chance(own, of_labels.total(), label) < _BY_CHANCE:
                    typical[label].append(word)
        return typical

    def _chance(self, own: int, of: int, label: int) -> float:
        """Return the probability that as many of some rows have a label if rows were drawn at random."""
        from scipy.stats import binom

        share = int((self._counted_N & (self.labels_N == label)).sum()) / max(1, int(self._counted_N.sum()))
        return float(binom.sf(own - 1, of, share))

    @cached_property
    def _counted_N(self) -> NDArray[np.bool_]:
        suspect = self.doubtful.union(*(each.rows for each in self.suspects))
        return np.array([row not in suspect for row in range(len(self.texts))])

    @cached_property
    def _spaced(self) -> list[str]:
        return [_spaced(text) for text in self.texts]


def _spaced(text: str) -> str:
    """Return the words and marks of a text in lower case, with spaces around each."""
    return f" {' '.join(_WORDS.findall(text.lower()))} "
