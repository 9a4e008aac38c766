"""How an embedder reads texts: the settings that it ends up with, and the stream of vectors.

Shapes: H hidden, K kept dimensions, W windows of one text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints import PretrainedEncoder
from bothways.errors import InvalidInput
from bothways.inference import InferenceEngine, TextOptions, TextRows, TokenBudget
from bothways.tasks import predictions
from bothways.tasks.embedding.objective import VectorModel
from bothways.tasks.embedding.pooling import Pooling, check_pooling
from bothways.tasks.embedding.sentence_layout import EmbeddingSettings, read_settings
from bothways.tasks.opening import USUAL_LENGTH, kept_stride
from bothways.text import Overflow, check_overflow

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AskedSettings:
    """The settings that a caller asks for; None for what the checkpoint says."""

    pooling: Pooling | None
    unit_length: bool | None
    dimensions: int | None
    max_length: int | None
    on_overflow: Overflow | None
    stride: int | None


def settings_of(model: PretrainedEncoder, extras: Mapping[str, object], asked: AskedSettings) -> EmbeddingSettings:
    """What is asked for, else what the checkpoint says, else what is usual.

    Raises:
        InvalidInput: A setting is out of range.
        UnsupportedConfig: The checkpoint's embedder has modules or a pooling that are not built.
        CorruptCheckpoint: A file is damaged.
    """
    hidden, limit = model.config.hidden, model.config.max_length or USUAL_LENGTH
    stored = read_settings(model.folder, extras, hidden=hidden, limit=limit, cls_is_last=model.tokenizer.cls_is_last)
    before = min(model.tokenizer.model_max_length or limit, limit) if stored.max_length is None else stored.max_length
    length = before if asked.max_length is None else _checked("max_length", asked.max_length, limit)
    if asked.stride is not None:
        stride: int | None = _checked("stride", asked.stride, length - 1, least=0)
    else:
        stride = kept_stride(stored.stride, length, before, model.tokenizer.special_count(pair=False))
    return EmbeddingSettings(
        pooling=check_pooling(asked.pooling) if asked.pooling else stored.pooling or "mean",
        unit_length=stored.unit_length is not False if asked.unit_length is None else asked.unit_length,
        dimensions=stored.dimensions if asked.dimensions is None else check_dimensions(asked.dimensions, hidden),
        max_length=length,
        on_overflow=check_overflow(asked.on_overflow or stored.on_overflow or "window"),
        stride=stride,
    )


def check_dimensions(dimensions: int, hidden: int) -> int:
    """The number of leading dimensions to keep, which an encoder of width ``hidden`` must have.

    Raises:
        InvalidInput: It has not as many.
    """
    return _checked("dimensions", dimensions, hidden)


def text_vectors(
    model: PretrainedEncoder,
    settings: EmbeddingSettings,
    texts: Iterable[str],
    *,
    tokens: int | TokenBudget,
    total: int | None,
    description: str,
    show_progress: bool | None,
) -> Iterator[tuple[Vectors, predictions.Reading]]:
    """A vector (K) for each text, in order and in flat memory, and how much of the text was read.

    Raises:
        InvalidInput: A text is empty or not a string.
        TextTooLong: A text is too long and the policy is ``"error"``.
    """
    reading = TextOptions(settings.max_length, settings.on_overflow, settings.stride)
    module = VectorModel.of(model, settings.pooling)
    engine = InferenceEngine(model.tokenizer, module, model.device, reading, tokens)
    for answer in engine.run(texts, total=total, description=description, show_progress=show_progress):
        read = predictions.Reading(len(answer.lengths), answer.dropped_tokens)
        yield _finished(_merged(answer, settings.pooling), settings), read


def _finished(vector_H: Vectors, settings: EmbeddingSettings) -> Vectors:
    vector_K = vector_H[: settings.dimensions]
    if not settings.unit_length:
        return vector_K
    length = np.float32(max(float(np.linalg.norm(vector_K)), 1e-12))
    unit_K: Vectors = np.divide(vector_K, length)
    return unit_K


def _merged(answer: TextRows, pooling: Pooling) -> Vectors:
    if len(answer.rows_WK) == 1:
        only: Vectors = answer.rows_WK[0]
        return only
    if pooling == "max":
        highest: Vectors = answer.rows_WK.max(0)
        return highest
    merged: NDArray[np.float64] = np.average(answer.rows_WK, axis=0, weights=answer.lengths)
    return merged.astype(np.float32)


def _checked(name: str, value: int, highest: int, *, least: int = 1) -> int:
    if not least <= value <= highest:
        raise InvalidInput(f"{name} must lie between {least} and {highest}, but it is {value}.")
    return value
