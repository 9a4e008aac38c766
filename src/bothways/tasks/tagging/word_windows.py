"""Words in windows: their tags as training targets, and their scores merged over windows.

The first token of a word represents the word: loss and scores are taken from it, and the word's other
tokens only help the encoder, as in Devlin et al. (2018, section 5.3).

Shapes: N texts, W words of one text, M words of several texts, T tokens of a batch, n tokens of a window, C tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways.data.windows import WindowStore, digest_of
from bothways.text import ReadWords, WordStarts

if TYPE_CHECKING:
    from torch import Tensor

    from bothways.tasks.heads.objective import LossUnits

Numbers = NDArray[np.int64]
Scores = NDArray[np.float64]


def word_scores(rows: Sequence[NDArray[np.floating]], tokens: WordStarts, words: int, unseen_C: Scores) -> Scores:
    """Return the scores of each word (W, C), from the scores of the tokens in a text's windows (n, C).

    In one window they are the logits of the word's first token. If several windows hold it, they are the mean of
    its log-probabilities, each weighted with the number of tokens between the word and the nearer end of the window:
    the window with the most context around the word counts most.

    Args:
        rows: Logits of the tokens of each window.
        tokens: The first token of each word.
        words: Number of words in the text, W.
        unseen_C: Scores of a word without any token.
    """
    scores_WC = np.tile(unseen_C, (words, 1))
    if len(rows) == 1:
        scores_WC[tokens.words_M] = rows[0][tokens.rows_M]
        return scores_WC
    starts = np.cumsum([0, *map(len, rows[:-1])])
    logits_MC = np.concatenate(rows)[starts[tokens.windows_M] + tokens.rows_M].astype(np.float64)
    sums_WC, weights_W = np.zeros_like(scores_WC), np.zeros(words)
    np.add.at(sums_WC, tokens.words_M, _log_softmax(logits_MC) * tokens.context_M[:, None])
    np.add.at(weights_W, tokens.words_M, tokens.context_M)
    seen_W = weights_W > 0
    scores_WC[seen_W] = sums_WC[seen_W] / weights_W[seen_W, None]
    return scores_WC


@dataclass(frozen=True, slots=True)
class WordWindows:
    """Tokenised texts, with the first tokens of their words.

    Attributes:
        store: The windows.
        tokens: The first tokens of each text's words.
    """

    store: WindowStore
    tokens: tuple[WordStarts, ...]

    @classmethod
    def of(cls, store: WindowStore, texts: Iterable[ReadWords]) -> WordWindows:
        """Find the words of texts in windows that were stored with offsets."""
        of_texts = zip(texts, _windows_of_texts(store), strict=True)
        return cls(
            store,
            tuple(words.first_tokens([store.places(window) for window in windows]) for words, windows in of_texts),
        )

    def units(self) -> LossUnits:
        """Return the words in each window; a word in several windows shares its weight of 1 among them."""
        from bothways.tasks.heads.objective import LossUnits

        rows, shares, counts = [], [], []
        for tokens, numbers in zip(self.tokens, _windows_of_texts(self.store), strict=True):
            order = _by_window(tokens)
            rows.append(tokens.rows_M[order])
            shares.append((1.0 / np.bincount(tokens.words_M)[tokens.words_M])[order])
            counts.append(np.bincount(tokens.windows_M, minlength=len(numbers)))
        starts = np.cumsum([0, *np.concatenate(counts)])
        return LossUnits(np.concatenate(rows), np.concatenate(shares), starts, self.store.lengths)

    @property
    def unread(self) -> list[int]:
        """Texts whose words have no token, so there is nothing to learn from them."""
        return [number for number, tokens in enumerate(self.tokens) if not len(tokens.words_M)]


class WordLoss:
    """The tags of the words in each window; a word in several windows divides its weight of 1 among them.

    Args:
        windows: The texts.
        truth: The numbers of each text's tags.
    """

    joint: ClassVar[bool] = False

    def __init__(self, windows: WordWindows, truth: Sequence[Numbers]) -> None:
        self._units = windows.units()
        held = zip(windows.tokens, truth, strict=True)
        self._tags_U = np.concatenate([tags_W[tokens.words_M[_by_window(tokens)]] for tokens, tags_W in held])
        self._weights_W = self._units.weights_W

    @property
    def digest(self) -> str:
        """A checksum of the tags and their places."""
        return digest_of(self._units.rows_U, self._tags_U)

    def weights(self, windows: Sequence[int]) -> NDArray[np.float64]:
        """Return the number of words in each window, counting shares (B)."""
        words_B: NDArray[np.float64] = self._weights_W[list(windows)]
        return words_B

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Return the sum of the words' cross-entropies, given the scores of all tokens (T, C)."""
        import torch.nn.functional as F  # noqa: N812  (the field's own name for it)

        from bothways.devices import on_device

        numbers_M, rows_M = self._units.of(windows)
        tags_M = on_device(self._tags_U[numbers_M], scores.device)
        shares_M = on_device(self._units.shares_U[numbers_M].astype(np.float32), scores.device)
        losses_M = F.cross_entropy(scores[on_device(rows_M, scores.device)], tags_M, reduction="none")
        return (losses_M * shares_M).sum()


def _windows_of_texts(store: WindowStore) -> list[range]:
    """Return the windows of each text."""
    ends = np.cumsum(np.bincount(store.text_of_window, minlength=store.texts)).tolist()
    return [range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _by_window(tokens: WordStarts) -> Numbers:
    """Return the order of first tokens that puts those of a window together."""
    return np.argsort(tokens.windows_M, kind="stable")


def _log_softmax(logits_MC: Scores) -> Scores:
    shifted_MC = logits_MC - logits_MC.max(axis=1, keepdims=True)
    normal_MC: Scores = shifted_MC - np.log(np.exp(shifted_MC).sum(axis=1, keepdims=True))
    return normal_MC
