"""Two models' tags, or spans, in the same texts: is one better, and could it be chance.

Shape letters: N texts, L labels, R resamples, K metrics.
"""

from collections.abc import Callable, Mapping

import numpy as np

from bothways.evaluation.bootstrap import Statistic
from bothways.evaluation.differences import ComparisonReport, check_shapes, paired_differences
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.paired import permutation_test
from bothways.evaluation.tag_counts import TaggingCounts

# Where each metric stands among those of `TaggingCounts.headline`.
_OF_SPANS = {"span_f1": 0, "span_precision": 1, "span_recall": 2, "macro_span_f1": 3, "accuracy": 4}
_OF_TAGS = {"accuracy": 4, "macro_f1": 3}


def compare_spans(
    first: TaggingCounts, second: TaggingCounts, *, same_scheme: bool = True, resamples: int = 1000, seed: int = 0
) -> ComparisonReport:
    """Two models' spans in the same texts.

    The test exchanges each text's mistakes, spans that are missed and spans that are not there.

    Args:
        first: what the first model has right and wrong in each text.
        second: what the second model has.
        same_scheme: whether both write spans as the same tags. Where they do not, the words' accuracy is left out: the
            same mistake of a span is more wrong words in one scheme than in another.
        resamples: bootstrap resamples of texts.
        seed: seed of resamples and permutations.

    Raises:
        InvalidInput: of different texts.
    """

    def mistakes(counts: TaggingCounts) -> FloatArray:
        right_N, there_N, said_N = np.moveaxis(counts.counts_N3L.sum(axis=2, dtype=np.float64), 1, 0)
        mistakes_N: FloatArray = (there_N - right_N) + (said_N - right_N)
        return mistakes_N

    places = {name: place for name, place in _OF_SPANS.items() if same_scheme or name != "accuracy"}
    return _compared(first, second, places, mistakes, "span mistakes of a text", resamples, seed)


def compare_tags(
    first: TaggingCounts, second: TaggingCounts, *, resamples: int = 1000, seed: int = 0
) -> ComparisonReport:
    """Two models' tags, which are no spans, of the words of the same texts.

    The test exchanges each text's wrong words.

    Args:
        first: what the first model has right and wrong in each text.
        second: what the second model has.
        resamples: bootstrap resamples of texts.
        seed: seed of resamples and permutations.

    Raises:
        InvalidInput: of different texts.
    """

    def wrong_words(counts: TaggingCounts) -> FloatArray:
        wrong_N: FloatArray = counts.words_N2[:, 1] - counts.words_N2[:, 0]
        return wrong_N

    return _compared(first, second, _OF_TAGS, wrong_words, "wrong words of a text", resamples, seed)


def _compared(
    first: TaggingCounts,
    second: TaggingCounts,
    places: Mapping[str, int],
    errors: Callable[[TaggingCounts], FloatArray],
    of: str,
    resamples: int,
    seed: int,
) -> ComparisonReport:
    """Differences of the metrics at some places of the headline, and a test of the errors of each text."""
    check_shapes(first.counts_N3L, second.counts_N3L)

    def statistic_of(counts: TaggingCounts) -> Statistic:
        return lambda counts_RN: counts.headline(counts_RN)[:, list(places.values())]

    texts = len(first.words_N2)
    rows_of_first, rows_of_second = (
        [each.headline_rows()[place] for place in places.values()] for each in (first, second)
    )
    found = paired_differences(
        tuple(places),
        statistic_of(first),
        statistic_of(second),
        texts,
        resamples,
        seed,
        of_rows=(rows_of_first, rows_of_second),
    )
    return ComparisonReport(texts, found, (permutation_test(errors(first), errors(second), of=of, seed=seed),))
