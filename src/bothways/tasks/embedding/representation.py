"""The representation of texts between an encoder, which makes it, and an index, which searches it. Loads no torch.

Shapes: N texts, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput


@dataclass(frozen=True, slots=True, eq=False)
class DenseVectors:
    """One floating-point vector for each of several texts (N, D), which can be sliced and joined by text."""

    vectors_ND: NDArray[np.floating]

    def __post_init__(self) -> None:
        array = self.vectors_ND
        if array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
            raise InvalidInput(
                f"dense vectors must be a floating-point array of 2 dimensions, got {array.dtype} of shape "
                f"{array.shape}."
            )

    def __len__(self) -> int:
        return len(self.vectors_ND)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> Self:
        return type(self)(self.vectors_ND[rows])

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        return int(self.vectors_ND.shape[1])

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Join representations of one width."""
        widths = {each.dimensions for each in parts}
        if len(widths) != 1:
            raise InvalidInput(f"expected parts with the same width to join, got {sorted(widths)}.")
        return cls(np.concatenate([each.vectors_ND for each in parts]))
