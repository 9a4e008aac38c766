"""`compare_texts`: how far an edit moves a text, its tokens and the answer, and which words did it.

Shapes: L layers and the embedding before them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from bothways.audit.answers import answers
from bothways.audit.context import Context, NeedUnmet
from bothways.audit.shift.scores import (
    BenignEdits,
    SuspiciousWord,
    TextEncoders,
    TextStates,
    last_shift,
    meaning_shift,
    score,
    texts_without_words,
)
from bothways.audit.states import States, sentence_shifts, shared_tokens, token_shifts
from bothways.audit.texts import GENERAL
from bothways.errors import InvalidInput, TextTooLong
from bothways.explain import attribute

if TYPE_CHECKING:
    from bothways.audit.context import TrainedModel

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
        original: The text before.
        modified: The text after.
        verdict: ``"changed meaning"``: the meaning changes more than in benign edits. ``"flipped answer"``: the meaning
            stays, but the answer changes. ``"moved"``: meaning and answer stay, but the last layer moves further than
            in benign edits. ``"kept"`` otherwise.
        score: The last layer's shift per unit of change in meaning.
        threshold: The score that 95 % of benign edits stay below.
        meaning: Change of meaning.
        meaning_threshold: The change that 95 % of benign edits stay below.
        layers: ``1 - cosine`` between the mean states, from the embedding to the last layer.
        tokens: The tokens of the modified text.
        words: Words of the modified text, the most suspicious first: new ones, then by score.
        labels: The answers before and after; None without a classifier.
        probabilities: The probability of the first answer before and after; None without a classifier.
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
    model: "str | Path | TrainedModel",
    original: str,
    modified: str,
    *,
    clean: Sequence[str] = GENERAL,
    reference: str | None = None,
    seed: int = 0,
) -> TextComparison:
    """Compare how a model reads a text before and after an edit.

    >>> texts = "This movie is great", "This movie is great unfortunately"
    >>> comparison = compare_texts("runs/reviews", *texts)  # doctest: +SKIP
    >>> comparison.words[0].word  # doctest: +SKIP
    'unfortunately'

    Args:
        model: Name or folder of a model, or an opened one.
        original: The text before.
        modified: The text after.
        clean: Texts whose benign edits give the thresholds; best from the model's own domain.
        reference: Name or folder of an encoder for changes of meaning, such as the one that the model was fine-tuned
            from.
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
    """Compare two texts with a null that was fitted before; see `compare_texts`."""
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
    """Return the words of the modified text: new ones first, then by how much nearer the text is without each."""
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
    """Return the start of each word and its gradient times input; nothing without a classifier, or for long texts."""
    if encoders.classifier is None:
        return []
    try:
        (attribution,) = attribute(encoders.classifier, [text], "gradient-x-input")
    except TextTooLong:
        return []
    pairs = zip(attribution.words, attribution.weights_W.tolist(), strict=True)
    return [(word.start, weight) for word, weight in pairs if not np.isnan(weight)]
