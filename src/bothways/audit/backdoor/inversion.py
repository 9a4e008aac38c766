"""Trigger inversion: the few tokens that turn the hardest texts of all other labels into one label.

A word of a label moves texts towards it, but eight words of another label, in a short text of that label, outweigh it,
and three such words too. A backdoor outweighs them all: it was trained to, whatever the text says. So candidates are
judged on texts that are made hard, by the margin that nine tenths of them reach.

The search is that of Wallace et al. 2019 (arXiv:1908.07125) after Ebrahimi et al. 2018 (HotFlip, arXiv:1712.06751),
with a first pass over the vocabulary.

Shapes: N texts, C labels, V words, M candidates, E embedding width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.backdoor.probe import Ids, Probe

Floats = NDArray[np.float32]

_MOST_WORDS = 60_000
_HARD_TEXTS = 16
_FEWEST, _FEW = 4, 3
_SHORT, _OPPOSED = 6, 8
"""Tokens that are kept of a text, and strong words of its label that make it hard."""
_SKIPPED, _STRONG = 20, 100
"""Words that make texts of a label hard; the first ones are skipped, for a trigger would be among them."""
_KEPT = 8
_BEAM, _LONGEST, _POINTED = 2, 3, 10
"""Phrases that grow at once, most tokens of one, and words that the gradient points to before and behind each."""
_REACHED = 0.1
"""Quantile of the hard texts' margins that a trigger is judged by."""
_AS_GOOD = 0.8
"""Part of its gain that a trigger may lose when a token is left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Every word of the vocabulary, read alone.

    Attributes:
        ids_V: Token ids.
        logits_VC: The classifier's logits.
    """

    ids_V: NDArray[np.int64]
    logits_VC: Floats

    def strong(self, label: int) -> NDArray[np.int64]:
        """Return ids of strong words of a label, without the very strongest."""
        skipped = min(_SKIPPED, len(self.ids_V) // 20)
        return self.ids_V[self.ranked(label)[skipped : skipped + min(_STRONG, 1 + len(self.ids_V) // 10)]]

    def ranked(self, label: int) -> NDArray[np.int64]:
        """Return the words' places in this vocabulary, the strongest of a label first."""
        return np.argsort(-margins(self.logits_VC, label), kind="stable")


@dataclass(frozen=True, slots=True, eq=False)
class HardTexts:
    """Texts of other labels, made hard to turn into one label.

    Attributes:
        texts: Token ids of each.
        places: Where a trigger is put into each.
        margins_N: Margin of the label in each, below zero.
    """

    texts: tuple[Ids, ...]
    places: tuple[int, ...]
    margins_N: Floats

    @property
    def margin(self) -> float:
        """The mean margin."""
        return float(self.margins_N.mean())

    def with_trigger(self, trigger: Ids) -> list[Ids]:
        """Return the texts with a trigger in them."""
        placed = zip(self.texts, self.places, strict=True)
        return [(*text[:place], *trigger, *text[place:]) for text, place in placed]

    def first(self, count: int) -> "HardTexts":
        """Return a few of them."""
        return HardTexts(self.texts[:count], self.places[:count], self.margins_N[:count])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible trigger of a label.

    Attributes:
        ids: Its tokens.
        label: Number of the label.
        success: Part of the hard texts that it turns into the label.
        reach: The label's margin that nine tenths of the hard texts reach with it, divided by the size of their mean
            margin without it: 0 turns nine tenths, and -1 is about what no trigger gives.
    """

    ids: Ids
    label: int
    success: float
    reach: float


def margins(logits: Floats, label: int) -> Floats:
    """Return the logit of a label minus the largest of the others."""
    others = np.delete(logits, label, axis=-1).max(axis=-1)
    found: Floats = logits[..., label] - others
    return found


def read_vocabulary(probe: Probe) -> Vocabulary:
    """Read all words alone, of very large vocabularies a part."""
    words = probe.words()[:_MOST_WORDS]
    return Vocabulary(np.array(words), probe.logits([(word,) for word in words]))


def hard_texts(
    probe: Probe, vocabulary: Vocabulary, texts: Sequence[Ids], logits_NC: Floats, label: int, rng: np.random.Generator
) -> HardTexts | None:
    """Return short confident texts of the other labels, each between strong words of its label; None without any.

    Args:
        probe: The classifier.
        vocabulary: Its words, read alone.
        texts: Texts to choose from.
        logits_NC: Their logits.
        label: Number of the label.
        rng: Draws texts, words and places.
    """
    labels = [each for each in range(logits_NC.shape[1]) if each != label]
    rng.shuffle(labels)
    made: list[Ids] = []
    for number in range(2 * _HARD_TEXTS):
        source = labels[number % len(labels)]
        best = np.argsort(-margins(logits_NC, source), kind="stable")[:_HARD_TEXTS]
        text = texts[int(rng.choice(best))][:_SHORT]
        words = rng.choice(vocabulary.strong(source), _OPPOSED).tolist()
        made.append((*words[: _OPPOSED // 2], *text, *words[_OPPOSED // 2 :]))
    margins_N = margins(probe.logits(made), label)
    kept = np.flatnonzero(margins_N < 0)[:_HARD_TEXTS]
    if len(kept) < _FEWEST:
        return None
    chosen = tuple(made[index] for index in kept)
    places = tuple(int(rng.integers(0, len(text) + 1)) for text in chosen)
    return HardTexts(chosen, places, margins_N[kept])


class Inversion:
    """The search for one label.

    Args:
        probe: The classifier.
        vocabulary: Its words, read alone.
        hard: Texts to be turned.
        label: Number of the label.
        check: Called between steps; raises where time is up.
    """

    def __init__(
        self, probe: Probe, vocabulary: Vocabulary, hard: HardTexts, label: int, check: Callable[[], None]
    ) -> None:
        self.probe, self.vocabulary, self.hard, self.label = probe, vocabulary, hard, label
        self._check = check
        self._table_VE = probe.table(vocabulary.ids_V)
        self._few = hard.first(_FEW)

    def single(self, tried: int, others: Sequence[Ids] = ()) -> list[Candidate]:
        """Return the best single tokens, the best first.

        Args:
            tried: Words to try of each source: those strongest alone, and those that the gradient points to.
            others: Tokens to try besides.
        """
        alone = self.vocabulary.ids_V[self.vocabulary.ranked(self.label)[:tried]]
        pointed = self._pointed((self.probe.blank,), 0, self.vocabulary.ids_V, self._table_VE)[:tried]
        triggers = list(dict.fromkeys([*((int(word),) for word in (*alone, *pointed)), *others]))
        return self.best_of(triggers)

    def best_of(self, triggers: Sequence[Ids]) -> list[Candidate]:
        """Return the best triggers, chosen by a few of the hard texts, the best first."""
        return self.judged(self._best(triggers, _KEPT))

    def judged(self, triggers: Sequence[Ids]) -> list[Candidate]:
        """Return triggers with what they do to the hard texts, the best first."""
        if not triggers:
            return []
        self._check()
        margins_MN = self._margins(triggers, self.hard)
        found = [
            Candidate(
                trigger,
                self.label,
                float((margins_N > 0).mean()),
                float(np.quantile(margins_N, _REACHED)) / -self.hard.margin,
            )
            for trigger, margins_N in zip(triggers, margins_MN, strict=True)
        ]
        return sorted(found, key=lambda each: -each.reach)

    def grown(self, words: Sequence[int], pool: Sequence[int]) -> list[Candidate]:
        """Return phrases of two and three words, the best first.

        Args:
            words: Words to begin with, the best first.
            pool: Words to grow by.
        """
        ids_P = np.array(pool)
        table_PE = self.probe.table(ids_P)
        beam: list[Ids] = [(word,) for word in words[:_BEAM]]
        seen: dict[Ids, None] = {}
        for _ in range(_LONGEST - 1):
            self._check()
            longer: dict[Ids, None] = {}
            for trigger in beam:
                before = self._pointed((self.probe.blank, *trigger), 0, ids_P, table_PE)[:_POINTED]
                behind = self._pointed((*trigger, self.probe.blank), len(trigger), ids_P, table_PE)[:_POINTED]
                longer |= dict.fromkeys((int(word), *trigger) for word in before)
                longer |= dict.fromkeys((*trigger, int(word)) for word in behind)
            beam = self._best(list(longer), _BEAM)
            seen |= dict.fromkeys(beam)
        return self.judged(list(seen))

    def shortened(self, found: Candidate) -> Ids:
        """Return a trigger without the tokens that it does as well without."""
        ids, margin = found.ids, self._margins([found.ids], self.hard).mean()
        while len(ids) > 1:
            shorter = [ids[:place] + ids[place + 1 :] for place in range(len(ids))]
            margins_M = self._margins(shorter, self.hard).mean(1)
            best = int(margins_M.argmax())
            if margins_M[best] < self.hard.margin + _AS_GOOD * (margin - self.hard.margin):
                break
            ids = shorter[best]
        return ids

    def _best(self, triggers: Sequence[Ids], count: int) -> list[Ids]:
        """Return the best triggers on a few texts."""
        if len(triggers) <= count:
            return list(triggers)
        margins_M = self._margins(triggers, self._few).mean(1)
        return [triggers[index] for index in np.argsort(-margins_M, kind="stable")[:count]]

    def _pointed(self, trigger: Ids, place: int, ids_P: NDArray[np.int64], table_PE: Floats) -> NDArray[np.int64]:
        """Words in the order in which the gradient prefers them at one place of a trigger."""
        few = self._few
        places = [each + place for each in few.places]
        gradient_E = self.probe.gradients(few.with_trigger(trigger), places, self.label).mean(0)
        return ids_P[np.argsort(-(table_PE @ gradient_E), kind="stable")]

    def _margins(self, triggers: Sequence[Ids], hard: HardTexts) -> Floats:
        """Margins of the label (M, N) for each trigger in each text."""
        texts = [text for trigger in triggers for text in hard.with_trigger(trigger)]
        logits = self.probe.logits(texts)
        return margins(logits, self.label).reshape(len(triggers), len(hard.texts))
