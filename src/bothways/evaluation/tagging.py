"""Metrics of tagged words: spans by label, or tags by name, with intervals from resampled texts.

Precision, recall and F1 are those of the evaluation of CoNLL 2003 (Tjong Kim Sang and De Meulder, cs/0306050) and so of
seqeval, from the counts of `bothways.evaluation.tag_counts`.

Shape letters: N texts, W words of all texts, R resamples, B reliability bins, K statistics.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bothways.evaluation import metrics
from bothways.evaluation.bootstrap import Estimate, bootstrap_values, percentile_estimates
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.reading import TextsRead
from bothways.evaluation.reliability import BINS, calibration_error_interval, equal_mass_bins
from bothways.evaluation.report import ClassRow, estimate_table, flat_estimates, reading_values
from bothways.evaluation.tag_counts import TaggedWords, TaggingCounts, span_counts, tag_counts
from bothways.evaluation.tag_schemes import TagSpan


@dataclass(frozen=True)
class SpanReport:
    """How well spans are found.

    Attributes:
        n: texts.
        words: words of all texts.
        spans: spans that there are.
        span_f1: micro F1: over the spans of all labels.
        span_precision: share of the spans predicted that are there.
        span_recall: share of the spans there that were predicted.
        macro_span_f1: mean F1 over the labels that occur in truth or predictions.
        accuracy: share of words with the right tag.
        ece: expected calibration error of the words' tags.
        per_class: one row for each label.
        reading: how much of the texts was read; None where the report is of tags alone.
    """

    n: int
    words: int
    spans: int
    span_f1: Estimate
    span_precision: Estimate
    span_recall: Estimate
    macro_span_f1: Estimate
    accuracy: Estimate
    ece: Estimate
    per_class: tuple[ClassRow, ...]
    reading: TextsRead | None = None

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""
        return {
            "span_f1": self.span_f1,
            "span_precision": self.span_precision,
            "span_recall": self.span_recall,
            "macro_span_f1": self.macro_span_f1,
            "accuracy": self.accuracy,
            "ece": self.ece,
        }

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``span_f1``, ``span_f1_low``, ``span_f1_high`` and so on, then a table by label."""
        return {
            "n": self.n,
            "words": self.words,
            "spans": self.spans,
            **flat_estimates(self.estimates()),
            "per_class": {row.label: row.to_dict() for row in self.per_class},
            **reading_values(self.reading),
        }

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        labels = len(self.per_class)
        return estimate_table(
            f"{self.n} texts, {self.words} words, {self.spans} spans, {labels} labels", self.estimates(), self.reading
        )


@dataclass(frozen=True)
class TagReport:
    """How well tags that are no spans are found, such as parts of speech.

    Attributes:
        n: texts.
        words: words of all texts.
        accuracy: share of words with the right tag.
        macro_f1: mean F1 over the tags that occur in truth or predictions.
        ece: expected calibration error of the words' tags.
        per_class: one row for each tag.
        reading: how much of the texts was read; None where the report is of tags alone.
    """

    n: int
    words: int
    accuracy: Estimate
    macro_f1: Estimate
    ece: Estimate
    per_class: tuple[ClassRow, ...]
    reading: TextsRead | None = None

    def estimates(self) -> dict[str, Estimate]:
        """The numbers that carry an interval, by name."""
        return {"accuracy": self.accuracy, "macro_f1": self.macro_f1, "ece": self.ece}

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``accuracy``, ``accuracy_low``, ``accuracy_high`` and so on, then a table by tag."""
        return {
            "n": self.n,
            "words": self.words,
            **flat_estimates(self.estimates()),
            "per_class": {row.label: row.to_dict() for row in self.per_class},
            **reading_values(self.reading),
        }

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        return estimate_table(
            f"{self.n} texts, {self.words} words, {len(self.per_class)} tags", self.estimates(), self.reading
        )


def span_report(
    truth: Sequence[Sequence[TagSpan]],
    predicted: Sequence[Sequence[TagSpan]],
    words: TaggedWords,
    labels: Sequence[str],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> SpanReport:
    """Evaluate predicted spans.

    Args:
        truth: The spans of each text.
        predicted: Those that were predicted.
        words: The tags behind them.
        labels: The labels of spans.
        resamples: Bootstrap resamples of texts.
        seed: Of the resamples.

    Raises:
        InvalidInput: No texts, or inputs that do not fit each other.
    """
    counts = TaggingCounts(span_counts(truth, predicted, labels), words.right_N2)
    headline, ece, rows = _estimated(counts, words, labels, resamples=resamples, seed=seed)
    micro_f1, precision, recall, macro_f1, accuracy = headline
    return SpanReport(
        n=len(truth),
        words=len(words.truth_W),
        spans=int(counts.counts_N3L[:, 1].sum()),
        span_f1=micro_f1,
        span_precision=precision,
        span_recall=recall,
        macro_span_f1=macro_f1,
        accuracy=accuracy,
        ece=ece,
        per_class=rows,
    )


def tag_report(words: TaggedWords, tags: Sequence[str], *, resamples: int = 1000, seed: int = 0) -> TagReport:
    """Evaluate predicted tags that are no spans.

    Raises:
        InvalidInput: No texts.
    """
    counts = TaggingCounts(tag_counts(words, len(tags)), words.right_N2)
    headline, ece, rows = _estimated(counts, words, tags, resamples=resamples, seed=seed)
    return TagReport(
        words.texts, len(words.truth_W), accuracy=headline[4], macro_f1=headline[3], ece=ece, per_class=rows
    )


def _estimated(
    counts: TaggingCounts, words: TaggedWords, labels: Sequence[str], *, resamples: int, seed: int
) -> tuple[tuple[Estimate, ...], Estimate, tuple[ClassRow, ...]]:
    """Micro F1, precision, recall, macro F1 and accuracy; the calibration error; a row for each label."""
    texts, count = len(counts.counts_N3L), len(labels)
    bin_W = equal_mass_bins(words.probability_W, BINS)
    gaps_NB = np.zeros((texts, int(bin_W.max()) + 1))
    np.add.at(gaps_NB, (words.text_W, bin_W), (words.right_W - words.probability_W) / len(words.right_W))

    def statistic(counts_RN: FloatArray) -> FloatArray:
        per_label = counts.resampled(counts_RN)
        return np.column_stack(
            [
                counts.headline(counts_RN),
                *(metric(per_label) for metric in (metrics.precision, metrics.recall, metrics.f1)),
                counts_RN @ gaps_NB,
            ]
        )

    value_K = statistic(np.ones((1, texts)))[0]
    values_RK = bootstrap_values(statistic, texts, resamples=resamples, seed=seed)
    end = 5 + 3 * count
    totals_3L = counts.counts_N3L.sum(axis=0)
    # Whole texts are drawn, so what stands in one text is one row.
    of_rows_K = [*counts.headline_rows(), *metrics.score_rows(counts.texts_3L[1], counts.texts_3L[2])]
    estimates = percentile_estimates(value_K[:end], values_RK[:, :end], of_rows=of_rows_K)
    interval = calibration_error_interval(value_K[end:], values_RK[:, end:])
    rows = tuple(
        ClassRow(
            label=label,
            precision=estimates[5 + number],
            recall=estimates[5 + count + number],
            f1=estimates[5 + 2 * count + number],
            support=int(totals_3L[1, number]),
            predicted=int(totals_3L[2, number]),
        )
        for number, label in enumerate(labels)
    )
    return estimates[:5], Estimate(float(np.abs(value_K[end:]).sum()), interval.low, interval.high), rows
