"""Metrics of rankings: from relevance judgments, or from the rank of the first match.

The metrics are those of trec_eval, computed by ir-measures (extra ``search``). Rankings are evaluated in the given
order, even if scores are equal.

Shape letters: N queries, M measures.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from bothways.data.judgments import check_grade
from bothways.errors import InvalidInput, MissingDependency
from bothways.evaluation.comparison import compare
from bothways.evaluation.inputs import FloatArray, real_array
from bothways.evaluation.intervals import Estimate
from bothways.evaluation.outcomes import Outcomes, mean_outcomes
from bothways.evaluation.report import Report

RANKING_MEASURES = {"ndcg@10": "nDCG@10", "map": "AP", "mrr": "RR", "recall@10": "R@10", "recall@100": "R@100"}
"""Metric names here and in ir-measures. nDCG uses grades as gains; the others treat a grade above 0 as relevant."""

_LEFT_OUT = {
    "unjudged": "without a relevant document",
    "missing_queries": "judged but not ranked",
    "queries_without_contrast": "whose documents are all relevant, or all irrelevant",
}


def ranking_outcomes(
    rankings: Mapping[str, Sequence[str]],
    judgments: Mapping[str, Mapping[str, int]],
    *,
    queries_without_contrast: int = 0,
) -> Outcomes:
    """Evaluate rankings by means over the queries that have a relevant document.

    The report counts the queries left out: ``unjudged`` ones were ranked but have no relevant document,
    ``missing_queries`` have a relevant document but were not ranked, and ``queries_without_contrast`` were not ranked
    because all or none of their documents are relevant.

    Args:
        rankings: Document ids by query, best first.
        judgments: Relevance by query and document; documents without a judgment are not relevant.
        queries_without_contrast: Number of queries that the caller left out for this reason.

    Raises:
        InvalidInput: No query has a relevant document, a ranking repeats a document, or a relevance is out of range.
        MissingDependency: ir-measures is not installed.
    """
    judged = tuple(query for query in rankings if _has_relevant(judgments.get(query, {})))
    if not judged:
        raise InvalidInput(
            f"none of the {len(rankings):,} queries has a relevant document in the judgments. Check that both use the "
            f"same ids: {next(iter(rankings), None)!r} is ranked, {next(iter(judgments), None)!r} is judged."
        )
    for query in judged:
        grades = judgments[query]
        furthest = max(grades, key=lambda document: abs(grades[document]))
        check_grade(str(grades[furthest]), f"document {furthest!r} of query {query!r}")
        if len(set(rankings[query])) < len(rankings[query]):
            raise InvalidInput(f"the ranking of query {query!r} has a document twice. Remove the duplicates.")
    values_NM = _values(judged, rankings, judgments)
    missing = sum(query not in rankings and _has_relevant(of_query) for query, of_query in judgments.items())
    counts = {
        "unjudged": len(rankings) - len(judged),
        "missing_queries": missing,
        "queries_without_contrast": queries_without_contrast,
    }
    left_out = [f"{counts[name]} more {why}" for name, why in _LEFT_OUT.items() if counts[name]]
    title = f"{len(judged)} queries" + (f" ({', '.join(left_out)})" if left_out else "")
    frame = Report(kind="search", title=title, counts={"queries": len(judged)} | counts)
    return mean_outcomes(frame, dict(zip(RANKING_MEASURES, values_NM.T, strict=True)), truth=judged)


def _has_relevant(grades: Mapping[str, int]) -> bool:
    return any(grade > 0 for grade in grades.values())


def ranking_differences(
    outcomes: Outcomes, against: Outcomes, *, resamples: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Return each metric of ``outcomes`` minus that of ``against``, for the same queries, with paired intervals."""
    if not np.array_equal(outcomes.truth, against.truth):
        raise InvalidInput("two rankings can be compared only on the same queries, in the same order.")
    comparison = compare(against, outcomes, resamples=resamples, seed=seed)
    return {name: each.difference for name, each in comparison.metrics.items()}


def _values(
    queries: Sequence[str], rankings: Mapping[str, Sequence[str]], judgments: Mapping[str, Mapping[str, int]]
) -> FloatArray:
    try:
        import ir_measures
    except ImportError as error:
        raise MissingDependency.of("ir-measures", extra="search", purpose="measuring rankings") from error
    measures = [ir_measures.parse_measure(name) for name in RANKING_MEASURES.values()]
    columns = {measure: column for column, measure in enumerate(measures)}
    rows = {query: row for row, query in enumerate(queries)}
    truth = {query: dict(judgments[query]) for query in queries}
    # trec_eval sorts by score, and equal scores by document name, so each place has its own score.
    run = {
        query: {document: -float(place) for place, document in enumerate(rankings[query])}
        for query in queries
        if rankings[query]
    }
    values_NM = np.zeros((len(queries), len(measures)))
    for measured in ir_measures.pytrec_eval.iter_calc(measures, truth, run):
        values_NM[rows[measured.query_id], columns[measured.measure]] = measured.value
    return values_NM


def rank_outcomes(reciprocal_ranks_N: ArrayLike) -> Outcomes:
    """Return outcomes from the reciprocal rank of each row's first match: the share at rank 1, and the mean."""
    ranks = real_array(reciprocal_ranks_N, "reciprocal ranks", dimensions=1)
    if ranks.min() <= 0 or ranks.max() > 1:
        raise InvalidInput(
            f"reciprocal ranks: expected numbers above 0 and up to 1, got {ranks.min()} to {ranks.max()}"
        )
    frame = Report(kind="ranking", title=f"{len(ranks)} texts", counts={"n": len(ranks)})
    return mean_outcomes(frame, {"accuracy": ranks == 1, "mrr": ranks}, compared=("mrr", "accuracy"))
