"""Evaluation of a search against relevance judgments."""

from collections.abc import Callable, Collection, Mapping, Sequence

from bothways.errors import InvalidInput
from bothways.evaluation import Outcomes
from bothways.evaluation.rankings import ranking_outcomes
from bothways.retrieval.hits import Hit


def search_outcomes(
    search: Callable[[Sequence[str]], list[list[Hit]]],
    queries: Mapping[str, str],
    judgments: Mapping[str, Mapping[str, int]],
) -> Outcomes:
    """Search for each query and measure the rankings of the hits.

    Args:
        search: From queries to hits; as many hits as the measures should see.
        queries: Texts by id.
        judgments: Relevance by query and document.

    Returns:
        What ``report()`` and `bothways.evaluation.ranking_differences` compute figures from.

    Raises:
        InvalidInput: No query has a relevant document.
        MissingDependency: The extra ``search`` is not installed.
    """
    answers = search(list(queries.values()))
    rankings = {query: [hit.id for hit in hits] for query, hits in zip(queries, answers, strict=True)}
    return ranking_outcomes(rankings, judgments)


def absent_documents(judgments: Mapping[str, Mapping[str, int]], ids: Collection[str]) -> int:
    """Return how many of the relevant documents an index does not have, which no search in it can find.

    Raises:
        InvalidInput: It has none of them, or there are none.
    """
    relevant = {document for of_query in judgments.values() for document, grade in of_query.items() if grade > 0}
    if not relevant:
        raise InvalidInput(
            "the judgments call no document relevant: expected a grade above 0 for at least one document of a query."
        )
    absent = relevant.difference(ids)
    if len(absent) == len(relevant):
        raise InvalidInput(
            f"the index has none of the {len(relevant):,} documents that the judgments call relevant. Check that both "
            f"name the documents alike: one of the index is {next(iter(ids), None)!r}, a judged one {min(absent)!r}. "
            "The index should be built with --id."
        )
    return len(absent)
