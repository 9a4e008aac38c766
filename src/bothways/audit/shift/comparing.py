"""`compare_texts`: how far an edit moves a text's hidden states and the prediction, compared with benign edits.

The score of a pair of texts is the last layer's shift per unit of change in meaning: benign edits move the last layer
about as far as they change the meaning, and edits made to flip a prediction move it further. docs/LOG.md compares this
score with others. Meaning is measured on the text as readers see it (`bothways.audit.texts.as_seen`), by a
reference encoder or by the model's own embedding layer.

Shapes: N pairs of texts, L layers and the embedding before them, H hidden.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from bothways.audit.answers import Numbers, States, answers, sentence_shifts, shared_tokens, states_of, token_shifts
from bothways.audit.context import Context, NeedUnmet
from bothways.audit.texts import BENIGN_EDITS, GENERAL, PARAPHRASES, as_seen
from bothways.checkpoints import PretrainedEncoder
from bothways.errors import InvalidInput, TextTooLong
from bothways.explain import attribute
from bothways.tasks import TextClassifier

if TYPE_CHECKING:
    from bothways.tasks.task import AnyTask

LEVEL = 0.95
# Maximum number of words of a text that are left out one by one.
_MAX_WORDS = 100
# Added to each change of meaning, since edits that change no meaning would have infinite scores.
_MIN_CHANGE = 0.01
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True, eq=False)
class TextStates:
    """A text with its hidden states."""

    text: str
    states: States
    meaning_H: Numbers  # vector of the meaning, of unit length


@dataclass(frozen=True, slots=True, eq=False)
class TextEncoders:
    """The models that encode texts."""

    encoder: PretrainedEncoder
    classifier: TextClassifier | None  # the classifier of which it is part; None if the model is not a classifier
    # An encoder that measures changes of meaning; None to use the embedding layer of ``encoder``.
    reference: PretrainedEncoder | None
    context: Context  # checks the time limit

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
        # Without a reference, the states of a text that `as_seen` leaves unchanged also serve as its meaning.
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
    """Scores of benign edits of clean texts: the null distribution of `bothways.audit.compare_texts`."""

    scores_N: Numbers  # scores of the edits, ascending
    meanings_N: Numbers  # changes of meaning, ascending
    paraphrases_M: Numbers  # scores of the package's paraphrases, ascending

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
        # Edits that leave the token ids unchanged have no effect and would lower the thresholds.
        both = [(first, second) for first, second in both if first.states.ids != second.states.ids]
        if not both:
            raise InvalidInput("expected clean texts that benign edits change, got none. Give longer clean texts.")
        first, again = encoders.encode(GENERAL[: len(PARAPHRASES)]), encoders.encode(PARAPHRASES)
        paraphrases_M = np.sort([score(*pair) for pair in zip(first, again, strict=True)])
        scores_N, meanings_N = (np.sort([measure(*pair) for pair in both]) for measure in (score, meaning_shift))
        return cls(scores_N, meanings_N, paraphrases_M)

    @property
    def threshold(self) -> float:
        """The score that 95 % of benign edits and 95 % of paraphrases stay below."""
        return max(float(np.quantile(each, LEVEL)) for each in (self.scores_N, self.paraphrases_M))

    @property
    def meaning_threshold(self) -> float:
        """The change of meaning that 95 % of benign edits stay below."""
        return float(np.quantile(self.meanings_N, LEVEL))


@dataclass(frozen=True, slots=True)
class SuspiciousWord:
    """A word and its effect on its text."""

    word: str
    start: int  # its first character
    score: float  # the part of the last layer's shift that disappears without the word
    gradient: float | None = None  # gradient times input for the predicted label; None without a classifier


def suspicious_words(encoders: TextEncoders, texts: Sequence[str]) -> list[tuple[SuspiciousWord, ...]]:
    """Return the words of each text, sorted by how far leaving them out shifts the last layer's mean state."""
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
    """Return the spans of a text's first 100 words, and the text without each word; empty for a single word."""
    spans = [match.span() for match in _WORD.finditer(text)]
    if len(spans) < 2:
        return [], []
    spans = spans[:_MAX_WORDS]
    return spans, [f"{text[:begin].rstrip()} {text[end:].lstrip()}".strip() for begin, end in spans]


ShiftVerdict: TypeAlias = Literal["kept", "changed meaning", "flipped answer", "moved"]


@dataclass(frozen=True, slots=True)
class TokenShift:
    """A token of the modified text."""

    text: str
    start: int  # its first character in the modified text
    added: bool  # True if the original has no such token in this place
    # ``1 - cosine`` to the same token of the original, from the embedding to the last layer; empty for added
    # tokens.
    layers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TextComparison:
    """The effect of an edit on a text.

    Attributes:
        original: The text before the edit.
        modified: The text after the edit.
        verdict: ``"changed meaning"``: the meaning changes more than in benign edits. ``"flipped answer"``: the meaning
            stays, but the predicted label changes. ``"moved"``: both stay, but the last layer moves further than in
            benign edits. ``"kept"`` otherwise.
        score: The last layer's shift per unit of change in meaning.
        threshold: The score that 95 % of benign edits and 95 % of paraphrases stay below.
        meaning: Change of meaning, as ``1 - cosine``.
        meaning_threshold: The change that 95 % of benign edits stay below.
        layers: ``1 - cosine`` between the mean states, from the embedding to the last layer.
        tokens: The tokens of the modified text.
        words: Words of the modified text, the most suspicious first: added words before others, then by score.
        labels: The predicted labels before and after; None without a classifier.
        probabilities: The probability of the first label before and after; None without a classifier.
    """

    original: str
    modified: str
    verdict: ShiftVerdict
    score: float
    threshold: float
    meaning: float
    meaning_threshold: float
    layers: tuple[float, ...]
    tokens: tuple[TokenShift, ...]
    words: tuple[SuspiciousWord, ...]
    labels: tuple[str, str] | None = None
    probabilities: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the comparison as JSON values."""
        return asdict(self)


def compare_texts(
    model: "str | Path | AnyTask",
    original: str,
    modified: str,
    *,
    clean: Sequence[str] = GENERAL,
    reference: str | None = None,
    seed: int = 0,
) -> TextComparison:
    """Measure the effect of an edit on a text's meaning, hidden states and prediction.

    >>> texts = "This movie is great", "This movie is great unfortunately"
    >>> comparison = compare_texts("runs/reviews", *texts)  # doctest: +SKIP
    >>> comparison.words[0].word  # doctest: +SKIP
    'unfortunately'

    Args:
        model: Name or folder of a model, or an opened one.
        original: The text before the edit.
        modified: The text after the edit.
        clean: Texts whose benign edits give the thresholds; best from the model's own domain.
        reference: Name or folder of an encoder that measures changes of meaning, such as the one that the model was
            fine-tuned from.
        seed: Seed of the benign edits.

    Raises:
        InvalidInput: A text is blank, or the model has several encoders.
    """
    for name, text in (("original", original), ("modified", modified)):
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput(f"{name}: expected a text, got {text!r}.")
    if isinstance(model, str | Path):
        context = Context(str(model), reference_name=reference)
    else:
        context = Context("the model", model, reference_name=reference)
    try:
        encoders = TextEncoders.of(context)
    except NeedUnmet as error:
        raise InvalidInput(f"expected {error}") from error
    return compared(encoders, BenignEdits.fit(encoders, clean, np.random.default_rng(seed)), original, modified)


def compared(encoders: TextEncoders, benign: BenignEdits, original: str, modified: str) -> TextComparison:
    """Compare two texts, given the fitted scores of benign edits; see `compare_texts`."""
    before, after = encoders.encode([original, modified])
    shift, meaning = score(before, after), meaning_shift(before, after)
    labels = probabilities = None
    if encoders.classifier is not None:
        answered, names = (
            answers(encoders.context, encoders.classifier, [original, modified]),
            encoders.classifier.labels,
        )
        first, second = answered.labels_N.tolist()
        labels = (names[first], names[second])
        probabilities = (float(answered.probabilities_NC[0, first]), float(answered.probabilities_NC[1, first]))
    verdict: ShiftVerdict = "moved" if shift > benign.threshold else "kept"
    if meaning > benign.meaning_threshold:
        verdict = "changed meaning"
    elif labels is not None and labels[0] != labels[1]:
        verdict = "flipped answer"
    return TextComparison(
        original,
        modified,
        verdict,
        shift,
        benign.threshold,
        meaning,
        benign.meaning_threshold,
        tuple(sentence_shifts(before.states, after.states).tolist()),
        _tokens(before.states, after.states, modified),
        _words(encoders, before, after),
        labels,
        probabilities,
    )


def _tokens(before: States, after: States, text: str) -> tuple[TokenShift, ...]:
    first, second = shared_tokens(before, after)
    shifts_Ln = token_shifts(before, after, first, second)
    moved = {int(place): tuple(shifts_Ln[:, number].tolist()) for number, place in enumerate(second)}
    spans = zip(after.begins_n.tolist(), after.ends_n.tolist(), strict=True)
    return tuple(
        TokenShift(text[begin:end], begin, place not in moved, moved.get(place, ()))
        for place, (begin, end) in enumerate(spans)
    )


def _words(encoders: TextEncoders, before: TextStates, after: TextStates) -> tuple[SuspiciousWord, ...]:
    """Return the words of the modified text: added words before others, then by how far each moved the text."""
    spans, without = texts_without_words(after.text)
    shift = last_shift(before.states, after.states)
    nearer = [shift - last_shift(before.states, each) for each in encoders.states(without)]
    gradients = _gradients(encoders, after.text)
    kept = set(shared_tokens(before.states, after.states)[1].tolist())
    added = [int(begin) for place, begin in enumerate(after.states.begins_n) if place not in kept]
    words = []
    for (begin, end), gain in zip(spans, nearer, strict=True):
        inside = sum(weight for start, weight in gradients if begin <= start < end) if gradients else None
        words.append(SuspiciousWord(after.text[begin:end], begin, gain, inside))

    def rank(each: SuspiciousWord) -> tuple[bool, float]:
        return not any(each.start <= begin < each.start + len(each.word) for begin in added), -each.score

    return tuple(sorted(words, key=rank))


def _gradients(encoders: TextEncoders, text: str) -> list[tuple[int, float]]:
    """Return the start of each word and its gradient times input; empty without a classifier, or for long texts."""
    if encoders.classifier is None:
        return []
    try:
        (attribution,) = attribute(encoders.classifier, [text], "gradient-x-input")
    except TextTooLong:
        return []
    pairs = zip(attribution.words, attribution.weights_W.tolist(), strict=True)
    return [(word.start, weight) for word, weight in pairs if not np.isnan(weight)]
