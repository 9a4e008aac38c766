"""Representations of texts, which encoders compute and indexes search.

There are three kinds: one dense vector per text (`DenseVectors`), a dense vector per token (`MultiVectors`, for late
interaction), and weights of vocabulary terms (`SparseVectors`, for learned sparse encoders). A value holds the
representations of several texts in order, and can be indexed and concatenated by text. This module imports no torch.

Shapes: N texts, D dimensions, T token vectors of all texts, V vocabulary terms, M term weights of all texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput

Role: TypeAlias = Literal["query", "document"]
"""The role of a text in a search. Encoders may treat queries and documents differently."""

RowNumbers: TypeAlias = slice | NDArray[np.int64]
"""Texts to select: a slice, or their indices in the desired order."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseVectors:
    """One floating-point vector for each text (N, D)."""

    vectors_ND: NDArray[np.floating]

    def __post_init__(self) -> None:
        _check_floats(self.vectors_ND, 2, "dense vectors")

    def __len__(self) -> int:
        return len(self.vectors_ND)

    def __getitem__(self, rows: RowNumbers) -> Self:
        return type(self)(self.vectors_ND[rows])

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        return int(self.vectors_ND.shape[1])

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate representations of equal width."""
        _check_alike({each.dimensions for each in parts}, "width")
        return cls(np.concatenate([each.vectors_ND for each in parts]))


@dataclass(frozen=True, slots=True, eq=False)
class MultiVectors:
    """A vector for each token that the encoder keeps; the number of vectors differs between texts."""

    vectors_TD: NDArray[np.floating]  # the vectors of all texts, text by text
    starts: NDArray[np.int64]  # the index of each text's first vector, and T at the end (N + 1)

    def __post_init__(self) -> None:
        _check_floats(self.vectors_TD, 2, "token vectors")
        _check_starts(self.starts, len(self.vectors_TD))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, rows: RowNumbers) -> Self:
        places, starts = _selected(self.starts, rows)
        return type(self)(self.vectors_TD[places], starts)

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        return int(self.vectors_TD.shape[1])

    def of(self, text: int) -> NDArray[np.floating]:
        """Return the vectors of one text."""
        return self.vectors_TD[self.starts[text] : self.starts[text + 1]]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate representations of equal width."""
        _check_alike({each.dimensions for each in parts}, "width")
        return cls(np.concatenate([each.vectors_TD for each in parts]), _joined_starts([each.starts for each in parts]))


@dataclass(frozen=True, slots=True, eq=False)
class SparseVectors:
    """Weights of vocabulary terms; terms that a text does not list have weight 0."""

    terms_M: NDArray[np.int64]  # term ids of all texts, text by text; ascending and different within a text
    weights_M: NDArray[np.floating]  # the weight of each term
    starts: NDArray[np.int64]  # the index of each text's first term, and M at the end (N + 1)
    vocabulary: int  # V, the number of terms in the vocabulary

    def __post_init__(self) -> None:
        _check_floats(self.weights_M, 1, "term weights")
        _check_starts(self.starts, len(self.weights_M))
        terms_M = self.terms_M
        if terms_M.shape != self.weights_M.shape or terms_M.dtype.kind not in "iu":
            raise InvalidInput(
                f"expected an integer term id for each of {len(self.weights_M)} weights, got {terms_M.dtype} of shape "
                f"{terms_M.shape}."
            )
        if len(terms_M) and not 0 <= terms_M.min() <= terms_M.max() < self.vocabulary:
            raise InvalidInput(
                f"term ids must be between 0 and {self.vocabulary - 1}, got {terms_M.min()} to {terms_M.max()}."
            )
        begins_text = np.isin(np.arange(1, len(terms_M)), self.starts)
        if not (begins_text | (np.diff(terms_M) > 0)).all():
            raise InvalidInput("the term ids of a text must be different and in ascending order.")

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, rows: RowNumbers) -> Self:
        places, starts = _selected(self.starts, rows)
        return type(self)(self.terms_M[places], self.weights_M[places], starts, self.vocabulary)

    def of(self, text: int) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
        """Return the term ids of one text and their weights."""
        part = slice(self.starts[text], self.starts[text + 1])
        return self.terms_M[part], self.weights_M[part]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate representations with the same vocabulary size."""
        _check_alike({each.vocabulary for each in parts}, "vocabulary")
        return cls(
            np.concatenate([each.terms_M for each in parts]),
            np.concatenate([each.weights_M for each in parts]),
            _joined_starts([each.starts for each in parts]),
            parts[0].vocabulary,
        )


Representation: TypeAlias = DenseVectors | MultiVectors | SparseVectors

RepresentationT = TypeVar("RepresentationT", DenseVectors, MultiVectors, SparseVectors)


def _check_floats(array: NDArray[np.floating], axes: int, name: str) -> None:
    if array.ndim != axes or not np.issubdtype(array.dtype, np.floating):
        raise InvalidInput(
            f"{name} must be a floating-point array of {axes} dimension{'s' * (axes > 1)}, got {array.dtype} of shape "
            f"{array.shape}."
        )


def _check_starts(starts: NDArray[np.int64], count: int) -> None:
    if (
        starts.ndim != 1
        or starts.dtype.kind != "i"
        or len(starts) < 1
        or starts[0] != 0
        or starts[-1] != count
        or (np.diff(starts) < 0).any()
    ):
        raise InvalidInput(f"starts must be ascending integers from 0 to {count}, got {starts.tolist()!r:.80}.")


def _check_alike(widths: set[int], name: str) -> None:
    if len(widths) != 1:
        raise InvalidInput(f"expected representations with the same {name} to join, got {sorted(widths)}.")


def _selected(starts: NDArray[np.int64], rows: RowNumbers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the selected texts' entries, and the starts of the selection."""
    numbers = np.arange(len(starts) - 1)[rows]
    ends = np.concatenate([[0], np.cumsum(starts[numbers + 1] - starts[numbers])])
    places = [np.arange(starts[number], starts[number + 1]) for number in numbers]
    return np.concatenate([np.empty(0, np.int64), *places]), ends.astype(np.int64)


def _joined_starts(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    lengths = np.concatenate([np.diff(starts) for starts in parts])
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
