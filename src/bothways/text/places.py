"""Places of a window's tokens in the text that they were made from.

Shapes: n tokens of a window.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.text.windows import Window

# What stands for a special token, where else 0 or 1 is the number of a text.
NO_TEXT = -1


@dataclass(frozen=True, slots=True)
class Places:
    """Places of the tokens of one window.

    Attributes:
        begins_n: The character at which each token begins in its text, int32; 0 for special tokens.
        ends_n: The character behind its last.
        sequences_n: 0 for tokens of the first text, 1 for those of the second, -1 for special tokens, int8.
        start: Where the window begins in its text, in tokens of that text (of the second text, for a pair).
    """

    begins_n: NDArray[np.int32]
    ends_n: NDArray[np.int32]
    sequences_n: NDArray[np.int8]
    start: int

    @classmethod
    def of(cls, window: Window) -> "Places":
        """Return the places of a window that was encoded with offsets.

        Raises:
            InvalidInput: It was encoded without.
        """
        if window.offsets is None or window.sequences is None:
            raise InvalidInput("the places of tokens are known only where texts were encoded with offsets=True.")
        spans_n2 = np.array(window.offsets, dtype=np.int32)
        sequences = [NO_TEXT if number is None else number for number in window.sequences]
        return cls(spans_n2[:, 0], spans_n2[:, 1], np.array(sequences, dtype=np.int8), window.start)
