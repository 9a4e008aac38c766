"""`AdversarialRobustness`: how many right answers turn when a few words are edited to turn them?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answering import answers, drawn, drawn_texts, share
from bothways.audit.attacks.edits import CharacterEdits, Edits, MaskedWords, NearestWords
from bothways.audit.attacks.search import Ask, Attack, Recipe, SameSentence, attack_texts, random_edits, remembering
from bothways.audit.context import Context, Need, NeedUnmet, Undecided
from bothways.audit.finding import Evidence, Finding, Severity
from bothways.audit.vectors import sentence_vectors
from bothways.evaluation.intervals import Estimate

_NAME = "AdversarialRobustness"
_MOST, _WORDS = 60, 3000
_FEWEST = 10
_SHOWN, _CHARACTERS = 4, 300
# Attacks that turn fewer answers than this are no finding.
_WEAK = 0.2
# One word with typing errors turns this share of the right answers of BERT on SST-2, .903 to .458 (Pruthi et al. 2019).
_PUBLISHED = 0.49

_TEXTATTACK = "Morris et al. 2020, TextAttack, arXiv:2005.05909"
_PAPERS = (
    "Gao et al. 2018, DeepWordBug, arXiv:1801.04354",
    "Pruthi et al. 2019, Combating adversarial misspellings, arXiv:1905.11268",
    "Jin et al. 2020, TextFooler, arXiv:1907.11932",
    "Garg and Ramakrishnan 2020, BAE, arXiv:2004.01970",
)
_REMEDY = (
    "Check spelling and look-alike letters before texts are read, show users no probabilities, and limit how often "
    "they may ask. Training with attacked rows (bothways.audit.attacks.adversarial_rows) may help: measure it, also on "
    "clean rows."
)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The texts under attack.

    Attributes:
        texts: The N texts whose answers are right; all of them where nobody says what is right.
        labels_N: Indices of those answers.
        accuracy: Share of right answers of all texts; None without labels.
        asked: Number of texts that it is measured on.
    """

    texts: tuple[str, ...]
    labels_N: NDArray[np.int64]
    accuracy: Estimate | None
    asked: int


class AdversarialRobustness:
    """Attacks a classifier with typing errors and with other words, and counts the answers that turn."""

    name: ClassVar[str] = _NAME
    title: ClassVar[str] = "Answers under edits that are chosen to turn them"
    needs: ClassVar[tuple[Need, ...]] = ("classifier", "texts")
    gains: ClassVar[tuple[Need, ...]] = ("labels", "reference")
    cost: ClassVar[str] = "a minute for MiniLM and short texts"

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield a finding for each kind of edits."""
        rng = context.rng(_NAME)
        target = _target(context, rng)
        if len(target.texts) < _FEWEST:
            raise Undecided(f"expected at least {_FEWEST} texts with right answers to attack, got {len(target.texts)}.")
        ask = remembering(lambda texts: answers(context, context.classifier, texts).probabilities_NC)
        for recipe, own in zip(_recipes(context), rng.spawn(2), strict=True):
            yield _finding(context, ask, target, recipe, own)


def _target(context: Context, rng: np.random.Generator) -> Target:
    try:
        labelled = context.labelled
    except NeedUnmet:
        texts = _affordable(drawn_texts(context, _MOST, rng))
        return Target(texts, answers(context, context.classifier, texts).labels_N, None, len(texts))
    kept = [number for number in drawn(len(labelled.texts), _MOST, rng) if labelled.texts[number].strip()]
    texts = _affordable([labelled.texts[number] for number in kept])
    truth_N = labelled.labels_N[kept[: len(texts)]]
    right_N = answers(context, context.classifier, texts).labels_N == truth_N
    right = tuple(text for text, fit in zip(texts, right_N, strict=True) if fit)
    return Target(right, truth_N[right_N], share(int(right_N.sum()), len(texts)), len(texts))


def _affordable(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the first of the texts: fewer of long ones, since each of their words takes a query as long."""
    words = np.cumsum([len(text.split()) for text in texts])
    return tuple(texts[: max(2 * _FEWEST, int(np.searchsorted(words, _WORDS)))])


def _recipes(context: Context) -> list[Recipe]:
    return [
        Recipe(CharacterEdits()),
        Recipe(_substitutions(context), SameSentence(sentence_vectors(context.base_encoder))),
    ]


def _substitutions(context: Context) -> Edits:
    """Return the words of a masked language model where there is one, else the nearest ones of the table."""
    from bothways.tasks import FillMask

    name = context.settings.get("masked_lm")
    if name is not None:
        return MaskedWords(FillMask.from_pretrained(name, **context.open_options))
    if context.reference_name is not None and "masked_lm" in context.base_encoder.family.heads:
        model = FillMask.from_pretrained(context.reference_name, **context.open_options)
        if model.has_head:
            return MaskedWords(model)
    return NearestWords.of(context.encoder)


def _finding(context: Context, ask: Ask, target: Target, recipe: Recipe, rng: np.random.Generator) -> Finding:
    """Attack the texts, edit them at random as well, and say what turned."""
    attacks = attack_texts(ask, target.texts, target.labels_N.tolist(), recipe, rng)
    by_chance = [random_edits(each, recipe, rng).text for each in attacks]
    turned = int((ask(by_chance).argmax(axis=1) != target.labels_N).sum())
    n, reached = len(attacks), [each for each in attacks if each.reached]
    rate, null = share(len(reached), n), share(turned, n)
    one = share(sum(len(each.draft.changed) == 1 for each in reached), n)
    severity = _severity(rate, one, null)
    name = recipe.edits.name
    return Finding(
        _NAME,
        severity,
        f"{name} turn {rate.value:.0%} of the answers where they are chosen, {null.value:.0%} at random",
        Evidence(
            f"attack success ({name})",
            rate.value,
            _WEAK,
            f"as many random edits of the same kind turn {null.value:.1%} [{null.low:.1%}, {null.high:.1%}]; medium "
            f"where one word turns more than {_PUBLISHED:.0%} (BERT, published), or random edits more than {_WEAK:.0%}",
            n,
            _details(context, target, recipe, attacks)
            | rate.named("success")
            | one.named("by_one_word")
            | null.named("at_random"),
        ),
        f"adversarial-{name.split()[0]}",
        remedy=_REMEDY if severity > Severity.INFO else "",
        references=(_TEXTATTACK, *_PAPERS),
    )


def _severity(rate: Estimate, one: Estimate, null: Estimate) -> Severity:
    """Judge by the lower ends of the intervals: most models are turned by a patient attacker."""
    if one.low > _PUBLISHED or null.low > _WEAK:
        return Severity.MEDIUM
    return Severity.LOW if rate.low > _WEAK else Severity.INFO


def _details(context: Context, target: Target, recipe: Recipe, attacks: Sequence[Attack]) -> dict[str, Any]:
    """Return accuracy, costs and examples."""
    reached = [each for each in attacks if each.reached]
    labels = context.classifier.labels
    shown = [
        {
            "label": labels[int(label)],
            "original": each.draft.words.text[:_CHARACTERS],
            "attacked": each.draft.text[:_CHARACTERS],
            "edits": [list(pair) for pair in each.draft.edits],
        }
        for each, label in zip(attacks, target.labels_N, strict=True)
        if each.reached
    ]
    details: dict[str, Any] = {
        "mean_queries": float(np.mean([each.queries for each in attacks])),
        "mean_words_edited": float(np.mean([len(each.draft.changed) for each in reached])) if reached else None,
        "most_words_edited": f"{recipe.few.share:.0%} of a text, one at least",
        "examples": shown[:_SHOWN],
    }
    if recipe.same is not None:
        own = "the reference" if context.reference_name is not None else "the model's own encoder"
        details["same_sentence"] = f"cosine of mean vectors of {own} at least {recipe.same.least:g}"
    if target.accuracy is not None:
        under = share(len(attacks) - len(reached), target.asked)
        details |= target.accuracy.named("accuracy") | under.named("accuracy_under_attack")
    return details
