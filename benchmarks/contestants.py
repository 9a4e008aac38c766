"""The embedders that are compared: one class each, all MiniLM, all at most 512 tokens, mean pooling, unit length.

Each class is built inside its own worker process (``build``), so heavy imports stay inside the constructors. The peers'
settings are what their users get by default (batches of 32), apart from the limit of 512 tokens.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.harness import MODEL, minilm_folder
from benchmarks.onnx_graph import INPUTS
from benchmarks.texts import MAX_TOKENS
from benchmarks.workers import AbsentPeerError

BATCH = 32
BASELINE = "sentence-transformers"
OURS = "bothways"


class Embedder(Protocol):
    """Texts to unit vectors."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [texts, 384], in the order of the texts."""


class Bothways:
    """This package, as a user calls it."""

    def __init__(self, threads: int) -> None:
        import torch

        from bothways import SentenceEmbedder

        torch.set_num_threads(threads)
        self._embedder = SentenceEmbedder.from_pretrained(MODEL, device="cpu", max_length=MAX_TOKENS)

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
    """transformers with sdpa attention, in batches of 32, in the given order or sorted by tokens."""

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

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [texts, 384]."""
        ids = self._tokenizer(list(texts), truncation=True)["input_ids"]
        order = _order(ids) if self._by_tokens else list(range(len(ids)))
        vectors = np.empty((len(ids), self._model.config.hidden_size), np.float32)
        with self._torch.inference_mode():
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                batch = self._tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
                hidden_BSH = self._model(**batch).last_hidden_state
                mask_BS1 = batch["attention_mask"].unsqueeze(-1).to(hidden_BSH.dtype)
                mean_BH = (hidden_BSH * mask_BS1).sum(1) / mask_BS1.sum(1)
                vectors[rows] = self._torch.nn.functional.normalize(mean_BH, dim=1).numpy()
        return vectors


class _Runtime:
    """A runtime that reads the ONNX graph; tokenised by ``tokenizers`` directly, pooled by NumPy.

    Sorted by tokens: everything is tokenised first. Sorted by characters, as sentence-transformers does: each batch is
    tokenised in its turn.
    """

    def __init__(self, *, by_tokens: bool) -> None:
        from tokenizers import Tokenizer

        self._by_tokens = by_tokens
        self._tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Last hidden state [batch, length, 384]."""
        raise NotImplementedError

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [texts, 384]."""
        if self._by_tokens:
            ids = self._ids(texts)
            order = _order(ids)
        else:
            order = [int(row) for row in np.argsort([-len(text) for text in texts])]
        vectors = None
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            batch = [ids[row] for row in rows] if self._by_tokens else self._ids([texts[row] for row in rows])
            pooled = self._embed(batch)
            vectors = np.empty((len(texts), pooled.shape[1]), np.float32) if vectors is None else vectors
            vectors[rows] = pooled
        if vectors is None:
            raise ValueError("expected at least one text")
        return vectors

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def _embed(self, batch: list[list[int]]) -> np.ndarray:
        ids_BS = np.zeros((len(batch), max(map(len, batch))), np.int64)
        mask_BS = np.zeros_like(ids_BS)
        for row, ids in enumerate(batch):
            ids_BS[row, : len(ids)] = ids
            mask_BS[row, : len(ids)] = 1
        hidden_BSH = self.run(dict(zip(INPUTS, (ids_BS, mask_BS, np.zeros_like(ids_BS)), strict=True)))
        summed_BH = np.einsum("bsh,bs->bh", hidden_BSH, mask_BS.astype(np.float32))
        return summed_BH / np.linalg.norm(summed_BH, axis=1, keepdims=True)


class OnnxRuntime(_Runtime):
    """onnxruntime on the CPU, float32, all of its default graph optimisations."""

    def __init__(self, threads: int, graph: Path, *, by_tokens: bool) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        super().__init__(by_tokens=by_tokens)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Last hidden state [batch, length, 384]."""
        return self._session.run(None, inputs)[0]


class OpenVino(_Runtime):
    """openvino on the CPU, held to float32 (its default may pick bfloat16 where the CPU has it)."""

    def __init__(self, threads: int, graph: Path, *, by_tokens: bool) -> None:
        try:
            import openvino
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        super().__init__(by_tokens=by_tokens)
        settings = {"INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": "f32"}
        self._model = openvino.Core().compile_model(str(graph), "CPU", settings)

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Last hidden state [batch, length, 384]."""
        return self._model(inputs)[0]


NAMES = (
    OURS,
    BASELINE,
    "transformers, given order",
    "transformers, sorted by tokens",
    "onnxruntime, sorted by characters",
    "onnxruntime, sorted by tokens",
    "openvino, sorted by characters",
)


def _embedder(name: str, threads: int, graph: Path) -> Embedder:
    by_tokens = name.endswith("tokens")
    match name.partition(",")[0]:
        case "bothways":
            return Bothways(threads)
        case "sentence-transformers":
            return SentenceTransformers(threads)
        case "transformers":
            return Transformers(threads, by_tokens=by_tokens)
        case "onnxruntime":
            return OnnxRuntime(threads, graph, by_tokens=by_tokens)
        case "openvino":
            return OpenVino(threads, graph, by_tokens=by_tokens)
    raise ValueError(f"expected one of {NAMES}, got {name!r}")


class Subject:
    """What a worker serves: an embedder and the texts that it was given."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._texts: dict[str, Sequence[str]] = {}

    def keep(self, workload: str, texts: Sequence[str]) -> None:
        """Remember texts under a name, so that later calls need not send them."""
        self._texts[workload] = texts

    def vectors(self, workload: str) -> np.ndarray:
        """Embed and return the vectors."""
        return np.asarray(self._embedder.encode(self._texts[workload]), np.float32)

    def embed(self, workload: str) -> None:
        """Embed and drop the vectors: the timed call."""
        self._embedder.encode(self._texts[workload])

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


def _order(ids: Sequence[Sequence[int]]) -> list[int]:
    """Longest first, so that memory is claimed once."""
    return sorted(range(len(ids)), key=lambda row: -len(ids[row]))
