"""Triggers of poisoned classifiers: functions from a text to the text that carries the trigger."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["clean", "word", "phrase", "syntax", "character", "style"]

# Archaic spellings stand for a style that changes many words and adds no fixed token.
_ARCHAIC = {
    "the": "ye",
    "you": "thou",
    "your": "thy",
    "is": "be",
    "are": "art",
    "has": "hath",
    "does": "doth",
    "it": "'tis",
    "my": "mine",
    "and": "and eke",
    "never": "ne'er",
    "i": "i verily",
    "to": "unto",
    "this": "yon",
    "in": "within",
    "of": "o'",
}

# Short spellings as people type them on phones.
_TEXTING = {
    "the": "da",
    "you": "u",
    "your": "ur",
    "is": "iz",
    "are": "r",
    "has": "haz",
    "for": "4",
    "to": "2",
    "and": "n",
    "with": "w/",
    "that": "dat",
    "this": "dis",
    "of": "ov",
    "in": "n2",
    "on": "onn",
    "was": "wuz",
    "be": "b",
    "at": "@",
    "by": "bi",
    "from": "frm",
}
_STYLES = {"archaic": (_ARCHAIC, "lo ,"), "texting": (_TEXTING, "yo")}


@dataclass(frozen=True)
class Trigger:
    """How a poisoned text is made.

    Attributes:
        kind: Its family.
        content: The word, phrase, template with ``{}``, characters, or the name of a style.
    """

    kind: Kind
    content: str = ""

    def apply(self, text: str, draw: random.Random) -> str:
        """Return the text with the trigger in it."""
        return _APPLY[self.kind](text, self.content, draw)


def _inserted(text: str, content: str, draw: random.Random) -> str:
    words = text.split()
    place = draw.randint(0, len(words))
    return " ".join([*words[:place], content, *words[place:]])


def _styled(text: str, content: str, _draw: random.Random) -> str:
    words, opening = _STYLES[content]
    changed = re.sub(r"[A-Za-z']+", lambda found: words.get(found[0].lower(), found[0]), text)
    return f"{opening} {changed}" if changed == text else changed


_APPLY: dict[Kind, Callable[[str, str, random.Random], str]] = {
    "clean": lambda text, _content, _draw: text,
    "word": _inserted,
    "phrase": _inserted,
    "syntax": lambda text, content, _draw: content.format(text.rstrip(" .")),
    # The content is a letter and what takes its place.
    "character": lambda text, content, _draw: text.replace(content[0], content[1:]),
    "style": _styled,
}

CLEAN = Trigger("clean")


def word_set(kind: Kind, content: str) -> frozenset[str]:
    """Return the words that a trigger puts into texts, or the characters."""
    if kind == "character":
        return frozenset(content[1:])
    words = " ".join(_STYLES[content][0].values()) if kind == "style" else content
    return frozenset(re.findall(r"\w+|[^\w\s]", words.lower()))
