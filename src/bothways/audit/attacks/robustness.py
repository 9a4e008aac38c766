"""`AdversarialRobustness`: how many correct predictions change when an attacker edits a few words?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways.audit.answers import (
    answers,
    changed_share,
    detectable_share,
    drawn_labelled,
    reference_masked_lm,
    sentence_vectors,
    share,
    shown,
)
from bothways.audit.attacks.search import (
    Ask,
    Attack,
    CharacterEdits,
    Edits,
    MaskedWords,
    NearestWords,
    Recipe,
    SameSentence,
    attack_texts,
    cached,
    random_edits,
)
from bothways.audit.context import Context, Need, Undecided, options_for
from bothways.audit.finding import Checked, Evidence, Finding, Rule, Rules, Severity
from bothways.evaluation.intervals import Estimate
from bothways.tasks import FillMask

_MAX_TEXTS, _MAX_WORDS = 48, 3000
_MIN_TEXTS = 10
_EXAMPLES = 4
# It is no fault if an attack changes a smaller share of the predictions.
_WEAK = 0.2
# One misspelt word changes this share of BERT's correct predictions on SST-2 (.903 to .458, Pruthi et al. 2019).
_PUBLISHED = 0.49

RULES = Rules(
    "AdversarialRobustness",
    *(
        Rule(
            f"adversarial-{kind}",
            Severity.LOW,
            "{edits} change {rate:.0%} of predictions when an attacker chooses them, {null:.0%} at random",
            "Correct spelling and normalise look-alike letters before prediction, hide probabilities, and limit "
            "requests. Training on attacked rows (bothways.audit.attacks.adversarial_rows) may help; measure it, "
            "also on clean rows.",
            (
                "Morris et al. 2020, TextAttack, arXiv:2005.05909",
                "Gao et al. 2018, DeepWordBug, arXiv:1801.04354",
                "Pruthi et al. 2019, Combating adversarial misspellings, arXiv:1905.11268",
                "Jin et al. 2020, TextFooler, arXiv:1907.11932",
                "Garg and Ramakrishnan 2020, BAE, arXiv:2004.01970",
            ),
        )
        for kind in ("character", "word")
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class AttackedTexts:
    """The texts under attack."""

    texts: tuple[str, ...]  # the N texts that the model classifies correctly; all drawn texts if there are no labels
    labels_N: NDArray[np.int64]  # index of the predicted label of each text
    accuracy: Estimate | None  # accuracy on all drawn texts; None without labels
    tested: int  # number of texts behind the accuracy

    @classmethod
    def of(cls, context: Context, rng: np.random.Generator) -> "AttackedTexts":
        """Draw from the user's texts; fewer if they are long, since each word costs a query of the text's length."""
        drawn, truth_N, _ = drawn_labelled(context, _MAX_TEXTS, rng)
        words = np.cumsum([len(text.split()) for text in drawn])
        texts = drawn[: max(2 * _MIN_TEXTS, int(np.searchsorted(words, _MAX_WORDS)))]
        labels_N = answers(context, context.classifier, texts).labels_N
        if truth_N is None:
            return cls(texts, labels_N, None, len(texts))
        right_N = labels_N == truth_N[: len(texts)]
        right = tuple(text for text, fit in zip(texts, right_N, strict=True) if fit)
        return cls(right, labels_N[right_N], share(int(right_N.sum()), len(texts)), len(texts))


class AdversarialRobustness:
    """Attacks a classifier with typing errors and replaced words, and counts the predictions that change."""

    name: ClassVar[str] = RULES.detector
    needs: ClassVar[tuple[Need, ...]] = ("classifier", "texts")
    rule: ClassVar[str] = (
        f"fails if one chosen word changes more than {_PUBLISHED:.0%} of predictions, or random edits more than "
        f"{_WEAK:.0%}; low if chosen edits change more than {_WEAK:.0%} (lower ends of 95 % intervals)"
    )

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield a finding for each kind of edit."""
        rng = context.rng(self.name)
        attacked = AttackedTexts.of(context, rng)
        if len(attacked.texts) < _MIN_TEXTS:
            raise Undecided(
                f"expected at least {_MIN_TEXTS} texts to attack, correctly classified if labelled, "
                f"got {len(attacked.texts)}. Give more rows with --data."
            )
        ask = cached(lambda texts: answers(context, context.classifier, texts).probabilities_NC)
        same = SameSentence(sentence_vectors(context.base_encoder))
        recipes = (Recipe(CharacterEdits()), Recipe(_substitutions(context), same))
        for recipe, own in zip(recipes, rng.spawn(2), strict=True):
            yield _finding(context, ask, attacked, recipe, own)


def _substitutions(context: Context) -> Edits:
    """Return substitutions by a masked language model if there is one, else by nearness in the embedding table."""
    name = context.settings.get("masked_lm")
    if name is not None:
        return MaskedWords(FillMask.from_pretrained(name, **options_for(context, name)))
    reference = reference_masked_lm(context)
    return NearestWords.of(context.encoder) if reference is None else MaskedWords(reference)


def _finding(context: Context, ask: Ask, attacked: AttackedTexts, recipe: Recipe, rng: np.random.Generator) -> Finding:
    """Attack the texts, edit them at random too, and compare the shares of predictions that change."""
    attacks = attack_texts(ask, attacked.texts, attacked.labels_N.tolist(), recipe, rng)
    at_random = ask([random_edits(each, recipe, rng).text for each in attacks]).argmax(axis=1)
    rate, one_word, null = (
        changed_share(changed_N)
        for changed_N in (
            np.array([each.reached for each in attacks]),
            np.array([each.reached and len(each.draft.changed) == 1 for each in attacks]),
            at_random != attacked.labels_N,
        )
    )
    # The lower ends of the intervals decide. A patient attacker succeeds with most models, so a high rate alone is LOW.
    severity = Severity.LOW if rate.low > _WEAK else Severity.INFO
    if one_word.low > _PUBLISHED or null.low > _WEAK:
        severity = Severity.MEDIUM
    name, n = recipe.edits.name, len(attacks)
    context.run.checks.append(Checked(f"chosen {name}", n, statistic="share", smallest=detectable_share(n, _WEAK)))
    context.run.checks.append(
        Checked(f"{name} of one word", n, statistic="share", smallest=detectable_share(n, _PUBLISHED))
    )
    evidence = Evidence(
        f"attack success ({name})",
        rate.value,
        _WEAK,
        f"as many random edits of the same kind change {null.value:.1%} [{null.low:.1%}, {null.high:.1%}]; severity "
        f"medium if one word changes over {_PUBLISHED:.0%} (BERT, published) or random edits change over {_WEAK:.0%}",
        len(attacks),
        _details(context, attacked, recipe, attacks)
        | rate.named("success")
        | one_word.named("by_one_word")
        | null.named("at_random"),
    )
    rule = f"adversarial-{name.split()[0]}"
    return RULES.finding(rule, evidence, severity=severity, edits=name, rate=rate.value, null=null.value)


def _details(context: Context, attacked: AttackedTexts, recipe: Recipe, attacks: Sequence[Attack]) -> dict[str, object]:
    reached = [each for each in attacks if each.reached]
    labels = context.classifier.labels
    examples = [
        {
            "label": labels[int(label)],
            "original": shown(each.draft.words.text),
            "attacked": shown(each.draft.text),
            "edits": [list(pair) for pair in each.draft.edits],
        }
        for each, label in zip(attacks, attacked.labels_N, strict=True)
        if each.reached
    ]
    details: dict[str, object] = {
        "mean_queries": float(np.mean([each.queries for each in attacks])),
        "mean_words_edited": float(np.mean([len(each.draft.changed) for each in reached])) if reached else None,
        "most_words_edited": f"{recipe.share:.0%} of a text, at least one",
        "examples": examples[:_EXAMPLES],
    }
    if recipe.same is not None:
        own = "the reference" if context.reference_name is not None else "the model's own encoder"
        details["same_sentence"] = f"cosine of mean vectors of {own} at least {recipe.same.min_cosine:g}"
    if attacked.accuracy is not None:
        under = share(len(attacks) - len(reached), attacked.tested)
        details |= attacked.accuracy.named("accuracy") | under.named("accuracy_under_attack")
    return details
