"""Texts whose words can be replaced one by one, and the words that an attack leaves alone.

Numbers, negations, function words and names carry the meaning of a sentence or say nothing of it: an edit of them makes
another sentence (TextFooler, Jin et al. 2020, arXiv:1907.11932, section 3; Pruthi et al. 2019, arXiv:1905.11268).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bothways.text import Words

# Shorter words are left alone, as their first and last letters stay (Pruthi et al. 2019, section 3).
LEAST_LETTERS = 4

# Negations, and quantifiers that turn a sentence as they do.
_TURNING = (
    "not no never none nothing nobody nowhere neither nor without cannot hardly barely scarcely rarely seldom little "
    "few less least only"
)
_FUNCTION = (
    "about above after again against also although among another because been before being below between both could "
    "does doing done down during each either else ever every from further have having hers herself himself here how "
    "into itself just like many might more most much must myself other ought ours ourselves over same shall should "
    "some such than that their theirs them themselves then there these they this those though through under until "
    "upon very were what when where which while whom whose will with within would your yours yourself"
)
_KEPT = frozenset(f"{_TURNING} {_FUNCTION}".split())


@dataclass(frozen=True, slots=True)
class Draft:
    """A text, some words of which are replaced.

    Attributes:
        words: The original.
        changed: New words by the number of the old one.
    """

    words: Words
    changed: Mapping[int, str] = field(default_factory=dict)

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
    return [number for number in range(len(words)) if _may_change(words, number)]


def _may_change(words: Words, number: int) -> bool:
    word = words[number]
    if len(word) < LEAST_LETTERS or not word.isalpha():
        return False
    if word.lower() in _KEPT:
        return False
    begins = number == 0 or words[number - 1] in {".", "!", "?", ":"}
    return begins or not word[0].isupper()
