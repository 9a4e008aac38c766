"""Two texts, seen by one model: how far each layer and token moves, which words did it, and what that amounts to.

The score of a pair is the last layer's shift for each unit of change of meaning: an edit without harm moves the last
layer about as far as it changes the meaning, and one that was made to turn an answer moves it further. docs/LOG.md has
the scores that were compared. Meaning is that of the text as readers see it (`bothways.audit.edits.as_seen`), by a
reference encoder, or by the model's own embedding layer.

Shapes: N pairs, L layers and the embedding before them.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from bothways.audit.answering import Answers, Numbers, answers
from bothways.audit.context import Context, NeedUnmet
from bothways.audit.edits import BENIGN_EDITS, as_seen
from bothways.audit.states import States, pairs_of, sentence_shifts, states_of, token_shifts
from bothways.audit.texts import GENERAL
from bothways.errors import InvalidInput

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder
    from bothways.tasks import TextClassifier

ShiftVerdict: TypeAlias = Literal["kept", "changed meaning", "flipped answer", "moved"]

LEVEL = 0.95
# Words of a text that are left out one by one.
_MOST_WORDS = 100
# Changes of meaning below this count as this: else a text that is read as before had an endless score.
_LEAST_CHANGE = 0.01
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True, eq=False)
class Seer:
    """The models that look at texts.

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
    def of(cls, context: Context) -> "Seer":
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

    def look(self, texts: Sequence[str]) -> "list[Look]":
        """Return what the models see in texts, in order."""
        check_time, layer = self.context.check_time, 0 if self.reference is None else -1
        states = list(states_of(self.encoder, texts, check_time))
        seen = [as_seen(text) or text for text in texts]
        meant = states
        if self.reference is not None or seen != list(texts):
            meant = list(states_of(self.reference or self.encoder, seen, check_time))
        said = None if self.classifier is None else answers(self.context, self.classifier, texts)
        return [
            Look(text, own, other.sentence_LH[layer], _row(said, number))
            for number, (text, own, other) in enumerate(zip(texts, states, meant, strict=True))
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """Observations of a text.

    Attributes:
        text: The text.
        states: Its hidden states.
        meaning_H: A vector at unit length of what it means.
        probabilities_C: Of the labels; None without a classifier.
    """

    text: str
    states: States
    meaning_H: Numbers
    probabilities_C: Numbers | None

    @property
    def label(self) -> int | None:
        """Index of the most probable label."""
        return None if self.probabilities_C is None else int(self.probabilities_C.argmax())


def _row(said: Answers | None, number: int) -> Numbers | None:
    return None if said is None else said.probabilities_NC[number]


def meaning_shift(before: Look, after: Look) -> float:
    """Return ``1 - cosine`` of what two texts mean."""
    return max(0.0, 1.0 - float(before.meaning_H @ after.meaning_H))


def score(before: Look, after: Look) -> float:
    """Return the last layer's shift for each unit of change of meaning."""
    return sentence_shift(before, after) / (meaning_shift(before, after) + _LEAST_CHANGE)


def sentence_shift(before: Look, after: Look) -> float:
    """Return ``1 - cosine`` of the last layer's mean states."""
    return float(sentence_shifts(before.states, after.states)[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Benign:
    """Scores of benign edits of clean texts: the null of `compare_texts`.

    Attributes:
        scores_N: Their scores, ascending.
        meanings_N: How far they change the meaning, ascending.
    """

    scores_N: Numbers
    meanings_N: Numbers

    @classmethod
    def fit(cls, seer: Seer, texts: Sequence[str], rng: np.random.Generator) -> "Benign":
        """Edit clean texts without harm, and measure what that does.

        Raises:
            InvalidInput: No edit changes a token.
        """
        before = seer.look(texts)
        pairs = [
            (number, changed)
            for edit in BENIGN_EDITS
            for number, text in enumerate(texts)
            if (changed := edit.apply(text, rng)) is not None
        ]
        after = seer.look([changed for _, changed in pairs])
        both = [(before[number], look) for (number, _), look in zip(pairs, after, strict=True)]
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
class TokenShift:
    """A token of the modified text.

    Attributes:
        text: Its characters; empty for special tokens.
        start: Its first character in the modified text.
        added: Whether the original has no such token in this place.
        layers: ``1 - cosine`` to the same token of the original, from the embedding to the last layer; none for added
            tokens.
    """

    text: str
    start: int
    added: bool
    layers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SuspiciousWord:
    """A word of a text, and what it does to it.

    Attributes:
        word: The word.
        start: Its first character.
        score: How much of the sentence's shift goes away without it, in the last layer.
        gradient: Its part in the answer by gradient times input; None without a classifier.
    """

    word: str
    start: int
    score: float
    gradient: float | None = None


@dataclass(frozen=True, slots=True)
class TextComparison:
    """The effect of a modification on a text.

    Attributes:
        original: The text before.
        modified: The text after.
        verdict: ``"flipped answer"``: the meaning is kept as in benign edits, and the answer is another one.
            ``"changed meaning"``: it moved further than in benign edits. ``"moved"``: it is kept, and so is the answer,
            but the last layer moved further for it than in benign edits. ``"kept"`` otherwise.
        score: The last layer's shift for each unit of change of meaning.
        threshold: The score that 95 % of benign edits stay below.
        meaning: Change of meaning.
        meaning_threshold: The change that 95 % of benign edits stay below.
        layers: ``1 - cosine`` of the mean states, from the embedding to the last layer.
        tokens: The tokens of the modified text.
        words: Words of the modified text, the most suspicious first: new ones, then by their score.
        labels: The answers before and after; None without a classifier.
        probabilities: The probability of the first of these before and after; None without a classifier.
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

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def compare_texts(
    model: Any,  # noqa: ANN401 (a name, a folder or an opened model)
    original: str,
    modified: str,
    *,
    clean: Sequence[str] = GENERAL,
    reference: str | None = None,
    seed: int = 0,
) -> TextComparison:
    """Compare how a model reads a text and a modified one.

    >>> texts = "This movie is great", "This movie is great unfortunately"
    >>> found = compare_texts("runs/reviews", *texts)  # doctest: +SKIP
    >>> found.words[0].word  # doctest: +SKIP
    'unfortunately'

    Args:
        model: A name or folder of a model, or an opened one.
        original: The text before.
        modified: The text after.
        clean: Texts whose benign edits give the thresholds; those of the model's own domain are best.
        reference: Name or folder of an encoder that says how far the meaning changes, such as that which the model was
            fine-tuned from.
        seed: Draws the benign edits.

    Raises:
        InvalidInput: A text is blank, or the model is not one encoder.
    """
    for name, text in (("original", original), ("modified", modified)):
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput(f"{name}: expected a text, got {text!r}.")
    named = isinstance(model, str) or hasattr(model, "__fspath__")
    context = Context(str(model) if named else "the model", None if named else model, reference_name=reference)
    try:
        seer = Seer.of(context)
    except NeedUnmet as error:
        raise InvalidInput(f"expected {error}") from error
    benign = Benign.fit(seer, clean, np.random.default_rng(seed))
    return compared(seer, benign, original, modified)


def compared(seer: Seer, benign: Benign, original: str, modified: str) -> TextComparison:
    """Compare two texts by a null that was fitted before; see `compare_texts`."""
    before, after = seer.look([original, modified])
    found, meaning = score(before, after), meaning_shift(before, after)
    labels = probabilities = None
    if before.probabilities_C is not None and after.probabilities_C is not None and seer.classifier is not None:
        names, label = seer.classifier.labels, int(before.probabilities_C.argmax())
        labels = (names[label], names[int(after.probabilities_C.argmax())])
        probabilities = (float(before.probabilities_C[label]), float(after.probabilities_C[label]))
    return TextComparison(
        original,
        modified,
        _verdict(benign, found, meaning, flipped=labels is not None and labels[0] != labels[1]),
        found,
        benign.threshold,
        meaning,
        benign.meaning_threshold,
        tuple(sentence_shifts(before.states, after.states).tolist()),
        _tokens(before.states, after.states, modified),
        _words(seer, before, after),
        labels,
        probabilities,
    )


def _verdict(benign: Benign, found: float, meaning: float, *, flipped: bool) -> ShiftVerdict:
    if meaning > benign.meaning_threshold:
        return "changed meaning"
    if flipped:
        return "flipped answer"
    return "moved" if found > benign.threshold else "kept"


def _tokens(before: States, after: States, text: str) -> tuple[TokenShift, ...]:
    _, second, shifts_Ln = token_shifts(before, after)
    moved = {int(place): tuple(shifts_Ln[:, number].tolist()) for number, place in enumerate(second)}
    spans = zip(after.begins_n.tolist(), after.ends_n.tolist(), strict=True)
    return tuple(
        TokenShift(text[begin:end], begin, place not in moved, moved.get(place, ()))
        for place, (begin, end) in enumerate(spans)
    )


def _words(seer: Seer, before: Look, after: Look) -> tuple[SuspiciousWord, ...]:
    """Return the words of the modified text: new ones first, by how much nearer to the original it is without each."""
    spans, without = texts_without_words(after.text)
    shift = sentence_shift(before, after)
    nearer = [
        shift - float(sentence_shifts(before.states, each)[-1])
        for each in states_of(seer.encoder, without, seer.context.check_time)
    ]
    gradients = _gradients(seer, after.text)
    kept = set(pairs_of(before.states, after.states)[1].tolist())
    added = [int(begin) for place, begin in enumerate(after.states.begins_n) if place not in kept]
    found = [
        SuspiciousWord(after.text[begin:end], begin, gain, _in_span(gradients, begin, end))
        for (begin, end), gain in zip(spans, nearer, strict=True)
    ]

    def rank(each: SuspiciousWord) -> tuple[bool, float]:
        return not any(each.start <= begin < each.start + len(each.word) for begin in added), -each.score

    return tuple(sorted(found, key=rank))


def _gradients(seer: Seer, text: str) -> list[tuple[int, float]]:
    """Return where words begin and their gradient times input; nothing without a classifier, or for long texts."""
    if seer.classifier is None:
        return []
    from bothways.errors import TextTooLong
    from bothways.explain import attribute

    try:
        (found,) = attribute(seer.classifier, [text], "gradient-x-input")
    except TextTooLong:
        return []
    pairs = zip(found.words, found.weights_W.tolist(), strict=True)
    return [(word.start, weight) for word, weight in pairs if not np.isnan(weight)]


def _in_span(gradients: Sequence[tuple[int, float]], begin: int, end: int) -> float | None:
    return sum(weight for start, weight in gradients if begin <= start < end) if gradients else None


def suspicious_words(seer: Seer, looks: Sequence[Look]) -> list[tuple[SuspiciousWord, ...]]:
    """Return the words of texts by themselves, those first whose absence moves the last layer most.

    The score of a word is the shift of the last layer's mean state from the text without it to the text.
    """
    found: list[tuple[SuspiciousWord, ...]] = []
    for look in looks:
        spans, without = texts_without_words(look.text)
        scored = [
            SuspiciousWord(look.text[begin:end], begin, sentence_shift(other, look))
            for (begin, end), other in zip(spans, seer.look(without) if without else [], strict=True)
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
