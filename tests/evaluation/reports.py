"""Reports and comparisons straight from arrays: the outcomes of each kind, and what is computed from them."""

import numpy as np

from bothways.evaluation.comparison import compare
from bothways.evaluation.metrics.classification import class_outcomes, label_outcomes
from bothways.evaluation.metrics.question_answering import answer_outcomes
from bothways.evaluation.metrics.ranking import rank_outcomes, ranking_outcomes
from bothways.evaluation.metrics.regression import agreement_outcomes, number_outcomes, similarity_outcomes
from bothways.evaluation.metrics.tagging import TaggedWords, span_outcomes, tag_outcomes
from bothways.evaluation.outcomes import mean_outcomes
from bothways.evaluation.report import Report


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


ranking_report = _reporting(ranking_outcomes)


def compare_classifications(truth, first, second, **options):
    return compare(*(class_outcomes("abcdef"[: len(each[0])], truth, each) for each in (first, second)), **options)


def compare_regressions(truth, first, second, **options):
    return compare(number_outcomes(truth, first), number_outcomes(truth, second), **options)


def compare_similarities(truth, first, second, **options):
    return compare(similarity_outcomes(truth, first), similarity_outcomes(truth, second), **options)


def row_outcomes(scores):
    return mean_outcomes(Report(kind="scores", title="rows", counts={"n": 1}), scores)


def compare_row_scores(first, second, **options):
    return compare(row_outcomes(first), row_outcomes(second), **options)


def words_of_counts(right_N2):
    """Words of one tag, so many of which are right in each text, of so many."""
    text_W = np.repeat(np.arange(len(right_N2)), np.asarray(right_N2)[:, 1].astype(int))
    wrong = [np.arange(int(words)) >= right for right, words in right_N2]
    predicted_W = np.concatenate(wrong).astype(int)
    return TaggedWords(np.zeros(len(text_W), int), predicted_W, np.full(len(text_W), 0.9), text_W)
