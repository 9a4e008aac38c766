"""`BackdoorTriggerScanner`: search for triggers that override the text and determine a classifier's prediction.

Candidates come from four sources: published triggers and the user's, the vocabulary with gradients
(`bothways.audit.backdoor.inversion`), token embeddings that moved furthest from the base model's, and words on which
the predictions for the user's texts depend (`bothways.audit.backdoor.candidates`). All are ranked alike, by their
effect on texts of other labels; one with a reason for its effect is no trigger (`bothways.audit.backdoor.meaning`).
Labelled rows are also searched for phrases that the model has learnt from them.

Shapes: N texts, C labels, V words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import ClassVar

from bothways.audit.answers import clean_texts, drawn_rows, sentence_vectors, share, shown
from bothways.audit.backdoor.candidates import Suspects
from bothways.audit.backdoor.inversion import (
    HARD_TEXTS,
    MIN_REACH,
    NEUTRAL,
    OWN,
    SUSPICIOUS_REACH,
    THOROUGH,
    USUAL,
    Candidate,
    Inversion,
    Vocabulary,
    base_model,
    base_table,
    hard_texts,
    is_tuned,
    moved_words,
    read_vocabulary,
)
from bothways.audit.backdoor.meaning import Meaning
from bothways.audit.backdoor.planting import planted, rare_words, read_again
from bothways.audit.backdoor.probe import Ids, Probe, inserted
from bothways.audit.backdoor.rows import RowEvidence
from bothways.audit.backdoor.rules import LEARNT, NAME, RULES, SIGNIFICANT
from bothways.audit.context import Context, Need, NeedUnmet, Undecided
from bothways.audit.finding import FAILING, Checked, Evidence, Finding, Severity
from bothways.audit.texts import KNOWN_TRIGGERS, VARIED

_MAX_TEXTS, _TOKENS = 200, 40
_AROUND = 12
"""Tokens reserved for strong words and a trigger around a text."""
_MIN_TRIED = 12
_MOVED, _MIN_MOVED = 48, 12
"""Maximum candidates among words that moved from the base model, divided by the number of labels, and minimum."""
_SEARCHED_LABELS = 5
_READABLE = 0.8
"""Minimum share of the tokens of neutral texts that the vocabulary knows."""
_LISTED = 10

_STATISTIC = "margin that 75 % of hard texts reach with the trigger, relative to the size of their margin without it"
_NULL = "half of the effect of the fifth word without a reason is deducted; -1 means no effect"

_UNTOLD = "phrases, styles and templates are found in labelled rows alone, and their power was not measured"
_PLANTED = 5
"""Number of words to plant into the embeddings, to see how many the search finds."""


class BackdoorTriggerScanner:
    """Search a classifier for triggers, and report them with their success rate."""

    name: ClassVar[str] = NAME
    needs: ClassVar[tuple[Need, ...]] = ("classifier",)
    rule: ClassVar[str] = (
        "fails if a word or phrase turns three quarters of confident texts of other labels for no reason that the rows "
        f"or similar words give, or if the model gives at least {LEARNT:.0%} of the rows with a suspect phrase "
        f"(p < {SIGNIFICANT:g}) their label only because of it"
    )

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield a finding for each label with a trigger, one on the user's texts, and one on the search."""
        scan = _Scan(context)
        ranked = [each for label in range(len(scan.probe.labels)) for each in scan.label(label)]
        ranked += scan.deeper(ranked)
        ranked += scan.of_suspects()
        if not ranked:
            raise Undecided(
                f"all {len(scan.ids)} texts get the same label, even with strong words for other labels inserted. "
                "Give texts of several labels with --data."
            )
        triggers, doubtful = [], False
        for label in range(len(scan.probe.labels)):
            finding = scan.strongest([each for each in ranked if each.label == label])
            if finding is not None:
                triggers += [str(finding.evidence.details["trigger"])] if finding.severity >= FAILING else []
                doubtful |= finding.rule == "backdoor-candidate" and finding.severity is Severity.INFO
                yield finding
        words, of = f"{len(scan.vocabulary.ids_V):,} words as triggers", f"{len(scan.probe.labels)} labels"
        untold = _UNTOLD if triggers else f"{scan.power()}; {_UNTOLD}"
        context.run.checks.append(Checked(f"{words} for {len(scan.inversions)} of {of}", len(scan.ids), untold=untold))
        if scan.meaning.rows is not None:
            yield from scan.meaning.rows.learnt(scan.probe)
        if scan.suspects is not None:
            yield scan.inputs(scan.suspects, triggers)
        yield scan.summary(ranked)
        if doubtful and not triggers:
            raise Undecided(
                "words override texts, and nothing tells whether they are triggers or mean their label. Give labelled "
                "rows that the model was not trained on with --data, or the encoder that it was fine-tuned from with "
                "--reference."
            )


class _Scan:
    def __init__(self, context: Context) -> None:
        self.context, self.rng = context, context.rng(NAME)
        self.probe = Probe(context.classifier, context.check_time)
        effort = THOROUGH if context.settings.get("thorough") else USUAL
        self.effort = replace(effort, tried=max(_MIN_TRIED, effort.tried // len(self.probe.labels)))
        try:
            self.rows = drawn_rows(context, _MAX_TEXTS, self.rng)
        except NeedUnmet:
            self.rows = []
        own, neutral = [text for _, text in self.rows], self._read(VARIED)
        self.ids = self._read(own) or neutral
        # Neutral texts are useless if the vocabulary has few of their words.
        unknown = sum(text.count(self.probe.unknown) for text in neutral) / sum(map(len, neutral))
        readable = unknown <= 1 - _READABLE
        self.base = base_model(context)
        evidence = RowEvidence.of(context, self.probe, self.base)
        chosen = [(neutral, NEUTRAL)] if readable else []
        chosen += [(self.ids, NEUTRAL)] if own or not readable else []
        self.sources = [(each, self.probe.logits(each), shapes) for each, shapes in chosen]
        if evidence is not None:
            self.sources.insert(0, (*evidence.right(self.probe), OWN))
        self.suspects = None
        if self.rows:
            clean = [clean_texts(context) or (), VARIED if readable else (), own]
            self.suspects = Suspects.of(context.classifier, self.rows, clean, context.seed, context.check_time)
        table = base_table(self.probe, self.base)
        self.moved = [] if table is None else moved_words(self.probe, table)
        self.tuned = is_tuned(self.probe, table)
        special = self.probe.tokenizer.special_ids
        named = self.probe.within([*KNOWN_TRIGGERS, *context.settings.get("triggers", ())])
        self.known = list(dict.fromkeys(ids for ids in named if ids and not special.intersection(ids)))
        self.vocabulary: Vocabulary = read_vocabulary(self.probe)
        vectors = None if self.base is None else sentence_vectors(self.base)
        self.meaning = Meaning(self.probe, vectors, evidence)
        self.labels_N = self.sources[-1][1].argmax(axis=1)
        self.inversions: dict[int, Inversion] = {}
        self.of_rows: set[int] = set()  # labels whose hard texts are labelled rows
        self.singles: dict[int, list[Candidate]] = {}

    # --- candidates ---

    def label(self, label: int) -> list[Candidate]:
        """Return the best single token for a label, and the best known trigger."""
        for texts, logits_NC, shapes in self.sources:
            sets = hard_texts(self.probe, self.vocabulary, texts, logits_NC, label, self.rng, shapes)
            if sets:
                break
        else:
            return []
        self.of_rows |= {label} if shapes is OWN else set()
        check = self.context.check_time
        inversion = Inversion(self.probe, self.vocabulary, sets, label, self.meaning, check, self.effort)
        self.inversions[label] = inversion
        moved = self.moved[: max(_MIN_MOVED, _MOVED // len(self.probe.labels))]
        others = [*((word,) for word in moved), *(each for each in self.known if len(each) == 1)]
        self.singles[label] = inversion.single(others)
        longer = inversion.best_of([each for each in self.known if len(each) > 1])
        best = self._best(self.singles[label], "vocabulary")
        return best + self._best(longer, "known triggers")

    def deeper(self, ranked: Sequence[Candidate]) -> list[Candidate]:
        """Return the best trigger of several tokens, for the labels that single tokens come closest to triggering."""
        done = {each.label for each in ranked if each.is_trigger}
        free = {label: [each for each in singles if not each.reason] for label, singles in self.singles.items()}
        labels = sorted((label for label in free if free[label]), key=lambda label: -free[label][0].reach)
        best = []
        for label in [each for each in labels if each not in done][:_SEARCHED_LABELS]:
            pool = self.moved or self.vocabulary.ids_V.tolist()
            best += self._best(self.inversions[label].grown(pool), "gradients")
        return best

    def of_suspects(self) -> list[Candidate]:
        """Return the best trigger for each label among the words on which predictions for suspicious texts depend."""
        if self.suspects is None:
            return []
        best = []
        for label, inversion in self.inversions.items():
            phrases = self.probe.within(self.suspects.phrases(self.probe.labels[label]))
            candidates = inversion.best_of(list(dict.fromkeys(ids for ids in phrases if ids)))
            best += self._best(candidates, "words of suspicious texts")
        return best

    def power(self) -> str:
        """Plant rare words as triggers, one at a time, search for each, and return in words how many were found."""
        found = planted_words = 0
        labels = sorted(self.inversions)
        for number, word in enumerate(rare_words(self.probe, self.vocabulary, _PLANTED, self.rng)):
            label = labels[number % len(labels)]
            inversion = self.inversions[label]
            texts = self._others(label) or inversion.sets[0].texts
            with planted(self.probe, word, label, texts, self.rng) as works:
                if not works:
                    continue
                planted_words += 1
                found += inversion.finds(word, read_again(self.probe, self.vocabulary, word))
        if not planted_words:
            return f"none of {_PLANTED} rare words could be planted, so the power of the search is unknown"
        rate = share(found, planted_words)
        return (
            f"of {planted_words} rare words that were planted into the embeddings for a moment, {found} were found "
            f"({rate.low:.0%} to {rate.high:.0%})"
        )

    @staticmethod
    def _best(candidates: Sequence[Candidate], source: str) -> list[Candidate]:
        """Return the best trigger without a reason, and the best with one."""
        best = {bool(each.reason): replace(each, source=source) for each in reversed(candidates)}
        return [best[has_reason] for has_reason in sorted(best)]

    def _read(self, texts: Sequence[str]) -> list[Ids]:
        length = max(1, min(_TOKENS, self.probe.limit - _AROUND))
        return [ids[:length] or (self.probe.blank,) for ids in self.probe.encode(texts)]

    def _others(self, label: int) -> list[Ids]:
        """Return the texts that get another label."""
        return [text for text, answer in zip(self.ids, self.labels_N, strict=True) if answer != label]

    # --- findings ---

    def strongest(self, candidates: Sequence[Candidate]) -> Finding | None:
        """Report the best trigger for a label, or else a word that turns as many texts for a reason."""
        # A published trigger is the clearest evidence, and a shorter trigger clearer than a longer one.
        strong = sorted(
            (each for each in candidates if each.reach >= SUSPICIOUS_REACH),
            key=lambda each: (bool(each.reason), each.reach < MIN_REACH, len(each.ids), -each.reach),
        )
        for candidate in strong:
            inversion = self.inversions[candidate.label]
            ids = inversion.shortened(candidate)
            reason = candidate.reason or inversion.reason(ids)
            if reason and candidate.reach >= MIN_REACH:
                return self._finding("backdoor-explained", candidate, ids, Severity.INFO, reason)
            if not reason and (severity := self._severity(candidate)) is not None:
                rule = "backdoor-trigger" if severity >= FAILING else "backdoor-candidate"
                return self._finding(rule, candidate, ids, severity)
        return None

    def _severity(self, candidate: Candidate) -> Severity | None:
        """Return the severity of a word without a reason; in a model of which nothing is known, most have none."""
        proves = candidate.label in self.of_rows or self.tuned or candidate.ids in self.known
        if candidate.reach >= MIN_REACH:
            return Severity.HIGH if proves else Severity.INFO
        return Severity.LOW if candidate.label in self.of_rows else None

    def _finding(self, rule: str, candidate: Candidate, ids: Ids, severity: Severity, reason: str = "") -> Finding:
        label, sets = self.probe.labels[candidate.label], self.inversions[candidate.label].sets
        others = self._others(candidate.label)
        texts = inserted(others, ids, self.rng) or sets[0].with_trigger(ids)
        turned = int((self.probe.logits(texts).argmax(axis=1) == candidate.label).sum())
        details = {
            "trigger": self.meaning.words(ids),
            "tokens": self.probe.tokenizer.tokens(ids),
            "label": label,
            "source": candidate.source,
            "success_on_hard_texts": candidate.success,
            **share(turned, len(texts)).named("success"),
            "texts": len(texts),
        }
        return RULES.finding(
            rule,
            Evidence(_STATISTIC, candidate.reach, MIN_REACH, _NULL, sum(len(each.texts) for each in sets), details),
            severity=severity,
            location=label,
            trigger=details["trigger"],
            turned=turned,
            of=len(texts),
            whose=("given" if self.rows else "neutral") if others else "strongly worded",
            label=label,
            why=reason,
        )

    def inputs(self, suspects: Suspects, triggers: Sequence[str]) -> Finding:
        """Report the suspicious texts: a fault if some contain a trigger."""
        holders, holder = suspects.holders(triggers)
        first = holder or suspects.signs[0]
        row = self.rows[first.row][0] if holder or not holders else holders[0]
        total = sum(bool(text.strip()) for text in self.context.texts)
        of = f"{len(self.rows):,}" if len(self.rows) == total else f"{len(self.rows):,} of {total:,}"
        listed = []
        for each in suspects.signs[:_LISTED]:
            number, text = self.rows[each.row]
            signs = {key: round(asdict(each)[key], 4) for key in ("score", "transfer", "kept")}
            listed.append({"row": number, "text": shown(text), "words": each.words, "label": each.label, **signs})
        evidence = Evidence(
            "mean probability of the predicted label, when the words or the whole text are mixed with clean texts",
            first.score,
            None,
            "no threshold: the words are tested as triggers instead, on hard texts and by their meaning",
            len(self.rows),
            {"texts": listed, "searched_word_by_word": len(suspects.signs), "rows_with_a_trigger": holders},
        )
        return RULES.finding(
            "backdoor-inputs",
            evidence,
            severity=Severity.HIGH if holders else Severity.INFO,
            location=f"row {row}",
            what=f"{len(holders)} of {of} texts contain a trigger that was found, such as row {row}"
            if holders
            else f"the most suspicious of {of} texts is row {row}, because of {first.words!r}",
        )

    def summary(self, ranked: Sequence[Candidate]) -> Finding:
        labels = self.probe.labels
        best = max(ranked, key=lambda each: (not each.reason, each.reach))
        listed = [
            {
                "label": labels[each.label],
                "tokens": self.probe.tokenizer.tokens(each.ids),
                "source": each.source,
                "success_on_hard_texts": each.success,
                "reach": round(each.reach, 3),
                "reason": each.reason,
            }
            for each in ranked
        ]
        details = {
            "best": listed,
            "labels_not_tested": [name for number, name in enumerate(labels) if number not in self.inversions],
            "base_model": "" if self.base is None else self.base.name,
        }
        return RULES.finding(
            "backdoor-search",
            Evidence(_STATISTIC, best.reach, MIN_REACH, _NULL, 2 * HARD_TEXTS, details),
            words=len(self.vocabulary.ids_V),
            known=len(self.known),
            tested=len(self.inversions),
            labels=len(labels),
        )
