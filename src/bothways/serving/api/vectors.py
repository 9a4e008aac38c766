"""Vectors of texts, as several APIs ask for them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways.serving.errors import Refused
from bothways.serving.models import ServedModel
from bothways.serving.routes import Call
from bothways.tasks.embedding.trained import Vectors
from bothways.tasks.scores import TokensRead

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
