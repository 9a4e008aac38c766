"""Composition of the training batches of embedders, epoch by epoch.

Shapes: R rows, K texts of a row, N texts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.tasks.embedding.rows import StoredRows


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of an epoch, or of a batch.

    Attributes:
        texts_RK: Numbers of their texts.
        truth_R: Scores, numbers of labels, or a teacher's vectors; None without.
    """

    texts_RK: NDArray[np.int64]
    truth_R: NDArray[Any] | None

    def batch(self, chosen: NDArray[np.int64]) -> "BatchRows":
        """Return some of them."""
        return BatchRows(self.texts_RK[chosen], None if self.truth_R is None else self.truth_R[chosen])


@dataclass(frozen=True, slots=True)
class GivenRows:
    """The rows of the data as they are, in each epoch."""

    data: StoredRows

    @property
    def count(self) -> int:
        """R."""
        return len(self.data.texts_RK)

    def epoch(self, epoch: int) -> BatchRows:
        """Return the rows."""
        del epoch
        return BatchRows(self.data.texts_RK, self.data.truth_R)


class DrawnRows:
    """Rows of labelled texts, drawn anew for each epoch: a text, another of its label, perhaps one of another label.

    A text that is alone with its label begins no row, but can be drawn as the one of another label.

    Args:
        data: Texts one by one, with the numbers of their labels.
        pairs: How many others of its label each text is put together with in an epoch, if there are as many.
        negatives: Whether a text of another label stands in each row.
        seed: Draws them, together with the epoch.

    Raises:
        InvalidInput: There is one label only, or no label has two texts.
    """

    def __init__(self, data: StoredRows, *, pairs: int, negatives: bool, seed: int) -> None:
        if pairs < 1:
            raise InvalidInput(f"pairs_per_text must be at least 1, but it is {pairs}.")
        self.data = data
        self._label_N: NDArray[np.int64] = data.truth
        self._texts_of_label = [np.flatnonzero(self._label_N == label) for label in np.unique(self._label_N)]
        if len(self._texts_of_label) < 2:
            raise InvalidInput("texts of at least two labels are needed, but all have the same. Check the column.")
        if all(len(texts) < 2 for texts in self._texts_of_label):
            raise InvalidInput("a label with at least two texts is needed, but each text has one of its own.")
        self._pairs, self._negatives, self._seed = pairs, negatives, seed
        self.count = sum(len(texts) * min(pairs, len(texts) - 1) for texts in self._texts_of_label)

    def epoch(self, epoch: int) -> BatchRows:
        """Return the rows of an epoch, by label."""
        generator = np.random.default_rng([self._seed, epoch, 1])
        texts_RK = np.array(list(self._drawn(generator)), dtype=np.int64)
        if self._negatives:
            others = [self._other(generator, self._label_N[text]) for text in texts_RK[:, 0]]
            texts_RK = np.column_stack([texts_RK, others])
        return BatchRows(texts_RK, self._label_N[texts_RK[:, 0]])

    def _drawn(self, generator: np.random.Generator) -> Iterator[tuple[int, int]]:
        for texts in self._texts_of_label:
            for place, text in enumerate(texts):
                for other in generator.permutation(np.delete(texts, place))[: self._pairs]:
                    yield int(text), int(other)

    def _other(self, generator: np.random.Generator, label: int) -> int:
        """Return a text of another label; each is as likely."""
        while True:
            drawn = int(generator.integers(len(self._label_N)))
            if self._label_N[drawn] != label:
                return drawn


RowSource: TypeAlias = GivenRows | DrawnRows
