"""The embedders that are compared: one class each, all MiniLM, all at most 512 tokens, mean pooling, unit length.

Each class is built inside its own worker process (``build``), so heavy imports stay inside the constructors. The peers'
settings are what their users get by default, apart from the limit of 512 tokens. Where a user says how many texts make
a batch, the caller does (``TUNED``); the others read 32 at a time or decide for themselves.

README.md says why the graph is exported here. The eager attention is: its graph has fewer nodes than sdpa's and is the
faster one (about 4 % at 200 tokens, equal at 28). onnxruntime's own BERT fusions changed nothing beyond noise.
"""

import contextlib
import io
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import MODEL, minilm_folder
from benchmarks.texts import MAX_TOKENS, other_sentences
from benchmarks.workers import installed, set_torch_threads

OURS, OURS_INT8, OURS_LIGHT = "bothways", "bothways int8", "bothways light"
BASELINE = "sentence-transformers"
_SORTED = ("onnxruntime", "openvino", "ctranslate2")
NAMES = (
    *(OURS, BASELINE, "transformers, given order", "transformers, sorted by tokens"),
    *(f"{name}, sorted by tokens" for name in _SORTED),
)
_REDUCED = ("openvino bfloat16", "onnxruntime int8", "ctranslate2 int8")
ALL = (*NAMES, OURS_LIGHT, "bothways bfloat16", OURS_INT8, *(f"{name}, sorted by tokens" for name in _REDUCED))
# A careful user of these looks for the fastest batch.
TUNED = tuple(name for name in ALL if name.endswith("sorted by tokens"))
BATCH = 32
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# What is written beside the graph: its int8 form, ctranslate2's files, and our own int8 model and export.
INT8_GRAPH, CTRANSLATE2, OUR_INT8, OUR_LIGHT = "minilm-int8.onnx", "ctranslate2", "bothways-int8", "bothways-light"


class Bothways:
    """This package, as a user calls it; an export answers without torch, with the threads of the environment."""

    batches = (0,)

    def __init__(
        self,
        threads: int,
        model: str | Path = MODEL,
        *,
        light: bool = False,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> None:
        from bothways import SentenceEmbedder

        if not light:
            set_torch_threads(threads)
        options = {} if light else {"device": device, "dtype": dtype}
        self._embedder = SentenceEmbedder.from_pretrained(model, max_length=MAX_TOKENS, **options)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.asarray(self._embedder.encode(list(texts)))


class SentenceTransformers:
    """sentence-transformers, torch backend, by default in batches of 32; it sorts by characters."""

    batches = (32, 128, 512)

    def __init__(
        self,
        threads: int,
        model: Path | None = None,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        compiled: bool = False,
    ) -> None:
        package = installed("sentence_transformers")
        set_torch_threads(threads)
        options = {"dtype": dtype, "attn_implementation": "sdpa"}
        self._model = package.SentenceTransformer(str(model or minilm_folder()), device=device, model_kwargs=options)
        # The checkpoint asks for 256; without this, longer passages would be cut and the work would be less.
        self._model.max_seq_length = MAX_TOKENS
        if compiled:
            self._model.compile(dynamic=True)

    def encode(self, texts: Sequence[str], batch: int = BATCH) -> np.ndarray:
        return np.asarray(self._model.encode(list(texts), batch_size=batch, show_progress_bar=False))


class Transformers:
    """transformers with sdpa attention, in the given order or sorted by tokens."""

    def __init__(self, threads: int, *, by_tokens: bool) -> None:
        transformers = installed("transformers")
        set_torch_threads(threads)
        self._by_tokens = by_tokens
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder(), model_max_length=MAX_TOKENS)
        self._model = transformers.AutoModel.from_pretrained(minilm_folder(), attn_implementation="sdpa").eval()

    def encode(self, texts: Sequence[str], batch: int = BATCH) -> np.ndarray:
        ids = self._tokenizer(list(texts), truncation=True)["input_ids"]
        means = mean_vectors(self._model, ids, batch, self._model.device, by_tokens=self._by_tokens)
        return means / np.linalg.norm(means, axis=1, keepdims=True)


def batches_of(ids: Sequence[Sequence[int]], batch: int, *, by_tokens: bool = True) -> Iterator[list[int]]:
    """Yield the rows of each batch, the longest first, so that memory is claimed once."""
    order = sorted(range(len(ids)), key=lambda row: -len(ids[row]) if by_tokens else row)
    yield from (order[start : start + batch] for start in range(0, len(order), batch))


def padded(ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and mask of a batch [texts, longest]."""
    ids_BS = np.zeros((len(ids), max(map(len, ids))), np.int64)
    mask_BS = np.zeros_like(ids_BS)
    for row, each in enumerate(ids):
        ids_BS[row, : len(each)], mask_BS[row, : len(each)] = each, 1
    return ids_BS, mask_BS


def mean_vectors(model: Any, ids: Sequence[Sequence[int]], batch: int, device: Any, **order: bool) -> np.ndarray:  # noqa: ANN401
    """Return the mean of the hidden states of each text from a model of transformers."""
    import torch

    from bothways.devices import on_device

    batches, means = [*batches_of(ids, batch, **order)], []
    with torch.inference_mode():
        for rows in batches:
            ids_BS, mask_BS = (on_device(each, device) for each in padded([ids[row] for row in rows]))
            hidden_BSH = model(input_ids=ids_BS, attention_mask=mask_BS).last_hidden_state
            means.append((hidden_BSH * mask_BS[..., None]).sum(1, dtype=torch.float32) / mask_BS.sum(1)[:, None])
        # Read once, so that no batch waits for the one before it.
        return in_order(batches, torch.cat(means).cpu().numpy())


def in_order(batches: list[list[int]], found: np.ndarray) -> np.ndarray:
    """Return the rows of all batches in their own order."""
    ordered = np.empty_like(found)
    ordered[np.concatenate(batches)] = found
    return ordered


class Runtime:
    """A runtime from ids to hidden states; tokenised by ``tokenizers``, sorted by tokens, pooled by NumPy."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Return the last hidden state [batch, length, 384]."""
        raise NotImplementedError

    def encode(self, texts: Sequence[str], batch: int = BATCH) -> np.ndarray:
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        batches = [*batches_of(ids, batch)]
        return in_order(batches, np.concatenate([self._embed([ids[row] for row in rows]) for rows in batches]))

    def _embed(self, part: list[list[int]]) -> np.ndarray:
        ids_BS, mask_BS = padded(part)
        hidden_BSH = self.run(dict(zip(INPUTS, (ids_BS, mask_BS, np.zeros_like(ids_BS)), strict=True)))
        summed_BH = np.einsum("bsh,bs->bh", hidden_BSH, mask_BS.astype(np.float32))
        return summed_BH / np.linalg.norm(summed_BH, axis=1, keepdims=True)


class OnnxRuntime(Runtime):
    """onnxruntime on the CPU, all of its default graph optimisations; as precise as its graph."""

    def __init__(self, threads: int, graph: Path) -> None:
        onnxruntime = installed("onnxruntime")
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return self._session.run(None, inputs)[0]


class OpenVino(Runtime):
    """openvino on the CPU, held to float32 (``f32``) or bfloat16 (``bf16``), which its default may pick."""

    def __init__(self, threads: int, graph: Path, precision: str) -> None:
        openvino = installed("openvino")
        super().__init__()
        settings = {"INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": precision}
        self._model = openvino.Core().compile_model(str(graph), "CPU", settings)

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return self._model(inputs)[0]


class CTranslate2(Runtime):
    """ctranslate2 on the CPU, float32 or int8, on a checkpoint that its own converter has written to ``folder``."""

    def __init__(self, threads: int, folder: Path, precision: str) -> None:
        ctranslate2 = installed("ctranslate2")
        super().__init__()
        self._array = ctranslate2.StorageView.from_array
        self._encoder = ctranslate2.Encoder(
            str(folder), device="cpu", compute_type=precision, intra_threads=threads, inter_threads=1
        )

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        ids_BS, mask_BS, _ = (inputs[name].astype(np.int32) for name in INPUTS)
        lengths_B = mask_BS.sum(1, dtype=np.int32)
        return np.asarray(self._encoder.forward_batch(self._array(ids_BS), self._array(lengths_B)).last_hidden_state)


class Subject:
    """The subject of a worker: an embedder by its name, and the texts that it was given."""

    def __init__(self, name: str, threads: int, graph: Path) -> None:
        makers: dict[str, Callable[[], Any]] = {
            "bothways": lambda: Bothways(threads),
            "bothways bfloat16": lambda: Bothways(threads, dtype="auto"),
            "bothways light": lambda: Bothways(threads, graph.with_name(OUR_LIGHT), light=True),
            "bothways int8": lambda: Bothways(threads, graph.with_name(OUR_INT8)),
            "sentence-transformers": lambda: SentenceTransformers(threads),
            "transformers": lambda: Transformers(threads, by_tokens=name.endswith("tokens")),
            "onnxruntime": lambda: OnnxRuntime(threads, graph),
            "onnxruntime int8": lambda: OnnxRuntime(threads, graph.with_name(INT8_GRAPH)),
            "openvino": lambda: OpenVino(threads, graph, "f32"),
            "openvino bfloat16": lambda: OpenVino(threads, graph, "bf16"),
            "ctranslate2": lambda: CTranslate2(threads, graph.with_name(CTRANSLATE2), "float32"),
            "ctranslate2 int8": lambda: CTranslate2(threads, graph.with_name(CTRANSLATE2), "int8"),
        }
        self._embedder = makers[name.partition(",")[0]]()
        self._texts: dict[str, Sequence[str]] = {}

    def keep(self, workload: str, texts: Sequence[str]) -> None:
        """Remember texts under a name, so that later calls need not send them."""
        self._texts[workload] = texts

    def vectors(self, workload: str, *batch: int) -> np.ndarray:
        return np.asarray(self._embedder.encode(self._texts[workload], *batch), np.float32)

    def embed(self, workload: str, *batch: int) -> None:
        """Embed and drop the vectors: the timed call."""
        self._embedder.encode(self._texts[workload], *batch)

    def one_by_one(self, workload: str) -> list[tuple[float, float]]:
        """Return seconds of wall and CPU time of each text on its own."""
        times = []
        for text in self._texts[workload]:
            cpu, wall = time.process_time(), time.perf_counter()
            self._embedder.encode([text])
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
        return times


def export_graph(graph: Path, checkpoint: Path) -> None:
    """Write the encoder's graph, ids and mask to last hidden state, with free batch and length."""
    import torch
    from torch.export import Dim
    from transformers import AutoModel

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            output = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            return output.last_hidden_state

    ids = torch.arange(1000, 1027).reshape(3, 9)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    free = {0: Dim("batch"), 1: Dim("length")}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Encoder(), (ids, mask, torch.zeros_like(ids)), str(graph), dynamo=True, input_names=list(INPUTS),
            output_names=["last_hidden_state"], dynamic_shapes=(free, free, free), external_data=False,
            opset_version=18,
        )  # fmt: skip


def convert(graph: Path, checkpoint: Path) -> None:
    """Write ctranslate2's files; nothing where the package is missing, as the contestant says."""
    with contextlib.suppress(ImportError):
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(checkpoint)).convert(str(graph.with_name(CTRANSLATE2)))


def quantize_graph(graph: Path) -> None:
    """Write the graph in int8 as onnxruntime's guide for transformers has it: dynamic, a scale for each output."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = graph.with_name(INT8_GRAPH)
    quantize_dynamic(graph, target, per_channel=True, weight_type=QuantType.QInt8)


def write_files(names: Sequence[str], graph: Path, texts: int) -> dict[str, object] | None:
    """Write what the contestants read, beside ``graph``; return the loss of our int8 model, if it is among them.

    It is fitted to so many sentences that are not embedded. To be called in a process of its own, so that those that
    measure stay small.
    """
    from bothways.export import export
    from bothways.quantization import quantize

    read, checkpoint = {name.partition(",")[0] for name in names}, minilm_folder()
    if read & {"onnxruntime", "onnxruntime int8", "openvino", "openvino bfloat16"}:
        export_graph(graph, checkpoint)
    if "onnxruntime int8" in read:
        quantize_graph(graph)
    if read & {"ctranslate2", "ctranslate2 int8"}:
        convert(graph, checkpoint)
    if OURS_LIGHT in read:
        export(checkpoint, graph.with_name(OUR_LIGHT), format="onnx")
    if OURS_INT8 not in read:
        return None
    target = graph.with_name(OUR_INT8)
    return quantize(checkpoint, target, other_sentences()[:texts], show_progress=False).to_dict()


def write_bert(folder: Path, words: Sequence[str], dtype: str = "float32", **settings: int) -> None:
    """Write a BERT with drawn weights, and a tokenizer of these words; both sides pool its tokens' mean."""
    import torch
    import transformers

    vocabulary = [*SPECIAL, *words]
    torch.manual_seed(0)
    config = transformers.BertConfig(**{**settings, "vocab_size": len(vocabulary)})
    transformers.AutoModel.from_config(config, dtype=dtype).save_pretrained(folder)
    numbers = {word: number for number, word in enumerate(vocabulary)}
    transformers.BertTokenizerFast(vocab=numbers, model_max_length=MAX_TOKENS).save_pretrained(folder)
