"""`EmbeddingShiftDetector`: can attacks on this model be told from benign edits by how far its states move?

See `bothways.audit.shift_scores` for the score of a pair of texts. Thresholds are fitted on benign edits of one half of
the texts, and everything is measured on the other half.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bothways.audit.answering import answers, clean_texts, drawn, drawn_texts, share
from bothways.audit.attacks import CharacterEdits, FewWords, Recipe, attack_texts
from bothways.audit.attacks.search import Ask, remembering
from bothways.audit.attacks.words import Draft
from bothways.audit.comparing import compared
from bothways.audit.context import Context, Need, Undecided
from bothways.audit.finding import Evidence, Finding, Severity
from bothways.audit.shift_scores import LEVEL, Benign, TextEncoders, score, suspicious_words
from bothways.audit.texts import GENERAL
from bothways.evaluation import out_of_domain_report

_NAME = "EmbeddingShiftDetector"
_MOST = 60
_SHOWN = 5
# Fewer flipped answers than this say nothing of an AUROC.
_FEWEST = 5
# Fewer clean texts have no 95 % to stay below.
_FEWEST_CLEAN = 20
# Part of a text's words that an attack may edit.
_EDITED = 0.3
# An AUROC below which shifts are of no use against attacks.
_USEFUL = 0.8
# Share of texts with a word beyond 95 % of the clean ones' from where on the data are a finding: twice the expected.
_MANY = 0.1

_REFERENCES = (
    "Jin et al. 2020, Is BERT really robust?, arXiv:1907.11932",
    "Qi et al. 2021, ONION, arXiv:2011.10369",
)


@dataclass(frozen=True, slots=True)
class OtherWords:
    """Words of other texts in the place of a word; they need not keep the meaning.

    Attributes:
        vocabulary: The words.
        each: Number of words that are tried in the place of one.
    """

    vocabulary: tuple[str, ...]
    each: int = 4
    name: str = "other words"

    def words(self, draft: Draft, number: int, rng: np.random.Generator) -> list[str]:
        """Return some words of the vocabulary."""
        drawn = (self.vocabulary[place] for place in rng.integers(len(self.vocabulary), size=self.each))
        return [word for word in dict.fromkeys(drawn) if word != draft.words[number]]


class EmbeddingShiftDetector:
    """Measures how far texts move when they are edited, and when they are attacked."""

    name: ClassVar[str] = _NAME
    title: ClassVar[str] = "Attacks and outlier words by the shift of hidden states"
    needs: ClassVar[tuple[Need, ...]] = ("classifier",)
    gains: ClassVar[tuple[Need, ...]] = ("texts", "reference")
    cost: ClassVar[str] = "a minute on two cores for MiniLM"

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield findings on benign edits, on attacks, and on words that turn the states of clean texts."""
        rng = context.rng(_NAME)
        texts = GENERAL if context.rows is None else drawn_texts(context, _MOST, rng)
        order = rng.permutation(len(texts))
        fitted_on = [texts[number] for number in order[::2]]
        judged = [texts[number] for number in order[1::2]] or fitted_on
        encoders = TextEncoders.of(context)
        clean = _clean_texts(context, rng)
        benign = Benign.fit(encoders, fitted_on, rng)
        own = Benign.fit(encoders, judged, rng)
        ask = remembering(lambda asked: answers(context, context.classifier, asked).probabilities_NC)
        for edits in (CharacterEdits(), OtherWords(tuple(sorted({word for text in texts for word in text.split()})))):
            found = _flipped(ask, judged, Recipe(edits, few=FewWords(_EDITED)), rng)
            yield _attack(context, encoders, benign, own, judged, edits.name, found)
        yield _words(encoders, judged, clean)


def _flipped(ask: Ask, texts: Sequence[str], recipe: Recipe, rng: np.random.Generator) -> list[tuple[int, str]]:
    """Attack the model's own answers; return the numbers of texts whose answer flips, and the attacked texts."""
    found = attack_texts(ask, texts, ask(texts).argmax(axis=1).tolist(), recipe, rng)
    return [(number, attack.draft.text) for number, attack in enumerate(found) if attack.reached]


def _attack(
    context: Context,
    encoders: TextEncoders,
    benign: Benign,
    own: Benign,
    texts: Sequence[str],
    kind: str,
    flipped: Sequence[tuple[int, str]],
) -> Finding:
    """Tell attacked texts that flip an answer from benign edits of the same texts.

    Args:
        context: The scan.
        encoders: The models.
        benign: The null of other texts, which the thresholds are of.
        own: The null of these texts.
        texts: The texts that were attacked.
        kind: Name of the edits.
        flipped: Numbers of the texts whose answer flipped, and the attacked texts.
    """
    rate = share(len(flipped), len(texts))
    title = f"{kind} flip {rate.value:.1%} of answers"
    details: dict[str, object] = {
        "flips": rate.value,
        "flips_low": rate.low,
        "flips_high": rate.high,
        "score_threshold": benign.threshold,
        "meaning_threshold": benign.meaning_threshold,
        "benign_above_threshold": float((own.scores_N > benign.threshold).mean()),
        "meaning_by": "the model's embedding layer" if encoders.reference is None else context.reference_name,
    }
    if len(flipped) < _FEWEST:
        return Finding(
            _NAME,
            Severity.INFO,
            f"{title}: too few to tell them from benign edits",
            Evidence("share of answers that flip", rate.value, n=len(texts), details=details),
            f"shift-{kind.replace(' ', '-')}",
        )
    before = encoders.encode([texts[number] for number, _ in flipped])
    after = encoders.encode([text for _, text in flipped])
    scores = np.array([score(*pair) for pair in zip(before, after, strict=True)])
    report = out_of_domain_report(own.scores_N, scores, resamples=300, seed=context.seed)
    useless = report.auroc.high < _USEFUL
    shown = [compared(encoders, benign, texts[number], text) for number, text in flipped[:_SHOWN]]
    details |= {
        **report.auroc.named("auroc"),
        **report.fpr95.named("fpr95"),
        "caught_at_threshold": float((scores > benign.threshold).mean()),
        "shown": [
            {
                "original": each.original[:300],
                "modified": each.modified[:300],
                "verdict": each.verdict,
                "score": each.score,
                "words": [word.word for word in each.words[:3]],
            }
            for each in shown
        ],
    }
    return Finding(
        _NAME,
        Severity.LOW if useless else Severity.INFO,
        f"{title}; by their shift they are told from benign edits with an AUROC of {report.auroc.value:.3f}",
        Evidence(
            "AUROC of the shift for each change of meaning, attacks against benign edits",
            report.auroc.value,
            _USEFUL,
            f"{len(own.scores_N)} benign edits of the same texts that change a token",
            len(flipped),
            details,
        ),
        f"shift-{kind.replace(' ', '-')}",
        remedy="Do not rely on shifts of states against such attacks; normalise texts, or train against them."
        if useless
        else "",
        references=_REFERENCES,
    )


def _clean_texts(context: Context, rng: np.random.Generator) -> tuple[str, ...] | None:
    """Return clean texts of the user's, drawn from more; None where none were given.

    Raises:
        NeedUnmet: One has no text.
        Undecided: There are too few.
    """
    texts = clean_texts(context)
    if texts is None:
        return None
    if len(texts) < _FEWEST_CLEAN:
        raise Undecided(f"expected at least {_FEWEST_CLEAN} clean texts, got {len(texts)}. Give more.")
    return tuple(texts[number] for number in drawn(len(texts), _MOST, rng))


def _words(encoders: TextEncoders, texts: Sequence[str], clean: Sequence[str] | None) -> Finding:
    """Look for words that turn the states of texts by themselves, beyond those of clean texts."""
    own = suspicious_words(encoders, texts)
    null = [found[0].score for found in suspicious_words(encoders, clean or GENERAL) if found]
    threshold = float(np.quantile(null, LEVEL)) if null else float("inf")
    beyond = [(text, found) for text, found in zip(texts, own, strict=True) if found and found[0].score > threshold]
    rate = share(len(beyond), len(texts))
    # Texts of another domain than the user's are no null to accuse the user's by.
    many = clean is not None and rate.low > _MANY
    beyond.sort(key=lambda pair: -pair[1][0].score)
    shown = [{"text": text[:300], "word": found[0].word, "score": found[0].score} for text, found in beyond[:_SHOWN]]
    return Finding(
        _NAME,
        Severity.MEDIUM if many else Severity.INFO,
        f"{rate.value:.1%} of texts hold a word that turns the states more than {LEVEL:.0%} of clean texts do",
        Evidence(
            "share of texts with an outlier word",
            rate.value,
            _MANY if clean is not None else None,
            f"{len(null)} {'texts that are shipped, of other domains' if clean is None else 'clean texts'}: "
            f"{LEVEL:.0%} of them stay below {threshold:.3g}",
            len(texts),
            {"low": rate.low, "high": rate.high, "shown": shown},
        ),
        "shift-outlier-words",
        remedy="Look at the texts and words shown: they may be triggers." if many else "",
        references=_REFERENCES[1:],
    )
