"""Texts that ship with the detectors, and edits to apply to texts.

The texts are used in audits without data, and as texts from foreign domains. Edits follow CheckList (Ribeiro et al.
2020, arXiv:2005.04118); an edit returns None for a text that it cannot change. ``NEUTRAL_EDIT`` is the baseline for the
other edits.
"""

import re
import tomllib
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, TypeAlias

import numpy as np

_TEXTS: dict[str, list[str]] = tomllib.loads(files("bothways.audit").joinpath("texts.toml").read_text(encoding="utf-8"))
NEUTRAL, IMPERATIVE, OPINIONATED = (tuple(_TEXTS[kind]) for kind in ("neutral", "imperative", "opinionated"))
FOREIGN, VARIED = tuple(_TEXTS["foreign"]), tuple(_TEXTS["varied"])
GENERAL, PARAPHRASES = tuple(_TEXTS["general"]), tuple(_TEXTS["paraphrases"])
KNOWN_TRIGGERS = tuple(_TEXTS["known_triggers"])

# Subjects and opinions for tests of sentiment classifiers.
OPINIONS: tuple[tuple[str, str], ...] = tuple(
    (thing, word)
    for thing in ("film", "story", "service", "food")
    for word in (
        *("good", "great", "enjoyable", "interesting", "impressive"),
        *("bad", "awful", "boring", "weak", "terrible"),
    )
)

Rng: TypeAlias = np.random.Generator
EditKind: TypeAlias = Literal["natural", "padding", "hostile"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A change that keeps the meaning of a text."""

    name: str
    # ``"natural"`` for what users write, ``"padding"`` for an added irrelevant sentence,
    # ``"hostile"`` for corrupted characters.
    kind: EditKind
    # Takes a text and a generator and returns the edited text; None or the same text if there is nothing to edit.
    change: Callable[[str, Rng], str | None]
    remedy: str = ""  # advice for a model whose predictions change

    def apply(self, text: str, rng: Rng) -> str | None:
        """Return the edited text, or None if the edit cannot change it."""
        edited = self.change(text, rng)
        return None if edited is None or edited == text or not edited.strip() else edited


@dataclass(frozen=True, slots=True)
class Direction:
    """An edit with a known effect on the predictions of a sentiment classifier."""

    name: str
    pairs: tuple[tuple[str, str], ...]  # texts with their edited versions
    # ``"turns"`` if the label has to change, ``"stays"`` if its probability must not fall.
    expected: Literal["turns", "stays"]


_NAMES = ("Anna", "John", "Maria", "Peter", "Fatima", "Wei", "Kofi", "Olga", "Diego", "Priya", "Emma", "David")
_PLACES = ("London", "Paris", "Lagos", "Lima", "Oslo", "Delhi", "Cairo", "Tokyo", "Boston", "Madrid", "Berlin", "Rome")
_FUNCTION_WORDS = frozenset(
    {
        *("a", "an", "the", "of", "to", "in", "on", "at", "and"),
        *("that", "this", "it", "is", "was", "for", "with", "as", "by"),
    }
)
# Letters of other scripts that look like Latin ones (Unicode Technical Standard 39, confusables).
LOOK_ALIKES = dict(zip("aceopxysiAEOPCTXHKMB", "асеорхуѕіАЕОРСТХНКМВ", strict=True))  # noqa: RUF001
_TO_LOOK_ALIKES = str.maketrans(LOOK_ALIKES)
_TO_LATIN = str.maketrans({after: before for before, after in LOOK_ALIKES.items()})
_ZERO_WIDTH = "\u200b"
_WORD = re.compile(r"[^\W\d_]+")
# Character edits change one word in five, and at least one.
_ONE_OF = 5


def _neutral(text: str, rng: Rng) -> str | None:
    words = text.split()
    places = [number for number, word in enumerate(words) if word.lower() in _FUNCTION_WORDS]
    if not places or len(words) < 3:
        return None
    place = int(rng.choice(places))
    doubled = [words[place]] * 2 if rng.random() < 0.5 else []
    return " ".join([*words[:place], *doubled, *words[place + 1 :]])


def _punctuated(text: str, _: Rng) -> str | None:
    return None if text.rstrip().endswith((".", "!", "?")) else text.rstrip() + "."


def _swapped(names: tuple[str, ...]) -> Callable[[str, Rng], str]:
    """Return an edit that replaces each of these names by another."""
    known = re.compile(rf"\b({'|'.join(names)})\b", re.IGNORECASE)

    def swap(text: str, rng: Rng) -> str:
        def other(match: re.Match[str]) -> str:
            name = str(rng.choice([each for each in names if each.lower() != match[0].lower()]))
            return name.lower() if match[0].islower() else name

        return known.sub(other, text)

    return swap


def _by_word(change: Callable[[str, Rng], str]) -> Callable[[str, Rng], str | None]:
    """Return an edit that changes one word in five, each of at least four letters."""

    def edit(text: str, rng: Rng) -> str | None:
        words = [match for match in _WORD.finditer(text) if len(match[0]) > 3]
        if not words:
            return None
        limit = max(1, len(text.split()) // _ONE_OF)
        chosen = {words[number].start() for number in rng.permutation(len(words))[:limit]}
        return _WORD.sub(lambda match: change(match[0], rng) if match.start() in chosen else match[0], text)

    return edit


def swap_letters(word: str, rng: Rng) -> str:
    """Swap two neighbouring inner letters of a word of at least four letters, or drop one if they are equal."""
    place = int(rng.integers(1, len(word) - 2))
    first, second = word[place], word[place + 1]
    return word[:place] + (second + first if first != second else first) + word[place + 2 :]


def _zero_width(word: str, rng: Rng) -> str:
    place = int(rng.integers(1, len(word)))
    return word[:place] + _ZERO_WIDTH + word[place:]


def as_seen(text: str) -> str:
    """Return a text as readers see it: without look-alikes, compatibility characters and invisible ones.

    Look-alikes become Latin letters only in words that also have Latin letters; words in another alphabet stay.
    """
    normal = "".join(each for each in unicodedata.normalize("NFKC", text) if unicodedata.category(each) != "Cf")
    return _WORD.sub(
        lambda match: match[0].translate(_TO_LATIN) if any(each.isascii() for each in match[0]) else match[0], normal
    )


_CASE = "Train with texts in both cases, or use an uncased encoder."
_CLEAN = "Normalise texts before they are read: NFKC, no zero-width characters, look-alikes mapped to Latin letters."
_AUGMENT = "Train with such edits of the rows (augmentation)."

NEUTRAL_EDIT = Edit("a function word left out or doubled", "natural", _neutral)

EDITS: tuple[Edit, ...] = (
    Edit("upper case", "natural", lambda text, _: text.upper(), _CASE),
    Edit("lower case", "natural", lambda text, _: text.lower(), _CASE),
    Edit(
        "double spaces",
        "natural",
        lambda text, _: "  ".join(text.split(" ")) + " ",
        "Use a tokenizer that reads runs of spaces as one.",
    ),
    Edit(
        "no commas and final stop",
        "natural",
        lambda text, _: re.sub(r"\s*[,;:]", "", text).rstrip().removesuffix(".").rstrip(),
        _AUGMENT,
    ),
    Edit("final stop added", "natural", _punctuated, _AUGMENT),
    Edit("names swapped", "natural", _swapped(_NAMES), _AUGMENT),
    Edit("places swapped", "natural", _swapped(_PLACES), _AUGMENT),
    Edit("neutral sentence in front", "padding", lambda text, rng: f"{rng.choice(NEUTRAL)} {text}", _AUGMENT),
    Edit("neutral sentence behind", "padding", lambda text, rng: f"{text} {rng.choice(NEUTRAL)}", _AUGMENT),
    Edit("typos", "hostile", _by_word(swap_letters), _AUGMENT),
    Edit("look-alike characters", "hostile", _by_word(lambda word, _: word.translate(_TO_LOOK_ALIKES)), _CLEAN),
    Edit("zero-width characters", "hostile", _by_word(_zero_width), _CLEAN),
)

BENIGN_EDITS: tuple[Edit, ...] = (NEUTRAL_EDIT, *(edit for edit in EDITS if edit.kind != "hostile"))


def _opinions(adverb: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"The {thing} was {word}.", f"The {thing} was {adverb} {word}.") for thing, word in OPINIONS)


DIRECTIONS: tuple[Direction, ...] = (
    Direction("negation", _opinions("not"), "turns"),
    Direction("intensifier", _opinions("really"), "stays"),
)
