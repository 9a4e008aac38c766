"""Edits of one word: by characters, by the nearest words of an embedding table, by a masked language model.

Shapes: V entries of a vocabulary, E embedding width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from bothways.audit.attacks.words import LEAST_LETTERS, Draft
from bothways.audit.edits import LOOK_ALIKES, swap_letters

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder
    from bothways.tasks import FillMask

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LOOK_ALIKES = {letter: chr(LOOK_ALIKES[ord(letter)]) for letter in "aceiopsxy"}


class Edits(Protocol):
    """Words that may stand in the place of another.

    Attributes:
        name: The name in reports.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> Sequence[str]:
        """Return other words for a word of a draft; none where there are none."""


@dataclass(frozen=True, slots=True)
class CharacterEdits:
    """Typing errors and look-alike letters within a word; its first and last letters stay.

    Two letters are swapped, one is left out, one is put in (DeepWordBug, Gao et al. 2018, arXiv:1801.04354; Pruthi et
    al. 2019), or one becomes its twin of another script (Boucher et al. 2022, arXiv:2106.09898).

    Attributes:
        each: Words that each of the four kinds gives.
    """

    each: int = 2
    name: str = "character edits"

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Return misspelt forms of a word, without repeats."""
        word = draft.words[number]
        made = [edit(word, rng) for edit in _CHARACTER_EDITS for _ in range(self.each)]
        return [each for each in dict.fromkeys(made) if each != word]


def _delete(word: str, rng: np.random.Generator) -> str:
    place = int(rng.integers(1, len(word) - 1))
    return word[:place] + word[place + 1 :]


def _insert(word: str, rng: np.random.Generator) -> str:
    place = int(rng.integers(1, len(word)))
    return word[:place] + str(rng.choice(list(_LETTERS))) + word[place:]


def _look_alike(word: str, rng: np.random.Generator) -> str:
    places = [place for place in range(1, len(word) - 1) if word[place] in _LOOK_ALIKES]
    if not places:
        return word
    place = int(rng.choice(places))
    return word[:place] + _LOOK_ALIKES[word[place]] + word[place + 1 :]


_CHARACTER_EDITS: tuple[Callable[[str, np.random.Generator], str], ...] = (swap_letters, _delete, _insert, _look_alike)


@dataclass(frozen=True, slots=True, eq=False)
class NearestWords:
    """The words whose rows of the embedding table are nearest, as TextFooler takes them (Jin et al. 2020).

    Attributes:
        rows_VE: Unit rows of the words that the vocabulary spells; the mean of all is taken out.
        spelt: Those words.
        row_of: From a lower-case word to its row, of words that are one token.
        most: Words to give.
        least: Cosine that they have at least.
    """

    rows_VE: Tensor
    spelt: tuple[str, ...]
    row_of: dict[str, int]
    most: int = 10
    least: float = 0.3
    name: str = "word substitutions (nearest in the embedding table)"

    @classmethod
    def of(cls, encoder: "PretrainedEncoder") -> "NearestWords":
        """Return the words of an encoder's table."""
        tokenizer = encoder.tokenizer
        marks, special = tokenizer.word_marks, tokenizer.special_ids
        found: dict[str, int] = {}
        begins = [
            number
            for number, token in tokenizer.vocabulary().items()
            if number not in special and not marks.continues(token)
        ]
        for number, word in zip(begins, tokenizer.spellings([[number] for number in begins]), strict=True):
            if len(word) >= LEAST_LETTERS and word.isalpha():
                found.setdefault(word.lower(), number)
        with torch.no_grad():
            table = encoder.encoder.embedding.tokens.weight[list(found.values())].float().cpu()
            rows_VE = torch.nn.functional.normalize(table - table.mean(0), dim=1)
        return cls(rows_VE, tuple(found), {word: row for row, word in enumerate(found)})

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Return the nearest words, the nearest first, with the first letter's case."""
        del rng
        word = draft.words[number]
        row = self.row_of.get(word.lower())
        if row is None:
            return []
        near_V = self.rows_VE @ self.rows_VE[row]
        cosines, rows = near_V.topk(min(self.most + 1, len(self.spelt)))
        kept = zip(rows.tolist(), cosines.tolist(), strict=True)
        return [_cased(self.spelt[each], word) for each, cosine in kept if each != row and cosine >= self.least]


@dataclass(frozen=True, slots=True, eq=False)
class MaskedWords:
    """The words that a masked language model puts in the place of another (BAE; Garg and Ramakrishnan 2020).

    Attributes:
        model: A masked language model.
        most: Words to give.
    """

    model: "FillMask" = field(repr=False)
    most: int = 10
    name: str = "word substitutions (masked language model)"

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Return the most probable words, with the first letter's case."""
        del rng
        word, tokenizer = draft.words[number], self.model.model.tokenizer
        if any(mask in draft.text for mask in ("[MASK]", tokenizer.token(tokenizer.mask_id))):
            return []
        masked = draft.replaced(number, "[MASK]").text
        (mask,) = self.model.predict(masked, top=self.most + 1, show_progress=False).masks
        spelt = [each.word.strip() for each in mask]
        fit = [each for each in spelt if len(each) >= LEAST_LETTERS and each.isalpha() and each.lower() != word.lower()]
        return [_cased(each, word) for each in fit]


def _cased(word: str, like: str) -> str:
    return word.capitalize() if like[0].isupper() else word
