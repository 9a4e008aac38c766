"""Micro-batches of an update, so many for each process of a run."""

from collections.abc import Sequence

from bothways.errors import InvalidInput
from bothways.inference.batching import by_token_budget
from bothways.objectives.sequences import TrainingSequence


def micro_batches(sequences: Sequence[TrainingSequence], tokens: int, processes: int) -> list[list[int]]:
    """Return the places of the sequences of each micro-batch, of which each process takes every n-th one.

    Sequences that read or leave a memory lie in one with the others of their lane, and always go to the same process,
    the one that has the memory.

    Args:
        sequences: Those of the update.
        tokens: Budget of a micro-batch, memories counted with their largest size.
        processes: How many there are.

    Raises:
        InvalidInput: There are fewer lanes than processes.
    """
    lengths = [len(each.ids) + (0 if each.link is None else each.link.read) for each in sequences]
    if all(each.link is None for each in sequences):
        # So that each process of a run has a part.
        budget = min(tokens, -(-sum(lengths) // processes))
        return list(by_token_budget(lengths, max(budget, *lengths)))
    shares = [_units(sequences, rank, processes) for rank in range(processes)]
    if not all(shares):
        lanes = len({each.link.lane for each in sequences if each.link is not None})
        raise InvalidInput(
            f"expected a batch of at least one sequence for each process, which remembers its own, got {lanes} for "
            f"{processes} processes: take a larger batch, or fewer processes."
        )
    batched = []
    for units in shares:
        sizes = [sum(lengths[place] for place in unit) for unit in units]
        batched.append([[units[number] for number in batch] for batch in by_token_budget(sizes, max(tokens, *sizes))])
    count = min(max(map(len, batched)), *map(len, shares))
    even = [_divided(batches, count) for batches in batched]
    return [
        [place for unit in even[rank][number] for place in unit] for number in range(count) for rank in range(processes)
    ]


def _units(sequences: Sequence[TrainingSequence], rank: int, processes: int) -> list[list[int]]:
    """Return the places of a process's sequences: together those of a lane that have a memory, the others alone."""
    found: dict[tuple[int, int], list[int]] = {}
    for place, each in enumerate(sequences):
        if each.link is not None and each.link.lane % processes == rank:
            together = each.link.read or each.link.kept
            found.setdefault((each.link.lane, -1 if together else place), []).append(place)
    return list(found.values())


def _divided(batches: list[list[list[int]]], count: int) -> list[list[list[int]]]:
    """Return the batches of a process as so many: every process has the same number."""
    while len(batches) < count:
        at = max(range(len(batches)), key=lambda number: len(batches[number]))
        half = len(batches[at]) // 2
        batches[at : at + 1] = [batches[at][:half], batches[at][half:]]
    while len(batches) > count:
        batches[-2:] = [batches[-2] + batches[-1]]
    return batches
