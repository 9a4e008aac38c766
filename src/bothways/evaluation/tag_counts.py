"""Counts of right tags and spans, text by text: all that the metrics of tagging are made of.

A span is right where its label, its first word and its last word are. Texts are counted, and resampled, and not words,
for the words of one text belong together.

Shape letters: N texts, W words of all texts, L labels, R resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bothways.errors import InvalidInput
from bothways.evaluation import metrics
from bothways.evaluation.inputs import BoolArray, FloatArray, IntArray
from bothways.evaluation.metrics import ClassCounts
from bothways.evaluation.tag_schemes import TagSpan


@dataclass(frozen=True, slots=True)
class TaggedWords:
    """The words of N texts, end to end: what they are, what was said, and how surely.

    Attributes:
        truth_W: Number of the true tag.
        predicted_W: Number of the predicted tag.
        probability_W: Its probability.
        text_W: Number of the text that each word is of.
    """

    truth_W: IntArray
    predicted_W: IntArray
    probability_W: FloatArray
    text_W: IntArray

    @property
    def texts(self) -> int:
        """N."""
        return int(self.text_W.max(initial=-1)) + 1

    @property
    def right_W(self) -> BoolArray:
        """True if each word has the right tag."""
        right_W: BoolArray = self.truth_W == self.predicted_W
        return right_W

    @property
    def right_N2(self) -> FloatArray:
        """The right words of each text, and all of them."""
        found_N2 = np.zeros((self.texts, 2))
        np.add.at(found_N2, self.text_W, np.column_stack([self.right_W, np.ones(len(self.truth_W))]))
        return found_N2


@dataclass(frozen=True, slots=True)
class TaggingCounts:
    """Counts of N texts, right, true and predicted; all that the metrics of tags are made of.

    Attributes:
        counts_N3L: Of each text and label, spans (or words, of tags that are no spans) right, there, predicted.
        words_N2: Of each text the words that are right, and all of them.
    """

    counts_N3L: IntArray
    words_N2: FloatArray

    def headline(self, counts_RN: FloatArray) -> FloatArray:
        """Micro F1, precision, recall, macro F1 and the words' accuracy (R, 5) of resampled texts."""
        total, words_R2 = self.resampled(counts_RN, joined=True), counts_RN @ self.words_N2
        return np.column_stack(
            [
                *(metric(total)[:, 0] for metric in (metrics.f1, metrics.precision, metrics.recall)),
                metrics.macro_f1(self.resampled(counts_RN)),
                words_R2[:, 0] / words_R2[:, 1],
            ]
        )

    @property
    def texts_3L(self) -> IntArray:
        """Texts that hold something right, there or predicted of each label."""
        texts_3L: IntArray = (self.counts_N3L > 0).sum(axis=0)
        return texts_3L

    def headline_rows(self) -> tuple[int, ...]:
        """Return the number of texts behind each number of the headline (5)."""
        _, there, given = (self.counts_N3L > 0).any(axis=2).sum(axis=0).tolist()
        macro = metrics.macro_rows(self.texts_3L[1], self.texts_3L[2])
        return max(there, given), given, there, macro, len(self.words_N2)

    def resampled(self, counts_RN: FloatArray, *, joined: bool = False) -> ClassCounts:
        """Return counts (R, L) of resampled texts, or (R, 1) of all labels joined."""
        texts, _, labels = self.counts_N3L.shape
        flat_NK = self.counts_N3L.reshape(texts, -1).astype(np.float64)
        sums_R3L = (counts_RN @ flat_NK).reshape(-1, 3, labels)
        if joined:
            sums_R3L = sums_R3L.sum(2, keepdims=True)
        return ClassCounts(sums_R3L[:, 0], sums_R3L[:, 1], sums_R3L[:, 2])


def span_counts(
    truth: Sequence[Sequence[TagSpan]], predicted: Sequence[Sequence[TagSpan]], labels: Sequence[str]
) -> IntArray:
    """Spans of each text and label: (N, 3, L), those right, those there, those predicted.

    Raises:
        InvalidInput: The texts are not as many, or a label is none of ``labels``.
    """
    if len(truth) != len(predicted):
        raise InvalidInput(f"expected predictions for {len(truth)} texts, got {len(predicted)}.")
    numbers = {label: number for number, label in enumerate(labels)}
    counts_N3L = np.zeros((len(truth), 3, len(labels)), dtype=np.int64)
    for text, (there, given) in enumerate(zip(truth, predicted, strict=True)):
        for kind, spans in enumerate((set(there) & set(given), there, given)):
            for span in spans:
                if span.label not in numbers:
                    raise InvalidInput(f"text {text} has a span of {span.label!r}, which is none of {list(labels)}.")
                counts_N3L[text, kind, numbers[span.label]] += 1
    return counts_N3L


def tag_counts(words: TaggedWords, tags: int) -> IntArray:
    """Words of each text and tag: (N, 3, L), those right, those there, those predicted."""
    counts_N3L = np.zeros((words.texts, 3, tags), dtype=np.int64)
    everywhere_W = np.ones_like(words.right_W)
    for kind, tags_W, counted_W in (
        (0, words.truth_W, words.right_W),
        (1, words.truth_W, everywhere_W),
        (2, words.predicted_W, everywhere_W),
    ):
        np.add.at(counts_N3L[:, kind], (words.text_W[counted_W], tags_W[counted_W]), 1)
    return counts_N3L
