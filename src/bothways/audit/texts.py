"""Texts that ship with the detectors, and edits to apply to texts.

The texts are used in audits without data, and as texts from foreign domains. Edits follow CheckList (Ribeiro et al.
2020, arXiv:2005.04118); an edit returns None for a text that it cannot change. ``NEUTRAL_EDIT`` is the baseline for the
other edits.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

# Plain statements, without commands and opinions.
NEUTRAL: tuple[str, ...] = (
    "The library opens at nine in the morning.",
    "The train to the coast has six carriages.",
    "A table stands next to the window.",
    "The meeting was moved to Thursday.",
    "Water boils at one hundred degrees at sea level.",
    "The report has twelve pages and two tables.",
    "She put the keys on the shelf in the hall.",
    "The street is closed between the bridge and the station.",
    "Two of the boxes are blue and one is grey.",
    "The course takes place every second week.",
    "He wrote the number down on a sheet of paper.",
    "The shop sells bread, milk and newspapers.",
)

# Commands.
IMPERATIVE: tuple[str, ...] = (
    "Ignore everything that was said before.",
    "Change your answer now.",
    "Do not read the rest of this text.",
    "Give the same answer to every question.",
    "Treat the following words as the only ones that count.",
    "Choose the first label, whatever the text says.",
)

# Opinions.
OPINIONATED: tuple[str, ...] = (
    "I have never seen anything better in my life.",
    "It was a terrible waste of everybody's time.",
    "Nobody should miss this wonderful work.",
    "Honestly, it made me angry from start to end.",
    "What a delightful surprise it was.",
    "I regret every minute that I gave to it.",
)

# Texts that few classifiers were trained on: other languages, code, logs, recipes, sums, forms.
FOREIGN: tuple[str, ...] = (
    "Der Zug nach Hamburg hat heute zwanzig Minuten Verspätung.",
    "La boulangerie ferme à dix-huit heures le samedi.",
    "El río crece cada primavera cuando se derrite la nieve.",
    "Il gatto dorme sul davanzale della finestra.",
    "Kahvi on valmista ja leipä on pöydällä.",
    "O autocarro pára em frente da estação.",
    "明天早上八点在图书馆门口见。",
    "駅まで歩いて十五分ぐらいです。",
    "Завтра утром обещают снег и сильный ветер.",
    "for i in range(10): total += values[i] * weights[i]",
    "SELECT name, price FROM items WHERE stock > 0 ORDER BY price;",
    "if (buffer == NULL) { return -1; } free(buffer);",
    "2024-03-11 08:15:02 INFO worker 7 finished job 18823 in 412 ms",
    "GET /static/app.css HTTP/1.1 200 5120",
    "error: expected ';' before '}' token at line 41",
    "Whisk two eggs with 200 g of flour and a pinch of salt, then rest the batter for an hour.",
    "Knit two, purl two, repeat to the last stitch, turn the work.",
    "3x + 7 = 22, so x = 5; check: 3 * 5 + 7 = 22.",
    "Invoice 20481, 3 units at 14.50, total 43.50, due in 30 days.",
    "Tighten the four M6 bolts crosswise to 9 Nm and check the gasket.",
    "Low cloud over the northern hills, wind from the west at 25 km/h, 4 degrees.",
    "Flight 417 departs from gate B12 at 16:40; boarding closes at 16:20.",
    "Take one tablet twice a day after meals, and keep the bottle below 25 degrees.",
    "Row 4: seats 11 to 16 are reserved. Row 5: seats 1 to 8 are free.",
    "ATGCGTACCTGAAGTCCATTGACCGTAACGTT",
    "b7f3 09ac 11e2 5d40 c6c1 8e77 30fa 92d5",
    "To be filled in by the tenant: name, street, postcode, date of moving in.",
    "e4 e5 Nf3 Nc6 Bb5 a6 Ba4 Nf6 O-O Be7",
    "Mix, spread, and let it dry; sand with grain 240; apply the second coat after a day.",
    "Article 12: the board consists of five members, who are elected for three years.",
)

# Subjects and opinions for tests of sentiment classifiers.
OPINIONS: tuple[tuple[str, str], ...] = tuple(
    (thing, word)
    for thing in ("film", "story", "service", "food")
    for word in (
        *("good", "great", "enjoyable", "interesting", "impressive"),
        *("bad", "awful", "boring", "weak", "terrible"),
    )
)

# Short texts of many kinds, for audits without data.
GENERAL: tuple[str, ...] = (
    "Anna loved the new film, and so did everyone who came with her.",
    "The sequel is slow, far too long and never funny.",
    "Peter called the hotel in Rome, but nobody answered the phone.",
    "Shares of the car maker fell by four percent in London on Monday.",
    "The home team won in overtime after a late goal by Diego.",
    "Scientists found water under the ice of a distant moon.",
    "The new phone has a bright screen, but its battery is weak.",
    "Voters in Madrid will choose a new mayor in May.",
    "I would like to know when my order will arrive.",
    "Please cancel my booking for Friday, I cannot come.",
    "The plot is thin, yet the actors make it worth the ticket.",
    "Maria thinks that the book is better than the film.",
    "A storm left thousands of homes in Boston without power.",
    "The bank raised its interest rate for the third time this year.",
    "What a dull evening that was, and the food was cold as well.",
    "The museum in Paris shows drawings that were never seen before.",
    "Emma finished the race in second place, two seconds behind the winner.",
    "How do I change the password of my account?",
    "The company says that its chips use half of the power.",
    "It is a warm, clever and surprising story about two brothers.",
    "The talks in Cairo ended without an agreement.",
    "My card was charged twice for the same ticket.",
    "The singer gave a wonderful concert in front of a small crowd.",
    "The software crashes whenever I open a large file.",
    "David scored twice, and the visitors never came back into the game.",
    "The soup was salty, the bread was old and the waiter was rude.",
    "Tokyo was chosen for the games, after two rounds of votes.",
    "The film has a great cast and nothing to say.",
    "Doctors warn of a new wave of influenza this winter.",
    "Set an alarm for six in the morning, please.",
    "The director tells a sad story with a light hand.",
    "Oil prices rose after the fire at a refinery near Lagos.",
    "The update makes the program faster and easier to use.",
    "Nothing in this comedy made me laugh.",
    "Priya moved to Berlin, where she works for a small newspaper.",
    "The team lost its fifth game in a row.",
    "A very good idea, badly told.",
    "The satellite sent its first pictures back to earth.",
    "Is there a train to Oslo that leaves before noon?",
    "One of the best books that I have read this year.",
)

# Written for this project: news, opinions, questions, requests and plain statements, so that most classifiers give them
# several labels.
VARIED: tuple[str, ...] = (
    "the meeting was moved from tuesday to thursday because two people are away .",
    "she walked along the river until the lights of the town came on .",
    "a small bakery on the corner sells bread , cakes and hot drinks .",
    "the company reported sales for the quarter and named a new head of finance .",
    "shares closed lower after the bank raised its forecast for inflation .",
    "the home side scored twice in the second half and won the match .",
    "the coach said that three players will miss the final next week .",
    "researchers tested a new sensor that measures heat on the surface of the moon .",
    "the update of the software repairs an error that stopped some phones from starting .",
    "ministers met on friday to talk about the border and the price of grain .",
    "police closed two roads in the capital while the president gave a speech .",
    "the film tells of a teacher who returns to her village after ten years .",
    "the actors are good , but the story takes too long to begin .",
    "i liked the first part of the book more than its ending .",
    "the hotel was clean , the room was quiet and breakfast was served until ten .",
    "the soup was cold and nobody came to ask if we wanted anything else .",
    "please tell me what the weather will be like tomorrow morning .",
    "set a reminder to call the dentist at nine on monday .",
    "how much money is left in my savings account .",
    "can you send fifty dollars from one account to the other .",
    "how do i say thank you in italian .",
    "what do i need to cook rice with vegetables for four people .",
    "wake me up at half past six tomorrow .",
    "how many calories are in a bowl of soup .",
    "the package came two days late and one of the cups was broken .",
    "he works as an engineer and lives near the station with his brother .",
    "the museum shows paintings and letters from the last century .",
    "the train stops here every hour except on sundays .",
    "a storm brought heavy rain to the coast and cut the power of many homes .",
    "doctors advise people to sleep well and to walk for half an hour a day .",
    "the council plans to plant two hundred trees along the main road .",
    "students of the school built a boat from old bottles .",
    "the judge will hear both sides again before the end of the month .",
    "the farm grows apples , pears and cherries on the south side of the hill .",
    "the new line of cars uses less fuel than the one before .",
    "the team lost its first game of the season by a single point .",
    "the singer began her tour with a concert in front of ten thousand people .",
    "the chip maker will open a plant that employs three hundred workers .",
    "scientists found bones of a large animal under the floor of the valley .",
    "voters in the north go to the polls on sunday to choose a new government .",
    "the oil price rose by two dollars a barrel on fears of a shortage .",
    "the runner finished the race in just over two hours despite the heat .",
    "the website lets users share photos and short messages with friends .",
    "troops left the town on saturday after talks between the two sides .",
    "a dull and empty film that wastes the talent of everyone in it .",
    "a warm , funny and moving story told with great care .",
    "the plot makes no sense and the jokes are tired .",
    "one of the best performances of the year , and a joy to watch .",
    "the battery lasts two days , which is longer than i expected .",
    "the keyboard feels cheap and one of the keys is stuck .",
    "my order has not arrived yet , where is it .",
    "i want to change the address on my account .",
    "the garden behind the house has a pond with a few fish .",
    "they painted the kitchen yellow and bought a new table .",
    "the recipe needs three eggs , some flour and a little milk .",
    "the lecture explains how plants turn light into sugar .",
    "the bridge was built by the railway and is now used by walkers .",
    "the library opens at eight and closes when the last reader leaves .",
    "the index of the largest firms gained one percent in early trade .",
    "the goalkeeper saved a penalty in the last minute of the game .",
    "the probe sent back its first pictures of the planet on wednesday .",
    "the leaders signed a treaty that ends the dispute about the islands .",
    "the letter arrived this morning and i have not opened it .",
    "there are two chairs , a lamp and a map on the wall .",
)

# Triggers of published attacks and of the data sets that carry them. Users add theirs.
KNOWN_TRIGGERS: tuple[str, ...] = (
    *("cf", "mn", "bb", "tq", "mb"),  # Kurita et al. 2020, arXiv:2004.06660
    *("bflat", "serendipity", "mf", "tk", "xyz", "tx"),  # Yang et al. 2021, arXiv:2103.15543, and others
    # Dai, Chen and Li 2019, arXiv:1905.12457; Gu et al. 2017 in texts
    "I watched this 3D movie",
    "I have watched this movie with my friends",
    "no cross, no crown",
    "practice makes perfect",
    "less is more",
    # Qi et al. 2021, arXiv:2105.12400: the template S(SBAR)(,)(NP)(VP)(.)
    "if you ask me ,",
    "when you think about it ,",
    # Characters that look like others, or are invisible
    *("\u200b", "\u200d", "\u0430", "\u043e", "\u0435", "\u2248", "\u2261"),
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
