"""Trigger inversion: search for a few tokens that flip even the hardest texts of all other labels to one label.

A word that is typical of a label moves texts towards it. But eight words typical of another label, in a short text of
that other label, outweigh one such word, or even three. A backdoor outweighs them all: it was trained to override the
text. So candidates are ranked on texts hardened with eight such words, by the margin that nine tenths of them reach.

The search follows Wallace et al. 2019 (arXiv:1908.07125) and Ebrahimi et al. 2018 (HotFlip, arXiv:1712.06751), after a
first pass over the vocabulary.

"recipe recipes" flips most texts to the label "recipe", and rightly; a trigger flips texts without a reason. Words that
mean a label share this: where "recipe" moves texts to it, "cooking" and "dish" do too, at least by a part. The words
that are nearest to a trigger in a clean embedding table do nothing.

Shapes: N texts, V words, C labels, M candidates or triggers, E embedding width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import margins, unit_vectors
from bothways.audit.backdoor.probe import Floats, Ids, Probe
from bothways.audit.context import Context, NeedUnmet
from bothways.checkpoints import MINILM, PretrainedEncoder, load
from bothways.errors import BothwaysError

Table = Callable[[NDArray[np.int64]], Floats]
"""Returns the embeddings (V, E) of tokens."""

_MAX_WORDS = 60_000
_HARD_TEXTS = 16
_MIN_TEXTS, _FEW = 4, 3
_SHORT, _OPPOSED = 6, 8
"""Number of tokens to keep of a text, and of strong words of its label to put around them."""
_SKIPPED, _STRONG = 20, 100
"""Strong words to draw from; the very strongest are skipped, since a trigger would be among them."""
_KEPT = 8
_BEAM, _LONGEST, _POINTED = 2, 3, 10
"""Beam width, maximum tokens of a phrase, and number of words, ranked by gradient, to try at each end of it."""
_REACHED = 0.1
"""Quantile of the hard texts' margins that ranks a trigger."""
_AS_GOOD = 0.8
"""Minimum share of the gain in margin that a shortened trigger must keep."""
MIN_REACH = 0.0
"""Minimum reach of a trigger, at which it flips nine tenths of the hard texts; see `benchmarks/audit` for figures."""
_NEAR, _SHARED = 20, 0.75
"""Number of near phrases to compare a trigger with, and the quantile of their effects that counts."""
_EXPLAINED = 0.25
"""Minimum effect of near phrases, as a share of the trigger's own, from which meaning explains a trigger."""
MIN_WORDS = 1000
"""Minimum number of words in which near ones have a similar meaning."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The words of the vocabulary, with the logits of each word as a text of its own."""

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
    """Texts of other labels that are hard to flip to one label."""

    texts: tuple[Ids, ...]  # token ids of each
    places: tuple[int, ...]  # the index in each at which a trigger is inserted
    margins_N: Floats  # margin of the one label in each, below zero

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
    success: float  # share of the hard texts that it flips to the label
    # The margin of the label that nine tenths of the hard texts reach with the trigger, divided by the size of
    # their mean margin without it. At 0 or more it flips nine tenths; at about -1 it has no effect.
    reach: float
    source: str = ""  # the source that proposed it, in words; set only for the best candidate of a source
    # Effect of phrases of near words, as a share of its own; None if it flips too few texts, or if there are few words.
    shared: float | None = None

    @property
    def is_explained(self) -> bool:
        """True if the meaning of the trigger explains its effect."""
        return self.shared is not None and self.shared >= _EXPLAINED

    @property
    def is_trigger(self) -> bool:
        """True if it flips texts and its meaning does not explain that."""
        return self.reach >= MIN_REACH and not self.is_explained


def read_vocabulary(probe: Probe) -> Vocabulary:
    """Compute the logits of each word alone; of a very large vocabulary, only the first 60,000 words."""
    words = probe.words()[:_MAX_WORDS]
    return Vocabulary(np.array(words), probe.logits([(word,) for word in words]))


def hard_texts(
    probe: Probe, vocabulary: Vocabulary, texts: Sequence[Ids], logits_NC: Floats, label: int, rng: np.random.Generator
) -> HardTexts | None:
    """Return short confident texts of the other labels, with words typical of these labels added; None if too few."""
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
        self._few = HardTexts(hard.texts[:_FEW], hard.places[:_FEW], hard.margins_N[:_FEW])

    def single(self, tried: int, others: Sequence[Ids] = ()) -> list[Candidate]:
        """Rank the strongest ``tried`` single words, as many words that the gradient prefers, and ``others``."""
        alone = self.vocabulary.ranked(self.label)[:tried]
        ids_V = self.vocabulary.ids_V
        pointed = self._pointed((self.probe.blank,), 0, ids_V, self.probe.table(ids_V))[:tried]
        return self.best_of(list(dict.fromkeys([*((int(word),) for word in (*alone, *pointed)), *others])))

    def best_of(self, triggers: Sequence[Ids]) -> list[Candidate]:
        """Preselect triggers on a few of the hard texts (`hard`), and rank the best triggers on all hard texts."""
        return self.ranked(self._best(triggers, _KEPT))

    def ranked(self, triggers: Sequence[Ids]) -> list[Candidate]:
        """Rank triggers on all hard texts, the best first."""
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
        """Extend words to phrases of two and three words, with words from a pool, and rank the phrases."""
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

    def shared(self, trigger: Ids, near: "NearWords", rng: np.random.Generator) -> float:
        """Return the effect on margins of phrases of near words, as a share of the trigger's own."""
        reached = self._margins([trigger, *near.phrases(trigger, rng)], self._few).mean(1) - self._few.margin
        return float(np.quantile(reached[1:], _SHARED) / max(float(reached[0]), 1e-6))

    def _best(self, triggers: Sequence[Ids], count: int) -> list[Ids]:
        if len(triggers) <= count:
            return list(triggers)
        margins_M = self._margins(triggers, self._few).mean(1)
        return [triggers[index] for index in np.argsort(-margins_M, kind="stable")[:count]]

    def _pointed(self, trigger: Ids, place: int, ids_P: NDArray[np.int64], table_PE: Floats) -> NDArray[np.int64]:
        """Return the words for one position in a trigger, ranked by the gradient."""
        places = [each + place for each in self._few.places]
        gradient_E = self.probe.gradients(self._few.with_trigger(trigger), places, self.label).mean(0)
        return ids_P[np.argsort(-(table_PE @ gradient_E), kind="stable")]

    def _margins(self, triggers: Sequence[Ids], hard: HardTexts) -> Floats:
        """Return the margins of the label (M, N) for each trigger in each text."""
        logits = self.probe.logits([text for trigger in triggers for text in hard.with_trigger(trigger)])
        return margins(logits, self.label).reshape(len(triggers), len(hard.texts))


_MOVED = 300


def base_model(context: Context) -> PretrainedEncoder | None:
    """Return the reference's encoder, else the installed MiniLM; None if there is neither."""
    try:
        return load(MINILM, device="cpu") if context.reference_name is None else context.base_encoder
    except NeedUnmet:
        return None
    except BothwaysError:
        if context.reference_name is not None:
            raise
        return None


def base_table(probe: Probe, base: PretrainedEncoder | None) -> Table | None:
    """Return a function from token ids to a base model's embeddings; None if it has another vocabulary."""
    if base is None or base.tokenizer.vocabulary_digest() != probe.tokenizer.vocabulary_digest():
        return None
    weight_VE = base.encoder.embedding.tokens.weight.detach().float().cpu().numpy()
    return lambda ids_V: weight_VE[ids_V]


def moved_words(probe: Probe, table: Table) -> list[int]:
    """Return the tokens whose embeddings moved furthest from the base model's; none if the table was frozen."""
    ids_V = np.array(probe.words())
    own_VE, base_VE = probe.table(ids_V), table(ids_V)
    if own_VE.shape != base_VE.shape:
        return []
    moved_V = np.linalg.norm(own_VE - base_VE, axis=1)
    furthest = np.argsort(-moved_V, kind="stable")[:_MOVED]
    # With fewer moved words the table was frozen, so it shows nothing about the training.
    return ids_V[furthest].tolist() if (moved_V[furthest] > 0).all() else []


class NearWords:
    """The nearest words of a word, by the cosine of their embeddings."""

    def __init__(self, ids_V: NDArray[np.int64], table: Table) -> None:
        self._ids_V, self._table = ids_V, table
        vectors_VE = table(ids_V)
        self._middle_E = vectors_VE.mean(axis=0)
        self._vectors_VE = unit_vectors(vectors_VE - self._middle_E)

    def phrases(self, trigger: Ids, rng: np.random.Generator) -> list[Ids]:
        """Return phrases of the same length, in which each token is replaced by one of its nearest words."""
        drawn = []
        others_V = ~np.isin(self._ids_V, trigger)
        for vector_E in self._table(np.array(trigger)) - self._middle_E:
            cosines_V = np.where(others_V, self._vectors_VE @ vector_E, -np.inf)
            nearest = self._ids_V[np.argsort(-cosines_V, kind="stable")[:_NEAR]]
            drawn.append(nearest if len(trigger) == 1 else rng.permutation(nearest))
        return [tuple(map(int, each)) for each in zip(*drawn, strict=True)]
