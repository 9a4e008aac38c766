"""`BehaviorConsistencyValidator`: does a classifier keep its answer where it should, and change it where it should?

Tests are those of `bothways.audit.edits`, CheckList's way (Ribeiro et al. 2020, arXiv:2005.04118). The rate at which
an edit changes answers is judged by that of a neutral edit of the same texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bothways.audit.answering import ClassifierAnswers, answers, drawn_texts, share
from bothways.audit.context import Context, Need
from bothways.audit.edits import DIRECTIONS, EDITS, NEUTRAL_EDIT, Direction, Edit
from bothways.audit.finding import Evidence, Finding, Severity
from bothways.audit.texts import GENERAL
from bothways.evaluation.intervals import Estimate

_NAME = "BehaviorConsistencyValidator"
_MOST = 100
_SHOWN, _CHARACTERS = 5, 300
# Classifiers of MiniLM changed at most 9 % of their answers on natural edits of their own data; see docs/LOG.md.
_TOLERATED = 0.1
# Fewer edited texts than this say nothing.
_FEWEST = 20
_ALONE = 24
# Probabilities in float32 differ by some 1e-6 between batches, in bfloat16 by some 1e-2.
_ROUNDING = 0.03
# CheckList's allowance for a probability that must not fall.
_ALLOWED_FALL = 0.1

_CHECKLIST = "Ribeiro et al. 2020, Beyond accuracy: behavioral testing of NLP models with CheckList, arXiv:2005.04118"
_BAD_CHARACTERS = "Boucher et al. 2022, Bad characters: imperceptible NLP attacks, arXiv:2106.09898"


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """The texts that are edited, the answers to them, and the null.

    Attributes:
        texts: The N texts.
        answered: The answers to them.
        null: Share of answers that a neutral edit changes.
        null_n: Texts that it could change.
    """

    texts: tuple[str, ...]
    answered: ClassifierAnswers
    null: Estimate
    null_n: int

    @property
    def threshold(self) -> float:
        """Share of changed answers above which an edit is a finding."""
        return max(_TOLERATED, self.null.high) if self.null_n >= _FEWEST else _TOLERATED

    @property
    def words(self) -> str:
        """The null in words."""
        if self.null_n < _FEWEST:
            return f"no more than {_TOLERATED:.0%} of answers; too few texts have a function word for a null"
        return (
            f"a neutral edit ({NEUTRAL_EDIT.name}) changes {self.null.value:.1%} [{self.null.low:.1%}, "
            f"{self.null.high:.1%}] of {self.null_n}"
        )


class BehaviorConsistencyValidator:
    """Tests whether answers stay under edits that keep the meaning, and turn under those that do not."""

    name: ClassVar[str] = _NAME
    title: ClassVar[str] = "Answers under edits that keep or turn the meaning"
    needs: ClassVar[tuple[Need, ...]] = ("classifier",)
    gains: ClassVar[tuple[Need, ...]] = ("texts", "reference")
    cost: ClassVar[str] = "half a minute for MiniLM"

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield a finding for each edit, for batches, and for agreement with the reference."""
        rng = context.rng(_NAME)
        texts = GENERAL if context.rows is None else drawn_texts(context, _MOST, rng)
        answered = answers(context, context.classifier, texts)
        numbers, _, after = _edited(context, NEUTRAL_EDIT, texts, rng)
        changed = int((answered.labels_N[numbers] != after.labels_N).sum())
        asked = _Asked(texts, answered, share(changed, len(numbers)), len(numbers))
        yield _batches(context, asked)
        yield from _invariance(context, asked, rng)
        if _name_sentiment(context.classifier.labels):
            for direction in DIRECTIONS:
                yield _direction(context, direction)
        if context.reference_name is not None:
            yield from _agreement(context, asked)


def _edited(
    context: Context, edit: Edit, texts: Sequence[str], rng: np.random.Generator
) -> tuple[list[int], list[str], ClassifierAnswers]:
    """Return the numbers of the texts that an edit can change, the edited texts and the answers to them."""
    made = [(number, edit.apply(text, rng)) for number, text in enumerate(texts)]
    kept = [(number, text) for number, text in made if text is not None]
    after = [text for _, text in kept]
    return [number for number, _ in kept], after, answers(context, context.classifier, after)


def _invariance(context: Context, asked: _Asked, rng: np.random.Generator) -> Iterator[Finding]:
    """Yield a finding for each edit that changes too many answers, and one for all others together."""
    held: dict[str, dict[str, object]] = {}
    highest, most = 0.0, "none"
    for edit in EDITS:
        rate, n, details = _rate(context, asked, edit, rng)
        if rate.low <= asked.threshold or n < _FEWEST:
            held[edit.name] = {"value": rate.value if n else None, "n": n, **details}
            if n and rate.value >= highest:
                highest, most = rate.value, edit.name
            continue
        yield Finding(
            _NAME,
            # Most models give way to padding and to spoilt characters; to how people write they should not.
            Severity.MEDIUM if edit.kind == "natural" else Severity.LOW,
            f"{edit.name}: {rate.value:.1%} of answers change",
            Evidence(
                f"share of answers that change ({edit.name})", rate.value, asked.threshold, asked.words, n, details
            ),
            f"behaviour-{edit.name.replace(' ', '-')}",
            remedy=edit.remedy,
            references=(_CHECKLIST, _BAD_CHARACTERS) if edit.kind == "hostile" else (_CHECKLIST,),
        )
    yield Finding(
        _NAME,
        Severity.INFO,
        f"{len(held)} of {len(EDITS)} edits change few answers: at most {highest:.1%} ({most})",
        Evidence(
            f"highest share of answers that change ({most})",
            highest,
            asked.threshold,
            asked.words,
            len(asked.texts),
            {"edits": held},
        ),
        "behaviour-edits",
        references=(_CHECKLIST,),
    )


def _rate(
    context: Context, asked: _Asked, edit: Edit, rng: np.random.Generator
) -> tuple[Estimate, int, dict[str, object]]:
    """Return the share of answers that an edit changes, of how many texts, and what readers want to see of them."""
    numbers, edited, after = _edited(context, edit, asked.texts, rng)
    labels, before_N = context.classifier.labels, asked.answered.labels_N[numbers]
    flipped = np.flatnonzero(before_N != after.labels_N).tolist()
    rate = share(len(flipped), len(numbers))
    moved_N = after.probabilities_NC[np.arange(len(numbers)), before_N] - asked.answered.confidence_N[numbers]
    shown = [
        {
            "text": asked.texts[numbers[place]][:_CHARACTERS],
            "edited": edited[place][:_CHARACTERS],
            "from": labels[before_N[place]],
            "to": labels[after.labels_N[place]],
        }
        for place in flipped[:_SHOWN]
    ]
    mean = float(moved_N.mean()) if numbers else None
    return rate, len(numbers), {"low": rate.low, "high": rate.high, "mean_change": mean, "flipped": shown}


def _batches(context: Context, asked: _Asked) -> Finding:
    """Compare answers to texts alone with those in a batch."""
    some = asked.texts[:_ALONE]
    alone = [answers(context, context.classifier, [text]).probabilities_NC[0] for text in some]
    apart_N = np.abs(np.array(alone) - asked.answered.probabilities_NC[: len(some)]).max(axis=1)
    worst = int(apart_N.argmax())
    value, bad = float(apart_N[worst]), bool(apart_N[worst] > _ROUNDING)
    return Finding(
        _NAME,
        Severity.MEDIUM if bad else Severity.INFO,
        f"batch neighbours move probabilities by at most {value:.2g}",
        Evidence(
            "largest difference of a probability, alone and in a batch",
            value,
            _ROUNDING,
            "rounding: some 1e-6 in float32, some 1e-2 in bfloat16",
            len(some),
            {"text": some[worst][:_CHARACTERS]},
        ),
        "behaviour-batch-neighbours",
        remedy="Ask texts one by one, and report the attention or the padding that lets texts see each other."
        if bad
        else "",
    )


def _direction(context: Context, direction: Direction) -> Finding:
    """Test pairs of texts of which the second has to turn the answer, or must not weaken it."""
    classifier = context.classifier
    before = answers(context, classifier, [text for text, _ in direction.pairs])
    after = answers(context, classifier, [text for _, text in direction.pairs])
    same_N = after.probabilities_NC[np.arange(len(direction.pairs)), before.labels_N]
    if direction.expected == "turns":
        failed_N, limit = after.labels_N == before.labels_N, 0.5
        null = "half of the pairs, as by chance for two labels"
    else:
        failed_N, limit = same_N < before.confidence_N - _ALLOWED_FALL, _TOLERATED
        null = f"a probability may fall by {_ALLOWED_FALL}, as CheckList allows, in {_TOLERATED:.0%} of pairs"
    rate = share(int(failed_N.sum()), len(failed_N))
    weak = rate.low > limit
    failed = [direction.pairs[place] for place in np.flatnonzero(failed_N)[:_SHOWN]]
    what = "do not turn the answer" if direction.expected == "turns" else "weaken the answer"
    return Finding(
        _NAME,
        Severity.LOW if weak else Severity.INFO,
        f"{direction.name}: {rate.value:.1%} of pairs {what}",
        Evidence(
            f"share of pairs that fail ({direction.name})",
            rate.value,
            limit,
            null,
            len(failed_N),
            {"low": rate.low, "high": rate.high, "failed": [list(pair) for pair in failed]},
        ),
        f"behaviour-{direction.name}",
        remedy=f"Add rows with {direction.name} to the training." if weak else "",
        references=(_CHECKLIST,),
    )


def _agreement(context: Context, asked: _Asked) -> Iterator[Finding]:
    """Compare answers with those of a reference of the same labels; an encoder has no answers."""
    from bothways.tasks import TextClassifier

    reference, labels = context.reference, context.classifier.labels
    if not isinstance(reference, TextClassifier) or set(reference.labels) != set(labels):
        return
    theirs = answers(context, reference, asked.texts)
    ours_N = [labels[number] for number in asked.answered.labels_N]
    theirs_N = [reference.labels[number] for number in theirs.labels_N]
    apart = [place for place, pair in enumerate(zip(ours_N, theirs_N, strict=True)) if pair[0] != pair[1]]
    agreed = share(len(ours_N) - len(apart), len(ours_N))
    shown = [
        {"text": asked.texts[place][:_CHARACTERS], "model": ours_N[place], "reference": theirs_N[place]}
        for place in apart[:_SHOWN]
    ]
    yield Finding(
        _NAME,
        Severity.INFO,
        f"the model agrees with the reference on {agreed.value:.1%} of texts",
        Evidence(
            "agreement with the reference",
            agreed.value,
            n=len(ours_N),
            details={"low": agreed.low, "high": agreed.high, "apart": shown},
        ),
        "behaviour-agreement",
    )


def _name_sentiment(labels: Sequence[str]) -> bool:
    """Return whether labels are those of good and bad opinions."""
    names = {label.strip().lower() for label in labels}
    return {"positive", "negative"} <= names or {"pos", "neg"} <= names
