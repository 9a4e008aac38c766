"""The scores of an input: what a head says of it, before anything is decided.

Predictions, reports, comparisons, ensembles, multi-task models and out-of-domain detection all read this one value.

Shapes: R rows of an input (1 for a whole text, its words, its candidate spans, its choices), C outputs, L layers, H
hidden.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.errors import TextsTruncated
from bothways.evaluation.report import TextsRead

PlacesT = TypeVar("PlacesT")


@dataclass(frozen=True, slots=True)
class TokensRead:
    """The number of tokens of a text that were read.

    Attributes:
        windows: Overlapping windows that the text was read in.
        dropped_tokens: Tokens of it that were not read; above 0 only with ``on_overflow="truncate"``.
    """

    windows: int
    dropped_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Scores(Generic[PlacesT]):
    """A head's scores for one input.

    Attributes:
        logits_RC: Uncalibrated logits, float64.
        places: What the rows belong to: None for a whole text, its words, its spans.
        read: How much of the input was read.
        features_LH: Hidden states that an out-of-domain detector reads, the last layer first; None without.
        votes: Share of an ensemble's members that call the input out of domain; None where none can tell.
    """

    logits_RC: NDArray[np.float64]
    places: PlacesT
    read: TokensRead
    features_LH: NDArray[np.float64] | None = None
    votes: float | None = None


def texts_read(reads: Iterable[TokensRead]) -> TextsRead:
    """Return how the texts of a report were read."""
    listed = list(reads)
    return TextsRead.of([each.windows for each in listed], [each.dropped_tokens for each in listed])


def most_read(reads: Iterable[TokensRead]) -> TokensRead:
    """Return the most windows and the most dropped tokens of several models that read the same input."""
    listed = list(reads)
    return TokensRead(max(each.windows for each in listed), max(each.dropped_tokens for each in listed))


def warn_of_cut(read: TextsRead) -> None:
    """Tell the caller of the function that calls this that texts were cut, where its result has no place for that.

    Warns:
        TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
    """
    if read.cut:
        message = f"{read.cut:,} of {read.texts:,} texts were cut: {read.dropped_tokens:,} tokens were not read."
        warnings.warn(TextsTruncated(message), stacklevel=3)


def flat(values: dict[str, object]) -> dict[str, object]:
    """Return the entries of ``tokens_read`` among the others, without what was not asked for."""
    tokens_read = values.pop("tokens_read")
    flat = {**values, **tokens_read} if isinstance(tokens_read, dict) else values
    return {name: value for name, value in flat.items() if value is not None}
