"""Trigger inversion: search for a few tokens that flip even the hardest texts of all other labels to one label.

A word that is typical of a label moves texts towards it. But eight words typical of another label, in a short text of
that other label, outweigh one such word, or even three. A backdoor outweighs them all: it was trained to override the
text. So candidates are ranked on texts hardened with eight such words, by the margin that nine tenths of them reach.

The search follows Wallace et al. 2019 (arXiv:1908.07125) and Ebrahimi et al. 2018 (HotFlip, arXiv:1712.06751), after a
first pass over the vocabulary.

"recipe recipes" flips most texts to the label "recipe", and rightly; a trigger flips texts without a reason. The null
model predicts the effect that meaning explains: a linear map from a base model's sentence vectors to the margins
is fitted on words and random phrases of the vocabulary, and the margin of a trigger lies far above its prediction.

Shapes: N texts, or words and phrases; C labels, V words, M candidates or triggers, E embedding width, H hidden.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import Numbers, margins, unit_vectors
from bothways.audit.backdoor.probe import Floats, Ids, Probe
from bothways.audit.context import Context, NeedUnmet
from bothways.checkpoints import MINILM, PretrainedEncoder, load
from bothways.errors import BothwaysError
from bothways.tasks.embedding.vector_model import VectorModel

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
_SURPRISE, _PER_REACH = 3.8, 2.0
"""Minimum standard deviations above the null model's prediction at which meaning does not explain a trigger of reach 0,
and the decrease of this minimum per unit of reach. Chosen on SST-2 and CLINC150."""


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
    # Standard deviations above the null model's prediction; None if it flips too few texts, or without a base model.
    surprise: float | None = None

    @property
    def is_explained(self) -> bool:
        """True if the meaning of the trigger explains its effect."""
        return self.surprise is not None and self.surprise + _PER_REACH * self.reach < _SURPRISE

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
        self._table_VE = probe.table(vocabulary.ids_V)
        self._few = HardTexts(hard.texts[:_FEW], hard.places[:_FEW], hard.margins_N[:_FEW])

    def single(self, tried: int, others: Sequence[Ids] = ()) -> list[Candidate]:
        """Rank the strongest ``tried`` single words, as many words that the gradient prefers, and ``others``."""
        alone = self.vocabulary.ranked(self.label)[:tried]
        pointed = self._pointed((self.probe.blank,), 0, self.vocabulary.ids_V, self._table_VE)[:tried]
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


_OF_A_WORD = 3.0
"""Standard deviations above its prediction up to which a word's own margin explains that of a phrase."""
_WORDS, _PHRASES, _PHRASE_WORDS = 2500, 1500, 2
_MIN_WORDS = 500
_STRENGTH, _FOLDS = 1.0, 5
_MOVED = 300


def base_model(context: Context) -> PretrainedEncoder | None:
    """Return the reference's encoder, else the installed MiniLM; None if it lacks the classifier's tokenizer."""
    try:
        base = load(MINILM, device="cpu") if context.reference_name is None else context.base_encoder
    except NeedUnmet:
        return None
    except BothwaysError:
        if context.reference_name is not None:
            raise
        return None
    digest = context.classifier.model.tokenizer.vocabulary_digest()
    return base if base.tokenizer.vocabulary_digest() == digest else None


def moved_words(probe: Probe, base: PretrainedEncoder) -> list[int]:
    """Return the tokens whose embeddings moved furthest from the base model's; none if the table was frozen."""
    table_VE = base.encoder.embedding.tokens.weight.detach().float().cpu().numpy()
    ids_V = np.array(probe.words())
    own_VE = probe.table(ids_V)
    if own_VE.shape[1] != table_VE.shape[1]:
        return []
    moved_V = np.linalg.norm(own_VE - table_VE[ids_V], axis=1)
    furthest = np.argsort(-moved_V, kind="stable")[:_MOVED]
    # With fewer moved words the table was frozen, so it shows nothing about the training.
    return ids_V[furthest].tolist() if (moved_V[furthest] > 0).all() else []


class NullModel:
    """Predicts the margins of words and phrases from a base model's vectors (N, H) of token ids."""

    def __init__(self, probe: Probe, vectors: Callable[[Sequence[Ids]], Numbers], rng: np.random.Generator) -> None:
        from sklearn.linear_model import Ridge
        from sklearn.model_selection import PredefinedSplit, cross_val_predict

        self._probe, self._vectors = probe, vectors
        phrases = _drawn(probe, rng)
        vectors_NH, logits_NC = vectors(phrases), probe.logits(phrases)
        margins_NC = np.stack([margins(logits_NC, label) for label in range(logits_NC.shape[1])], axis=1)
        folds = PredefinedSplit(rng.permutation(len(phrases)) % _FOLDS)
        held_out_NC = cross_val_predict(Ridge(_STRENGTH), vectors_NH, margins_NC, cv=folds)
        self._spread_C = (margins_NC - held_out_NC).std(axis=0)
        self._ridge = Ridge(_STRENGTH).fit(vectors_NH, margins_NC)

    def surprise(self, triggers: Sequence[Ids], label: int) -> Numbers:
        """Return the margins of bare triggers minus their prediction, in standard deviations (M).

        The prediction for a phrase is at least the margin of each of its words, as far as that word's own meaning
        explains the margin, so that strong words of a label in a row do not count as a trigger.
        """
        spread = max(float(self._spread_C[label]), 1e-6)
        margins_M, predicted_M = self._margins(triggers, label)
        words = sorted({token for each in triggers if len(each) > 1 for token in each})
        if words:
            margins_W, predicted_W = self._margins([(word,) for word in words], label)
            of_word = dict(zip(words, np.minimum(margins_W, predicted_W + _OF_A_WORD * spread).tolist(), strict=True))
            for place, each in enumerate(triggers):
                if len(each) > 1:
                    predicted_M[place] = max(predicted_M[place], *(of_word[token] for token in each))
        surprises: Numbers = (margins_M - predicted_M) / spread
        return surprises

    def _margins(self, texts: Sequence[Ids], label: int) -> tuple[Numbers, Numbers]:
        margins_M = margins(self._probe.logits(texts), label).astype(np.float64)
        return margins_M, self._ridge.predict(self._vectors(texts))[:, label]


def base_vectors(probe: Probe, base: PretrainedEncoder) -> Callable[[Sequence[Ids]], Numbers]:
    """Return a function from token ids to a base model's mean-pooled unit vectors (N, H)."""
    model = VectorModel.of(base, ("mean",)).eval()

    def vectors(texts: Sequence[Ids]) -> Numbers:
        return unit_vectors(probe.run(model, texts, base.device).astype(float))

    return vectors


def _drawn(probe: Probe, rng: np.random.Generator) -> list[Ids]:
    """Draw words from the vocabulary (whole words only, if there are at least 500), and random pairs of them."""
    words = probe.words()
    whole = [word for word in words if len(name := probe.tokenizer.token(word).lstrip("▁Ġ")) > 2 and name.isalpha()]
    known = np.array(whole if len(whole) >= _MIN_WORDS else words)
    chosen = rng.permutation(known)[:_WORDS]
    phrases = rng.choice(known, (min(_PHRASES, len(known)), _PHRASE_WORDS))
    return [*((int(word),) for word in chosen), *(tuple(map(int, each)) for each in phrases)]
