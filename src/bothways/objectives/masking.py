"""Corrupted sequences: the tokens that a model reads, and those that it has to predict.

In masked language modelling, 15 % of each sequence's tokens are chosen, but never special ones. Of the chosen tokens,
80 % become [MASK], 10 % a random token, and 10 % stay unchanged (Devlin et al. 2018, arXiv:1810.04805). The unit of
choice is a token, a word, a span or an n-gram of words. Static masking repeats the masks of the first epoch (Liu et al.
2019, arXiv:1907.11692, section 4.1).

Shapes: n tokens of a sequence, M chosen ones, U words or whole units, V vocabulary, W windows.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.choices import MaskUnit
from bothways.data.windows import WindowStore
from bothways.errors import InvalidInput
from bothways.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class MaskedTokens:
    """A sequence with some of its tokens hidden.

    `places_M` are the chosen positions, ascending, at least one if any token is not special; `targets_M` are their
    original ids. `uniform_M` has a random number in [0, 1) for each, to sample a generator's token. `order_n` is the
    rank of each token in a factorisation order, see `bothways.encoder.streams.QueryStream`; None for masked LM.
    """

    ids_n: NDArray[np.int32]
    places_M: NDArray[np.int64]
    targets_M: NDArray[np.int32]
    uniform_M: NDArray[np.float32]
    order_n: NDArray[np.int64] | None = None


class Corruption(Protocol):
    """Chooses the tokens of a sequence that a model must predict.

    The choice depends only on the ``seed``, the epoch and the sequence, not on the batch or on earlier draws, so a
    resumed run makes the same choices as an uninterrupted one. A resumed run must have the same ``identity``.
    """

    @property
    def seed(self) -> int: ...

    @property
    def identity(self) -> Mapping[str, str | int | float | bool]: ...

    def training(self, ids_n: NDArray[np.int32], epoch: int, sequence: int) -> MaskedTokens:
        """Choose the targets of a training sequence for an epoch."""

    def validation(self, ids_n: NDArray[np.int32], sequence: int) -> MaskedTokens:
        """Choose the targets of a validation sequence, the same each time."""


class Unmasked:
    """Unchanged sequences without targets (M = 0)."""

    seed = 0

    @property
    def identity(self) -> Mapping[str, str | int | float | bool]:
        return {"chosen tokens": 0.0}

    def training(self, ids_n: NDArray[np.int32], epoch: int, sequence: int) -> MaskedTokens:
        del epoch
        return self.validation(ids_n, sequence)

    def validation(self, ids_n: NDArray[np.int32], sequence: int) -> MaskedTokens:
        del sequence
        return MaskedTokens(ids_n, np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))


class PieceKinds:
    """The kinds of a tokenizer's ids: special tokens, pieces that begin a word, and pieces that continue one."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        known = tokenizer.vocabulary()
        self.special_V = np.zeros(1 + max(known), dtype=bool)
        self.special_V[sorted(tokenizer.special_ids)] = True
        self.ordinary = np.array(sorted(known.keys() - tokenizer.special_ids), dtype=np.int32)
        self.continues_V = np.zeros_like(self.special_V)
        self.continues_V[[number for number, piece in known.items() if tokenizer.word_marks.continues(piece)]] = True

    def ordinary_places(self, ids_n: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the positions of a sequence's ordinary tokens, which are all but the special ones."""
        places: NDArray[np.int64] = np.flatnonzero(~self.special_V[ids_n])
        return places

    def words(self, ids_n: NDArray[np.int32], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index in ``places`` of the first token of each word, followed by ``len(places)`` (U + 1)."""
        begins = ~self.continues_V[ids_n[places]]
        # A piece after a special token always begins a word.
        begins[1:] |= np.diff(places) > 1
        begins[:1] = True
        return np.append(np.flatnonzero(begins), len(places))


@dataclass(frozen=True, slots=True)
class TokenMasking:
    """Choose each token independently."""

    name: ClassVar[MaskUnit] = "token"


@dataclass(frozen=True, slots=True)
class WholeWordMasking:
    """Choose all pieces of a word together; each piece alone becomes [MASK], a random token, or stays unchanged.

    As in the second release of BERT (github.com/google-research/bert, May 2019).
    """

    name: ClassVar[MaskUnit] = "whole-word"


@dataclass(frozen=True, slots=True)
class SpanMasking:
    """Choose spans of words; a span is masked, randomised or kept as a whole (Joshi et al. 2019, arXiv:1907.10529).

    Span lengths in words are geometric with probability ``stop``, truncated at ``longest``.
    """

    name: ClassVar[MaskUnit] = "span"
    stop: float = 0.2
    longest: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.stop <= 1:
            raise InvalidInput(f"`stop` must be above 0 and at most 1, got {self.stop}.")
        _check_longest(self.longest)

    def chances(self) -> NDArray[np.float64]:
        """Return the probabilities of spans of 1, 2, ... words."""
        chances = self.stop * (1 - self.stop) ** np.arange(self.longest)
        return np.asarray(chances / chances.sum())


@dataclass(frozen=True, slots=True)
class NGramMasking:
    """Choose n-grams of words; n is drawn in proportion to 1 / n (Lan et al. 2019, arXiv:1909.11942)."""

    name: ClassVar[MaskUnit] = "n-gram"
    longest: int = 3

    def __post_init__(self) -> None:
        _check_longest(self.longest)

    def chances(self) -> NDArray[np.float64]:
        chances = 1 / np.arange(1, self.longest + 1)
        return np.asarray(chances / chances.sum())


MaskedUnit = TokenMasking | WholeWordMasking | SpanMasking | NGramMasking

MASKED_UNITS: Mapping[MaskUnit, type[MaskedUnit]] = {kind.name: kind for kind in get_args(MaskedUnit)}


@dataclass(frozen=True, slots=True)
class Masking:
    """Settings of masking.

    A `fraction` of the ordinary tokens is chosen. Of these, the fraction `masked` becomes [MASK], the fraction `random`
    another ordinary token, and the rest stays unchanged. `dynamic` masks are drawn anew in each epoch.
    """

    fraction: float = 0.15
    masked: float = 0.8
    random: float = 0.1
    unit: MaskedUnit = TokenMasking()
    dynamic: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InvalidInput(f"`fraction` must be above 0 and at most 1, got {self.fraction}.")
        if self.masked < 0 or self.random < 0 or self.masked + self.random > 1 + 1e-9:
            raise InvalidInput(
                f"`masked` and `random` must be 0 or more and sum to at most 1, got {self.masked} and {self.random}."
            )

    def to_card(self) -> dict[str, object]:
        """Return JSON values for the model card, with the name of the unit."""
        return {**asdict(self), "unit": {"name": self.unit.name, **asdict(self.unit)}}


class Masker:
    """Masks the sequences of a tokenizer."""

    def __init__(self, tokenizer: TextTokenizer, masking: Masking, seed: int) -> None:
        self.masking = masking
        self.seed = seed
        self._mask = tokenizer.mask_id
        self._kinds = PieceKinds(tokenizer)

    @property
    def identity(self) -> Mapping[str, str | int | float | bool]:
        masking = self.masking
        return {
            "chosen tokens": masking.fraction,
            "masked": masking.masked,
            "random": masking.random,
            "masked unit": str(masking.unit),
            "dynamic masks": masking.dynamic,
            "mask seed": self.seed,
        }

    def training(self, ids_n: NDArray[np.int32], epoch: int, sequence: int) -> MaskedTokens:
        drawn_for = epoch if self.masking.dynamic else 0
        return self._masked(ids_n, np.random.default_rng([self.seed, 0, drawn_for, sequence]))

    def validation(self, ids_n: NDArray[np.int32], sequence: int) -> MaskedTokens:
        return self._masked(ids_n, np.random.default_rng([self.seed, 1, sequence]))

    def ordinary_tokens(self, store: WindowStore) -> NDArray[np.int64]:
        """Return the number of ordinary tokens in each window (W)."""
        totals = np.concatenate([[0], np.cumsum(~self._kinds.special_V[store.ids_T])])
        counts_W: NDArray[np.int64] = np.diff(totals[store.starts])
        return counts_W

    def _masked(self, ids_n: NDArray[np.int32], draw: np.random.Generator) -> MaskedTokens:
        masking, places = self.masking, self._kinds.ordinary_places(ids_n)
        # Rounded at random, so the fraction is correct on average; at least one.
        count = max(1, math.floor(masking.fraction * len(places) + draw.random()))
        if isinstance(masking.unit, TokenMasking):
            chosen_M = np.sort(draw.permutation(places)[:count])
        else:
            chosen_M = self._whole(ids_n, places, count, draw)
        share_M = draw.random(len(chosen_M))
        if isinstance(masking.unit, SpanMasking):
            # Adjacent chosen positions count as one span.
            share_M = share_M[np.concatenate([[0], np.cumsum(np.diff(chosen_M) > 1)])] if len(chosen_M) else share_M
        others_M = draw.choice(self._kinds.ordinary, len(chosen_M))
        targets_M = ids_n[chosen_M]
        read_n = ids_n.copy()
        is_random_M = share_M < masking.masked + masking.random
        read_n[chosen_M] = np.where(share_M < masking.masked, self._mask, np.where(is_random_M, others_M, targets_M))
        return MaskedTokens(read_n, chosen_M, targets_M, draw.random(len(chosen_M), dtype=np.float32))

    def _whole(
        self, ids_n: NDArray[np.int32], places: NDArray[np.int64], count: int, draw: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose words, or runs of words, up to ``count`` tokens; a run that does not fit is shortened by words."""
        starts_U, unit = self._kinds.words(ids_n, places), self.masking.unit
        words = len(starts_U) - 1
        runs_U = np.ones(words, dtype=np.int64)
        if isinstance(unit, SpanMasking | NGramMasking):
            runs_U += draw.choice(unit.longest, words, p=unit.chances())
        order_U = draw.permutation(words)
        taken, left = np.zeros(len(places), dtype=bool), count
        for first in order_U.tolist():
            begin, last = starts_U[first], min(words, first + runs_U[first])
            stop = starts_U[max(first, np.searchsorted(starts_U[: last + 1], begin + left, side="right") - 1)]
            if stop > begin and not taken[begin:stop].any():
                taken[begin:stop] = True
                left -= stop - begin
            if not left:
                break
        if left == count and words:
            # No word fits into the count: take the shortest one.
            shortest = int(np.diff(starts_U).argmin())
            taken[starts_U[shortest] : starts_U[shortest + 1]] = True
        return places[taken]


def _check_longest(longest: int) -> None:
    if longest < 1:
        raise InvalidInput(f"`longest` must be at least 1 word, got {longest}.")
