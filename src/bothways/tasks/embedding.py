"""Sentence embeddings.

Shapes: N texts, H hidden, K kept dimensions, W windows of one text.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.checkpoints import PretrainedEncoder, fingerprint, open_checkpoint, pretrained
from bothways.encoder.rows import ALL_ROWS, FIRST_TOKENS, LAST_TOKENS
from bothways.errors import InvalidInput, TextsTruncated
from bothways.inference import InferenceEngine, Reading, TextRows
from bothways.packing import Packed
from bothways.storage import new_folder
from bothways.tasks.pooling import Pooling, check_pooling, pool
from bothways.tasks.sentence_layout import EmbeddingSettings, read_settings, settings_to_store, write_sentence_layout
from bothways.text import Overflow, check_overflow

Vectors = NDArray[np.float32]


class SentenceEmbedder:
    """Turns texts into vectors whose cosine says how alike they are.

    >>> embedder = SentenceEmbedder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
    >>> embedder.encode(["The cat sat.", "A cat was sitting."]).shape
    (2, 384)
    """

    def __init__(self, model: PretrainedEncoder, settings: EmbeddingSettings) -> None:
        self.model = model
        self.settings = settings

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        pooling: Pooling | None = None,
        unit_length: bool | None = None,
        dimensions: int | None = None,
        max_length: int | None = None,
        on_overflow: Overflow | None = None,
        revision: str | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        download: bool = False,
        allow_pickle: bool = False,
    ) -> "SentenceEmbedder":
        """Load an encoder as an embedder. What is left out is as the checkpoint says.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            pooling: The mean where the checkpoint does not say. ``"cls"`` is the token [CLS] of the checkpoint's
                tokenizer: the first of a text, or the last (XLNet).
            unit_length: Scale vectors to length 1, as is done unless an embedder was saved here without.
            dimensions: Keep this many leading dimensions, for models trained to allow it.
            max_length: Most tokens read at once; as many as the model can where the checkpoint does not say.
            on_overflow: Longer texts are read in overlapping windows whose vectors are averaged with their lengths as
                weights (for ``max``: their maximum; ``"window"``, the default), or refused, or cut.
            revision: The commit that a hub name is pinned to.
            device: ``"auto"`` takes a GPU where there is one.
            dtype: Precision of the weights.
            download: Whether the hub may be asked for it.
            allow_pickle: Whether a ``.bin`` file may be read, after a scan.

        Raises:
            InvalidInput: A setting is out of range.
            UnsupportedConfig: The checkpoint's embedder has modules or a pooling that are not built.
            CorruptCheckpoint: A file is damaged.
        """
        checkpoint = open_checkpoint(name_or_path, revision=revision, download=download, allow_pickle=allow_pickle)
        model = pretrained(checkpoint, device=device, dtype=dtype)
        hidden, limit = model.config.hidden, model.config.max_length or 512
        cls_is_last = model.tokenizer.cls_is_last
        stored = read_settings(model.folder, checkpoint.extras, hidden=hidden, limit=limit, cls_is_last=cls_is_last)
        length = (
            min(model.tokenizer.model_max_length or limit, limit) if stored.max_length is None else stored.max_length
        )
        settings = EmbeddingSettings(
            pooling=check_pooling(pooling) if pooling else stored.pooling or "mean",
            unit_length=stored.unit_length is not False if unit_length is None else unit_length,
            dimensions=stored.dimensions if dimensions is None else _checked("dimensions", dimensions, hidden),
            max_length=length if max_length is None else _checked("max_length", max_length, limit),
            on_overflow=check_overflow(on_overflow or stored.on_overflow or "window"),
        )
        return cls(model, settings)

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return self.settings.dimensions or self.model.config.hidden

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling | None = None,
        max_tokens: int | None = None,
        show_progress: bool | None = None,
    ) -> Vectors:
        """Vectors of texts (N, K), or of one text (K).

        Args:
            texts: One text or many.
            pooling: Instead of this embedder's own.
            max_tokens: Token budget of a batch; what suits the device when left out.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        vectors_NK = np.empty((len(listed), self.dimensions), dtype=np.float32)
        stream = self.encode_stream(
            listed, pooling=pooling, max_tokens=max_tokens, total=len(listed), show_progress=show_progress
        )
        for index, vector_K in enumerate(stream):
            vectors_NK[index] = vector_K
        return vectors_NK[0] if isinstance(texts, str) else vectors_NK

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        max_tokens: int | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Vectors]:
        """Vectors (K), one for each text of an iterable of any length, in order and in flat memory.

        Warns:
            TextsTruncated: At the end, if texts were cut (only with ``on_overflow="truncate"``).
        """
        chosen = check_pooling(pooling) if pooling else self.settings.pooling
        settings = self.settings
        cls_rows = LAST_TOKENS if self.model.tokenizer.cls_is_last else FIRST_TOKENS

        def forward(packed: Packed) -> Tensor:
            hidden_TH = self.model.encoder(packed, rows=cls_rows if chosen == "cls" else ALL_ROWS)
            return hidden_TH if chosen == "cls" else pool(hidden_TH, packed, chosen)

        reading = Reading(settings.max_length, settings.on_overflow, tokens=max_tokens)
        engine = InferenceEngine(self.model.tokenizer, forward, self.model.device, reading)
        cut = dropped = 0
        for answer in engine.run(texts, total=total, description="embedding", show_progress=show_progress):
            cut, dropped = cut + (answer.dropped_tokens > 0), dropped + answer.dropped_tokens
            yield self._finish(_merge(answer, chosen))
        if cut:
            texts_were = "1 text was" if cut == 1 else f"{cut:,} texts were"
            warnings.warn(TextsTruncated(f"{texts_were} cut: {dropped:,} tokens were not read."), stacklevel=2)

    def fingerprint(self) -> str:
        """SHA-256 of the weights on disk, which says whether two embedders are the same model."""
        return fingerprint(self.model.folder)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the embedder so that it opens here and in the ecosystem's sentence embedders, whole or not at all.

        With ``dimensions``, sentence-transformers cuts the vectors after they were scaled to length 1, this package
        before: they point the same way there, but are shorter.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        model, settings = self.model, self.settings
        with new_folder(folder, overwrite=overwrite) as new:
            model.write(new, settings_to_store(settings))
            write_sentence_layout(new, model.config.hidden, settings, cls_is_last=model.tokenizer.cls_is_last)

    def _finish(self, vector_H: Vectors) -> Vectors:
        vector_K = vector_H[: self.dimensions]
        if not self.settings.unit_length:
            return vector_K
        length = np.float32(max(float(np.linalg.norm(vector_K)), 1e-12))
        unit_K: Vectors = np.divide(vector_K, length)
        return unit_K


def _merge(answer: TextRows, pooling: Pooling) -> Vectors:
    if len(answer.rows_WK) == 1:
        only: Vectors = answer.rows_WK[0]
        return only
    if pooling == "max":
        highest: Vectors = answer.rows_WK.max(0)
        return highest
    merged: NDArray[np.float64] = np.average(answer.rows_WK, axis=0, weights=answer.lengths)
    return merged.astype(np.float32)


def _checked(name: str, value: int, highest: int) -> int:
    if not 1 <= value <= highest:
        raise InvalidInput(f"{name} must lie between 1 and {highest}, but it is {value}.")
    return value
