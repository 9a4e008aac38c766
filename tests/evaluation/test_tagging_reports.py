"""Metrics of spans and tags are those of seqeval and scikit-learn, with intervals over texts."""

import numpy as np
import pytest
from reports import span_report, tag_report
from sklearn import metrics as theirs

from bothways.errors import InvalidInput
from bothways.evaluation.metrics.tagging import TaggedWords, span_counts, span_outcomes
from bothways.evaluation.tag_schemes import TagSpan, spans_of, tags_of

LABELS = ("LOC", "ORG", "PER")


def random_texts(texts, seed, noise=0.3):
    """True and predicted tags: the second are the first with spans dropped, moved and relabelled."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(texts):
        words = int(rng.integers(1, 20))
        spans, place = [], int(rng.integers(0, 3))
        while place < words:
            end = min(words, place + int(rng.integers(1, 4)))
            spans.append(TagSpan(LABELS[rng.integers(0, 2)], place, end))
            place = end + int(rng.integers(0, 4))
        said = []
        for span in spans:
            kind = rng.random()
            if kind < noise / 3:
                continue
            if kind < 2 * noise / 3:
                span = span._replace(label=LABELS[rng.integers(0, 3)])
            elif kind < noise and span.end - span.start > 1:
                span = span._replace(end=span.end - 1)
            said.append(span)
        made.append((tags_of(spans, words, "BIO"), tags_of(said, words, "BIO")))
    return [truth for truth, _ in made], [said for _, said in made]


def words_of(truth, predicted, names):
    numbers = {name: number for number, name in enumerate(names)}
    lengths = [len(tags) for tags in truth]
    return TaggedWords(
        np.array([numbers[tag] for tags in truth for tag in tags]),
        np.array([numbers[tag] for tags in predicted for tag in tags]),
        np.random.default_rng(5).uniform(0.4, 1, sum(lengths)),
        np.repeat(np.arange(len(lengths)), lengths),
    )


def report_of(truth, predicted, **options):
    names = sorted({tag for tags in [*truth, *predicted] for tag in tags})
    spans = ([spans_of(tags, "BIO") for tags in each] for each in (truth, predicted))
    return span_report(*spans, words_of(truth, predicted, names), LABELS, **{"resamples": 200, **options})


@pytest.mark.parametrize("seed", range(5))
def test_spans_are_scored_as_by_seqeval(seed):
    seqeval = pytest.importorskip("seqeval.metrics")
    truth, predicted = random_texts(60, seed)
    report = report_of(truth, predicted)
    assert report.span_f1.value == pytest.approx(seqeval.f1_score(truth, predicted))
    assert report.span_precision.value == pytest.approx(seqeval.precision_score(truth, predicted))
    assert report.span_recall.value == pytest.approx(seqeval.recall_score(truth, predicted))
    assert report.macro_span_f1.value == pytest.approx(seqeval.f1_score(truth, predicted, average="macro"))
    assert report.accuracy.value == pytest.approx(seqeval.accuracy_score(truth, predicted))
    by_label = seqeval.classification_report(truth, predicted, output_dict=True, zero_division=0)
    for row in report.per_class:
        if row.label in by_label:
            expected = by_label[row.label]
            assert row.precision.value == pytest.approx(expected["precision"])
            assert row.recall.value == pytest.approx(expected["recall"])
            assert row.f1.value == pytest.approx(expected["f1-score"])
            assert row.support == expected["support"]
    assert report.counts["spans"] == by_label["micro avg"]["support"]


def test_tags_are_scored_as_by_scikit_learn():
    rng = np.random.default_rng(3)
    truth_M, predicted_M = rng.integers(0, 5, 300), rng.integers(0, 5, 300)
    words = TaggedWords(truth_M, predicted_M, rng.uniform(0.2, 1, 300), np.repeat(np.arange(30), 10))
    report = tag_report(words, list("abcde"), resamples=50)
    assert (report.n, report.counts["words"]) == (30, 300)
    assert report.accuracy.value == pytest.approx(theirs.accuracy_score(truth_M, predicted_M))
    assert report.macro_f1.value == pytest.approx(theirs.f1_score(truth_M, predicted_M, average="macro"))
    expected_C = theirs.precision_score(truth_M, predicted_M, average=None)
    assert [row.precision.value for row in report.per_class] == pytest.approx(list(expected_C))


def test_intervals_come_from_texts():
    truth, predicted = random_texts(60, seed=1)
    report = report_of(truth, predicted)
    assert report.span_f1.low < report.span_f1.value < report.span_f1.high
    # The same texts four times over: the same numbers, and intervals half as wide.
    fourfold = report_of(truth * 4, predicted * 4)
    assert fourfold.span_f1.value == pytest.approx(report.span_f1.value)
    ratio = (report.span_f1.high - report.span_f1.low) / (fourfold.span_f1.high - fourfold.span_f1.low)
    assert 1.5 < ratio < 2.7


def test_the_permutation_test_counts_the_missed_and_the_spurious_spans_of_each_text():
    truth, predicted = ([["B-LOC", "O", each], ["O", each, "O"]] for each in ("O", "B-PER"))
    spans = ([spans_of(tags, "BIO") for tags in each] for each in (truth, predicted))
    outcomes = span_outcomes(*spans, words_of(truth, predicted, ["O", "B-LOC", "B-PER"]), LABELS)
    assert outcomes.tested[1].tolist() == [1, 1]
    missed = span_outcomes(
        *([spans_of(tags, "BIO") for tags in each] for each in (predicted, [["O"] * 3] * 2)),
        words_of(predicted, truth, ["O", "B-LOC", "B-PER"]),
        LABELS,
    )
    assert missed.tested[1].tolist() == [2, 1]


def test_texts_without_spans_score_zero_and_break_nothing():
    report = report_of([["O", "O"]], [["O", "O"]], resamples=5)
    assert (report.span_f1.value, report.accuracy.value, report.counts["spans"]) == (0.0, 1.0, 0)


def test_spans_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInput, match="predictions for 1 texts, got 0"):
        span_counts([[]], [], LABELS)
    with pytest.raises(InvalidInput, match=r"expected span labels from .*, got 'NAME'"):
        span_counts([[TagSpan("NAME", 0, 1)]], [[]], LABELS)
