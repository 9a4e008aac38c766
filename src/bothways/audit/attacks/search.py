"""Adversarial attacks on a classifier as TextAttack composes them: constraints, edits and a greedy search.

Morris et al. 2020, arXiv:2005.05909. All texts are attacked side by side, so that the model answers in batches.

Shapes: N texts, C labels.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import answers, margins
from bothways.audit.attacks.edits import CharacterEdits, Draft, Edits, editable
from bothways.audit.context import Context
from bothways.data import Source, read_rows
from bothways.tasks import TextClassifier

Numbers: TypeAlias = NDArray[np.float64]
Ask: TypeAlias = Callable[[Sequence[str]], Numbers]
"""A function that takes texts and returns the probabilities of labels (N, C)."""

# Maximum queries for one original, and maximum words whose importance is measured; drawn if there are more.
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
    """An attack."""

    edits: Edits  # the words that may replace a word
    same: SameSentence | None = None  # the constraint on the meaning; None if the edits keep it by themselves
    share: float = 0.2  # share of a text's words that may be edited; at least one word

    def candidates(self, draft: Draft, number: int, rng: np.random.Generator) -> list[Draft]:
        """Return the drafts that meet the constraints, each with another word in one place."""
        drafts = [draft.replaced(number, word) for word in self.edits.words(draft, number, rng)]
        if self.same is None or not drafts:
            return drafts
        kept_N = self.same.kept(draft.words.text, [each.text for each in drafts])
        return [each for each, kept in zip(drafts, kept_N, strict=True) if kept]


@dataclass(frozen=True, slots=True)
class Attack:
    """The outcome of an attack on one text."""

    draft: Draft  # the text with the edits that came nearest to another answer
    queries: int  # number of texts that the model predicted
    reached: bool  # True if the answer changed


def attack_texts(
    ask: Ask, texts: Sequence[str], labels: Sequence[int], recipe: Recipe, rng: np.random.Generator
) -> list[Attack]:
    """Attack texts side by side; ``labels`` are the indices of their right labels."""
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
    """Ask for each text once, since attacks of several kinds leave out the same words."""
    known: dict[str, Numbers] = {}

    def asked(texts: Sequence[str]) -> Numbers:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            known.update(zip(new, ask(new), strict=True))
        return np.stack([known[text] for text in texts])

    return asked


def random_edits(attack: Attack, recipe: Recipe, rng: np.random.Generator) -> Draft:
    """Make as many edits of the same kind as the attack, to words drawn at random."""
    draft = Draft(attack.draft.words)
    for number in rng.permutation(editable(draft.words)).astype(int).tolist():
        if len(draft.changed) == len(attack.draft.changed):
            break
        drafts = recipe.candidates(draft, number, rng)
        draft = drafts[int(rng.integers(len(drafts)))] if drafts else draft
    return draft


def _greedy(text: str, label: int, recipe: Recipe, rng: np.random.Generator) -> Generator[list[str], Numbers, Attack]:
    """Try words in order of importance, and keep the best edit of each.

    Importance is the drop in the right label's score without the word (Li et al. 2016, arXiv:1612.08220).
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
    """Return attacked rows with their right labels, for adversarial training (Goodfellow et al. 2015, arXiv:1412.6572).

    >>> more = adversarial_rows(classifier, rows)  # doctest: +SKIP
    >>> classifier.fit([*rows, *more])  # doctest: +SKIP

    Args:
        classifier: A trained single-label text classifier.
        data: A file or rows with labels.
        recipe: The attack; `CharacterEdits` when None.
        seed: Seed of the edits.

    Returns:
        One row for each text that could be edited, whether or not its answer turned.

    Raises:
        NeedUnmet: The rows have no labels that the classifier knows, or it is another kind of model.
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
