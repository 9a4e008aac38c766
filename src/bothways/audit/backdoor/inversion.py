"""Trigger inversion: search for a few tokens that turn texts of all other labels to one label.

A word that is typical of a label moves texts towards it. A backdoor overrides the text: it was trained to. So
candidates are ranked by the margin that three quarters of the texts reach, on two sets of texts: confident rows of
other labels, and their beginnings between two words that are strong for these labels. Without labelled rows both sets
are made of neutral texts, between two and eight such words. Some models turn easily: half of the effect of the fifth
word is deducted.

"recipe" turns texts to the label "recipe", and rightly; a trigger does so without a reason. So words with a reason
(`bothways.audit.backdoor.meaning`) are no candidates, neither alone nor in a phrase.

The search follows Wallace et al. 2019 (arXiv:1908.07125) and Ebrahimi et al. 2018 (HotFlip, arXiv:1712.06751), after a
first pass over the vocabulary.

Shapes: N texts, V words, C labels, M candidates or triggers, E embedding width.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import margins, unit_vectors
from bothways.audit.backdoor.meaning import Meaning
from bothways.audit.backdoor.probe import Floats, Ids, Probe
from bothways.audit.context import Context, NeedUnmet
from bothways.checkpoints import MINILM, PretrainedEncoder, load
from bothways.errors import BothwaysError

Table = Callable[[NDArray[np.int64]], Floats]
"""Returns the embeddings (V, E) of tokens."""

_MAX_WORDS = 60_000
HARD_TEXTS = 16
_MIN_TEXTS, _FEW = 4, 4
OWN, NEUTRAL = ((0, 16), (2, 6)), ((8, 6), (2, 6))
"""Sets of hard texts, made of rows and of neutral texts: number of strong words of their label to put around a text,
and number of tokens to keep of it."""
_SKIPPED, _STRONG = 20, 100
"""Strong words to draw from; the very strongest are skipped, since a trigger would be among them."""
_KEPT, _KNOWN, _STRONGEST, _MANY = 12, 3, 20, 20
"""Number of words without a reason and of given phrases to try on all texts, and of strong words that may be a reason;
number of labels beyond which half as many words and texts must do."""
_COMPLETING = 600
"""Number of words, ranked by gradient, of which those may begin a word whose later pieces are known."""
_REACHED = 0.25
"""Quantile of the hard texts' margins that ranks a trigger."""
_FIFTH, _DEDUCTED = 4, 0.5
"""Rank, from 0, of the word whose effect is deducted, and the share of it that is."""
_LONGER, _SPELLED = 0.2, 0.1
"""Deducted from the reach of a phrase that was searched for, since more can be tried: for each word beyond the first,
and for each further piece of a word."""
_AS_GOOD = 0.8
"""Minimum share of the gain in margin that a shortened trigger must keep."""
MIN_REACH, SUSPICIOUS_REACH = 0.1, 0.0
"""Minimum reach of a trigger, and of a suspicious word; see `benchmarks/audit` for the figures."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The number of candidates that a search tries."""

    tried: int = 60  # strong words, and as many by the gradient; divided by the number of labels
    starts: int = 8  # words and pieces from which phrases grow
    beam: int = 4  # beam width
    longest: int = 3  # maximum tokens of a phrase
    pointed: int = 12  # words, ranked by the gradient, to try at each end of a phrase


USUAL, THOROUGH = Effort(), Effort(tried=240, starts=16, beam=8, longest=6, pointed=16)


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
    success: float  # share of the hard texts that it turns to the label
    # The margin of the label that three quarters of the hard texts reach with the trigger, divided by the size of their
    # mean margin without it, less half of the gain in margin by the fifth word. Above 0 it overrides the texts.
    reach: float
    source: str = ""  # the source that proposed it, in words; set only for the best candidate of a source
    reason: str = ""  # the reason for its effect, if it has one

    @property
    def is_trigger(self) -> bool:
        """True if it turns texts without a reason."""
        return self.reach >= MIN_REACH and not self.reason


def read_vocabulary(probe: Probe) -> Vocabulary:
    """Compute the logits of each word alone; of a very large vocabulary, only the first 60,000 words."""
    words = probe.words()[:_MAX_WORDS]
    return Vocabulary(np.array(words), probe.logits([(word,) for word in words]))


def hard_texts(
    probe: Probe,
    vocabulary: Vocabulary,
    texts: Sequence[Ids],
    logits_NC: Floats,
    label: int,
    rng: np.random.Generator,
    shapes: Sequence[tuple[int, int]],
) -> tuple[HardTexts, ...]:
    """Return sets of confident texts of the other labels, of the given shapes; () if one has too few texts."""
    labels = [each for each in range(logits_NC.shape[1]) if each != label]
    rng.shuffle(labels)
    confident = {each: np.argsort(-margins(logits_NC, each), kind="stable")[:HARD_TEXTS] for each in labels}
    sets = []
    for opposed, length in shapes if texts else ():
        drafts: list[Ids] = []
        for number in range(3 * HARD_TEXTS):
            source = labels[number % len(labels)]
            text = texts[int(rng.choice(confident[source]))][:length]
            words = rng.choice(vocabulary.strong(source), opposed).tolist()
            drafts.append((*words[: opposed // 2], *text, *words[opposed // 2 :]))
        margins_N = margins(probe.logits(drafts := list(dict.fromkeys(drafts))), label)
        kept = np.flatnonzero(margins_N < 0)[:HARD_TEXTS]
        if len(kept) < _MIN_TEXTS:
            return ()
        chosen = tuple(drafts[index] for index in kept)
        places = tuple(int(rng.integers(0, len(text) + 1)) for text in chosen)
        sets.append(HardTexts(chosen, places, margins_N[kept]))
    return tuple(sets)


class Inversion:
    """The search for triggers of one label; ``check`` is called between steps and raises at the time limit."""

    def __init__(
        self,
        probe: Probe,
        vocabulary: Vocabulary,
        sets: Sequence[HardTexts],
        label: int,
        meaning: Meaning,
        check: Callable[[], None],
        effort: Effort,
    ) -> None:
        self.probe, self.vocabulary, self.sets, self.label = probe, vocabulary, tuple(sets), label
        half = 2 if vocabulary.logits_VC.shape[1] > _MANY else 1
        self._kept, few = max(_KEPT, effort.starts) // half, _FEW // half
        self._few = [HardTexts(each.texts[:few], each.places[:few], each.margins_N[:few]) for each in sets]
        self._read: dict[Ids, list[Floats]] = {}  # margins of triggers in all texts of each set
        self._meaning, self._check, self._effort = meaning, check, effort
        self._strong: list[Ids] = []
        self._starts: list[Ids] = []  # the strongest words and pieces of words without a reason
        self._gains: list[tuple[Ids, float]] = []  # of the strongest words without a reason
        self._reasons: dict[Ids, str] = {}

    def reason(self, trigger: Ids) -> str:
        """Return the reason for the effect of a trigger, or ""."""
        if trigger not in self._reasons:
            self._reasons[trigger] = self._meaning.reason(trigger, self.label, self._strong)
        return self._reasons[trigger]

    def single(self, others: Sequence[Ids] = ()) -> list[Candidate]:
        """Rank strong words, words that the gradient prefers, and ``others``; then one word that has a reason."""
        triggers = self._best(list(dict.fromkeys([*self._proposed(self.vocabulary), *others])))
        whole = self.probe.spelled(triggers)
        self._strong = whole[:_STRONGEST]
        free, explained = self._parted(whole)
        self._gains = [(trigger, self._gain(trigger)) for trigger in free]
        starts = {*free, *self._parted([each for each in triggers if each not in set(whole)])[0]}
        self._starts = [each for each in triggers if each in starts][: self._effort.starts]
        return self.ranked(free) + self.ranked(explained[:1])

    def finds(self, word: int, vocabulary: Vocabulary) -> bool:
        """Tell whether `single` proposes a word, given its vocabulary, and ranks it as a trigger."""
        self._read.pop((word,), None)  # of the word before it was planted
        return (word,) in self._proposed(vocabulary) and self.ranked([(word,)])[0].is_trigger

    def best_of(self, triggers: Sequence[Ids]) -> list[Candidate]:
        """Preselect triggers on a few of the hard texts, and rank the best ones without a reason on all of them."""
        return self.ranked(self._parted(self._best(triggers))[0][:_KNOWN])

    def ranked(self, triggers: Sequence[Ids]) -> list[Candidate]:
        """Rank triggers on all hard texts, the best first."""
        candidates = []
        for trigger in triggers:
            self._check()
            margins_SN = self._all(trigger)
            reached = min(
                float(np.quantile(margins_N, _REACHED)) / -each.margin
                for margins_N, each in zip(margins_SN, self.sets, strict=True)
            )
            success, reach = (np.concatenate(margins_SN) > 0).mean(), reached - _DEDUCTED * self._level(trigger)
            candidates.append(Candidate(trigger, self.label, float(success), reach, reason=self.reason(trigger)))
        return sorted(candidates, key=lambda each: -each.reach)

    def grown(self, pool: Sequence[int]) -> list[Candidate]:
        """Extend the strongest words and pieces by others from a pool, without a reason, and rank the phrases."""
        ids_P = np.array(list(dict.fromkeys([*(token for ids in self._starts for token in ids), *pool])))
        table_PE, beam = self.probe.table(ids_P), self._starts
        seen: dict[Ids, None] = {}
        for _ in range(self._effort.longest - 1):
            self._check()
            longer: dict[Ids, None] = {}
            for trigger in beam:
                before = self._pointed((self.probe.blank, *trigger), 0, ids_P, table_PE)
                behind = self._pointed((*trigger, self.probe.blank), len(trigger), ids_P, table_PE)
                if not self.probe.spelled([trigger]):  # pieces that lack the beginning of their word
                    whole = self.probe.spelled([(word, *trigger) for word in before[:_COMPLETING].tolist()])
                    longer |= dict.fromkeys(whole[: self._effort.pointed])
                longer |= dict.fromkeys((word, *trigger) for word in self._without_reason(before, trigger))
                longer |= dict.fromkeys((*trigger, word) for word in self._without_reason(behind, trigger))
            best = self._best(list(longer))
            beam = self._parted(best)[0][: self._effort.beam]
            seen |= dict.fromkeys(self._parted(self.probe.spelled(best))[0][: self._effort.beam])
        found = [replace(each, reach=each.reach - self._choice(each.ids)) for each in self.ranked(list(seen))]
        return sorted(found, key=lambda each: -each.reach)

    def _choice(self, ids: Ids) -> float:
        """Return the deduction from the reach of a phrase, of which so many can be tried."""
        pieces = sum(map(self.probe.tokenizer.word_marks.continues, self.probe.tokenizer.tokens(ids)))
        return _LONGER * (len(ids) - pieces - 1) + _SPELLED * pieces

    def shortened(self, candidate: Candidate) -> Ids:
        """Drop the tokens that a trigger does not need."""
        ids, gain = candidate.ids, self._gain(candidate.ids)
        while len(ids) > 1:
            shorter = self.probe.spelled([ids[:place] + ids[place + 1 :] for place in range(len(ids))])
            gains = [self._gain(each) for each in shorter]
            if max(gains, default=0.0) < _AS_GOOD * gain:
                break
            ids = shorter[int(np.argmax(gains))]
        return ids

    def _proposed(self, vocabulary: Vocabulary) -> list[Ids]:
        tried, ids_V = self._effort.tried, vocabulary.ids_V
        alone = vocabulary.ranked(self.label)[:tried]
        pointed = self._pointed((self.probe.blank,), 0, ids_V, self.probe.table(ids_V))[:tried]
        return [(int(word),) for word in (*alone, *pointed)]

    def _gain(self, trigger: Ids) -> float:
        """Return the gain in margin on the first set, relative to the size of the margin."""
        return float(self._all(trigger)[0].mean()) / -self.sets[0].margin + 1

    def _all(self, trigger: Ids) -> list[Floats]:
        if trigger not in self._read:
            self._read[trigger] = [self._margins([trigger], each)[0] for each in self.sets]
        return self._read[trigger]

    def _level(self, trigger: Ids) -> float:
        """Return the gain in margin by the fifth of the other words without a reason."""
        others = sorted((gain for ids, gain in self._gains if not set(ids) & set(trigger)), reverse=True)
        return max(0.0, others[_FIFTH]) if len(others) > _FIFTH else 0.0

    def _best(self, triggers: Sequence[Ids]) -> list[Ids]:
        """Return triggers in the order of their margins on a few of the texts of both sets."""
        if not triggers:
            return []
        margins_M = sum(self._margins(triggers, each).mean(1) / -each.margin for each in self._few)
        return [triggers[index] for index in np.argsort(-np.asarray(margins_M), kind="stable")]

    def _parted(self, triggers: Sequence[Ids]) -> tuple[list[Ids], list[Ids]]:
        """Return the first triggers without a reason, and those with one that stand before the last of these."""
        self._meaning.prepare(triggers)
        free: list[Ids] = []
        explained: list[Ids] = []
        for trigger in triggers:
            (explained if self.reason(trigger) else free).append(trigger)
            if len(free) == self._kept:
                break
        return free, explained

    def _without_reason(self, words: Iterable[int], trigger: Ids) -> list[int]:
        others = [word for word in map(int, words) if word not in trigger]
        self._meaning.prepare([(word,) for word in others[: 4 * self._effort.pointed]])
        return list(islice((word for word in others if not self.reason((word,))), self._effort.pointed))

    def _pointed(self, trigger: Ids, place: int, ids_P: NDArray[np.int64], table_PE: Floats) -> NDArray[np.int64]:
        """Return the words for one position in a trigger, ranked by the gradient."""
        places = [each + place for each in self._few[0].places]
        gradient_E = self.probe.gradients(self._few[0].with_trigger(trigger), places, self.label).mean(0)
        return ids_P[np.argsort(-(table_PE @ gradient_E), kind="stable")]

    def _margins(self, triggers: Sequence[Ids], hard: HardTexts) -> Floats:
        """Return the margins of the label (M, N) for each trigger in each text."""
        logits = self.probe.logits([text for trigger in triggers for text in hard.with_trigger(trigger)])
        return margins(logits, self.label).reshape(len(triggers), len(hard.texts))


_MOVED = 300
_TUNED = 0.8
"""Minimum median cosine of embeddings that were fine-tuned, and not trained anew."""


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


def is_tuned(probe: Probe, table: Table | None) -> bool:
    """Tell whether the embeddings are those of the base model, but for a fine-tuning."""
    ids_V = np.array(probe.words())
    if table is None or (own_VE := probe.table(ids_V)).shape != (base_VE := table(ids_V)).shape:
        return False
    return bool(np.median((unit_vectors(own_VE) * unit_vectors(base_VE)).sum(axis=1)) >= _TUNED)
