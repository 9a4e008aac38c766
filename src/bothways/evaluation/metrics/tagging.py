"""Metrics of sequence tagging, for spans of words or for the tags of single words.

Precision, recall and F1 are those of CoNLL 2003 (Tjong Kim Sang and De Meulder, cs/0306050) and of seqeval. A span is
right if its label, its first word and its last word are right. Texts are resampled, not words, since the words of one
text depend on each other.

Shape letters: N texts, W words of all texts, L labels, R resamples, B reliability bins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bothways.errors import InvalidInput
from bothways.evaluation.inputs import BoolArray, FloatArray, IntArray
from bothways.evaluation.metrics.classification import (
    ClassCounts,
    class_scores,
    confusion_matrix,
    f1,
    macro_f1,
    macro_rows,
    precision,
    recall,
    score_rows,
)
from bothways.evaluation.outcomes import BINS, Outcomes, equal_mass_bins, reliability_bins
from bothways.evaluation.report import Report
from bothways.evaluation.tag_schemes import Scheme, TagSpan


@dataclass(frozen=True, slots=True)
class TaggedWords:
    """The words of N texts, end to end, with true tags, predicted tags and their probabilities."""

    truth_W: IntArray  # index of the true tag
    predicted_W: IntArray  # index of the predicted tag
    probability_W: FloatArray  # probability of the predicted tag
    text_W: IntArray  # index of the text of each word

    @property
    def texts(self) -> int:
        """Number of texts."""
        return int(self.text_W.max(initial=-1)) + 1

    @property
    def right_W(self) -> BoolArray:
        """True for each word with the right tag."""
        right_W: BoolArray = self.truth_W == self.predicted_W
        return right_W

    @property
    def right_N2(self) -> FloatArray:
        """Number of right words, and of all words, in each text."""
        found_N2 = np.zeros((self.texts, 2))
        np.add.at(found_N2, self.text_W, np.column_stack([self.right_W, np.ones(len(self.truth_W))]))
        return found_N2


@dataclass(frozen=True, slots=True)
class TaggingCounts:
    """Counts of N texts from which all metrics of tags are computed."""

    counts_N3L: IntArray  # spans (words for plain tags) of each text and label: right, true, predicted
    words_N2: FloatArray  # right words and all words of each text

    def headline(self, counts_RN: FloatArray) -> FloatArray:
        """Return micro F1, precision, recall, macro F1 and the accuracy of words (R, 5) for resampled texts."""
        total, words_R2 = self.resampled(counts_RN, joined=True), counts_RN @ self.words_N2
        return np.column_stack(
            [
                *(metric(total)[:, 0] for metric in (f1, precision, recall)),
                macro_f1(self.resampled(counts_RN)),
                words_R2[:, 0] / words_R2[:, 1],
            ]
        )

    @property
    def texts_3L(self) -> IntArray:
        """Number of texts with a right, true or predicted span of each label."""
        texts_3L: IntArray = (self.counts_N3L > 0).sum(axis=0)
        return texts_3L

    def headline_rows(self) -> tuple[int, ...]:
        """Return the number of texts that each of the five metrics of `headline` is computed from."""
        _, there, given = (self.counts_N3L > 0).any(axis=2).sum(axis=0).tolist()
        macro = macro_rows(self.texts_3L[1], self.texts_3L[2])
        return max(there, given), given, there, macro, len(self.words_N2)

    def resampled(self, counts_RN: FloatArray, *, joined: bool = False) -> ClassCounts:
        """Sum the counts over resampled texts: (R, L), or (R, 1) if all labels are joined."""
        texts, _, labels = self.counts_N3L.shape
        flat_NK = self.counts_N3L.reshape(texts, -1).astype(np.float64)
        sums_R3L = (counts_RN @ flat_NK).reshape(-1, 3, labels)
        if joined:
            sums_R3L = sums_R3L.sum(2, keepdims=True)
        return ClassCounts(sums_R3L[:, 0], sums_R3L[:, 1], sums_R3L[:, 2])


def span_counts(
    truth: Sequence[Sequence[TagSpan]], predicted: Sequence[Sequence[TagSpan]], labels: Sequence[str]
) -> IntArray:
    """Count the true positives, gold spans and predicted spans of each text and label: (N, 3, L)."""
    if len(truth) != len(predicted):
        raise InvalidInput(f"expected predictions for {len(truth)} texts, got {len(predicted)}.")
    numbers = {label: number for number, label in enumerate(labels)}
    counts_N3L = np.zeros((len(truth), 3, len(labels)), dtype=np.int64)
    for text, (there, given) in enumerate(zip(truth, predicted, strict=True)):
        for kind, spans in enumerate((set(there) & set(given), there, given)):
            for span in spans:
                if span.label not in numbers:
                    raise InvalidInput(f"text {text}: expected span labels from {list(labels)}, got {span.label!r}.")
                counts_N3L[text, kind, numbers[span.label]] += 1
    return counts_N3L


def tag_counts(words: TaggedWords, tags: int) -> IntArray:
    """Count the true positives, gold words and predicted words of each text and tag: (N, 3, L)."""
    counts_N3L = np.zeros((words.texts, 3, tags), dtype=np.int64)
    everywhere_W = np.ones_like(words.right_W)
    for kind, tags_W, counted_W in (
        (0, words.truth_W, words.right_W),
        (1, words.truth_W, everywhere_W),
        (2, words.predicted_W, everywhere_W),
    ):
        np.add.at(counts_N3L[:, kind], (words.text_W[counted_W], tags_W[counted_W]), 1)
    return counts_N3L


_SPANS = {"span_f1": 0, "span_precision": 1, "span_recall": 2, "macro_span_f1": 3, "accuracy": 4}
_TAGS = {"accuracy": 4, "macro_f1": 3}
"""The column of each metric in `TaggingCounts.headline`."""


def span_outcomes(
    truth: Sequence[Sequence[TagSpan]],
    predicted: Sequence[Sequence[TagSpan]],
    words: TaggedWords,
    labels: Sequence[str],
    scheme: Scheme = "BIO",
) -> Outcomes:
    """Return the outcomes of predicted spans; the permutation test compares the number of wrong spans per text.

    Wrong spans are missed or spurious ones. A wrong span makes more wrong tags in one scheme than in another, so word
    accuracies in two schemes are not compared. ``words`` are the tags from which the spans were decoded.
    """
    counts = TaggingCounts(span_counts(truth, predicted, labels), words.right_N2)
    right_N, there_N, predicted_N = np.moveaxis(counts.counts_N3L.sum(axis=2, dtype=np.float64), 1, 0)
    tested = "span mistakes of a text", (there_N - right_N) + (predicted_N - right_N)
    texts, all_words, spans = len(truth), len(words.truth_W), int(there_N.sum())
    frame = Report(
        kind="span tagging",
        title=f"{texts} texts, {all_words} words, {spans} spans, {len(labels)} labels",
        counts={"n": texts, "words": all_words, "spans": spans},
    )
    return _outcomes(frame, counts, words, labels, _SPANS, tested, scheme)


def tag_outcomes(words: TaggedWords, tags: Sequence[str]) -> Outcomes:
    """Return the outcomes of tags without spans; the permutation test compares the number of wrong words per text."""
    counts = TaggingCounts(tag_counts(words, len(tags)), words.right_N2)
    frame = Report(
        kind="tagging",
        title=f"{words.texts} texts, {len(words.truth_W)} words, {len(tags)} tags",
        counts={"n": words.texts, "words": len(words.truth_W)},
        labels=tuple(tags),
        confusion=tuple(map(tuple, confusion_matrix(words.truth_W, words.predicted_W, len(tags)).tolist())),
    )
    tested = "wrong words of a text", counts.words_N2[:, 1] - counts.words_N2[:, 0]
    return _outcomes(frame, counts, words, tags, _TAGS, tested)


def _outcomes(
    frame: Report,
    counts: TaggingCounts,
    words: TaggedWords,
    labels: Sequence[str],
    column_of: Mapping[str, int],
    tested: tuple[str, FloatArray],
    scheme: str = "",
) -> Outcomes:
    bin_W = equal_mass_bins(words.probability_W, BINS)
    gaps_NB = np.zeros((len(counts.words_N2), int(bin_W.max()) + 1))
    np.add.at(gaps_NB, (words.text_W, bin_W), (words.right_W - words.probability_W) / len(words.right_W))
    columns, totals_3L = list(column_of.values()), counts.counts_N3L.sum(axis=0)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        headline_RK = counts.headline(counts_RN)[:, columns]
        return np.column_stack([headline_RK, class_scores(counts.resampled(counts_RN))])

    return Outcomes(
        frame=replace(frame, reliability=reliability_bins(words.probability_W, words.right_W, BINS)),
        truth=counts.counts_N3L[:, 1, np.argsort(labels)],
        metrics=tuple(column_of),
        statistic=statistic,
        # Texts are resampled as a whole, so these are numbers of texts.
        of_rows=[
            *(counts.headline_rows()[each] for each in columns),
            *score_rows(counts.texts_3L[1], counts.texts_3L[2]),
        ],
        compared=tuple(column_of),
        labels=tuple(labels),
        label_counts=(totals_3L[1], totals_3L[2]),
        bins=(gaps_NB,),
        tested=tested,
        scheme=scheme,
    )
