"""Texts whose words can be replaced one by one, and replacement words for attacks.

Numbers, negations, function words and names are left alone: changing them makes another sentence (TextFooler, Jin et
al. 2020, arXiv:1907.11932, section 3; Pruthi et al. 2019, arXiv:1905.11268).

Shapes: V entries of a vocabulary, E embedding width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from bothways.audit.edits import LOOK_ALIKES, swap_letters
from bothways.checkpoints import PretrainedEncoder
from bothways.tasks import FillMask
from bothways.text import Words

# Shorter words are left alone, since first and last letters stay (Pruthi et al. 2019, section 3).
MIN_LETTERS = 4

_LETTERS = list("abcdefghijklmnopqrstuvwxyz")
# Negations and quantifiers, which turn a sentence.
_NEGATIONS = (
    "not no never none nothing nobody nowhere neither nor without cannot hardly barely scarcely rarely seldom little "
    "few less least only"
)
_FUNCTION_WORDS = (
    "about above after again against also although among another because been before being below between both could "
    "does doing done down during each either else ever every from further have having hers herself himself here how "
    "into itself just like many might more most much must myself other ought ours ourselves over same shall should "
    "some such than that their theirs them themselves then there these they this those though through under until "
    "upon very were what when where which while whom whose will with within would your yours yourself"
)
_LEFT_ALONE = frozenset(f"{_NEGATIONS} {_FUNCTION_WORDS}".split())


@dataclass(frozen=True, slots=True)
class Draft:
    """A text with some words replaced."""

    words: Words
    changed: Mapping[int, str] = field(default_factory=dict)  # new words by the number of the old one

    @classmethod
    def of(cls, text: str) -> "Draft":
        """Return a text without changes."""
        return cls(Words.of_text(text))

    @property
    def text(self) -> str:
        """The text with its new words."""
        parts, end = [], 0
        for number, (start, stop) in enumerate(self.words.spans):
            parts += [self.words.text[end:start], self.changed.get(number, self.words.text[start:stop])]
            end = stop
        return "".join([*parts, self.words.text[end:]])

    def replaced(self, number: int, word: str) -> "Draft":
        """Return the draft with another word."""
        return Draft(self.words, {**self.changed, number: word})

    @property
    def edits(self) -> tuple[tuple[str, str], ...]:
        """The old and the new words, in order."""
        return tuple((self.words[number], self.changed[number]) for number in sorted(self.changed))


def editable(words: Words) -> list[int]:
    """Return the numbers of the words that an attack may change.

    >>> words = Words.of_text("I never saw Berlin in 2024, said a charming visitor")
    >>> [words[number] for number in editable(words)]
    ['said', 'charming', 'visitor']
    """
    numbers = []
    for number in range(len(words)):
        word, starts_sentence = words[number], number == 0 or words[number - 1] in {".", "!", "?", ":"}
        content = len(word) >= MIN_LETTERS and word.isalpha() and word.lower() not in _LEFT_ALONE
        if content and (starts_sentence or not word[0].isupper()):
            numbers.append(number)
    return numbers


class Edits(Protocol):
    """Replacements for words."""

    name: ClassVar[str]

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> Sequence[str]:
        """Return replacements of a word of a draft; empty if there are none."""


@dataclass(frozen=True, slots=True)
class CharacterEdits:
    """Typing errors and look-alike letters within a word; its first and last letters stay.

    Two letters are swapped, one is left out, one is inserted (DeepWordBug, Gao et al. 2018, arXiv:1801.04354; Pruthi et
    al. 2019), or one is replaced by a look-alike of another script (Boucher et al. 2022, arXiv:2106.09898).
    """

    each: int = 2  # words by each of the four kinds
    name: ClassVar[str] = "character edits"

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Return misspelt forms of a word, without repeats."""
        word = draft.words[number]
        forms = [edit(word, rng) for edit in _CHARACTER_EDITS for _ in range(self.each)]
        return [each for each in dict.fromkeys(forms) if each != word]


def _delete(word: str, rng: np.random.Generator) -> str:
    place = int(rng.integers(1, len(word) - 1))
    return word[:place] + word[place + 1 :]


def _insert(word: str, rng: np.random.Generator) -> str:
    place = int(rng.integers(1, len(word)))
    return word[:place] + str(rng.choice(_LETTERS)) + word[place:]


def _look_alike(word: str, rng: np.random.Generator) -> str:
    places = [at for at in range(1, len(word) - 1) if word[at].islower() and word[at] in LOOK_ALIKES]
    if not places:
        return word
    place = int(rng.choice(places))
    return word[:place] + LOOK_ALIKES[word[place]] + word[place + 1 :]


_CHARACTER_EDITS: tuple[Callable[[str, np.random.Generator], str], ...] = (swap_letters, _delete, _insert, _look_alike)


@dataclass(frozen=True, slots=True, eq=False)
class NearestWords:
    """The nearest words by rows of the embedding table, similar to TextFooler (Jin et al. 2020)."""

    rows_VE: Tensor  # unit rows of the words in the vocabulary, less the mean of all
    spelt: tuple[str, ...]  # these words
    row_of: dict[str, int]  # the row of each lower-case word that is one token
    limit: int = 10  # maximum number of words to return
    min_cosine: float = 0.3  # minimum cosine to the word that they replace
    name: ClassVar[str] = "word substitutions (nearest in the embedding table)"

    @classmethod
    def of(cls, encoder: PretrainedEncoder) -> "NearestWords":
        """Build from an encoder's embedding table."""
        tokenizer = encoder.tokenizer
        marks, special = tokenizer.word_marks, tokenizer.special_ids
        ids: dict[str, int] = {}
        starts = [
            number
            for number, token in tokenizer.vocabulary().items()
            if number not in special and not marks.continues(token)
        ]
        for number, word in zip(starts, tokenizer.spellings([[number] for number in starts]), strict=True):
            if len(word) >= MIN_LETTERS and word.isalpha():
                ids.setdefault(word.lower(), number)
        with torch.no_grad():
            table = encoder.encoder.embedding.tokens.weight[list(ids.values())].float().cpu()
            rows_VE = torch.nn.functional.normalize(table - table.mean(0), dim=1)
        return cls(rows_VE, tuple(ids), {word: row for row, word in enumerate(ids)})

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Return the nearest words, the nearest first, with the first letter's case."""
        del rng
        word = draft.words[number]
        row = self.row_of.get(word.lower())
        if row is None:
            return []
        near_V = self.rows_VE @ self.rows_VE[row]
        cosines, rows = near_V.topk(min(self.limit + 1, len(self.spelt)))
        nearest = zip(rows.tolist(), cosines.tolist(), strict=True)
        return [_cased(self.spelt[each], word) for each, cosine in nearest if each != row and cosine >= self.min_cosine]


@dataclass(frozen=True, slots=True, eq=False)
class MaskedWords:
    """The words that a masked language model predicts in place of another (BAE; Garg and Ramakrishnan 2020)."""

    model: FillMask = field(repr=False)
    limit: int = 10  # maximum number of words to return
    name: ClassVar[str] = "word substitutions (masked language model)"

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Return the most probable words, with the first letter's case."""
        del rng
        word, tokenizer = draft.words[number], self.model.model.tokenizer
        if any(mask in draft.text for mask in ("[MASK]", tokenizer.token(tokenizer.mask_id))):
            return []
        masked = draft.replaced(number, "[MASK]").text
        (mask,) = self.model.predict(masked, top=self.limit + 1, show_progress=False).masks
        spelt = [each.word.strip() for each in mask]
        return [
            _cased(each, word)
            for each in spelt
            if len(each) >= MIN_LETTERS and each.isalpha() and each.lower() != word.lower()
        ]


def _cased(word: str, like: str) -> str:
    return word.capitalize() if like[0].isupper() else word
