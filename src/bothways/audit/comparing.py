"""`compare_texts`: how far a modification moves a text, each of its tokens and the answer, and which words did it.

Scores and thresholds are those of `bothways.audit.shift_scores`.

Shapes: L layers and the embedding before them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from bothways.audit.answering import answers
from bothways.audit.context import Context, NeedUnmet
from bothways.audit.shift_scores import (
    Benign,
    SuspiciousWord,
    TextEncoders,
    TextStates,
    last_shift,
    meaning_shift,
    score,
    sentence_shift,
    texts_without_words,
)
from bothways.audit.states import States, pairs_of, sentence_shifts, token_shifts
from bothways.audit.texts import GENERAL
from bothways.errors import InvalidInput

ShiftVerdict: TypeAlias = Literal["kept", "changed meaning", "flipped answer", "moved"]


@dataclass(frozen=True, slots=True)
class TokenShift:
    """A token of the modified text.

    Attributes:
        text: Its characters; empty for special tokens.
        start: Its first character in the modified text.
        added: True where the original has no such token in this place.
        layers: ``1 - cosine`` to the same token of the original, from the embedding to the last layer; none for added
            tokens.
    """

    text: str
    start: int
    added: bool
    layers: tuple[float, ...] = ()


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
        """Return the comparison as JSON values."""
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
        encoders = TextEncoders.of(context)
    except NeedUnmet as error:
        raise InvalidInput(f"expected {error}") from error
    benign = Benign.fit(encoders, clean, np.random.default_rng(seed))
    return compared(encoders, benign, original, modified)


def compared(encoders: TextEncoders, benign: Benign, original: str, modified: str) -> TextComparison:
    """Compare two texts by a null that was fitted before; see `compare_texts`."""
    before, after = encoders.encode([original, modified])
    found, meaning = score(before, after), meaning_shift(before, after)
    labels = probabilities = None
    if encoders.classifier is not None:
        answered, names = (
            answers(encoders.context, encoders.classifier, [original, modified]),
            encoders.classifier.labels,
        )
        first, second = answered.labels_N.tolist()
        labels = (names[first], names[second])
        probabilities = (float(answered.probabilities_NC[0, first]), float(answered.probabilities_NC[1, first]))
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
        _words(encoders, before, after),
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


def _words(encoders: TextEncoders, before: TextStates, after: TextStates) -> tuple[SuspiciousWord, ...]:
    """Return the words of the modified text: new ones first, by how much nearer to the original it is without each."""
    spans, without = texts_without_words(after.text)
    shift = sentence_shift(before, after)
    nearer = [shift - last_shift(before.states, each) for each in encoders.states(without)]
    gradients = _gradients(encoders, after.text)
    kept = set(pairs_of(before.states, after.states)[1].tolist())
    added = [int(begin) for place, begin in enumerate(after.states.begins_n) if place not in kept]
    found = [
        SuspiciousWord(after.text[begin:end], begin, gain, _in_span(gradients, begin, end))
        for (begin, end), gain in zip(spans, nearer, strict=True)
    ]

    def rank(each: SuspiciousWord) -> tuple[bool, float]:
        return not any(each.start <= begin < each.start + len(each.word) for begin in added), -each.score

    return tuple(sorted(found, key=rank))


def _gradients(encoders: TextEncoders, text: str) -> list[tuple[int, float]]:
    """Return where words begin and their gradient times input; nothing without a classifier, or for long texts."""
    if encoders.classifier is None:
        return []
    from bothways.errors import TextTooLong
    from bothways.explain import attribute

    try:
        (found,) = attribute(encoders.classifier, [text], "gradient-x-input")
    except TextTooLong:
        return []
    pairs = zip(found.words, found.weights_W.tolist(), strict=True)
    return [(word.start, weight) for word, weight in pairs if not np.isnan(weight)]


def _in_span(gradients: Sequence[tuple[int, float]], begin: int, end: int) -> float | None:
    return sum(weight for start, weight in gradients if begin <= start < end) if gradients else None
