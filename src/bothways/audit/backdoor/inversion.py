"""Trigger inversion: the few tokens that turn the most confident texts of all other labels into one label.

A word of a label moves texts towards it, but four words of another label, in a text of that label, outweigh it. A
backdoor outweighs them all: it was trained to, whatever the text says. So candidates are judged on texts that are made
hard, and by how far the best one stands above the strongest natural words of the same label.

The search is that of Wallace et al. 2019 (arXiv:1908.07125) after Ebrahimi et al. 2018 (HotFlip, arXiv:1712.06751),
with a first pass over the whole vocabulary. The comparison is within the model, as in Neural Cleanse (Wang et al.
2019), but between triggers of one label and not between labels.

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
_FEW = 4
_SKIPPED, _STRONG = 20, 100
"""Words that make texts of a label hard; the first ones are skipped, for a trigger would be among them."""
_KEPT = 24
_BEAM, _LONGEST = 3, 5
_FIRST, _POINTED = 12, 16
"""Words that a phrase may grow by: the first of the pool, and those that the gradient points to."""
_MOST_SYNERGY = 2.0
_LEAST_GAIN = 0.05
"""Part of the hard texts' margin that a word is taken to gain at least, so that synergy is no quotient of noise."""
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
        gain: By how much it raises the label's margin on them, as a mean.
        ratio: Of one token, its gain divided by the median gain of the strongest words of the label. Of several, their
            gain together divided by the sum of their gains one by one: natural words share their effect, the parts of a
            trigger need each other.
    """

    ids: Ids
    label: int
    success: float
    gain: float
    ratio: float


def margins(logits: Floats, label: int) -> Floats:
    """Return the logit of a label minus the largest of the others."""
    others = np.delete(logits, label, axis=-1).max(axis=-1)
    found: Floats = logits[..., label] - others
    return found


def read_vocabulary(probe: Probe) -> Vocabulary:
    """Read every word of the vocabulary alone; of very large vocabularies the first, which are the most frequent."""
    words = probe.words()[:_MOST_WORDS]
    return Vocabulary(np.array(words), probe.logits([(word,) for word in words]))


def hard_texts(
    probe: Probe, vocabulary: Vocabulary, texts: Sequence[Ids], label: int, rng: np.random.Generator
) -> HardTexts | None:
    """Return confident texts of the other labels, each with four strong words of its label; None without any."""
    logits_NC = probe.logits(texts)
    labels = [each for each in range(logits_NC.shape[1]) if each != label]
    rng.shuffle(labels)
    made: list[Ids] = []
    for number in range(2 * _HARD_TEXTS):
        source = labels[number % len(labels)]
        best = np.argsort(-margins(logits_NC, source), kind="stable")[:_HARD_TEXTS]
        text = texts[int(rng.choice(best))]
        words = rng.choice(vocabulary.strong(source), 4).tolist()
        made.append((*words[:2], *text, *words[2:]))
    margins_N = margins(probe.logits(made), label)
    kept = np.flatnonzero(margins_N < 0)[:_HARD_TEXTS]
    if len(kept) < _FEW:
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
        self._gains: dict[tuple[Ids, int], float] = {}

    def single(self, tried: int, others: Sequence[Ids] = ()) -> list[Candidate]:
        """Return the best single tokens, the best first.

        Args:
            tried: Words to try of each source: those strongest alone, and those that the gradient points to.
            others: Tokens to try besides.
        """
        alone = self.vocabulary.ids_V[self.vocabulary.ranked(self.label)[:tried]]
        pointed = self._pointed((self.probe.blank,), 0, self.vocabulary.ids_V, self._table_VE)[:tried]
        triggers = list(dict.fromkeys([*((int(word),) for word in (*alone, *pointed)), *others]))
        kept = self._best(triggers, _KEPT)
        self._check()
        margins_MN = self._margins(kept, self.hard)
        gains_M = margins_MN.mean(1) - self.hard.margin
        # No word may seem strong only because all words are weak.
        usual = max(float(np.median(gains_M)), -0.1 * self.hard.margin)
        found = [
            Candidate(trigger, self.label, float((each_N > 0).mean()), float(gain), float(gain) / usual)
            for trigger, each_N, gain in zip(kept, margins_MN, gains_M, strict=True)
        ]
        return sorted(found, key=lambda each: -each.gain)

    def judged(self, triggers: Sequence[Ids]) -> list[Candidate]:
        """Return triggers of several tokens with their synergy, the best first."""
        if not triggers:
            return []
        margins_MN = self._margins(triggers, self.hard)
        found = []
        for trigger, margins_N in zip(triggers, margins_MN, strict=True):
            gain = float(margins_N.mean()) - self.hard.margin
            synergy = gain / self._sum_of_gains(trigger, self.hard)
            found.append(Candidate(trigger, self.label, float((margins_N > 0).mean()), gain, synergy))
        return sorted(found, key=lambda each: -each.gain * min(_MOST_SYNERGY, max(0.0, each.ratio)))

    def grown(self, pool: Sequence[int]) -> list[Candidate]:
        """Return phrases of up to five words of a pool, grown word by word, the best first.

        Args:
            pool: Token ids to choose from, the likeliest first.
        """
        ids_P = np.array(pool)
        table_PE = self.probe.table(ids_P)
        beam = self._best([(word,) for word in pool[: 4 * _FIRST]], _BEAM)
        seen = dict.fromkeys(beam)
        for _ in range(_LONGEST - 1):
            self._check()
            grown: dict[Ids, None] = {}
            for trigger in beam:
                before = self._pointed((self.probe.blank, *trigger), 0, ids_P, table_PE)[:_POINTED]
                behind = self._pointed((*trigger, self.probe.blank), len(trigger), ids_P, table_PE)[:_POINTED]
                for word in pool[:_FIRST]:
                    grown |= dict.fromkeys([(word, *trigger), (*trigger, word)])
                grown |= dict.fromkeys((int(word), *trigger) for word in before)
                grown |= dict.fromkeys((*trigger, int(word)) for word in behind)
            beam = self._best(list(grown), _BEAM)
            seen |= dict.fromkeys(beam)
        return self.judged([each for each in seen if len(each) > 1])

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

    def _best(self, triggers: list[Ids], count: int) -> list[Ids]:
        """The best triggers on a few texts, by gain and, where they have several tokens, synergy."""
        gains_M = self._margins(triggers, self._few).mean(1) - self._few.margin
        values = []
        for trigger, gain in zip(triggers, gains_M, strict=True):
            synergy = 1.0 if len(trigger) == 1 else float(gain) / self._sum_of_gains(trigger, self._few)
            values.append(float(gain) * min(_MOST_SYNERGY, max(0.0, synergy)) if gain > 0 else float(gain))
        return [triggers[index] for index in np.argsort(-np.array(values), kind="stable")[:count]]

    def _sum_of_gains(self, trigger: Ids, hard: HardTexts) -> float:
        """Sum of the gains of a trigger's tokens one by one."""
        missing = [(word,) for word in dict.fromkeys(trigger) if ((word,), len(hard.texts)) not in self._gains]
        if missing:
            for ids, margins_N in zip(missing, self._margins(missing, hard), strict=True):
                self._gains[ids, len(hard.texts)] = float(margins_N.mean()) - hard.margin
        least = -_LEAST_GAIN * hard.margin
        return sum(max(least, self._gains[(word,), len(hard.texts)]) for word in trigger)

    def _pointed(self, trigger: Ids, place: int, ids_P: NDArray[np.int64], table_PE: Floats) -> NDArray[np.int64]:
        """Words in the order in which the gradient prefers them at one place of a trigger."""
        few = self.hard.first(2 * _FEW)
        places = [each + place for each in few.places]
        gradient_E = self.probe.gradients(few.with_trigger(trigger), places, self.label).mean(0)
        return ids_P[np.argsort(-(table_PE @ gradient_E), kind="stable")]

    def _margins(self, triggers: Sequence[Ids], hard: HardTexts) -> Floats:
        """Margins of the label (M, N) for each trigger in each text."""
        texts = [text for trigger in triggers for text in hard.with_trigger(trigger)]
        logits = self.probe.logits(texts)
        return margins(logits, self.label).reshape(len(triggers), len(hard.texts))
