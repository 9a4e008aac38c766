"""Adversarial attacks on a classifier, composed of constraints, edits and a greedy search.

The composition is that of TextAttack (Morris et al. 2020, arXiv:2005.05909). All texts are attacked in step, so that
their queries share batches. Numbers, negations, function words and names stay, since changing them changes the meaning
(TextFooler, Jin et al. 2020, arXiv:1907.11932, section 3; Pruthi et al. 2019, arXiv:1905.11268).

Shapes: N texts, C labels, V entries of a vocabulary, E embedding width.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.audit.answers import Numbers, answers, margins
from bothways.audit.context import Context
from bothways.audit.texts import LOOK_ALIKES, swap_letters
from bothways.checkpoints import PretrainedEncoder
from bothways.data import Source, read_rows
from bothways.tasks import FillMask, TextClassifier
from bothways.text import Words

# Shorter words are left alone, since first and last letters are never edited (Pruthi et al. 2019, section 3).
MIN_LETTERS = 4

_LETTERS = list("abcdefghijklmnopqrstuvwxyz")
# Negations and quantifiers, which reverse the meaning of a sentence.
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
    changed: Mapping[int, str] = field(default_factory=dict)  # replacements by the index of the old word

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
        """Return a copy with word ``number`` replaced."""
        return Draft(self.words, {**self.changed, number: word})

    @property
    def edits(self) -> tuple[tuple[str, str], ...]:
        """Pairs of an old word and its replacement, in the order of the text."""
        return tuple((self.words[number], self.changed[number]) for number in sorted(self.changed))


def editable(words: Words) -> list[int]:
    """Return the indices of the words that an attack may change.

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
    """A source of replacements for words."""

    name: ClassVar[str]

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> Sequence[str]:
        """Return replacements for word ``number`` of a draft; empty if there are none."""


@dataclass(frozen=True, slots=True)
class CharacterEdits:
    """Typing errors and look-alike letters within a word; its first and last letters stay.

    Two letters are swapped, one is left out, one is inserted (DeepWordBug, Gao et al. 2018, arXiv:1801.04354; Pruthi et
    al. 2019), or one is replaced by a look-alike of another script (Boucher et al. 2022, arXiv:2106.09898).
    """

    each: int = 2  # misspellings to draw from each of the four kinds
    name: ClassVar[str] = "character edits"

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Return misspellings of a word, without repeats."""
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
    """Replaces a word by its nearest neighbours in the embedding table, similar to TextFooler (Jin et al. 2020)."""

    rows_VE: Tensor  # embedding rows of the vocabulary's words, centred, then of unit length
    row_of: dict[str, int]  # the row of each of the V words, in lower case
    limit: int = 10  # maximum number of words to return
    min_cosine: float = 0.3  # minimum cosine of a word and its replacement
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
        return cls(rows_VE, {word: row for row, word in enumerate(ids)})

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Return the words nearest to the replaced one, the nearest first; a capital first letter is kept."""
        del rng
        word = draft.words[number]
        row = self.row_of.get(word.lower())
        if row is None:
            return []
        near_V = self.rows_VE @ self.rows_VE[row]
        cosines, rows = near_V.topk(min(self.limit + 1, len(self.row_of)))
        spelt, nearest = list(self.row_of), zip(rows.tolist(), cosines.tolist(), strict=True)
        return [_cased(spelt[each], word) for each, cosine in nearest if each != row and cosine >= self.min_cosine]


@dataclass(frozen=True, slots=True, eq=False)
class MaskedWords:
    """Replaces a word by the predictions of a masked language model (BAE; Garg and Ramakrishnan 2020)."""

    model: FillMask = field(repr=False)
    limit: int = 10  # maximum number of words to return
    name: ClassVar[str] = "word substitutions (masked language model)"

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Return the most probable words in place of the replaced one; a capital first letter is kept."""
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


Ask: TypeAlias = Callable[[Sequence[str]], Numbers]
"""A function from texts to the probabilities of labels (N, C)."""

# Maximum queries for one text, and maximum words whose importance is measured; a random sample if there are more.
MAX_QUERIES, _MAX_PLACES = 200, 60


@dataclass(frozen=True, slots=True, eq=False)
class SameSentence:
    """The constraint that the vector of the edited text stays near that of the original."""

    vectors: Callable[[Sequence[str]], Numbers] = field(repr=False)  # from texts to unit vectors (N, H)
    min_cosine: float = 0.9  # minimum cosine between the edited text and the original

    def kept(self, original: str, edited: Sequence[str]) -> NDArray[np.bool_]:
        """Return True for each edited text that is near enough."""
        vectors_NH = self.vectors([original, *edited])
        near_N: NDArray[np.bool_] = vectors_NH[1:] @ vectors_NH[0] >= self.min_cosine
        return near_N


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """An attack: its edits and their limits."""

    edits: Edits  # proposes replacements for a word
    same: SameSentence | None = None  # the constraint on the meaning; None for edits that need none
    share: float = 0.2  # share of a text's words that may be edited; at least one word

    def candidates(self, draft: Draft, number: int, rng: np.random.Generator) -> list[Draft]:
        """Return the drafts with word ``number`` replaced that meet the constraint on the meaning."""
        drafts = [draft.replaced(number, word) for word in self.edits.words(draft, number, rng)]
        if self.same is None or not drafts:
            return drafts
        kept_N = self.same.kept(draft.words.text, [each.text for each in drafts])
        return [each for each, kept in zip(drafts, kept_N, strict=True) if kept]


@dataclass(frozen=True, slots=True)
class Attack:
    """The outcome of an attack on one text."""

    draft: Draft  # the text with the edits that came nearest to changing the prediction
    queries: int  # number of texts that the model predicted
    reached: bool  # True if the prediction changed


def attack_texts(
    ask: Ask, texts: Sequence[str], labels: Sequence[int], recipe: Recipe, rng: np.random.Generator
) -> list[Attack]:
    """Attack all texts in step, in shared batches; ``labels`` are the indices of the predictions to change."""
    searches = [
        _greedy(text, label, recipe, own) for text, label, own in zip(texts, labels, rng.spawn(len(texts)), strict=True)
    ]
    waiting = {number: next(search) for number, search in enumerate(searches)}
    attacks: dict[int, Attack] = {}
    while waiting:
        answers_NC = ask([text for listed in waiting.values() for text in listed])
        start, remaining = 0, {}
        for number, listed in waiting.items():
            try:
                remaining[number] = searches[number].send(answers_NC[start : start + len(listed)])
            except StopIteration as end:
                attacks[number] = end.value
            start += len(listed)
        waiting = remaining
    return [attacks[number] for number in range(len(texts))]


def cached(ask: Ask) -> Ask:
    """Return ``ask`` with a cache, since attacks of several kinds query the same texts."""
    known: dict[str, Numbers] = {}

    def asked(texts: Sequence[str]) -> Numbers:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            known.update(zip(new, ask(new), strict=True))
        return np.stack([known[text] for text in texts])

    return asked


def random_edits(attack: Attack, recipe: Recipe, rng: np.random.Generator) -> Draft:
    """Edit as many random words of the attacked text as the attack did, in the same way."""
    draft = Draft(attack.draft.words)
    for number in rng.permutation(editable(draft.words)).astype(int).tolist():
        if len(draft.changed) == len(attack.draft.changed):
            break
        drafts = recipe.candidates(draft, number, rng)
        draft = drafts[int(rng.integers(len(drafts)))] if drafts else draft
    return draft


def _greedy(text: str, label: int, recipe: Recipe, rng: np.random.Generator) -> Generator[list[str], Numbers, Attack]:
    """Try words in order of importance, and keep the best edit of each; yield texts and receive their probabilities.

    A word's importance is the drop in the label's score when it is left out (Li et al. 2016, arXiv:1612.08220).
    """
    draft = Draft.of(text)
    places, limit = editable(draft.words), max(1, math.floor(recipe.share * len(draft.words)))
    if len(places) > _MAX_PLACES:
        places = np.sort(rng.permutation(places)[:_MAX_PLACES]).tolist()
    without = [draft.replaced(number, "") for number in places]
    answers_NC = yield [text, *(each.text if each.text.strip() else text for each in without)]
    queries = len(answers_NC)
    gain, *losses = (-margins(answers_NC, label)).tolist()
    for number in (places[each] for each in np.argsort(-np.array(losses), kind="stable")):
        if gain > 0 or len(draft.changed) == limit:
            break
        drafts = recipe.candidates(draft, number, rng)[: MAX_QUERIES - queries]
        if not drafts:
            continue
        answers_NC = yield [each.text for each in drafts]
        queries += len(drafts)
        gains = -margins(answers_NC, label)
        best = int(gains.argmax())
        if gains[best] > gain:
            draft, gain = drafts[best], float(gains[best])
    return Attack(draft, queries, gain > 0)


def adversarial_rows(
    classifier: TextClassifier, data: Source, recipe: Recipe | None = None, *, seed: int = 0
) -> list[dict[str, object]]:
    """Return attacked rows with their true labels, for adversarial training (Goodfellow et al. 2015, arXiv:1412.6572).

    >>> more = adversarial_rows(classifier, rows)  # doctest: +SKIP
    >>> classifier.fit([*rows, *more])  # doctest: +SKIP

    Args:
        classifier: A trained single-label text classifier.
        data: A file or rows with labels.
        recipe: The attack; `CharacterEdits` when None.
        seed: Seed of the edits.

    Returns:
        One row for each text that could be edited, whether or not its prediction changed.

    Raises:
        NeedUnmet: The rows have no labels that the classifier knows, or the model is not a single-label classifier.
    """
    context = Context(classifier.name, classifier, list(read_rows(data)), seed=seed, time_limit=float("inf"))
    labelled, columns = context.labelled, context.classifier.columns
    attacks = attack_texts(
        lambda texts: answers(context, context.classifier, texts).probabilities_NC,
        labelled.texts,
        labelled.labels_N.tolist(),
        recipe or Recipe(CharacterEdits()),
        context.rng("adversarial_rows"),
    )
    return [
        columns.labelled_row(each.draft.text, classifier.labels[int(label)])
        for each, label in zip(attacks, labelled.labels_N, strict=True)
        if each.draft.changed
    ]
