"""Windows as they are run, and the numbers that come out."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class TokenIds(Protocol):
    """The token ids and segment ids of one window: lists of int, or arrays."""

    @property
    def ids(self) -> Sequence[int] | NDArray[np.integer]:
        """Token ids (n)."""

    @property
    def types(self) -> Sequence[int] | NDArray[np.integer]:
        """Segment ids (n)."""


Rows = NDArray[np.float32]
