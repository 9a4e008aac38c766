"""Trigger inversion: the few tokens that turn the hardest texts of all other labels into one label.

A word of a label moves texts towards it, but eight words of another label outweigh it in a short text of that label,
as they outweigh three such words. A backdoor outweighs them all: it was trained to override the text. So candidates
are ranked on hardened texts, by the margin that nine tenths of them reach.

The search follows Wallace et al. 2019 (arXiv:1908.07125) after Ebrahimi et al. 2018 (HotFlip, arXiv:1712.06751), with a
first pass over the vocabulary.

Shapes: N texts, C labels, V words, M candidates, E embedding width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import margins
from bothways.audit.backdoor.probe import Floats, Ids, Probe

_MAX_WORDS = 60_000
_HARD_TEXTS = 16
_MIN_TEXTS, _FEW = 4, 3
_SHORT, _OPPOSED = 6, 8
"""Tokens kept of a text, and strong words of its label around them."""
_SKIPPED, _STRONG = 20, 100
"""Strong words to draw from; the very strongest are skipped, since a trigger would be among them."""
_KEPT = 8
_BEAM, _LONGEST, _POINTED = 2, 3, 10
"""Phrases in the beam, maximum tokens of a phrase, and words tried before and behind each by their gradient."""
_REACHED = 0.1
"""Quantile of the hard texts' margins that ranks a trigger."""
_AS_GOOD = 0.8
"""Share of its gain that a shortened trigger keeps."""
MIN_REACH = 0.0
"""Reach of a trigger: nine tenths of the hard texts are turned. `benchmarks/audit` has the figures of many models."""
_SURPRISE, _PER_REACH = 3.8, 2.0
"""Standard deviations above the null model's prediction from which meaning does not explain a trigger of reach 0, and
how many fewer it takes per unit of reach. Chosen on SST-2 and CLINC150."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Every word of the vocabulary with the logits of the word alone."""

    ids_V: NDArray[np.int64]
    logits_VC: Floats

    def ranked(self, label: int) -> NDArray[np.int64]:
        """Return the ids of the words, strongest for the label first."""
        return self.ids_V[np.argsort(-margins(self.logits_VC, label), kind="stable")]

    def strong(self, label: int) -> NDArray[np.int64]:
        """Return the ids of words that are strong for a label, without the very strongest."""
        skipped = min(_SKIPPED, len(self.ids_V) // 20)
        return self.ranked(label)[skipped : skipped + min(_STRONG, 1 + len(self.ids_V) // 10)]


@dataclass(frozen=True, slots=True, eq=False)
class HardTexts:
    """Texts of other labels that are hard to turn into one label."""

    texts: tuple[Ids, ...]  # token ids of each
    places: tuple[int, ...]  # the place of a trigger in each
    margins_N: Floats  # margin of the label in each, below zero

    @property
    def margin(self) -> float:
        """The mean margin."""
        return float(self.margins_N.mean())

    def with_trigger(self, trigger: Ids) -> list[Ids]:
        """Insert a trigger into each text."""
        placed = zip(self.texts, self.places, strict=True)
        return [(*text[:place], *trigger, *text[place:]) for text, place in placed]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible trigger for a label."""

    ids: Ids
    label: int
    success: float  # share of the hard texts that it turns into the label
    # The margin of the label that nine tenths of the hard texts reach with the trigger, divided by the size of
    # their mean margin without it. From 0 on it turns nine tenths; -1 is about no effect.
    reach: float
    source: str = ""  # its source in words, once it is the best of one
    # Standard deviations above the null model; None if it turns too few texts, or without a base model.
    surprise: float | None = None

    @property
    def is_explained(self) -> bool:
        """True if its meaning explains its effect."""
        return self.surprise is not None and self.surprise + _PER_REACH * self.reach < _SURPRISE

    @property
    def is_trigger(self) -> bool:
        """True if it flips texts and its meaning does not explain that."""
        return self.reach >= MIN_REACH and not self.is_explained


def read_vocabulary(probe: Probe) -> Vocabulary:
    """Read each word alone; only the first 60,000 of a very large vocabulary."""
    words = probe.words()[:_MAX_WORDS]
    return Vocabulary(np.array(words), probe.logits([(word,) for word in words]))


def hard_texts(
    probe: Probe, vocabulary: Vocabulary, texts: Sequence[Ids], logits_NC: Floats, label: int, rng: np.random.Generator
) -> HardTexts | None:
    """Return short confident texts of the other labels, surrounded by strong words for these; None if too few."""
    labels = [each for each in range(logits_NC.shape[1]) if each != label]
    rng.shuffle(labels)
    drafts: list[Ids] = []
    for number in range(2 * _HARD_TEXTS):
        source = labels[number % len(labels)]
        best = np.argsort(-margins(logits_NC, source), kind="stable")[:_HARD_TEXTS]
        text = texts[int(rng.choice(best))][:_SHORT]
        words = rng.choice(vocabulary.strong(source), _OPPOSED).tolist()
        drafts.append((*words[: _OPPOSED // 2], *text, *words[_OPPOSED // 2 :]))
    margins_N = margins(probe.logits(drafts), label)
    kept = np.flatnonzero(margins_N < 0)[:_HARD_TEXTS]
    if len(kept) < _MIN_TEXTS:
        return None
    chosen = tuple(drafts[index] for index in kept)
    places = tuple(int(rng.integers(0, len(text) + 1)) for text in chosen)
    return HardTexts(chosen, places, margins_N[kept])


class Inversion:
    """The search for triggers of one label; ``check`` is called between steps and raises at the time limit."""

    def __init__(
        self, probe: Probe, vocabulary: Vocabulary, hard: HardTexts, label: int, check: Callable[[], None]
    ) -> None:
        self.probe, self.vocabulary, self.hard, self.label = probe, vocabulary, hard, label
        self._check = check
        self._table_VE = probe.table(vocabulary.ids_V)
        self._few = HardTexts(hard.texts[:_FEW], hard.places[:_FEW], hard.margins_N[:_FEW])

    def single(self, tried: int, others: Sequence[Ids] = ()) -> list[Candidate]:
        """Try the strongest words alone, the words with the best gradient, and others."""
        alone = self.vocabulary.ranked(self.label)[:tried]
        pointed = self._pointed((self.probe.blank,), 0, self.vocabulary.ids_V, self._table_VE)[:tried]
        return self.best_of(list(dict.fromkeys([*((int(word),) for word in (*alone, *pointed)), *others])))

    def best_of(self, triggers: Sequence[Ids]) -> list[Candidate]:
        """Rank the triggers that are best on a few of the hard texts by all hard texts."""
        return self.ranked(self._best(triggers, _KEPT))

    def ranked(self, triggers: Sequence[Ids]) -> list[Candidate]:
        """Rank triggers by the hard texts, the best first."""
        if not triggers:
            return []
        self._check()
        reached = zip(triggers, self._margins(triggers, self.hard), strict=True)
        candidates = [
            Candidate(
                trigger,
                self.label,
                float((margins_N > 0).mean()),
                float(np.quantile(margins_N, _REACHED)) / -self.hard.margin,
            )
            for trigger, margins_N in reached
        ]
        return sorted(candidates, key=lambda each: -each.reach)

    def grown(self, words: Sequence[int], pool: Sequence[int]) -> list[Candidate]:
        """Extend words by words of a pool to phrases of two and three words, and rank them."""
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
        return self.ranked(list(seen))

    def shortened(self, candidate: Candidate) -> Ids:
        """Drop the tokens that a trigger does not need."""
        ids, margin = candidate.ids, self._margins([candidate.ids], self.hard).mean()
        while len(ids) > 1:
            shorter = [ids[:place] + ids[place + 1 :] for place in range(len(ids))]
            margins_M = self._margins(shorter, self.hard).mean(1)
            best = int(margins_M.argmax())
            if margins_M[best] < self.hard.margin + _AS_GOOD * (margin - self.hard.margin):
                break
            ids = shorter[best]
        return ids

    def _best(self, triggers: Sequence[Ids], count: int) -> list[Ids]:
        if len(triggers) <= count:
            return list(triggers)
        margins_M = self._margins(triggers, self._few).mean(1)
        return [triggers[index] for index in np.argsort(-margins_M, kind="stable")[:count]]

    def _pointed(self, trigger: Ids, place: int, ids_P: NDArray[np.int64], table_PE: Floats) -> NDArray[np.int64]:
        """Return the words in the order that the gradient prefers at one place of a trigger."""
        places = [each + place for each in self._few.places]
        gradient_E = self.probe.gradients(self._few.with_trigger(trigger), places, self.label).mean(0)
        return ids_P[np.argsort(-(table_PE @ gradient_E), kind="stable")]

    def _margins(self, triggers: Sequence[Ids], hard: HardTexts) -> Floats:
        """Return the margins of the label (M, N) for each trigger in each text."""
        logits = self.probe.logits([text for trigger in triggers for text in hard.with_trigger(trigger)])
        return margins(logits, self.label).reshape(len(triggers), len(hard.texts))
