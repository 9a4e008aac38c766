"""Inference runtimes and what reads their outputs: MiniLM outside of torch, at most 512 tokens.

As in ``contestants``, heavy imports stay inside the constructors.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import minilm_folder
from benchmarks.onnx_graph import INPUTS
from benchmarks.texts import MAX_TOKENS
from benchmarks.workers import AbsentPeerError

BATCH = 32


def longest_first(ids: Sequence[Sequence[int]]) -> list[int]:
    """Order of the texts, so that memory is claimed once."""
    return sorted(range(len(ids)), key=lambda row: -len(ids[row]))


class _Runtime:
    """A runtime from ids to hidden states; tokenised by ``tokenizers`` directly, pooled by NumPy.

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

    def encode(self, texts: Sequence[str], batch: int = BATCH) -> np.ndarray:
        """Vectors [texts, 384]."""
        if self._by_tokens:
            ids = self._ids(texts)
            order = longest_first(ids)
        else:
            order = [int(row) for row in np.argsort([-len(text) for text in texts])]
        vectors = None
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            part = [ids[row] for row in rows] if self._by_tokens else self._ids([texts[row] for row in rows])
            pooled = self._embed(part)
            vectors = np.empty((len(texts), pooled.shape[1]), np.float32) if vectors is None else vectors
            vectors[rows] = pooled
        if vectors is None:
            raise ValueError("expected at least one text")
        return vectors

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def _embed(self, part: list[list[int]]) -> np.ndarray:
        ids_BS = np.zeros((len(part), max(map(len, part))), np.int64)
        mask_BS = np.zeros_like(ids_BS)
        for row, ids in enumerate(part):
            ids_BS[row, : len(ids)] = ids
            mask_BS[row, : len(ids)] = 1
        hidden_BSH = self.run(dict(zip(INPUTS, (ids_BS, mask_BS, np.zeros_like(ids_BS)), strict=True)))
        summed_BH = np.einsum("bsh,bs->bh", hidden_BSH, mask_BS.astype(np.float32))
        return summed_BH / np.linalg.norm(summed_BH, axis=1, keepdims=True)


class OnnxRuntime(_Runtime):
    """onnxruntime on the CPU, all of its default graph optimisations; as precise as its graph."""

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
    """openvino on the CPU, held to float32 (``f32``) or bfloat16 (``bf16``), which its default may pick."""

    def __init__(self, threads: int, graph: Path, *, by_tokens: bool, precision: str = "f32") -> None:
        try:
            import openvino
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        super().__init__(by_tokens=by_tokens)
        settings = {"INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": precision}
        self._model = openvino.Core().compile_model(str(graph), "CPU", settings)

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Last hidden state [batch, length, 384]."""
        return self._model(inputs)[0]


class CTranslate2(_Runtime):
    """ctranslate2 on the CPU, float32 or int8, on a checkpoint that its own converter has written to ``folder``."""

    def __init__(self, threads: int, folder: Path, *, by_tokens: bool, precision: str = "float32") -> None:
        try:
            import ctranslate2
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        super().__init__(by_tokens=by_tokens)
        self._array = ctranslate2.StorageView.from_array
        self._encoder = ctranslate2.Encoder(
            str(folder), device="cpu", compute_type=precision, intra_threads=threads, inter_threads=1
        )

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Last hidden state [batch, length, 384]."""
        ids_BS, mask_BS, _ = (inputs[name].astype(np.int32) for name in INPUTS)
        lengths_B = mask_BS.sum(1, dtype=np.int32)
        return np.asarray(self._encoder.forward_batch(self._array(ids_BS), self._array(lengths_B)).last_hidden_state)


class FastEmbed:
    """fastembed as its users call it, on this checkpoint's graph and tokenizer; it reads in the given order."""

    def __init__(self, threads: int, graph: Path) -> None:
        try:
            from fastembed import TextEmbedding
            from fastembed.common.model_description import ModelSource, PoolingType
        except ImportError as error:
            raise AbsentPeerError(str(error)) from error
        # The limit of 512 tokens is the one of this folder's tokenizer_config.json.
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"):
            shutil.copy(minilm_folder() / name, graph.parent)
        TextEmbedding.add_custom_model(
            model="benchmark/minilm",
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(url="https://localhost"),  # one is asked for; nothing is fetched
            dim=384,
            model_file=graph.name,
        )
        self._model = TextEmbedding(
            "benchmark/minilm", cache_dir=str(graph.parent), threads=threads, specific_model_path=str(graph.parent)
        )

    def encode(self, texts: Sequence[str], batch: int = BATCH) -> np.ndarray:
        """Vectors [texts, 384]."""
        return np.array(list(self._model.embed(list(texts), batch_size=batch)))
