"""Sentence embeddings.

Shapes: N texts, H hidden, K kept dimensions, W windows of one text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.checkpoints import PretrainedEncoder, fingerprint, load
from bothways.checkpoints.files import read_json
from bothways.checkpoints.save import encoder_tensors, write_json, write_model
from bothways.encoder import Pooler
from bothways.errors import InvalidInput
from bothways.inference import InferenceEngine, Reading, TextRows
from bothways.packing import Packed
from bothways.storage import new_folder
from bothways.tasks.pooling import Pooling, check_pooling, pool
from bothways.text import Overflow, check_overflow

Vectors = NDArray[np.float32]

# What the ecosystem's sentence embedders call the ways of pooling in 1_Pooling/config.json.
POOLING_KEYS: dict[Pooling, str] = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "weighted_mean": "pooling_mode_weightedmean_tokens",
    "mean_sqrt_length": "pooling_mode_mean_sqrt_len_tokens",
}


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """How texts become vectors.

    Attributes:
        pooling: From token states to one vector.
        unit_length: Whether vectors are scaled to length 1, so that their inner product is the cosine.
        dimensions: Leading dimensions kept; all when None.
        max_length: Most tokens in a window, special ones included.
        on_overflow: What becomes of longer texts.
    """

    pooling: Pooling
    unit_length: bool
    dimensions: int | None
    max_length: int
    on_overflow: Overflow


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
        unit_length: bool = True,
        dimensions: int | None = None,
        max_length: int | None = None,
        on_overflow: Overflow = "window",
        revision: str | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        download: bool = False,
    ) -> "SentenceEmbedder":
        """Load an encoder as an embedder.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            pooling: What the checkpoint says, or the mean, when left out.
            unit_length: Scale vectors to length 1.
            dimensions: Keep this many leading dimensions, for models trained to allow it.
            max_length: Most tokens read at once; what the checkpoint says when left out.
            on_overflow: Longer texts are read in overlapping windows whose vectors are averaged with their lengths as
                weights (for ``max``: their maximum), or refused, or cut.
            revision: The commit that a hub name is pinned to.
            device: ``"auto"`` takes a GPU where there is one.
            dtype: Precision of the weights.
            download: Whether the hub may be asked for it.

        Raises:
            InvalidInput: A setting is out of range.
        """
        model = load(name_or_path, revision=revision, device=device, dtype=dtype, download=download)
        limit = model.config.max_length
        settings = EmbeddingSettings(
            pooling=check_pooling(pooling) if pooling else _stored_pooling(model.folder),
            unit_length=unit_length,
            dimensions=_checked("dimensions", dimensions, model.config.hidden),
            max_length=_checked("max_length", max_length, limit) or _stored_length(model.folder) or limit or 512,
            on_overflow=check_overflow(on_overflow),
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
        """Vectors (K), one for each text of an iterable of any length, in order and in flat memory."""
        chosen = check_pooling(pooling) if pooling else self.settings.pooling
        settings = self.settings

        def forward(packed: Packed) -> Tensor:
            rows_M = packed.first_tokens_B if chosen == "cls" else None
            hidden_TH = self.model.encoder(packed, rows_M=rows_M)
            return hidden_TH if chosen == "cls" else pool(hidden_TH, packed, chosen)

        reading = Reading(settings.max_length, settings.on_overflow, tokens=max_tokens)
        engine = InferenceEngine(self.model.tokenizer, forward, self.model.device, reading)
        for answer in engine.run(texts, total=total, description="embedding", show_progress=show_progress):
            yield self._finish(_merge(answer, chosen))

    def fingerprint(self) -> str:
        """SHA-256 of the weights on disk, which says whether two embedders are the same model."""
        return fingerprint(self.model.folder)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the embedder so that it opens here and in the ecosystem's sentence embedders.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
        """
        model, settings = self.model, self.settings
        modules = [("", model.encoder), *([("pooler.", model.pooler)] if isinstance(model.pooler, Pooler) else [])]
        tensors = encoder_tensors(model.family, model.config, *modules)
        with new_folder(folder, overwrite=overwrite) as new:
            write_model(new, {**model.settings, "architectures": [model.family.base_architecture]}, tensors)
            model.tokenizer.save(new)
            write_sentence_layout(new, model.config.hidden, settings)

    def _finish(self, vector_H: Vectors) -> Vectors:
        vector_K = vector_H[: self.dimensions]
        if not self.settings.unit_length:
            return vector_K
        length = np.float32(max(float(np.linalg.norm(vector_K)), 1e-12))
        unit_K: Vectors = np.divide(vector_K, length)
        return unit_K


def write_sentence_layout(folder: Path, hidden: int, settings: EmbeddingSettings) -> None:
    """Write the files that make a checkpoint a sentence embedder for the ecosystem: modules, pooling, normalisation."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if settings.unit_length else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(zip(kinds, paths, strict=False))
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": settings.max_length, "do_lower_case": False})
    (folder / "1_Pooling").mkdir()
    modes = {key: pooling == settings.pooling for pooling, key in POOLING_KEYS.items()}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden, **modes})
    if settings.unit_length:
        (folder / "2_Normalize").mkdir()


def _merge(answer: TextRows, pooling: Pooling) -> Vectors:
    if len(answer.rows_WK) == 1:
        return answer.rows_WK[0]
    if pooling == "max":
        highest: Vectors = answer.rows_WK.max(0)
        return highest
    merged: NDArray[np.float64] = np.average(answer.rows_WK, axis=0, weights=answer.lengths)
    return merged.astype(np.float32)


def _stored_pooling(folder: Path) -> Pooling:
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "mean"
    stored = read_json(path)
    named = [pooling for pooling, key in POOLING_KEYS.items() if stored.get(key) is True]
    if len(named) != 1:
        raise InvalidInput(
            f"{str(path)!r} must choose one of the poolings {', '.join(POOLING_KEYS)}, "
            f"but it chooses {named or 'none'}. Pass pooling= to choose here."
        )
    return named[0]


def _stored_length(folder: Path) -> int | None:
    path = folder / "sentence_bert_config.json"
    length = read_json(path).get("max_seq_length") if path.is_file() else None
    return length if isinstance(length, int) else None


def _checked(name: str, value: int | None, highest: int | None) -> int | None:
    if value is not None and (value < 1 or (highest is not None and value > highest)):
        raise InvalidInput(f"{name} must lie between 1 and {highest}, but it is {value}.")
    return value
