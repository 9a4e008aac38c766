"""`EmbeddingShiftDetector`: do attacks move the hidden states of texts further than benign edits do?

`bothways.audit.shift.comparing` defines the score of a pair of texts. Thresholds are fitted on benign edits of one half
of the texts, and everything is measured on the other half.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bothways.audit.answers import answers, clean_texts, detectable_share, drawn, drawn_texts, share, shown
from bothways.audit.attacks.search import CharacterEdits, Draft, Recipe, attack_texts, cached
from bothways.audit.context import Context, Need, Undecided
from bothways.audit.finding import Checked, Evidence, Finding, Rule, Rules, Severity
from bothways.audit.shift.comparing import (
    LEVEL,
    BenignEdits,
    TextComparison,
    TextEncoders,
    compared,
    score,
    suspicious_words,
)
from bothways.audit.texts import GENERAL
from bothways.evaluation.out_of_domain import out_of_domain_report

_MAX_TEXTS = 60
_EXAMPLES = 5
# Minimum flipped predictions for an AUROC, and minimum clean texts for a 95 % quantile.
_MIN_FLIPPED, _MIN_CLEAN = 5, 20
# Share of a text's words that an attack may edit.
_EDITED = 0.3
# Shifts with a lower AUROC are useless against attacks.
_USEFUL = 0.8
# It is no fault if an attack flips a smaller share of the predictions.
_WEAK = 0.2
# Data are suspicious if more than this share of texts, twice the expected, exceeds the clean texts' 95 % quantile.
_MANY = 0.1

_REFERENCES = ("Jin et al. 2020, Is BERT really robust?, arXiv:1907.11932", "Qi et al. 2021, ONION, arXiv:2011.10369")
_DO_NOT_RELY = (
    "Normalise texts before prediction, or use adversarial training. Shifts of states detect such attacks only if "
    "their AUROC here is high."
)


@dataclass(frozen=True, slots=True)
class OtherWords:
    """Replaces a word by words drawn from other texts, which need not keep the meaning."""

    vocabulary: tuple[str, ...]  # the words
    each: int = 4  # number of words to try for each replaced word
    name: ClassVar[str] = "other words"

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Draw replacements from the vocabulary."""
        chosen = (self.vocabulary[place] for place in rng.integers(len(self.vocabulary), size=self.each))
        return [word for word in dict.fromkeys(chosen) if word != draft.words[number]]


RULES = Rules(
    "EmbeddingShiftDetector",
    *(
        Rule(
            f"shift-{kind.replace(' ', '-')}",
            Severity.LOW,
            f"{kind} flip {{rate:.1%}} of predictions{{distinction}}",
            _DO_NOT_RELY,
            _REFERENCES,
        )
        for kind in (CharacterEdits.name, OtherWords.name)
    ),
    Rule(
        "shift-outlier-words",
        Severity.MEDIUM,
        f"{{rate:.1%}} of texts contain a word that moves the states further than in {LEVEL:.0%} of clean texts"
        "{judged}",
        "Inspect the texts and words shown: they may be triggers.",
        _REFERENCES[1:],
    ),
)


class EmbeddingShiftDetector:
    """Compares how far attacks and benign edits move the hidden states of texts."""

    name: ClassVar[str] = RULES.detector
    needs: ClassVar[tuple[Need, ...]] = ("classifier",)
    rule: ClassVar[str] = (
        f"fails if more than {_MANY:.0%} of texts have an outlier word, compared with --clean-texts; low if attacks "
        f"flip more than {_WEAK:.0%} of predictions (lower ends of 95 % intervals), or if shifts do not tell them from "
        f"benign edits (AUROC below {_USEFUL:g}, upper end)"
    )

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield findings on attacks, compared with benign edits, and on words that move the hidden states."""
        rng = context.rng(self.name)
        texts = GENERAL if context.rows is None else drawn_texts(context, _MAX_TEXTS, rng)
        order = rng.permutation(len(texts))
        fitted_on = [texts[number] for number in order[::2]]
        held_out = [texts[number] for number in order[1::2]] or fitted_on
        encoders = TextEncoders.of(context)
        clean = clean_texts(context)
        if clean is not None:
            if len(clean) < _MIN_CLEAN:
                raise Undecided(f"expected at least {_MIN_CLEAN} clean texts, got {len(clean)}. Give more.")
            clean = tuple(clean[number] for number in drawn(len(clean), _MAX_TEXTS, rng))
        benign = BenignEdits.fit(encoders, fitted_on, rng)
        own = BenignEdits.fit(encoders, held_out, rng)
        ask = cached(lambda asked: answers(context, context.classifier, asked).probabilities_NC)
        for edits in (CharacterEdits(), OtherWords(tuple(sorted({word for text in texts for word in text.split()})))):
            recipe = Recipe(edits, share=_EDITED)
            attacks = attack_texts(ask, held_out, ask(held_out).argmax(axis=1).tolist(), recipe, rng)
            flipped = [(number, attack.draft.text) for number, attack in enumerate(attacks) if attack.reached]
            yield _attack(encoders, benign, own, held_out, edits.name, flipped)
        yield _outlier_words(encoders, held_out, clean)


def _attack(
    encoders: TextEncoders,
    benign: BenignEdits,
    own: BenignEdits,
    texts: Sequence[str],
    kind: str,
    flipped: Sequence[tuple[int, str]],
) -> Finding:
    """Compare attacked texts whose prediction flips with benign edits of the same texts (``own``).

    The thresholds come from benign edits of other texts (``benign``).
    """
    rule, rate, n = f"shift-{kind.replace(' ', '-')}", share(len(flipped), len(texts)), len(texts)
    weak = rate.low > _WEAK
    found = detectable_share(n, _WEAK)
    encoders.context.run.checks.append(Checked(f"attacks by {kind}", n, statistic="share", smallest=found))
    details: dict[str, object] = {
        **rate.named("flips"),
        "score_threshold": benign.threshold,
        "meaning_threshold": benign.meaning_threshold,
        "benign_above_threshold": float((own.scores_N > benign.threshold).mean()),
        "meaning_by": "the model's embedding layer" if encoders.reference is None else encoders.context.reference_name,
    }
    null, distinction = "", ": too few to compare with benign edits"
    if len(flipped) >= _MIN_FLIPPED:
        before = encoders.encode([texts[number] for number, _ in flipped])
        after = encoders.encode([text for _, text in flipped])
        scores = np.array([score(*pair) for pair in zip(before, after, strict=True)])
        report = out_of_domain_report(own.scores_N, scores, resamples=300, seed=encoders.context.seed)
        details |= {
            **report.auroc.named("auroc"),
            **report.fpr95.named("fpr95"),
            "caught_at_threshold": float((scores > benign.threshold).mean()),
            "shown": [
                _example(compared(encoders, benign, texts[number], text)) for number, text in flipped[:_EXAMPLES]
            ],
        }
        auroc = report.auroc
        weak = weak or auroc.high < _USEFUL
        null = (
            f"{len(own.scores_N)} benign edits of the same texts that change a token; the AUROC between their shifts "
            f"and those of attacks is {auroc.value:.3f} [{auroc.low:.3f}, {auroc.high:.3f}], useful from {_USEFUL:g}"
        )
        distinction = f"; their shift separates them from benign edits with an AUROC of {auroc.value:.3f}"
    return RULES.finding(
        rule,
        Evidence("share of predictions that flip", rate.value, _WEAK, null, n, details),
        severity=Severity.LOW if weak else Severity.INFO,
        rate=rate.value,
        distinction=distinction,
    )


def _example(each: TextComparison) -> dict[str, object]:
    return {
        "original": shown(each.original),
        "modified": shown(each.modified),
        "verdict": each.verdict,
        "score": each.score,
        "words": [word.word for word in each.words[:3]],
    }


def _outlier_words(encoders: TextEncoders, texts: Sequence[str], clean: Sequence[str] | None) -> Finding:
    """Look for words that move the states of their texts more than the words of clean texts do."""
    null = [words[0].score for words in suspicious_words(encoders, clean or GENERAL) if words]
    threshold = float(np.quantile(null, LEVEL)) if null else float("inf")
    strongest = [
        (text, words[0])
        for text, words in zip(texts, suspicious_words(encoders, texts), strict=True)
        if words and words[0].score > threshold
    ]
    strongest.sort(key=lambda pair: -pair[1].score)
    rate = share(len(strongest), len(texts))
    # The package's texts are from other domains, so they cannot serve as the null for the user's texts.
    many = clean is not None and rate.low > _MANY
    if clean is None:
        encoders.context.run.not_checked.append("outlier words (no --clean-texts to compare with)")
    else:
        found = detectable_share(len(texts), _MANY)
        encoders.context.run.checks.append(Checked("outlier words", len(texts), statistic="share", smallest=found))
    examples = [{"text": shown(text), "word": word.word, "score": word.score} for text, word in strongest[:_EXAMPLES]]
    return RULES.finding(
        "shift-outlier-words",
        Evidence.of(
            "share of texts with an outlier word",
            rate,
            _MANY if clean is not None else None,
            f"{len(null)} {'shipped texts from other domains' if clean is None else 'clean texts'}: "
            f"{LEVEL:.0%} of them stay below {threshold:.3g}",
            len(texts),
            shown=examples,
        ),
        severity=Severity.MEDIUM if many else Severity.INFO,
        rate=rate.value,
        judged="" if clean is not None else " of other domains, which is not judged",
    )
