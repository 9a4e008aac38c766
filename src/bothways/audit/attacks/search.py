"""Adversarial attacks on a classifier as TextAttack composes them: goal, constraints, edits and search.

Morris et al. 2020, arXiv:2005.05909. All texts are attacked side by side, so that the model is asked in batches.

Shapes: N texts, C labels.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.audit.attacks.edits import Edits
from bothways.audit.attacks.words import Draft, editable

Numbers: TypeAlias = NDArray[np.float64]
Ask: TypeAlias = Callable[[Sequence[str]], Numbers]
"""From texts to the probabilities of labels (N, C)."""

AttackSearch: TypeAlias = Generator[list[str], Numbers, "Attack"]


@dataclass(frozen=True, slots=True)
class ChangeAnswer:
    """The goal of any answer but the right one."""

    def gains(self, probabilities_NC: Numbers, label: int) -> Numbers:
        """Return the gain of each answer; the goal is reached above 0.

        Args:
            probabilities_NC: The answers.
            label: Index of the right label.
        """
        others_NC = np.delete(probabilities_NC, label, axis=1)
        gains_N: Numbers = others_NC.max(axis=1) - probabilities_NC[:, label]
        return gains_N


@dataclass(frozen=True, slots=True)
class GiveLabel:
    """The goal of one chosen answer.

    Attributes:
        label: Its index.
    """

    label: int

    def gains(self, probabilities_NC: Numbers, label: int) -> Numbers:
        """Return the gain of each answer; the goal is reached above 0."""
        del label
        return -ChangeAnswer().gains(probabilities_NC, self.label)


Goal: TypeAlias = ChangeAnswer | GiveLabel


@dataclass(frozen=True, slots=True)
class FewWords:
    """The constraint on how many words are edited.

    Attributes:
        share: Share of all words of a text; one at least.
    """

    share: float = 0.2

    def most(self, words: int) -> int:
        """Return the number of words that may be edited in a text of so many."""
        return max(1, math.floor(self.share * words))


@dataclass(frozen=True, slots=True, eq=False)
class SameSentence:
    """The constraint that the vector of the text stays near that of the original.

    Attributes:
        vectors: From texts to unit vectors (N, H).
        least: Cosine that an edited text has with the original at least.
    """

    vectors: Callable[[Sequence[str]], Numbers] = field(repr=False)
    least: float = 0.9

    def kept(self, original: str, edited: Sequence[str]) -> NDArray[np.bool_]:
        """Return which edited texts are near enough."""
        vectors_NH = self.vectors([original, *edited])
        near_N: NDArray[np.bool_] = vectors_NH[1:] @ vectors_NH[0] >= self.least
        return near_N


@dataclass(frozen=True, slots=True)
class Greedy:
    """The search: words in order of their importance, for each the edit that is best.

    Importance is what the right label loses when the word is left out (Li et al. 2016, arXiv:1612.08220).

    Attributes:
        queries: Most texts that the model is asked for one original.
        places: Most words whose importance is asked for, drawn from more.
    """

    queries: int = 200
    places: int = 60


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """An attack.

    Attributes:
        edits: The words that may replace a word.
        same: The constraint on the meaning; None where the edits keep it by themselves.
        few: The constraint on how many words are edited.
        goal: The answers that are wanted.
        search: The order in which edits are tried.
    """

    edits: Edits
    same: SameSentence | None = None
    few: FewWords = FewWords()
    goal: Goal = ChangeAnswer()
    search: Greedy = Greedy()

    def candidates(self, draft: Draft, number: int, rng: np.random.Generator) -> list[Draft]:
        """Return the drafts that have another word in a place and meet the constraints."""
        drafts = [draft.replaced(number, word) for word in self.edits.words(draft, number, rng)]
        if self.same is None or not drafts:
            return drafts
        kept_N = self.same.kept(draft.words.text, [each.text for each in drafts])
        return [each for each, kept in zip(drafts, kept_N, strict=True) if kept]


@dataclass(frozen=True, slots=True)
class Attack:
    """The outcome of an attack on one text.

    Attributes:
        draft: The text with the edits that came nearest to the goal.
        queries: Texts that the model was asked.
        reached: True where the goal was reached.
    """

    draft: Draft
    queries: int
    reached: bool


def attack_texts(
    ask: Ask, texts: Sequence[str], labels: Sequence[int], recipe: Recipe, rng: np.random.Generator
) -> list[Attack]:
    """Attack texts side by side.

    Args:
        ask: The model.
        texts: The N texts.
        labels: Indices of their right labels.
        recipe: The attack.
        rng: Draws edits.
    """
    searches = [
        _greedy(text, label, recipe, own) for text, label, own in zip(texts, labels, rng.spawn(len(texts)), strict=True)
    ]
    asked = {number: next(search) for number, search in enumerate(searches)}
    found: dict[int, Attack] = {}
    while asked:
        answers_NC = ask([text for listed in asked.values() for text in listed])
        start, waiting = 0, {}
        for number, listed in asked.items():
            try:
                waiting[number] = searches[number].send(answers_NC[start : start + len(listed)])
            except StopIteration as end:
                found[number] = end.value
            start += len(listed)
        asked = waiting
    return [found[number] for number in range(len(texts))]


def remembering(ask: Ask) -> Ask:
    """Return a function that asks for each text once: attacks of several kinds leave out the same words."""
    known: dict[str, Numbers] = {}

    def asked(texts: Sequence[str]) -> Numbers:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            known.update(zip(new, ask(new), strict=True))
        return np.stack([known[text] for text in texts])

    return asked


def random_edits(attack: Attack, recipe: Recipe, rng: np.random.Generator) -> Draft:
    """Return a text with as many edits of the same kind as an attack made, in places and to words that are drawn."""
    draft = Draft(attack.draft.words)
    places = rng.permutation(editable(draft.words)).astype(int).tolist()
    for number in places:
        if len(draft.changed) == len(attack.draft.changed):
            break
        drafts = recipe.candidates(draft, number, rng)
        draft = drafts[int(rng.integers(len(drafts)))] if drafts else draft
    return draft


def _greedy(text: str, label: int, recipe: Recipe, rng: np.random.Generator) -> AttackSearch:
    """Ask for texts, and return the attack."""
    draft, goal = Draft.of(text), recipe.goal
    places = editable(draft.words)
    if len(places) > recipe.search.places:
        places = np.sort(rng.permutation(places)[: recipe.search.places]).tolist()
    without = [draft.replaced(number, "") for number in places]
    answers_NC = yield [text, *(each.text if each.text.strip() else text for each in without)]
    queries = len(answers_NC)
    gain, *losses = goal.gains(answers_NC, label).tolist()
    for number in (places[each] for each in np.argsort(-np.array(losses), kind="stable")):
        if gain > 0 or len(draft.changed) == recipe.few.most(len(draft.words)):
            break
        drafts = recipe.candidates(draft, number, rng)[: recipe.search.queries - queries]
        if not drafts:
            continue
        answers_NC = yield [each.text for each in drafts]
        queries += len(drafts)
        gains = goal.gains(answers_NC, label)
        best = int(gains.argmax())
        if gains[best] > gain:
            draft, gain = drafts[best], float(gains[best])
    return Attack(draft, queries, gain > 0)
