"""`BehaviorConsistencyValidator`: do predictions stay under edits that keep the meaning, and change under others?

The edits are those of `bothways.audit.texts`, following CheckList (Ribeiro et al. 2020, arXiv:2005.04118). The
share of predictions that an edit changes is compared with that of a neutral edit of the same texts.

Shapes: N texts, P pairs of texts, C labels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bothways.audit.answers import (
    ClassifierAnswers,
    answers,
    changed_share,
    detectable_share,
    drawn_texts,
    reference_classifier,
    share,
    shown,
)
from bothways.audit.context import Context, Need
from bothways.audit.finding import Checked, Evidence, Finding, Rule, Rules, Severity
from bothways.audit.texts import DIRECTIONS, EDITS, GENERAL, NEUTRAL_EDIT, Direction, Edit
from bothways.evaluation.intervals import Estimate

_MAX_TEXTS = 100
_EXAMPLES = 5
# Classifiers on MiniLM changed at most 9 % of their predictions under natural edits of their own data; see docs/LOG.md.
_TOLERATED = 0.1
_MIN_EDITED = 20  # with fewer edited texts, no verdict is possible
_ALONE = 24  # texts to predict one by one
# Probabilities in float32 differ by about 1e-6 between batches, in bfloat16 by about 1e-2.
_ROUNDING = 0.03
# CheckList tolerates a drop of this size in a probability that must not fall.
_ALLOWED_FALL = 0.1

_CHECKLIST = "Ribeiro et al. 2020, Beyond accuracy: behavioral testing of NLP models with CheckList, arXiv:2005.04118"
_BAD_CHARACTERS = "Boucher et al. 2022, Bad characters: imperceptible NLP attacks, arXiv:2106.09898"
_FAILURE = {"turns": "do not change the label", "stays": "lower the label's probability"}

RULES = Rules(
    "BehaviorConsistencyValidator",
    Rule(
        "behaviour-batch-neighbours",
        Severity.MEDIUM,
        "other texts in a batch change probabilities by at most {value:.2g}",
        "Predict texts one by one, and report the bug: attention or padding lets texts of a batch affect each other.",
    ),
    *(
        Rule(
            f"behaviour-{edit.name.replace(' ', '-')}",
            # Of 19 clean classifiers 7, whose tokenizers keep case and spaces, give way to natural edits too.
            Severity.LOW,
            f"{edit.name}: {{rate:.1%}} of predictions change",
            edit.remedy,
            (_CHECKLIST, _BAD_CHARACTERS) if edit.kind == "hostile" else (_CHECKLIST,),
        )
        for edit in EDITS
    ),
    Rule(
        "behaviour-edits",
        Severity.INFO,
        "{summary}",
        references=(_CHECKLIST,),
    ),
    *(
        Rule(
            f"behaviour-{direction.name}",
            Severity.LOW,
            f"{direction.name}: {{rate:.1%}} of pairs {_FAILURE[direction.expected]}",
            f"Add training rows with {direction.name}.",
            (_CHECKLIST,),
        )
        for direction in DIRECTIONS
    ),
    Rule("behaviour-agreement", Severity.INFO, "the model agrees with the reference on {rate:.1%} of texts"),
)


@dataclass(frozen=True, slots=True, eq=False)
class _Originals:
    """The texts before editing, with their predictions."""

    context: Context
    texts: tuple[str, ...]
    answered: ClassifierAnswers
    rng: np.random.Generator

    def edited(self, edit: Edit) -> tuple[int, Estimate, dict[str, object]]:
        """Return the number of edited texts, the share of predictions that change, and details for the report."""
        pairs = [(number, edit.apply(text, self.rng)) for number, text in enumerate(self.texts)]
        numbers = [number for number, text in pairs if text is not None]
        edited = [text for _, text in pairs if text is not None]
        classifier = self.context.classifier
        after, before_N = answers(self.context, classifier, edited), self.answered.labels_N[numbers]
        changed_N = before_N != after.labels_N
        moved_N = after.probabilities_NC[np.arange(len(numbers)), before_N] - self.answered.confidence_N[numbers]
        flipped = [
            {
                "text": shown(self.texts[numbers[place]]),
                "edited": shown(edited[place]),
                "from": classifier.labels[before_N[place]],
                "to": classifier.labels[after.labels_N[place]],
            }
            for place in np.flatnonzero(changed_N)[:_EXAMPLES]
        ]
        mean = float(moved_N.mean()) if numbers else None
        return len(numbers), changed_share(changed_N), {"mean_change": mean, "flipped": flipped}


class BehaviorConsistencyValidator:
    """Tests whether predictions stay under edits that keep the meaning, and change under those that do not."""

    name: ClassVar[str] = RULES.detector
    needs: ClassVar[tuple[Need, ...]] = ("classifier",)
    rule: ClassVar[str] = (
        f"fails if other texts in a batch change a probability by more than {_ROUNDING:g}; low if, on at least "
        f"{_MIN_EDITED} texts, an edit that keeps the meaning changes more predictions than {_TOLERATED:.0%} and than "
        "a neutral edit (lower end of the 95 % interval)"
    )

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield findings on batches, edits that keep or change the meaning, and agreement with the reference."""
        rng = context.rng(self.name)
        texts = GENERAL if context.rows is None else drawn_texts(context, _MAX_TEXTS, rng)
        originals = _Originals(context, texts, answers(context, context.classifier, texts), rng)
        neutral = originals.edited(NEUTRAL_EDIT)
        yield _batches(originals)
        yield from _invariance(originals, *neutral[:2])
        names = {label.strip().lower() for label in context.classifier.fitted.outputs.labels}
        if {"positive", "negative"} <= names or {"pos", "neg"} <= names:
            for direction in DIRECTIONS:
                yield _direction(context, direction)
        yield from _agreement(originals)


def _invariance(originals: _Originals, tested: int, usual: Estimate) -> Iterator[Finding]:
    """Yield one finding for each edit that changes too many predictions, and one on all other edits."""
    threshold = _TOLERATED
    null = f"at most {_TOLERATED:.0%} of predictions; too few texts have a function word for a neutral edit"
    if tested >= _MIN_EDITED:
        threshold = max(_TOLERATED, usual.high)
        null = (
            f"a neutral edit ({NEUTRAL_EDIT.name}) changes {usual.value:.1%} [{usual.low:.1%}, {usual.high:.1%}] of "
            f"{tested} predictions"
        )
    edits: dict[str, dict[str, object]] = {}
    rates: dict[str, tuple[int, float]] = {}
    for edit in EDITS:
        n, rate, details = originals.edited(edit)
        rates[edit.name] = n, rate.value
        if rate.low > threshold and n >= _MIN_EDITED:
            evidence = Evidence.of(f"share of changed predictions ({edit.name})", rate, threshold, null, n, **details)
            yield RULES.finding(f"behaviour-{edit.name.replace(' ', '-')}", evidence, rate=rate.value)
            continue
        edits[edit.name] = {"value": rate.value if n else None, "n": n, "low": rate.low, "high": rate.high, **details}
    _note_edits(originals.context, rates, threshold)
    faultless = {name: share for name, (n, share) in rates.items() if n >= _MIN_EDITED and name in edits}
    highest = max(faultless, key=lambda name: faultless[name], default="none")
    statistic, value = f"highest share of changed predictions ({highest})", faultless.get(highest)
    evidence = Evidence(statistic, value, threshold, null, len(originals.texts), {"edits": edits})
    yield RULES.finding("behaviour-edits", evidence, summary=_summary(rates, faultless, threshold))


def _summary(rates: Mapping[str, tuple[int, float]], faultless: Mapping[str, float], threshold: float) -> str:
    """Name the edits below the threshold, those above it by no more than chance, and those that were not checked."""
    below = {name: rate for name, rate in faultless.items() if rate <= threshold}
    parts = [f"{len(below)} of {len(rates)} edits change at most {threshold:.1%} of predictions"]
    if below:
        parts[0] += f": the most is {max(below.values()):.1%} ({max(below, key=lambda name: below[name])})"
    above = [f"{name} {rate:.1%}" for name, rate in faultless.items() if rate > threshold]
    parts += [f"more, but not beyond chance: {', '.join(above)}"] if above else []
    left = [name for name, (n, _) in rates.items() if n < _MIN_EDITED]
    return "; ".join(parts + ([f"not checked: {', '.join(left)}"] if left else []))


def _note_edits(context: Context, rates: Mapping[str, tuple[int, float]], threshold: float) -> None:
    """Note which edits were checked, on at least how many texts, and which were not."""
    counts = [n for n, _ in rates.values()]
    enough = [n for n in counts if n >= _MIN_EDITED]
    what, n = f"changed predictions under {len(enough) or len(counts)} edits", min(enough, default=max(counts))
    smallest = detectable_share(n, threshold) if enough else None
    context.run.checks.append(Checked(what, n, "texts or more" if enough else "texts or fewer", "share", smallest))
    few = [f"{name} {n}" for name, (n, _) in rates.items() if 0 < n < _MIN_EDITED]
    none = [name for name, (n, _) in rates.items() if not n]
    context.run.not_checked += [f"fewer than {_MIN_EDITED} texts to edit: {', '.join(few)}"] if few else []
    context.run.not_checked += [f"no text to edit: {', '.join(none)}"] if none else []


def _batches(originals: _Originals) -> Finding:
    context, some = originals.context, originals.texts[:_ALONE]
    alone = [answers(context, context.classifier, [text]).probabilities_NC[0] for text in some]
    apart_N = np.abs(np.array(alone) - originals.answered.probabilities_NC[: len(some)]).max(axis=1)
    worst = int(apart_N.argmax())
    value = float(apart_N[worst])
    evidence = Evidence(
        "largest difference between a probability alone and in a batch",
        value,
        _ROUNDING,
        "rounding: about 1e-6 in float32, about 1e-2 in bfloat16",
        len(some),
        {"text": shown(some[worst])},
    )
    severity = Severity.MEDIUM if value > _ROUNDING else Severity.INFO
    context.run.checks.append(Checked("predictions alone and in a batch", len(some)))
    return RULES.finding("behaviour-batch-neighbours", evidence, severity=severity, value=value)


def _direction(context: Context, direction: Direction) -> Finding:
    before, after = (
        answers(context, context.classifier, texts) for texts in map(list, zip(*direction.pairs, strict=True))
    )
    if direction.expected == "turns":
        failed_P, limit = after.labels_N == before.labels_N, 0.5
        null = "half of the pairs, the chance level for two labels"
    else:
        same_P = after.probabilities_NC[np.arange(len(direction.pairs)), before.labels_N]
        failed_P, limit = same_P < before.confidence_N - _ALLOWED_FALL, _TOLERATED
        null = f"a probability may fall by {_ALLOWED_FALL}, as CheckList allows, in {_TOLERATED:.0%} of pairs"
    rate, failed = (
        changed_share(failed_P),
        [list(direction.pairs[place]) for place in np.flatnonzero(failed_P)[:_EXAMPLES]],
    )
    statistic = f"share of pairs that fail ({direction.name})"
    evidence = Evidence.of(statistic, rate, limit, null, len(failed_P), failed=failed)
    severity = Severity.LOW if rate.low > limit else Severity.INFO
    return RULES.finding(f"behaviour-{direction.name}", evidence, severity=severity, rate=rate.value)


def _agreement(originals: _Originals) -> Iterator[Finding]:
    context = originals.context
    reference, labels = reference_classifier(context), context.classifier.fitted.outputs.labels
    if reference is None:
        return
    names, answered = reference.fitted.outputs.labels, answers(context, reference, originals.texts)
    theirs = [names[number] for number in answered.labels_N]
    ours = [labels[number] for number in originals.answered.labels_N]
    apart = [place for place, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
    agreed = share(len(ours) - len(apart), len(ours))
    examples = [
        {"text": shown(originals.texts[place]), "model": ours[place], "reference": theirs[place]}
        for place in apart[:_EXAMPLES]
    ]
    evidence = Evidence.of("agreement with the reference", agreed, n=len(ours), apart=examples)
    yield RULES.finding("behaviour-agreement", evidence, rate=agreed.value)
