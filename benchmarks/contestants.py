"""The embedders that are compared: one class each, all MiniLM, all at most 512 tokens, mean pooling, unit length.

Each class is built inside its own worker process (``build``), so heavy imports stay inside the constructors. The peers'
settings are what their users get by default, apart from the limit of 512 tokens. Where a user says how many texts make
a batch, the caller does (``TUNED``); the others read 32 at a time or decide for themselves.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.harness import MODEL, minilm_folder
from benchmarks.onnx_graph import ctranslate2_folder, int8_graph, our_int8_folder, our_light_folder
from benchmarks.runtimes import BATCH, CTranslate2, FastEmbed, OnnxRuntime, OpenVino, longest_first
from benchmarks.texts import MAX_TOKENS
from benchmarks.workers import AbsentPeerError

BASELINE = "sentence-transformers"
OURS = "bothways"


class Embedder(Protocol):
    """Texts to unit vectors."""

    def encode(self, texts: Sequence[str], *batch: int) -> np.ndarray:
        """Vectors [texts, 384], in the order of the texts; ``batch`` is given to those of ``TUNED`` alone."""


class Bothways:
    """This package, as a user calls it."""

    def __init__(self, threads: int, model: str | Path = MODEL, dtype: str = "float32") -> None:
        import torch

        from bothways import SentenceEmbedder

        torch.set_num_threads(threads)
        self._embedder = SentenceEmbedder.from_pretrained(model, device="cpu", dtype=dtype, max_length=MAX_TOKENS)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [texts, 384]."""
        return np.asarray(self._embedder.encode(list(texts)))


class BothwaysLight:
    """This package without torch: its export in onnxruntime, as a user calls it; threads as the environment says."""

    def __init__(self, folder: Path) -> None:
        from bothways import SentenceEmbedder

        self._embedder = SentenceEmbedder.from_pretrained(folder, max_length=MAX_TOKENS)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [texts, 384]."""
        return np.asarray(self._embedder.encode(list(texts)))


class SentenceTransformers:
    """sentence-transformers, torch backend, its default batch of 32; it sorts by characters."""

    def __init__(self, threads: int) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        import torch

        torch.set_num_threads(threads)
        self._model = SentenceTransformer(str(minilm_folder()), device="cpu")
        # The checkpoint asks for 256; without this, longer passages would be cut and the work would be less.
        self._model.max_seq_length = MAX_TOKENS

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [texts, 384]."""
        return np.asarray(self._model.encode(list(texts), show_progress_bar=False))


class Transformers:
    """transformers with sdpa attention, in the given order or sorted by tokens."""

    def __init__(self, threads: int, *, by_tokens: bool) -> None:
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        self._by_tokens = by_tokens
        self._tokenizer = AutoTokenizer.from_pretrained(minilm_folder(), model_max_length=MAX_TOKENS)
        self._model = AutoModel.from_pretrained(minilm_folder(), attn_implementation="sdpa").eval()

    def encode(self, texts: Sequence[str], batch: int = BATCH) -> np.ndarray:
        """Vectors [texts, 384]."""
        ids = self._tokenizer(list(texts), truncation=True)["input_ids"]
        order = longest_first(ids) if self._by_tokens else list(range(len(ids)))
        vectors = np.empty((len(ids), self._model.config.hidden_size), np.float32)
        with self._torch.inference_mode():
            for start in range(0, len(order), batch):
                rows = order[start : start + batch]
                padded = self._tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
                hidden_BSH = self._model(**padded).last_hidden_state
                mask_BS1 = padded["attention_mask"].unsqueeze(-1).to(hidden_BSH.dtype)
                mean_BH = (hidden_BSH * mask_BS1).sum(1) / mask_BS1.sum(1)
                vectors[rows] = self._torch.nn.functional.normalize(mean_BH, dim=1).numpy()
        return vectors


NAMES = (
    OURS,
    BASELINE,
    "transformers, given order",
    "transformers, sorted by tokens",
    "onnxruntime, sorted by characters",
    "onnxruntime, sorted by tokens",
    "openvino, sorted by characters",
    "openvino, sorted by tokens",
    "ctranslate2, sorted by tokens",
    "fastembed, given order",
)
# Compared by ``python -m benchmarks light``.
OURS_LIGHT = "bothways light"
LIGHT_NAMES = (OURS, OURS_LIGHT, BASELINE, "onnxruntime, sorted by tokens")
# Compared by ``python -m benchmarks int8``, of lower precision than float32.
OURS_INT8 = "bothways int8"
INT8_NAMES = (
    OURS,
    "bothways bfloat16",
    OURS_INT8,
    BASELINE,
    "openvino bfloat16, sorted by tokens",
    "onnxruntime int8, sorted by tokens",
    "ctranslate2 int8, sorted by tokens",
)
# A careful user of these looks for the fastest batch; fastembed sorts nothing and reads 256 if nobody says otherwise.
TUNED = tuple(
    name for name in (*NAMES, *INT8_NAMES) if name.endswith("sorted by tokens") or name.startswith("fastembed")
)


def _embedder(name: str, threads: int, graph: Path) -> Embedder:
    by_tokens = name.endswith("tokens")
    match name.partition(",")[0]:
        case "bothways":
            return Bothways(threads)
        case "bothways bfloat16":
            return Bothways(threads, dtype="auto")
        case "bothways light":
            return BothwaysLight(our_light_folder(graph))
        case "bothways int8":
            return Bothways(threads, our_int8_folder(graph))
        case "sentence-transformers":
            return SentenceTransformers(threads)
        case "transformers":
            return Transformers(threads, by_tokens=by_tokens)
        case "onnxruntime":
            return OnnxRuntime(threads, graph, by_tokens=by_tokens)
        case "onnxruntime int8":
            return OnnxRuntime(threads, int8_graph(graph), by_tokens=by_tokens)
        case "openvino":
            return OpenVino(threads, graph, by_tokens=by_tokens)
        case "openvino bfloat16":
            return OpenVino(threads, graph, by_tokens=by_tokens, precision="bf16")
        case "ctranslate2":
            return CTranslate2(threads, ctranslate2_folder(graph), by_tokens=by_tokens)
        case "ctranslate2 int8":
            return CTranslate2(threads, ctranslate2_folder(graph), by_tokens=by_tokens, precision="int8")
        case "fastembed":
            return FastEmbed(threads, graph)
    raise ValueError(f"expected one of {NAMES + INT8_NAMES}, got {name!r}")


class Subject:
    """What a worker serves: an embedder and the texts that it was given."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._texts: dict[str, Sequence[str]] = {}

    def keep(self, workload: str, texts: Sequence[str]) -> None:
        """Remember texts under a name, so that later calls need not send them."""
        self._texts[workload] = texts

    def vectors(self, workload: str, *batch: int) -> np.ndarray:
        """Embed and return the vectors."""
        return np.asarray(self._embedder.encode(self._texts[workload], *batch), np.float32)

    def embed(self, workload: str, *batch: int) -> None:
        """Embed and drop the vectors: the timed call."""
        self._embedder.encode(self._texts[workload], *batch)

    def one_by_one(self, workload: str) -> list[tuple[float, float]]:
        """Seconds of wall and CPU time of each text on its own."""
        times = []
        for text in self._texts[workload]:
            cpu, wall = time.process_time(), time.perf_counter()
            self._embedder.encode([text])
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
        return times


def build(name: str, threads: int, graph: Path) -> Subject:
    """The subject of a worker."""
    return Subject(_embedder(name, threads, graph))
