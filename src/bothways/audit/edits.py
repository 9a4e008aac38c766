"""Edits of texts as data, CheckList's way (Ribeiro et al. 2020, arXiv:2005.04118).

An edit returns None for a text that it cannot change. ``NEUTRAL_EDIT`` is the null that the others are judged by.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from bothways.audit.texts import NEUTRAL, SAID_OF_SOMETHING

Rng: TypeAlias = np.random.Generator
EditKind: TypeAlias = Literal["natural", "padding", "hostile"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A change that keeps the meaning of a text.

    Attributes:
        name: The name in reports.
        kind: ``"natural"`` where users write so, ``"padding"`` where a sentence that is beside the point is added,
            ``"hostile"`` where characters are spoilt.
        apply: From a text and a generator to the edited text; None where there is nothing to edit.
        remedy: Advice for a model that changes its answer.
    """

    name: str
    kind: EditKind
    apply: Callable[[str, Rng], str | None]
    remedy: str


@dataclass(frozen=True, slots=True)
class Direction:
    """A change that moves the answer in a known direction, for labels that name sentiment.

    Attributes:
        name: The name in reports.
        pairs: A text, and the edited one.
        expected: ``"turns"`` where the label has to change, ``"stays"`` where the probability must not fall.
    """

    name: str
    pairs: tuple[tuple[str, str], ...]
    expected: Literal["turns", "stays"]


# --- what is swapped ---

_NAMES = ("Anna", "John", "Maria", "Peter", "Fatima", "Wei", "Kofi", "Olga", "Diego", "Priya", "Emma", "David")
_PLACES = ("London", "Paris", "Lagos", "Lima", "Oslo", "Delhi", "Cairo", "Tokyo", "Boston", "Madrid", "Berlin", "Rome")
_FUNCTION_WORDS = frozenset(
    (
        "a",
        "an",
        "the",
        "of",
        "to",
        "in",
        "on",
        "at",
        "and",
        "that",
        "this",
        "it",
        "is",
        "was",
        "for",
        "with",
        "as",
        "by",
    )
)
# Letters of other scripts that look like Latin ones (Unicode Technical Standard 39, confusables).
LOOK_ALIKES = str.maketrans("aceopxysiAEOPCTXHKMB", "асеорхуѕіАЕОРСТХНКМВ")  # noqa: RUF001
_LATIN = {after: before for before, after in LOOK_ALIKES.items()}
_ZERO_WIDTH = "\u200b"
_WORD = re.compile(r"[^\W\d_]+")
# One word of so many is changed by character edits, and one at least.
_ONE_OF = 5


def _neutral(text: str, rng: Rng) -> str | None:
    """Leave out or double one function word."""
    words = text.split()
    places = [number for number, word in enumerate(words) if word.lower() in _FUNCTION_WORDS]
    if not places or len(words) < 3:
        return None
    place = int(rng.choice(places))
    changed = [words[place]] * 2 if rng.random() < 0.5 else []
    return " ".join([*words[:place], *changed, *words[place + 1 :]])


def _upper(text: str, rng: Rng) -> str | None:
    del rng
    return _changed(text, text.upper())


def _lower(text: str, rng: Rng) -> str | None:
    del rng
    return _changed(text, text.lower())


def _spaced(text: str, rng: Rng) -> str | None:
    del rng
    return _changed(text, "  ".join(text.split(" ")) + " ")


def _unpunctuated(text: str, rng: Rng) -> str | None:
    """Leave out commas, and the full stop at the end."""
    del rng
    shorter = re.sub(r"\s*[,;:]", "", text).rstrip().removesuffix(".").rstrip()
    return _changed(text, shorter) if shorter else None


def _punctuated(text: str, rng: Rng) -> str | None:
    del rng
    return None if text.rstrip().endswith((".", "!", "?")) else text.rstrip() + "."


def _swapped(listed: tuple[str, ...]) -> Callable[[str, Rng], str | None]:
    """Return an edit that puts another of a list in the place of each."""
    known = re.compile(rf"\b({'|'.join(listed)})\b", re.IGNORECASE)

    def swap(text: str, rng: Rng) -> str | None:
        def other(found: re.Match[str]) -> str:
            name = str(rng.choice([each for each in listed if each.lower() != found[0].lower()]))
            return name.lower() if found[0].islower() else name

        return _changed(text, known.sub(other, text))

    return swap


def _padded_front(text: str, rng: Rng) -> str | None:
    return f"{rng.choice(NEUTRAL)} {text}"


def _padded_behind(text: str, rng: Rng) -> str | None:
    return f"{text} {rng.choice(NEUTRAL)}"


def _by_word(change: Callable[[str, Rng], str]) -> Callable[[str, Rng], str | None]:
    """Return an edit that changes one word of five, the first letters of which stay."""

    def edit(text: str, rng: Rng) -> str | None:
        words = [found for found in _WORD.finditer(text) if len(found[0]) > 3]
        if not words:
            return None
        most = max(1, len(text.split()) // _ONE_OF)
        chosen = {words[number].start() for number in rng.permutation(len(words))[:most]}
        return _changed(
            text, _WORD.sub(lambda found: change(found[0], rng) if found.start() in chosen else found[0], text)
        )

    return edit


def swap_letters(word: str, rng: Rng) -> str:
    """Return a word of four letters or more with two inner letters swapped, or one left out where they are alike."""
    place = int(rng.integers(1, len(word) - 2))
    first, second = word[place], word[place + 1]
    return word[:place] + (second + first if first != second else first) + word[place + 2 :]


def _zero_width(word: str, rng: Rng) -> str:
    place = int(rng.integers(1, len(word)))
    return word[:place] + _ZERO_WIDTH + word[place:]


def _look_alike(word: str, rng: Rng) -> str:
    del rng
    return word.translate(LOOK_ALIKES)


def as_seen(text: str) -> str:
    """Return a text as readers see it: without look-alikes, compatibility characters and invisible ones.

    A text of another alphabet stays: only words that mix it with Latin letters hold look-alikes.
    """
    normal = "".join(each for each in unicodedata.normalize("NFKC", text) if unicodedata.category(each) != "Cf")
    return _WORD.sub(lambda found: _latin(found[0]), normal)


def _latin(word: str) -> str:
    return word.translate(_LATIN) if any(each.isascii() for each in word) else word


def _changed(before: str, after: str) -> str | None:
    return None if after == before or not after.strip() else after


_CASE = "Train with texts in both cases, or take an encoder that does not tell them apart."
_CLEAN = "Normalise texts before they are read: NFKC, no zero-width characters, look-alikes mapped to Latin letters."
_AUGMENT = "Train with such edits of the rows (augmentation)."

NEUTRAL_EDIT = Edit("a function word left out or doubled", "natural", _neutral, "")

EDITS: tuple[Edit, ...] = (
    Edit("upper case", "natural", _upper, _CASE),
    Edit("lower case", "natural", _lower, _CASE),
    Edit("double spaces", "natural", _spaced, "Take a tokenizer that reads runs of spaces as one."),
    Edit("no commas and final stop", "natural", _unpunctuated, _AUGMENT),
    Edit("final stop added", "natural", _punctuated, _AUGMENT),
    Edit("names swapped", "natural", _swapped(_NAMES), _AUGMENT),
    Edit("places swapped", "natural", _swapped(_PLACES), _AUGMENT),
    Edit("neutral sentence in front", "padding", _padded_front, _AUGMENT),
    Edit("neutral sentence behind", "padding", _padded_behind, _AUGMENT),
    Edit("typos", "hostile", _by_word(swap_letters), _AUGMENT),
    Edit("look-alike characters", "hostile", _by_word(_look_alike), _CLEAN),
    Edit("zero-width characters", "hostile", _by_word(_zero_width), _CLEAN),
)

BENIGN_EDITS: tuple[Edit, ...] = (NEUTRAL_EDIT, *(edit for edit in EDITS if edit.kind != "hostile"))

DIRECTIONS: tuple[Direction, ...] = (
    Direction(
        "negation",
        tuple((f"The {thing} was {word}.", f"The {thing} was not {word}.") for thing, word in SAID_OF_SOMETHING),
        "turns",
    ),
    Direction(
        "intensifier",
        tuple((f"The {thing} was {word}.", f"The {thing} was really {word}.") for thing, word in SAID_OF_SOMETHING),
        "stays",
    ),
)
