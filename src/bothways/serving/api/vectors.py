"""Vectors of texts, as several APIs ask for them, and the numbers that a model gives for each token."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.inference import Rows, TextRunner, TokenOutputs
from bothways.serving.errors import Refused
from bothways.serving.models import ServedModel
from bothways.serving.routes import Call
from bothways.tasks.embedding.trained import Vectors
from bothways.tasks.scores import TokensRead
from bothways.text.windows import EncodedText, Places, Window

VectorType: TypeAlias = Literal["f32", "f16", "int8", "binary"]


def embed(
    call: Call,
    served: ServedModel,
    texts: Sequence[str] | Sequence[list[int]],
    *,
    prompt: str | None = None,
    dimensions: int | None = None,
    unit_length: bool | None = None,
    param: str = "input",
) -> Vectors:
    """Return the vectors of texts, or of token ids, (N, K); note what was not read.

    ``dimensions`` keeps the first ones, and gives a vector unit length again if the model's have it.
    """
    embedder = served.embedder
    if embedder is None:
        raise Refused(422, f"{served.name!r} embeds no texts.", code="wrong_task", param="model")
    fitted = embedder.fitted
    if dimensions is not None and not 1 <= dimensions <= fitted.dimensions:
        message = f"dimensions must be between 1 and {fitted.dimensions}, got {dimensions}."
        raise Refused(422, message, param="dimensions")
    unit = fitted.settings.unit_length if unit_length is None else unit_length
    if unit != fitted.settings.unit_length:
        fitted = fitted.with_settings(unit_length=unit)
    found: list[tuple[Vectors, TokensRead]]
    words = [text for text in texts if isinstance(text, str)]
    if words:
        call.check_texts(words, param)
        found = list(fitted.vectors(words, prompt=prompt, show_progress=False))
    else:
        ids = [text for text in texts if not isinstance(text, str)]
        call.count(len(ids), param)
        found = fitted.vectors_of_ids(ids)
    for number, (_, read) in enumerate(found):
        call.drop(number, read.dropped_tokens)
    vectors_NK = np.stack([vector_K for vector_K, _ in found])
    return vectors_NK if dimensions is None else shortened(vectors_NK, dimensions, unit=unit)


def shortened(vectors_NK: Vectors, dimensions: int, *, unit: bool) -> Vectors:
    """Return the first dimensions of vectors, with unit length again if ``unit``."""
    short_ND = np.ascontiguousarray(vectors_NK[:, :dimensions])
    if unit:
        lengths_N1 = np.linalg.norm(short_ND, axis=1, keepdims=True)
        short_ND = short_ND / np.maximum(lengths_N1, 1e-12)
    return short_ND.astype(np.float32, copy=False)


def typed(vectors_NK: Vectors, kind: VectorType) -> NDArray[np.generic]:
    """Return vectors in another type.

    ``int8`` scales each vector so that its largest number is 127, ``binary`` keeps the signs, eight to a byte, the
    first dimension in the highest bit. Both keep directions roughly: the cosine of two int8 vectors is within .01 of
    the cosine of the vectors, and Hamming distances of binary ones rank like angles.
    """
    match kind:
        case "f32":
            return np.ascontiguousarray(vectors_NK, dtype="<f4")
        case "f16":
            return vectors_NK.astype(np.float16)
        case "int8":
            largest_N1 = np.maximum(np.abs(vectors_NK).max(axis=1, keepdims=True), 1e-12)
            whole: NDArray[np.int8] = np.rint(vectors_NK / largest_N1 * 127).astype(np.int8)
            return whole
        case "binary":
            packed: NDArray[np.uint8] = np.packbits(vectors_NK > 0, axis=1)
            return packed


def as_base64(row: NDArray[np.generic]) -> str:
    """Return the little-endian bytes of a vector in base64."""
    return base64.b64encode(row.tobytes()).decode("ascii")


@dataclass(frozen=True, slots=True, eq=False)
class TextTokens:
    """The tokens of a text.

    Attributes:
        indices: Place of each token in the sequence that the model would read without a limit of its length.
        ids: Their ids.
        places: Begin and end of each in the text as the model reads it, in code points; (0, 0) for special tokens.
        rows_TK: The numbers of each.
        dropped_tokens: Tokens that were not read.
    """

    indices: list[int]
    ids: list[int]
    places: list[tuple[int, int]]
    rows_TK: NDArray[np.floating]
    dropped_tokens: int


def rows_of_tokens(runner: TextRunner, encoded: Sequence[EncodedText], *, special: bool) -> list[TextTokens]:
    """Return the tokens of tokenised texts with their numbers; ``special`` also those around a text.

    A token that is in several windows has the numbers of that in which it stands farthest from the ends.
    """
    return [_rows_of(text, found, special) for text, found in zip(encoded, runner.rows(encoded), strict=True)]


def _rows_of(text: EncodedText, found: Rows, special: bool) -> TextTokens:
    match found:
        case TokenOutputs(rows=rows, places=places):
            chosen = _chosen(places, special)
        case _:
            raise TypeError("expected a row of numbers for each token")
    return TextTokens(
        [places[window].start + row for window, row in chosen],
        [text.windows[window].ids[row] for window, row in chosen],
        [(int(places[window].begins_n[row]), int(places[window].ends_n[row])) for window, row in chosen],
        np.stack([rows[window][row] for window, row in chosen]) if chosen else rows[0][:0],
        found.dropped_tokens,
    )


def _chosen(places: Sequence[Places], special: bool) -> list[tuple[int, int]]:
    """Return the window and the place in it of each token, in the order of the text."""
    best: dict[int, tuple[int, int, int]] = {}
    inside = [np.flatnonzero(each.sequences_n == 0).tolist() for each in places]
    for window, (each, body) in enumerate(zip(places, inside, strict=True)):
        for row in body:
            context = min(row + 1, len(each.sequences_n) - row)
            if context > best.get(each.start + row, (0,))[0]:
                best[each.start + row] = context, window, row
    chosen = [best[number][1:] for number in sorted(best)]
    if not special:
        return chosen
    last = len(places) - 1
    head = inside[0][0] if inside[0] else len(places[0].sequences_n)
    tail = range(inside[last][-1] + 1, len(places[last].sequences_n)) if inside[last] else ()
    return [*((0, row) for row in range(head)), *chosen, *((last, row) for row in tail)]


def encoded_ids(ids: Sequence[Sequence[int]], runner: TextRunner, entries: int) -> list[EncodedText]:
    """Return texts that are given as the ids of all their tokens; ``entries`` is the size of the vocabulary.

    Raises:
        InvalidInput: A text has no token, too many for one window, or an id that the vocabulary does not have.
    """
    limit = runner.options.max_length
    for number, own in enumerate(ids, start=1):
        if not 0 < len(own) <= limit:
            raise InvalidInput(f"expected 1 to {limit:,} token ids for text {number}, got {len(own):,}.")
        if not 0 <= min(own) <= max(own) < entries:
            raise InvalidInput(f"expected token ids from 0 to {entries - 1:,}, text {number} has others.")
    return [_encoded(list(own)) for own in ids]


def _encoded(ids: list[int]) -> EncodedText:
    size = len(ids)
    return EncodedText((Window(ids, [0] * size, 0, [(0, 0)] * size, None, [0] * size),), size)
