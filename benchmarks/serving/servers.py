"""The servers that are compared, each a process of its own on a free port of this machine."""

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import embedders
from benchmarks.harness import MODEL, REPOSITORY, Options, minilm_folder
from benchmarks.serving.load import request
from benchmarks.texts import MAX_TOKENS, SENTENCES
from benchmarks.workers import in_a_process

OURS, INT8, LIGHT = "bothways serve", "bothways serve, int8", "bothways serve, exported, no torch"
FIFO, TEI_4, TEI_8 = "first in, first out", "TEI's policy, 4 padded", "TEI's policy, 8 padded"
PLAIN = "sentence-transformers, no queue"
INFINITY, INFINITY_ONNX, INFINITY_INT8 = "infinity, torch", "infinity, onnx", "infinity, onnx int8"
NAMES = (OURS, FIFO, TEI_4, TEI_8, PLAIN, INFINITY, INFINITY_ONNX, INT8, INFINITY_INT8)
_POLICIES = {FIFO: "fifo", TEI_4: "tei-4", TEI_8: "tei-8", LIGHT: "no-torch", PLAIN: "plain"}
# What is read, as `embedders.write_files` knows it, and its file.
_READ = {
    INT8: (embedders.OURS_INT8, embedders.OUR_INT8),
    LIGHT: (embedders.OURS_LIGHT, embedders.OUR_LIGHT),
    INFINITY_ONNX: ("onnxruntime", "minilm.onnx"),
    INFINITY_INT8: ("onnxruntime int8", embedders.INT8_GRAPH),
}
# Its exporter, which nothing here calls, imports names that newer versions of torch lack. Its graphs take all cores,
# also those that the process may not use, unless they are told their number of threads.
_INFINITY = """from unittest.mock import MagicMock as Any
import torch.onnx.symbolic_opset14 as names; names.__getattr__ = lambda _: Any()
import onnxruntime as ort
class Session(ort.InferenceSession):
    def __init__(self, path, sess_options=None, *more, **others):
        own = sess_options or ort.SessionOptions()
        own.intra_op_num_threads = {threads}
        super().__init__(path, own, *more, **others)
ort.InferenceSession = Session
from infinity_emb.cli import cli; cli()"""
# Seconds in which a server must be ready.
_PATIENCE = 180
_CORES = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class ServingOptions(Options):
    """Options of the command line, which describes them; ``folder`` has the models that are written."""

    folder: Path = Path()
    seconds: float = 20.0
    requests: int = 100_000
    infinity: Path | None = None


@contextmanager
def first_cores(threads: int) -> Iterator[None]:
    """Start processes on as many cores as they have threads; this one goes to the others afterwards, if there are any.

    A server that ignores its number of threads is not faster by it, and the client takes nothing from the servers.
    """
    os.sched_setaffinity(0, _CORES[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, _CORES[threads:] or _CORES)


def model_of(name: str, options: ServingOptions) -> str:
    """Return the model that a server reads, written the first time."""
    kind, file = _READ.get(name, ("", ""))
    if kind and not (options.folder / file).exists():
        texts = 100 if options.quick else SENTENCES
        in_a_process(embedders.write_files, [kind], options.folder / "minilm.onnx", texts)
    if not name.startswith("infinity"):
        return str(options.folder / file) if kind else MODEL
    folder = options.folder / name.replace(", ", "-")
    if not folder.exists():
        shutil.copytree(minilm_folder(), folder)
        # The checkpoint cuts at 256 tokens: the work would be less.
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MAX_TOKENS}))
        if kind:
            shutil.copy(options.folder / file, folder / "model.onnx")
    return str(folder)


def command(name: str, options: ServingOptions) -> tuple[list[str], Path]:
    """Return the command of a server, without its port, and the folder in which it runs."""
    threads = ("--threads", str(options.threads))
    if name == PLAIN:
        return [sys.executable, "-m", "benchmarks.serving.policies", "plain", *threads], REPOSITORY
    model = model_of(name, options)
    if name.startswith("infinity"):
        # It finds graphs only in the folder where it runs.
        code = _INFINITY.format(threads=options.threads)
        start = (str(options.infinity), "-c", code, "v2", "--model-id", ".")
        engine = ("--engine", "torch" if name == INFINITY else "optimum", "--device", "cpu", "--dtype", "float32")
        off = ("--no-vector-disk-cache", "--no-bettertransformer", "--no-trust-remote-code", "--no-model-warmup")
        return [*start, *engine, *off, "--pooling-method", "mean", "--host", "127.0.0.1"], Path(model)
    module = ("benchmarks.serving.policies", _POLICIES[name]) if name in _POLICIES else ("bothways",)
    own = ("serve", model, *threads, "--max-length", str(MAX_TOKENS), "--max-wait", "60")
    return [sys.executable, "-m", *module, *own], REPOSITORY


class Running(AbstractContextManager["Running"]):
    """A server that runs until the block ends; ``seconds`` is from the start of its process until it was ready."""

    def __init__(self, name: str, options: ServingOptions) -> None:
        infinity = name.startswith("infinity")
        self._path, ready = ("/embeddings", "/health") if infinity else ("/v1/embeddings", "/ready")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, trust_env=False)
        own, folder = command(name, options)
        whole = [*own, "--port", str(self.port)]
        # Infinity reports its use otherwise, and takes one model's optimised graph for another's.
        caches = dict.fromkeys(("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"), f"{options.folder / name}-cache")
        environment = {**os.environ, "DO_NOT_TRACK": "1", **caches}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        begun = time.perf_counter()
        given = {"stdout": self._log, "stderr": subprocess.STDOUT}
        with first_cores(options.threads):
            self._process = psutil.Popen(whole, cwd=folder, env=environment, **given)
        while self.get(ready) is None:
            if self._process.poll() is not None or time.perf_counter() - begun > _PATIENCE:
                self._log.seek(0)
                raise RuntimeError(f"{' '.join(whole)} is not ready:\n{self._log.read()[-4000:]}")
            time.sleep(0.005)
        self.seconds = time.perf_counter() - begun

    def get(self, path: str, body: object = None) -> str | None:
        """Return the body of an answer that is 200, else None."""
        try:
            answer = self._client.get(path) if body is None else self._client.post(path, json=body)
        except httpx.TransportError:
            return None
        return answer.text if answer.status_code == 200 else None

    def requests(self, texts: list[list[str]], *headers: str) -> list[bytes]:
        """Return a request for the vectors of each list of texts, as OpenAI's client asks for them."""
        return [request(self._path, {"input": each, "encoding_format": "base64"}, *headers) for each in texts]

    def vectors(self, texts: list[str]) -> np.ndarray:
        """Return the vectors of texts [texts, 384]."""
        data = json.loads(self.get(self._path, {"input": texts, "encoding_format": "base64"}) or "{}")["data"]
        return np.stack([np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in data])

    def metrics(self) -> Counter[str]:
        """Return the sum of each metric over its labels; those of buckets have the edge in their names."""
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(self.get("/metrics") or ""):
            for sample in family.samples:
                found[sample.name + sample.labels.get("le", "")] += sample.value
        return found

    def usage(self) -> tuple[float, float]:
        """Return the resident MiB and the CPU seconds of the process."""
        times = self._process.cpu_times()
        return self._process.memory_info().rss / 2**20, times.user + times.system

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(40)
        except psutil.TimeoutExpired:
            self._process.kill()
        self._log.close()
