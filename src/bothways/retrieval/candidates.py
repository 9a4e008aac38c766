"""Queries with candidates of which it is known how well they answer: rows of query, passage and relevance."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bothways.data import Source, class_label, read_rows, text_at, value_at
from bothways.errors import InvalidInput
from bothways.evaluation.rankings import RankingReport, ranking_report
from bothways.retrieval.ranking import best
from bothways.retrieval.reranking import Reranker


@dataclass(frozen=True, slots=True)
class Candidates:
    """One query's passages.

    Attributes:
        query: The query.
        passages: What is to be ranked.
        grades: How well each answers: 0 for not at all.
    """

    query: str
    passages: tuple[str, ...]
    grades: tuple[int, ...]


def read_candidates(
    data: Source,
    *,
    query: str = "text_a",
    passage: str = "text_b",
    label: str = "label",
    relevant: str | None = None,
) -> list[Candidates]:
    """Rows of one passage each, gathered by query.

    Args:
        data: A file, or a list of mappings.
        query: Column of the queries.
        passage: Column of the passages.
        label: Column of their relevance: a grade from 0 on, or a label.
        relevant: The label of passages that answer; None where grades are given.

    Raises:
        InvalidInput: A text is missing, or a grade is no whole number from 0 on.
    """
    gathered: dict[str, list[tuple[str, int]]] = {}
    for row in read_rows(data):
        value = class_label(value_at(row, label))
        if relevant is None and not value.isdecimal():
            raise InvalidInput(
                f"{row.where}: the relevance in {label!r} is {value!r}. Expected a whole number from 0 on, or say "
                "which label means that a passage answers."
            )
        grade = int(value) if relevant is None else int(value == relevant)
        gathered.setdefault(text_at(row, query), []).append((text_at(row, passage), grade))
    return [
        Candidates(asked, tuple(passage for passage, _ in found), tuple(grade for _, grade in found))
        for asked, found in gathered.items()
    ]


def evaluate_reranker(
    reranker: Reranker, candidates: Sequence[Candidates], *, resamples: int = 1000, seed: int = 0
) -> RankingReport:
    """Rank each query's candidates and measure the rankings.

    Queries of which all candidates answer, or none, say nothing about a ranking and are left out, as is usual for
    TREC-QA.

    Args:
        reranker: What scores the passages.
        candidates: The queries.
        resamples: Of the bootstrap over queries.
        seed: Of the bootstrap.

    Raises:
        InvalidInput: No query is left.
        MissingDependency: The extra ``search`` is not installed.
    """
    telling = [each for each in candidates if any(each.grades) and not all(each.grades)]
    if not telling:
        raise InvalidInput("there is no query with passages that answer and others that do not: nothing to measure.")
    rankings, judgements = {}, {}
    for each in telling:
        scores_P = np.asarray(reranker.score(each.query, each.passages), dtype=np.float64)
        rows, _ = best(np.arange(len(scores_P)), scores_P, len(scores_P))
        rankings[each.query] = [str(row) for row in rows]
        judgements[each.query] = {str(row): grade for row, grade in enumerate(each.grades)}
    return ranking_report(rankings, judgements, resamples=resamples, seed=seed)
