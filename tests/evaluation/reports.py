"""Reports and comparisons straight from arrays: the outcomes of each kind, and what is computed from them."""

import numpy as np

from bothways.evaluation.comparison import compare
from bothways.evaluation.metrics.classification import class_outcomes, label_outcomes
from bothways.evaluation.metrics.question_answering import answer_outcomes
from bothways.evaluation.metrics.ranking import rank_outcomes, ranking_outcomes
from bothways.evaluation.metrics.regression import agreement_outcomes, number_outcomes, similarity_outcomes
from bothways.evaluation.metrics.tagging import TaggedWords, span_outcomes, tag_outcomes
from bothways.evaluation.outcomes import mean_outcomes, token_outcomes
from bothways.evaluation.report import Report
from bothways.evaluation.tag_schemes import TagSpan


def _reporting(outcomes_of):
    def report(*given, resamples=1000, seed=0, **options):
        return outcomes_of(*given, **options).report(resamples=resamples, seed=seed)

    return report


classification_report = _reporting(class_outcomes)
multi_label_report = _reporting(label_outcomes)
regression_report = _reporting(number_outcomes)
answering_report = _reporting(answer_outcomes)
span_report = _reporting(span_outcomes)
tag_report = _reporting(tag_outcomes)
similarity_report = _reporting(similarity_outcomes)
rank_report = _reporting(rank_outcomes)
agreement_report = _reporting(agreement_outcomes)
masked_lm_report = _reporting(token_outcomes)
ranking_report = _reporting(ranking_outcomes)


def compare_classifications(truth, first, second, **options):
    return compare(*(class_outcomes("abcdef"[: len(each[0])], truth, each) for each in (first, second)), **options)


def compare_labellings(truth, first, second, **options):
    return compare(*(label_outcomes("abcdef"[: len(each[0])], truth, each) for each in (first, second)), **options)


def compare_regressions(truth, first, second, **options):
    return compare(number_outcomes(truth, first), number_outcomes(truth, second), **options)


def compare_similarities(truth, first, second, **options):
    return compare(similarity_outcomes(truth, first), similarity_outcomes(truth, second), **options)


def row_outcomes(scores):
    return mean_outcomes(Report(kind="scores", title="rows", counts={"n": 1}), scores)


def compare_row_scores(first, second, **options):
    return compare(row_outcomes(first), row_outcomes(second), **options)


def spans_of_counts(labels, counts_N3L, right_N2, scheme="BIO"):
    """The outcomes of spans, so many of which are right, there and predicted in each text, and of its words."""

    def spans(count_L, start=0):
        counted = zip(labels, count_L, strict=True)
        return [TagSpan(label, start + place, start + place + 1) for label, count in counted for place in range(count)]

    truth = [spans(there_L) for _, there_L, _ in counts_N3L]
    predicted = [spans(right_L) + spans(said_L - right_L, start=100) for right_L, _, said_L in counts_N3L]
    return span_outcomes(truth, predicted, words_of_counts(right_N2), labels, scheme)


def words_of_counts(right_N2):
    """Words of one tag, so many of which are right in each text, of so many."""
    text_W = np.repeat(np.arange(len(right_N2)), np.asarray(right_N2)[:, 1].astype(int))
    wrong = [np.arange(int(words)) >= right for right, words in right_N2]
    predicted_W = np.concatenate(wrong).astype(int)
    return TaggedWords(np.zeros(len(text_W), int), predicted_W, np.full(len(text_W), 0.9), text_W)
