"""Dynamic masking (Devlin et al. 2018, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692, section 4.1).

Of each sequence 15 % of the tokens are chosen, special tokens never; of those 80 % become the mask, 10 % another token,
and 10 % stay as they are. What is chosen depends on the seed, the epoch and the sequence alone: not on the batch, nor
on what was drawn before, so that a resumed run sees the masks of an uninterrupted one.

Shapes: n tokens of a sequence, M chosen ones, V vocabulary, W sequences.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.data.windows import WindowStore
from bothways.errors import InvalidInput
from bothways.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class Masking:
    """How much is masked.

    Attributes:
        fraction: Of the tokens that are not special, those that are chosen.
        masked: Of the chosen, those that become the mask.
        random: Of the chosen, those that become another token, drawn from all ordinary ones. The rest stays as it is.

    Raises:
        InvalidInput: A share is out of range.
    """

    fraction: float = 0.15
    masked: float = 0.8
    random: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InvalidInput(
                f"the fraction of chosen tokens must lie above 0 and up to 1, but it is {self.fraction}."
            )
        if self.masked < 0 or self.random < 0 or self.masked + self.random > 1 + 1e-9:
            raise InvalidInput(
                "the shares of masked and of random tokens must be 0 or more and sum to 1 at most, but they are "
                f"{self.masked} and {self.random}."
            )


@dataclass(frozen=True, slots=True)
class MaskedTokens:
    """A sequence with some of its tokens hidden.

    Attributes:
        ids_n: What the model reads.
        places_M: The chosen places, ascending; at least one where there is an ordinary token.
        targets_M: What stood there.
    """

    ids_n: NDArray[np.int32]
    places_M: NDArray[np.int64]
    targets_M: NDArray[np.int32]


class Masker:
    """Masks sequences of one tokenizer.

    Args:
        tokenizer: Knows the mask, and which tokens are special.
        masking: How much is masked.
        seed: Draws it.
    """

    def __init__(self, tokenizer: TextTokenizer, masking: Masking, seed: int) -> None:
        self.masking = masking
        self.seed = seed
        self._mask = tokenizer.mask_id
        known = tokenizer.vocabulary()
        self._special_V = np.zeros(1 + max(known), dtype=bool)
        self._special_V[sorted(tokenizer.special_ids)] = True
        self._ordinary = np.array(sorted(known.keys() - tokenizer.special_ids), dtype=np.int32)

    def training(self, ids_n: NDArray[np.int32], epoch: int, window: int) -> MaskedTokens:
        """The masks of a sequence in an epoch: other ones in each."""
        return self._masked(ids_n, np.random.default_rng([self.seed, 0, epoch, window]))

    def validation(self, ids_n: NDArray[np.int32], window: int) -> MaskedTokens:
        """The masks of a sequence that is validated on: always the same."""
        return self._masked(ids_n, np.random.default_rng([self.seed, 1, window]))

    def ordinary_tokens(self, store: WindowStore) -> NDArray[np.int64]:
        """How many tokens of each stored sequence are not special (W)."""
        totals = np.concatenate([[0], np.cumsum(~self._special_V[store.ids_T])])
        counts_W: NDArray[np.int64] = np.diff(totals[store.starts])
        return counts_W

    def _masked(self, ids_n: NDArray[np.int32], draw: np.random.Generator) -> MaskedTokens:
        masking = self.masking
        places = np.flatnonzero(~self._special_V[ids_n])
        # Rounded up as often as the fraction calls for, so that it is met on average; never nothing.
        count = max(1, math.floor(masking.fraction * len(places) + draw.random()))
        chosen_M = np.sort(draw.permutation(places)[:count])
        share_M = draw.random(len(chosen_M))
        others_M = draw.choice(self._ordinary, len(chosen_M))
        targets_M = ids_n[chosen_M]
        read_n = ids_n.copy()
        is_random_M = share_M < masking.masked + masking.random
        read_n[chosen_M] = np.where(share_M < masking.masked, self._mask, np.where(is_random_M, others_M, targets_M))
        return MaskedTokens(read_n, chosen_M, targets_M)
