"""The loss of labels of whole texts and pairs.

Shapes: N texts, B windows of a batch, K labels, or 1.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.windows import WindowStore, digest_of
from bothways.devices import on_device
from bothways.tasks.heads.targets import Target, Truth


class TextLoss:
    """The labels of texts, and their loss; the windows of a text share its weight, which is 1 by default.

    So a long text counts as much as a short one.

    Args:
        target: One label, several labels or a number.
        truth: The encoded labels of the texts.
        store: The texts.
        weights_NK: Weight of each text, or of each label of each text.
    """

    joint: ClassVar[bool] = False

    def __init__(
        self, target: Target, truth: Truth, store: WindowStore, weights_NK: NDArray[np.float64] | None = None
    ) -> None:
        self.target = target
        self.truth = truth
        self._text_of_window = store.text_of_window
        self._share_of_window = 1.0 / np.bincount(store.text_of_window)[store.text_of_window]
        self._weights_NK = weights_NK

    @property
    def digest(self) -> str:
        """A checksum of the labels."""
        return digest_of(self.truth)

    def weights(self, windows: Sequence[int]) -> NDArray[np.float64]:
        """Each window's share of the weight of its text (B)."""
        shares_B: NDArray[np.float64] = self._share_of_window[list(windows)]
        if self._weights_NK is not None:
            shares_B = shares_B * self._weights_NK[self._text_of_window[list(windows)]].mean(axis=1)
        return shares_B

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Sum of the windows' losses, each weighted with its share of its text."""
        texts_B = self._text_of_window[list(windows)]
        truth = on_device(self.truth[texts_B], scores.device)
        shares_B = on_device(self._share_of_window[list(windows)].astype(np.float32), scores.device)
        weights_BK = None
        if self._weights_NK is not None:
            weights_BK = on_device(self._weights_NK[texts_B].astype(np.float32), scores.device)
        return (self.target.losses(scores, truth, weights_BK) * shares_B).sum()
