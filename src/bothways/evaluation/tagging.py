"""The outcomes of tagged words: spans by label, or tags by name; texts are resampled.

Precision, recall and F1 are those of the evaluation of CoNLL 2003 (Tjong Kim Sang and De Meulder, cs/0306050) and so of
seqeval, from the counts of `bothways.evaluation.tag_counts`.

Shape letters: N texts, W words of all texts, L labels, R resamples, B reliability bins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bothways.evaluation import metrics
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.reliability import BINS, equal_mass_bins, reliability_bins
from bothways.evaluation.report import Report
from bothways.evaluation.tag_counts import TaggedWords, TaggingCounts, span_counts, tag_counts
from bothways.evaluation.tag_schemes import Scheme, TagSpan

_SPANS = {"span_f1": 0, "span_precision": 1, "span_recall": 2, "macro_span_f1": 3, "accuracy": 4}
_TAGS = {"accuracy": 4, "macro_f1": 3}
"""Where each metric stands in `TaggingCounts.headline`."""


def span_outcomes(
    truth: Sequence[Sequence[TagSpan]],
    predicted: Sequence[Sequence[TagSpan]],
    words: TaggedWords,
    labels: Sequence[str],
    scheme: Scheme = "BIO",
) -> Outcomes:
    """Return the outcomes of predicted spans; tested is each text's number of spans that are missed or made up.

    Args:
        truth: The spans of each text.
        predicted: Those that were predicted.
        words: The tags behind them.
        labels: The labels of spans.
        scheme: How spans are written as tags. The same mistake of a span is more wrong words in one scheme than in
            another, so the words' accuracy is not compared between two.

    Raises:
        InvalidInput: No texts, or inputs that do not fit each other.
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
    """Return the outcomes of predicted tags that are no spans; tested is each text's number of wrong words.

    Raises:
        InvalidInput: No texts.
    """
    counts = TaggingCounts(tag_counts(words, len(tags)), words.right_N2)
    frame = Report(
        kind="tagging",
        title=f"{words.texts} texts, {len(words.truth_W)} words, {len(tags)} tags",
        counts={"n": words.texts, "words": len(words.truth_W)},
        labels=tuple(tags),
        confusion=tuple(map(tuple, metrics.confusion_matrix(words.truth_W, words.predicted_W, len(tags)).tolist())),
    )
    tested = "wrong words of a text", counts.words_N2[:, 1] - counts.words_N2[:, 0]
    return _outcomes(frame, counts, words, tags, _TAGS, tested)


def _outcomes(
    frame: Report,
    counts: TaggingCounts,
    words: TaggedWords,
    labels: Sequence[str],
    places: Mapping[str, int],
    tested: tuple[str, FloatArray],
    scheme: str = "",
) -> Outcomes:
    bin_W = equal_mass_bins(words.probability_W, BINS)
    gaps_NB = np.zeros((len(counts.words_N2), int(bin_W.max()) + 1))
    np.add.at(gaps_NB, (words.text_W, bin_W), (words.right_W - words.probability_W) / len(words.right_W))
    columns, totals_3L = list(places.values()), counts.counts_N3L.sum(axis=0)

    def statistic(counts_RN: FloatArray) -> FloatArray:
        headline_RK = counts.headline(counts_RN)[:, columns]
        return np.column_stack([headline_RK, metrics.class_scores(counts.resampled(counts_RN))])

    return Outcomes(
        frame=replace(frame, reliability=reliability_bins(words.probability_W, words.right_W, BINS)),
        truth=counts.counts_N3L[:, 1, np.argsort(labels)],
        metrics=tuple(places),
        statistic=statistic,
        # Whole texts are drawn, so what stands in one text is one row.
        of_rows=[
            *(counts.headline_rows()[place] for place in columns),
            *metrics.score_rows(counts.texts_3L[1], counts.texts_3L[2]),
        ],
        compared=tuple(places),
        labels=tuple(labels),
        label_counts=(totals_3L[1], totals_3L[2]),
        bins=(gaps_NB,),
        tested=tested,
        scheme=scheme,
    )
