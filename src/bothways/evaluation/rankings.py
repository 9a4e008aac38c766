"""How well rankings of documents agree with relevance judgements. Needs the extra ``search`` (ir-measures).

The figures are those of trec_eval. A ranking counts as given: ties were broken by who made it.

Shape letters: N queries, M measures, R resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bothways.data.judgements import check_grade
from bothways.errors import InvalidInput, MissingDependency
from bothways.evaluation.bootstrap import Estimate, bootstrap_estimates
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.reading import TextsRead
from bothways.evaluation.report import estimate_table, reading_values

MEASURES = {"ndcg@10": "nDCG@10", "map": "AP", "mrr": "RR", "recall@10": "R@10", "recall@100": "R@100"}
"""Our names, and those of ir-measures. nDCG takes the relevance as the gain, the others 1 and above as relevant."""


@dataclass(frozen=True)
class RankingReport:
    """How well rankings do.

    Attributes:
        queries: those with a relevant document, which the figures are means over.
        values_NM: each measure for each of these queries, in the order of ``MEASURES``.
        estimates: the means by the name of the measure, with intervals over queries.
        unjudged: queries that were ranked and have no relevant document; left out.
        unasked: queries that have a relevant document and were not ranked; left out.
        untelling: queries that were not ranked, as all of their documents are relevant, or none; left out.
        reading: how much was read of what a model ranked by, such as queries with their documents; None where the
            report is of rankings alone.
    """

    queries: tuple[str, ...]
    values_NM: FloatArray
    estimates: Mapping[str, Estimate]
    unjudged: int
    unasked: int = 0
    untelling: int = 0
    reading: TextsRead | None = None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: ``queries``, ``unjudged``, ``unasked``, ``ndcg@10``, ``ndcg@10_low`` and so on."""
        left_out = {"unjudged": self.unjudged, "unasked": self.unasked, "untelling": self.untelling}
        return {"queries": len(self.queries), **left_out, **named(self.estimates), **reading_values(self.reading)}

    def summary(self) -> str:
        """A short table of values and 95 % intervals."""
        left_out = [f"{self.unjudged} more without a relevant document"] * bool(self.unjudged)
        left_out += [f"{self.unasked} more that were judged and not asked"] * bool(self.unasked)
        left_out += [f"{self.untelling} more of which all documents are relevant, or none"] * bool(self.untelling)
        left = f" ({', '.join(left_out)})" if left_out else ""
        return estimate_table(f"{len(self.queries)} queries{left}", self.estimates, self.reading)


def ranking_report(
    rankings: Mapping[str, Sequence[str]],
    judgements: Mapping[str, Mapping[str, int]],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> RankingReport:
    """Measure rankings.

    Args:
        rankings: Document ids by query, best first.
        judgements: Relevance by query and document; a document that was not judged is not relevant.
        resamples: Of the bootstrap over queries.
        seed: Of the bootstrap.

    Raises:
        InvalidInput: No query has a relevant document, a document stands in a ranking twice, or a relevance is far
            out of range.
        MissingDependency: ir-measures is not installed.
    """
    judged = tuple(query for query in rankings if _has_relevant(judgements.get(query, {})))
    if not judged:
        raise InvalidInput(
            f"none of the {len(rankings):,} queries has a relevant document in the judgements. Check that both name "
            f"the queries alike: one is {next(iter(rankings), None)!r}, a judged one {next(iter(judgements), None)!r}."
        )
    for query in judged:
        grades = judgements[query]
        furthest = max(grades, key=lambda document: abs(grades[document]))
        check_grade(str(grades[furthest]), f"document {furthest!r} of query {query!r}")
        if len(set(rankings[query])) < len(rankings[query]):
            raise InvalidInput(f"the ranking of query {query!r} has a document twice.")
    values_NM = _values(judged, rankings, judgements)
    estimates = _means(values_NM, resamples, seed, of_rows=len(judged))
    unasked = sum(query not in rankings and _has_relevant(of_query) for query, of_query in judgements.items())
    return RankingReport(judged, values_NM, estimates, len(rankings) - len(judged), unasked)


def _has_relevant(grades: Mapping[str, int]) -> bool:
    return any(grade > 0 for grade in grades.values())


def ranking_differences(
    report: RankingReport, against: RankingReport, *, resamples: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """By how much ``report`` is better than ``against``: paired, as each resample draws the same queries for both.

    Raises:
        InvalidInput: They are not of the same queries.
    """
    if report.queries != against.queries:
        raise InvalidInput("two rankings can be compared only on the same queries, in the same order.")
    return _means(report.values_NM - against.values_NM, resamples, seed)


def named(estimates: Mapping[str, Estimate], ending: str = "") -> dict[str, float]:
    """Flat entries for a JSON object."""
    return {key: number for name, each in estimates.items() for key, number in each.named(name + ending).items()}


def _means(values_NM: FloatArray, resamples: int, seed: int, *, of_rows: int = 0) -> dict[str, Estimate]:
    rows = len(values_NM)

    def means(counts_RN: FloatArray) -> FloatArray:
        return counts_RN @ values_NM / rows

    estimates = bootstrap_estimates(means, rows, resamples=resamples, seed=seed, of_rows=of_rows)
    return dict(zip(MEASURES, estimates, strict=True))


def _values(
    queries: Sequence[str], rankings: Mapping[str, Sequence[str]], judgements: Mapping[str, Mapping[str, int]]
) -> FloatArray:
    try:
        import ir_measures
    except ImportError as error:
        raise MissingDependency.of("ir-measures", extra="search", purpose="measuring rankings") from error
    measures = [ir_measures.parse_measure(name) for name in MEASURES.values()]
    columns = {measure: column for column, measure in enumerate(measures)}
    rows = {query: row for row, query in enumerate(queries)}
    truth = {query: dict(judgements[query]) for query in queries}
    # trec_eval sorts by these scores, and equal ones by the name of the document.
    run = {
        query: {document: -float(place) for place, document in enumerate(rankings[query])}
        for query in queries
        if rankings[query]
    }
    values_NM = np.zeros((len(queries), len(measures)))
    for found in ir_measures.pytrec_eval.iter_calc(measures, truth, run):
        values_NM[rows[found.query_id], columns[found.measure]] = found.value
    return values_NM
