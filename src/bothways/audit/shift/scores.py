"""Scores for how far an edit moves the hidden states of a text, and the benign edits that they are compared with.

The score of a pair of texts is the last layer's shift per unit of change in meaning: benign edits move the last layer
about as far as they change the meaning, and edits made to turn an answer move it further. docs/LOG.md compares this
score with others. Meaning is that of the text as readers see it (`bothways.audit.edits.as_seen`), according to a
reference encoder or to the model's own embedding layer.

Shapes: N pairs of texts, L layers and the embedding before them, H hidden.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bothways.audit.answers import Numbers
from bothways.audit.context import Context, NeedUnmet
from bothways.audit.edits import BENIGN_EDITS, as_seen
from bothways.audit.states import States, sentence_shifts, states_of
from bothways.checkpoints import PretrainedEncoder
from bothways.errors import InvalidInput
from bothways.tasks import TextClassifier

LEVEL = 0.95
# Words of a text that are left out one by one.
_MAX_WORDS = 100
# Smaller changes of meaning count as this one, since edits that change nothing would have infinite scores.
_MIN_CHANGE = 0.01
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True, eq=False)
class TextStates:
    """A text with its hidden states."""

    text: str
    states: States
    meaning_H: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class TextEncoders:
    """The models that encode texts."""

    encoder: PretrainedEncoder
    classifier: TextClassifier | None  # the classifier on it; None without one
    # An encoder for changes of meaning; None to use the first layer of the audited one.
    reference: PretrainedEncoder | None
    context: Context  # keeps the time limit

    @classmethod
    def of(cls, context: Context) -> "TextEncoders":
        """Return the models of a scan; a reference with several encoders is not used."""
        try:
            classifier = context.classifier
        except NeedUnmet:
            classifier = None
        try:
            reference = None if context.reference_name is None else context.base_encoder
        except NeedUnmet:
            reference = None
        return cls(context.encoder, classifier, reference, context)

    def encode(self, texts: Sequence[str]) -> list[TextStates]:
        """Encode texts, in order."""
        layer = 0 if self.reference is None else -1
        own = self.states(texts)
        seen = [as_seen(text) or text for text in texts]
        # Without a reference, the states of texts that readers see as they are serve as their meaning too.
        others = [number for number, text in enumerate(texts) if self.reference is not None or seen[number] != text]
        meant = dict(enumerate(own))
        again = states_of(self.reference or self.encoder, [seen[each] for each in others], self.context.check_time)
        meant |= dict(zip(others, again, strict=True))
        return [
            TextStates(text, states, meant[number].sentence_LH[layer])
            for number, (text, states) in enumerate(zip(texts, own, strict=True))
        ]

    def states(self, texts: Sequence[str]) -> list[States]:
        """Return the hidden states of the audited encoder."""
        return list(states_of(self.encoder, texts, self.context.check_time))


def meaning_shift(before: TextStates, after: TextStates) -> float:
    """Return ``1 - cosine`` between the meanings of two texts."""
    return max(0.0, 1.0 - float(before.meaning_H @ after.meaning_H))


def score(before: TextStates, after: TextStates) -> float:
    """Return the last layer's shift per unit of change in meaning."""
    return last_shift(before.states, after.states) / (meaning_shift(before, after) + _MIN_CHANGE)


def last_shift(before: States, after: States) -> float:
    """Return ``1 - cosine`` between the last layer's mean states."""
    return float(sentence_shifts(before, after)[-1])


@dataclass(frozen=True, slots=True, eq=False)
class BenignEdits:
    """Scores of benign edits of clean texts: the null of `bothways.audit.compare_texts`."""

    scores_N: Numbers
    meanings_N: Numbers

    @classmethod
    def fit(cls, encoders: TextEncoders, texts: Sequence[str], rng: np.random.Generator) -> "BenignEdits":
        """Apply benign edits to clean texts and measure their effect."""
        before = encoders.encode(texts)
        pairs = [
            (number, changed)
            for edit in BENIGN_EDITS
            for number, text in enumerate(texts)
            if (changed := edit.apply(text, rng)) is not None
        ]
        after = encoders.encode([changed for _, changed in pairs])
        both = [(before[number], edited) for (number, _), edited in zip(pairs, after, strict=True)]
        # Edits that the tokenizer undoes move nothing and would narrow the null.
        both = [(first, second) for first, second in both if first.states.ids != second.states.ids]
        if not both:
            raise InvalidInput("no benign edit changes a token of the clean texts: give longer ones.")
        return cls(np.sort([score(*pair) for pair in both]), np.sort([meaning_shift(*pair) for pair in both]))

    @property
    def threshold(self) -> float:
        """The score that 95 % of benign edits stay below."""
        return float(np.quantile(self.scores_N, LEVEL))

    @property
    def meaning_threshold(self) -> float:
        """The change of meaning that 95 % of benign edits stay below."""
        return float(np.quantile(self.meanings_N, LEVEL))


@dataclass(frozen=True, slots=True)
class SuspiciousWord:
    """A word and its effect on its text."""

    word: str
    start: int  # its first character
    score: float  # the part of the last layer's shift that disappears without it
    gradient: float | None = None  # its contribution to the answer by gradient times input; None without a classifier


def suspicious_words(encoders: TextEncoders, texts: Sequence[str]) -> list[tuple[SuspiciousWord, ...]]:
    """Return the words of each text, by how far the last layer's mean state moves without them."""
    ranked: list[tuple[SuspiciousWord, ...]] = []
    for text, states in zip(texts, encoders.states(texts), strict=True):
        spans, without = texts_without_words(text)
        scored = [
            SuspiciousWord(text[begin:end], begin, last_shift(other, states))
            for (begin, end), other in zip(spans, encoders.states(without), strict=True)
        ]
        ranked.append(tuple(sorted(scored, key=lambda each: -each.score)))
    return ranked


def texts_without_words(text: str) -> tuple[list[tuple[int, int]], list[str]]:
    """Return the spans of the first words of a text, and the text without each; nothing for a single word."""
    spans = [match.span() for match in _WORD.finditer(text)]
    if len(spans) < 2:
        return [], []
    spans = spans[:_MAX_WORDS]
    return spans, [f"{text[:begin].rstrip()} {text[end:].lstrip()}".strip() for begin, end in spans]
