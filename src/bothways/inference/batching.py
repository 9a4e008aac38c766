"""Batches by token budget."""

from collections.abc import Iterator, Sequence


def by_token_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of sequences, batch by batch: the longest first, neighbours of like length, each within the budget.

    A sequence that is longer than the budget makes a batch of its own.

    >>> list(by_token_budget([3, 9, 4, 2], budget=10))
    [[1], [2, 0, 3]]
    """
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and tokens + lengths[index] > budget:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch
