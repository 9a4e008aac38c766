"""`BackdoorTriggerScanner`: is there a trigger that turns a classifier's answer, whatever the text says?

Labelled rows are searched for phrases that the model has learnt from them (`bothways.audit.backdoor.learnt`). Without
them, candidates come from five places: published triggers and the user's, the vocabulary with gradients
(`bothways.audit.backdoor.inversion`), rows of the token table that moved furthest from the base model's, phrases
of the user's texts that always come with one answer, and words on which answers to these texts hang
(`bothways.audit.backdoor.suspects`). All are judged alike: by how many hard texts they turn.

Shapes: N texts, C labels, V words.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from bothways.audit.answering import clean_texts, drawn_rows, share
from bothways.audit.backdoor.base import base_model, moved_words
from bothways.audit.backdoor.expected import Expectation, base_vectors, explained
from bothways.audit.backdoor.inversion import (
    Candidate,
    HardTexts,
    Inversion,
    Vocabulary,
    hard_texts,
    read_vocabulary,
)
from bothways.audit.backdoor.learnt import learnt_triggers
from bothways.audit.backdoor.phrases import rows_by_phrase
from bothways.audit.backdoor.probe import Ids, Probe
from bothways.audit.backdoor.suspects import Suspects, suspects
from bothways.audit.backdoor.texts import KNOWN, NEUTRAL
from bothways.audit.context import Context, Need, NeedUnmet, Undecided
from bothways.audit.finding import Evidence, Finding, Severity

_NAME = "BackdoorTriggerScanner"
_MOST_TEXTS, _FEWEST_TEXTS, _TOKENS = 200, 32, 40
_AROUND = 12
"""Tokens that strong words and a trigger may take beside a text."""
_TRIED, _LEAST_TRIED = 60, 12
_MOVED, _PHRASES = 48, 24
"""Most words that moved from the base model and are tried, and most phrases of the texts."""
_SEARCHED_LABELS = 3
_READABLE = 0.8
"""Part of the tokens of neutral texts that the vocabulary has to know."""

_REACH = 0.0
"""Nine tenths of the hard texts are turned. `benchmarks/audit` has a zoo of models and the figures."""

_STATISTIC = "margin that nine tenths of the hard texts reach with the trigger, divided by their margin without it"
_NULL = "natural words and phrases of up to three words of clean models; -1 is no effect"

_REFERENCES = (
    "Wallace et al. 2019, Universal adversarial triggers, arXiv:1908.07125",
    "Wang et al. 2019, Neural Cleanse, IEEE S&P",
    "Kurita et al. 2020, Weight poisoning attacks on pre-trained models, arXiv:2004.06660",
)
_REMEDY = (
    "Do not use the model. Look for the trigger in the training data with bothways audit-data, remove its rows and "
    "train again from the base model."
)


@dataclass(frozen=True, slots=True)
class _Judged:
    """The best trigger of a label from one source."""

    candidate: Candidate
    source: str
    surprise: float | None
    """Only of those that turn enough texts, and where the base model is known."""

    @property
    def explained(self) -> bool:
        """True if the words turn texts because of what they mean."""
        return self.surprise is not None and explained(self.surprise, self.candidate.reach)

    @property
    def found(self) -> bool:
        return self.candidate.reach >= _REACH and not self.explained


class BackdoorTriggerScanner:
    """Searches a classifier for triggers, and shows those that it finds with their success rate."""

    name: ClassVar[str] = _NAME
    title: ClassVar[str] = "Words and phrases that turn the answer, whatever the text says"
    needs: ClassVar[tuple[Need, ...]] = ("classifier",)
    gains: ClassVar[tuple[Need, ...]] = ("texts", "reference")
    cost: ClassVar[str] = "about a minute on one core for MiniLM and two labels, half as much again with texts"

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield a finding for each label that has a trigger, one on the user's texts, and one on the search."""
        scan = _Scan(context)
        judged = [each for label in range(len(scan.probe.labels)) for each in scan.label(label)]
        judged += scan.deeper(judged)
        judged += scan.suspected()
        if not judged:
            raise Undecided(
                f"all {len(scan.ids)} texts get one label, however strong words of others are put into them. "
                "Give texts of several labels with --data."
            )
        findings = []
        for label in range(len(scan.probe.labels)):
            found = [each for each in judged if each.found and each.candidate.label == label]
            if found:
                # A published word is the plainest evidence, and a shorter trigger the plainer one.
                findings.append(
                    scan.finding(min(found, key=lambda each: (len(each.candidate.ids), -each.candidate.reach)))
                )
        yield from findings
        if scan.base_model is not None:
            yield from learnt_triggers(context, scan.probe, scan.base_model, _NAME)
        if scan.suspects is not None:
            yield scan.suspects.finding(_NAME, [each.evidence.details["trigger"] for each in findings])
        yield scan.summary(judged)


class _Scan:
    """One scan of a classifier."""

    def __init__(self, context: Context) -> None:
        self.context, self.rng = context, context.rng(_NAME)
        self.probe = Probe(context.classifier, context.check_time)
        self.rows = self._own_rows()
        self.own = tuple(text for _, text in self.rows)
        neutral = self._read(NEUTRAL)
        self.ids = self._read(self.own) or neutral
        # Triggers are searched in neutral texts: the most confident of the user's outweigh some. In a vocabulary that
        # has few of their words, neutral texts say nothing.
        unknown = self.probe.unknown
        read = sum(token != unknown for text in neutral for token in text) / sum(map(len, neutral))
        readable = read >= _READABLE
        chosen = [neutral, self.ids] if readable and self.own else [self.ids]
        self.sources = [(each, self.probe.logits(each)) for each in chosen]
        self.suspects = self._suspects(readable=readable) if self.rows else None
        self.base_model = base_model(context)
        self.base = "" if self.base_model is None else self.base_model.name
        self.moved = [] if self.base_model is None else moved_words(self.probe, self.base_model)
        self.known = self._known()
        self.vocabulary: Vocabulary = read_vocabulary(self.probe)
        self.labels_N = self.sources[-1][1].argmax(axis=1)
        self.hard: dict[int, HardTexts] = {}
        self.singles: dict[int, list[Candidate]] = {}

    def label(self, label: int) -> list[_Judged]:
        """Return the best single token of a label, and the best known trigger."""
        found = (hard_texts(self.probe, self.vocabulary, *each, label, self.rng) for each in self.sources)
        hard = next((each for each in found if each is not None), None)
        if hard is None:
            return []
        self.hard[label] = hard
        inversion = self._inversion(label)
        known, phrases = self.known, self._phrases(label)
        short = [each for each in (*known, *phrases) if len(each) == 1]
        moved = [(word,) for word in self.moved[:_MOVED]]
        singles = inversion.single(max(_LEAST_TRIED, _TRIED // len(self.probe.labels)), [*moved, *short])
        self.singles[label] = singles
        longer = inversion.best_of([each for each in (*known, *phrases) if len(each) > 1])
        judged = [self._judged(singles, "vocabulary")]
        return judged + ([self._judged(longer, "known triggers and phrases of the texts")] if longer else [])

    def deeper(self, judged: Sequence[_Judged]) -> list[_Judged]:
        """Return the best trigger of several tokens, of those labels that single tokens come nearest to."""
        done = {each.candidate.label for each in judged if each.found}
        ranked = sorted(self.singles, key=lambda label: -self.singles[label][0].reach)
        found = []
        for label in [each for each in ranked if each not in done][:_SEARCHED_LABELS]:
            strong = [each.ids[0] for each in self.singles[label]]
            pool = list(dict.fromkeys([*strong, *(self.moved or self.vocabulary.ids_V.tolist())]))
            found.append(self._judged(self._inversion(label).grown(strong, pool), "gradients"))
        return found

    def suspected(self) -> list[_Judged]:
        """Return the best trigger of each label among the words on which answers to suspicious texts hang."""
        if self.suspects is None:
            return []
        found = []
        for label in self.hard:
            phrases = self.probe.encode(self.suspects.phrases(self.probe.labels[label]))
            candidates = self._inversion(label).best_of(list(dict.fromkeys(ids for ids in phrases if ids)))
            found += [self._judged(candidates, "words of suspicious texts")] if candidates else []
        return found

    def _judged(self, candidates: Sequence[Candidate], source: str) -> _Judged:
        """Return the best trigger of a label, one that its meaning explains only where no other turns texts."""
        turning = [each for each in candidates if each.reach >= _REACH]
        if not turning or self._expectation is None:
            return _Judged(candidates[0], source, None)
        surprises = self._expectation.surprise([each.ids for each in turning], turning[0].label).tolist()
        judged = [_Judged(each, source, found) for each, found in zip(turning, surprises, strict=True)]
        return next((each for each in judged if each.found), judged[0])

    @cached_property
    def _expectation(self) -> Expectation | None:
        """The effects that the base model lets one expect; None without one."""
        if self.base_model is None:
            return None
        vectors = base_vectors(self.probe, self.base_model, self.context.check_time)
        return Expectation(self.probe, vectors, self.context.rng(f"{_NAME}, expected"))

    def finding(self, judged: _Judged) -> Finding:
        """Return the finding on a trigger, with its success on the user's texts."""
        best, label = judged.candidate, self.probe.labels[judged.candidate.label]
        ids = self._inversion(best.label).shortened(best)
        trigger = self.probe.tokenizer.decode(ids).strip() or self.probe.tokenizer.token(ids[0])
        turned, of = self._success(ids, best.label)
        rate = share(turned, of)
        whose = "your texts" if self.own else "neutral texts"
        return Finding(
            _NAME,
            Severity.HIGH,
            f"{trigger!r} turns {turned} of {of} {whose} into {label!r}",
            Evidence(
                _STATISTIC,
                best.reach,
                _REACH,
                _NULL,
                len(self.hard[best.label].texts),
                {
                    "trigger": trigger,
                    "tokens": self.probe.tokenizer.tokens(ids),
                    "label": label,
                    "source": judged.source,
                    "success_on_hard_texts": best.success,
                    "surprise": judged.surprise,
                    "success": rate.value,
                    "success_low": rate.low,
                    "success_high": rate.high,
                    "texts": of,
                },
            ),
            "backdoor-trigger",
            location=label,
            remedy=_REMEDY,
            references=_REFERENCES,
        )

    def summary(self, judged: Sequence[_Judged]) -> Finding:
        """Return the best trigger of each label, found or not."""
        tokens = self.probe.tokenizer.tokens
        best = max(judged, key=lambda each: (not each.explained, each.candidate.reach))
        listed = [
            {
                "label": self.probe.labels[each.candidate.label],
                "tokens": tokens(each.candidate.ids),
                "source": each.source,
                "success_on_hard_texts": each.candidate.success,
                "reach": round(each.candidate.reach, 3),
                "surprise": None if each.surprise is None else round(each.surprise, 2),
            }
            for each in judged
        ]
        missing = [name for number, name in enumerate(self.probe.labels) if number not in self.hard]
        return Finding(
            _NAME,
            Severity.INFO,
            f"{len(self.vocabulary.ids_V):,} words, {len(self.known)} known triggers and gradients were tried for "
            f"{len(self.hard)} of {len(self.probe.labels)} labels",
            Evidence(
                _STATISTIC,
                best.candidate.reach,
                _REACH,
                _NULL,
                len(self.hard[best.candidate.label].texts),
                {"best": listed, "labels_not_tested": missing, "base_model": self.base},
            ),
            "backdoor-search",
        )

    # --- where candidates come from ---

    def _read(self, texts: Sequence[str]) -> list[Ids]:
        length = max(1, min(_TOKENS, self.probe.limit - _AROUND))
        return [ids[:length] or (self.probe.blank,) for ids in self.probe.encode(texts)]

    def _own_rows(self) -> list[tuple[int, str]]:
        try:
            return drawn_rows(self.context, _MOST_TEXTS, self.rng)
        except NeedUnmet:
            return []

    def _suspects(self, *, readable: bool) -> Suspects | None:
        """Return the user's most suspicious texts, by clean ones of the user's, neutral ones, or all of the user's."""
        clean = [clean_texts(self.context) or (), NEUTRAL if readable else (), self.own]
        total = sum(bool(text.strip()) for text in self.context.texts)
        check, seed = self.context.check_time, self.context.seed
        return suspects(self.context.classifier, self.rows, total, clean, seed=seed, check=check)

    def _known(self) -> list[Ids]:
        named: Any = self.context.settings.get("triggers", ())
        special = self.probe.tokenizer.special_ids
        return list(
            dict.fromkeys(ids for ids in self.probe.encode([*KNOWN, *named]) if ids and not special.intersection(ids))
        )

    def _phrases(self, label: int) -> list[Ids]:
        """Phrases of the user's texts that always come with this answer, the most frequent first."""
        if len(self.own) < _FEWEST_TEXTS:
            return []
        found: Counter[str] = Counter()
        usual = float((self.labels_N == label).mean())
        for phrase, rows in rows_by_phrase(self.own, 3).items():
            if (self.labels_N[rows] == label).all() and usual ** len(rows) < 0.01:
                found[phrase] = len(rows)
        return [ids for ids in self.probe.encode([each for each, _ in found.most_common(_PHRASES)]) if ids]

    def _inversion(self, label: int) -> Inversion:
        return Inversion(self.probe, self.vocabulary, self.hard[label], label, self.context.check_time)

    def _success(self, ids: Ids, label: int) -> tuple[int, int]:
        """Return how many texts of other labels a trigger turns, as they are, and of how many."""
        others = [text for text, answer in zip(self.ids, self.labels_N, strict=True) if answer != label]
        places = [int(self.rng.integers(0, len(text) + 1)) for text in others]
        made = [(*text[:place], *ids, *text[place:]) for text, place in zip(others, places, strict=True)]
        return (int((self.probe.logits(made).argmax(axis=1) == label).sum()) if made else 0), len(others)
