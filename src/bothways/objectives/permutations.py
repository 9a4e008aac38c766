"""Factorisation orders and targets for permutation language modelling (Yang et al. 2019, arXiv:1906.08237).

About one token in K is predicted (partial prediction, section 2.3): spans of 1 to 5 tokens, each within a context. The
targets, [SEP] and [CLS] come in a random order after all other tokens, which see each other and are seen by all.
Everything random depends on the seed, the epoch and the sequence alone.

Shapes: n tokens of a sequence, M targets, U words.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bothways.encoder.query_stream import VISIBLE
from bothways.errors import InvalidInput
from bothways.objectives.corruption import MaskedTokens, PieceKinds
from bothways.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class Permutation:
    """Share and spans of the targets.

    Attributes:
        partial: K; one ordinary token in K is a target.
        longest: Maximum tokens of a span; its length L is drawn in proportion to 1 / L.

    Raises:
        InvalidInput: A value is below 1.
    """

    partial: int = 6
    longest: int = 5

    def __post_init__(self) -> None:
        if min(self.partial, self.longest) < 1:
            raise InvalidInput(
                f"expected one target in at least 1 token and spans of at least 1 token, got {self.partial} and "
                f"{self.longest}."
            )


class Permuter:
    """Draws targets and factorisation orders for the sequences of one tokenizer.

    Args:
        tokenizer: Gives the special tokens and the pieces that continue a word.
        permutation: Share and spans of the targets.
        seed: Seed of all draws.
    """

    def __init__(self, tokenizer: TextTokenizer, permutation: Permutation, seed: int) -> None:
        self.permutation = permutation
        self.seed = seed
        self._kinds = PieceKinds(tokenizer)
        self._framing = np.array([tokenizer.cls_id, tokenizer.sep_id], dtype=np.int32)

    @property
    def identity(self) -> Mapping[str, str | int | float | bool]:
        """Settings that a resumed run must share."""
        given = self.permutation
        return {"one target in tokens": given.partial, "longest span": given.longest, "order seed": self.seed}

    def training(self, ids_n: NDArray[np.int32], epoch: int, sequence: int) -> MaskedTokens:
        """Draw targets and an order for an epoch."""
        return self._permuted(ids_n, np.random.default_rng([self.seed, 0, epoch, sequence]))

    def validation(self, ids_n: NDArray[np.int32], sequence: int) -> MaskedTokens:
        """Draw targets and an order for a validation sequence, always the same."""
        return self._permuted(ids_n, np.random.default_rng([self.seed, 1, sequence]))

    def _permuted(self, ids_n: NDArray[np.int32], draw: np.random.Generator) -> MaskedTokens:
        places = self._kinds.ordinary_places(ids_n)
        # Rounded at random so that the share is met on average; at least one.
        count = min(len(places), max(1, math.floor(len(places) / self.permutation.partial + draw.random())))
        chosen_M = places[self._targets(self._kinds.words(ids_n, places), count, draw)]
        ordered = np.isin(ids_n, self._framing)
        ordered[chosen_M] = True
        order_n = np.full(len(ids_n), VISIBLE, dtype=np.int64)
        order_n[ordered] = draw.permutation(int(ordered.sum()))
        uniform_M = draw.random(len(chosen_M), dtype=np.float32)
        return MaskedTokens(ids_n, chosen_M, ids_n[chosen_M], uniform_M, order_n)

    def _targets(self, starts_U: NDArray[np.int64], count: int, draw: np.random.Generator) -> NDArray[np.bool_]:
        """Choose targets among the ordinary tokens, as the published code does (zihangdai/xlnet, data_utils.py).

        A span of L tokens begins with a word, somewhere in a context of K L tokens; the next context follows. If that
        gives too few targets, single tokens are drawn. As in that code, but unlike in its comments, L counts tokens and
        not words.
        """
        total, taken = int(starts_U[-1]), np.zeros(starts_U[-1], dtype=bool)
        lengths = 1 + draw.choice(self.permutation.longest, count, p=self._chances)
        at, left = 0, count
        for length, share in zip(lengths.tolist(), draw.random(count).tolist(), strict=True):
            span = min(length, left)
            context = span * self.permutation.partial
            before = int(share * context)
            begin = int(starts_U[np.searchsorted(starts_U, min(at + before, total))])
            if not span or begin + span > total:
                break
            taken[begin : begin + span] = True
            at, left = begin + span + context - before, left - span
        taken[draw.permutation(np.flatnonzero(~taken))[:left]] = True
        return taken

    @cached_property
    def _chances(self) -> NDArray[np.float64]:
        chances = 1 / np.arange(1, self.permutation.longest + 1)
        return np.asarray(chances / chances.sum())
