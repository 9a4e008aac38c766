"""Scores of how far a modification moves a text's hidden states, and the benign edits that they are judged by.

The score of a pair is the last layer's shift for each unit of change of meaning: an edit without harm moves the last
layer about as far as it changes the meaning, and one that was made to turn an answer moves it further. docs/LOG.md has
the scores that were compared. Meaning is that of the text as readers see it (`bothways.audit.edits.as_seen`), by a
reference encoder, or by the model's own embedding layer.

Shapes: N pairs, L layers and the embedding before them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bothways.audit.answering import Numbers
from bothways.audit.context import Context, NeedUnmet
from bothways.audit.edits import BENIGN_EDITS, as_seen
from bothways.audit.states import States, sentence_shifts, states_of
from bothways.errors import InvalidInput

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder
    from bothways.tasks import TextClassifier

LEVEL = 0.95
# Words of a text that are left out one by one.
_MOST_WORDS = 100
# Changes of meaning below this count as this: else a text that is read as before had an endless score.
_LEAST_CHANGE = 0.01
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True, eq=False)
class TextStates:
    """A text and what the models make of it.

    Attributes:
        text: The text.
        states: Its hidden states.
        meaning_H: A vector at unit length of what it means.
    """

    text: str
    states: States
    meaning_H: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class TextEncoders:
    """The models that encode texts.

    Attributes:
        encoder: The encoder that is audited.
        classifier: The classifier above it; None where there is none.
        reference: An encoder that says how far a meaning changes; None to ask the audited one's first layer.
        context: Keeps the time.
    """

    encoder: "PretrainedEncoder"
    classifier: "TextClassifier | None"
    reference: "PretrainedEncoder | None"
    context: Context

    @classmethod
    def of(cls, context: Context) -> "TextEncoders":
        """Return the models of a scan; a reference that is no single encoder is not used."""
        from bothways.checkpoints import PretrainedEncoder

        try:
            classifier = context.classifier
        except NeedUnmet:
            classifier = None
        reference = None if context.reference_name is None else context.reference
        reference = getattr(reference, "model", reference)
        usable = reference if isinstance(reference, PretrainedEncoder) else None
        return cls(context.encoder, classifier, usable, context)

    def encode(self, texts: Sequence[str]) -> list[TextStates]:
        """Encode texts, in order."""
        layer = 0 if self.reference is None else -1
        own = self.states(texts)
        seen = [as_seen(text) or text for text in texts]
        # Texts that readers see as they are have been encoded already, unless a reference is asked.
        others = [number for number, text in enumerate(texts) if self.reference is not None or seen[number] != text]
        meant = dict(enumerate(own))
        again = states_of(self.reference or self.encoder, [seen[each] for each in others], self.context.check_time)
        meant |= dict(zip(others, again, strict=True))
        return [
            TextStates(text, states, meant[number].sentence_LH[layer])
            for number, (text, states) in enumerate(zip(texts, own, strict=True))
        ]

    def states(self, texts: Sequence[str]) -> list[States]:
        """Return the hidden states of the audited encoder alone."""
        return list(states_of(self.encoder, texts, self.context.check_time))


def meaning_shift(before: TextStates, after: TextStates) -> float:
    """Return ``1 - cosine`` of what two texts mean."""
    return max(0.0, 1.0 - float(before.meaning_H @ after.meaning_H))


def score(before: TextStates, after: TextStates) -> float:
    """Return the last layer's shift for each unit of change of meaning."""
    return sentence_shift(before, after) / (meaning_shift(before, after) + _LEAST_CHANGE)


def sentence_shift(before: TextStates, after: TextStates) -> float:
    """Return ``1 - cosine`` of the last layer's mean states."""
    return last_shift(before.states, after.states)


def last_shift(before: States, after: States) -> float:
    """Return ``1 - cosine`` of the last layer's mean states."""
    return float(sentence_shifts(before, after)[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Benign:
    """Scores of benign edits of clean texts: the null of `compare_texts`.

    Attributes:
        scores_N: Their scores, ascending.
        meanings_N: Their changes of meaning, ascending.
    """

    scores_N: Numbers
    meanings_N: Numbers

    @classmethod
    def fit(cls, encoders: TextEncoders, texts: Sequence[str], rng: np.random.Generator) -> "Benign":
        """Edit clean texts without harm, and measure what that does.

        Raises:
            InvalidInput: No edit changes a token.
        """
        before = encoders.encode(texts)
        pairs = [
            (number, changed)
            for edit in BENIGN_EDITS
            for number, text in enumerate(texts)
            if (changed := edit.apply(text, rng)) is not None
        ]
        after = encoders.encode([changed for _, changed in pairs])
        both = [(before[number], edited) for (number, _), edited in zip(pairs, after, strict=True)]
        # An edit that the tokenizer undoes moves nothing, and would only make the null look narrow.
        both = [(first, second) for first, second in both if first.states.ids != second.states.ids]
        if not both:
            raise InvalidInput("no benign edit changes a token of the clean texts: give longer ones.")
        return cls(
            np.sort([score(*pair) for pair in both]),
            np.sort([meaning_shift(*pair) for pair in both]),
        )

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
    """A word of a text, and its effect on the text.

    Attributes:
        word: The word.
        start: Its first character.
        score: Part of the sentence's shift in the last layer that goes away without it.
        gradient: Its part in the answer by gradient times input; None without a classifier.
    """

    word: str
    start: int
    score: float
    gradient: float | None = None


def suspicious_words(encoders: TextEncoders, texts: Sequence[str]) -> list[tuple[SuspiciousWord, ...]]:
    """Return the words of texts by themselves, those first whose absence moves the last layer most.

    The score of a word is the shift of the last layer's mean state from the text without it to the text.
    """
    found: list[tuple[SuspiciousWord, ...]] = []
    for text, states in zip(texts, encoders.states(texts), strict=True):
        spans, without = texts_without_words(text)
        scored = [
            SuspiciousWord(text[begin:end], begin, last_shift(other, states))
            for (begin, end), other in zip(spans, encoders.states(without), strict=True)
        ]
        found.append(tuple(sorted(scored, key=lambda each: -each.score)))
    return found


def texts_without_words(text: str) -> tuple[list[tuple[int, int]], list[str]]:
    """Return where the first words of a text stand, and the text without each; nothing for a text of one word."""
    spans = [found.span() for found in _WORD.finditer(text)]
    if len(spans) < 2:
        return [], []
    spans = spans[:_MOST_WORDS]
    return spans, [f"{text[:begin].rstrip()} {text[end:].lstrip()}".strip() for begin, end in spans]
