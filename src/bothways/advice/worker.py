"""The other side of `bothways.advice.measuring`: one model in a process of its own, so that its memory is its own.

Reads a job as JSON from standard input and writes what it measured as JSON to standard output.

Shapes: B texts, n tokens of each, T = B x n packed tokens.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bothways.encoder import Encoder
from bothways.families import family_of
from bothways.packing import Packed, pack
from bothways.training.loop import train
from bothways.training.objective import MicroBatch, Update
from bothways.training.options import TrainingOptions

FEWEST, MOST = 3, 200  # repeats
_CPU = torch.device("cpu")


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    """Do the job; see `bothways.advice.measuring.Job` for its fields."""
    torch.manual_seed(0)
    config = family_of(job["family"]).config(job["settings"])
    before = resident_bytes("VmRSS")
    encoder = Encoder(config)
    batches = {length: random_texts(job["batch"], length, config.vocabulary) for length in job["lengths"]}
    speeds = []
    if job["kind"] == "training":
        longest = batches[max(job["lengths"])]
        options = TrainingOptions(epochs=1, learning_rate=2e-5, precision="float32", show_progress=False)
        train(_Toy(encoder, longest), options)
    else:
        encoder.eval()
        speeds = [speed_of(encoder, length, batch, job["seconds"]) for length, batch in batches.items()]
    return {
        "runtime_bytes": before,
        "peak_bytes": resident_bytes("VmHWM"),
        "threads": torch.get_num_threads(),
        "speeds": speeds,
    }


def resident_bytes(kind: str) -> int | None:
    """Memory of this process in bytes: ``VmRSS`` now, ``VmHWM`` at its most; None where the system does not say.

    Not ``ru_maxrss``, which on Linux begins with the memory of the process that started this one.
    """
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    lines = (line.split() for line in status.read_text(encoding="ascii", errors="replace").splitlines())
    return next((int(words[1]) * 1024 for words in lines if words and words[0] == f"{kind}:"), None)


def random_texts(count: int, length: int, vocabulary: int) -> Packed:
    """Return a batch of so many texts of one length, with random tokens."""
    ids = torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(0))
    return pack([row.numpy() for row in ids])


def speed_of(
    encoder: Encoder, length: int, batch: Packed, seconds: float, device: torch.device = _CPU
) -> dict[str, float]:
    """Return the latency of one text and the tokens a second of a batch, medians over repeats."""
    single = pack([batch.ids_T[:length].numpy()]).to(device)
    many_texts = batch.to(device)

    def finish(packed: Packed) -> None:
        encoder(packed)
        if device.type != "cpu":
            getattr(torch, device.type).synchronize()

    with torch.inference_mode():
        one = _median_seconds(lambda: finish(single), seconds)
        many = _median_seconds(lambda: finish(many_texts), seconds)
    return {"length": length, "latency_ms": one * 1e3, "tokens_per_second": sum(batch.lengths) / many}


def _median_seconds(call: Callable[[], object], budget: float) -> float:
    call()  # the first call pays for what is set up once
    times: list[float] = []
    while len(times) < FEWEST or (sum(times) < budget and len(times) < MOST):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class _Toy:
    """Two updates on one batch: the second has everything in memory that a long run has."""

    baseline: ClassVar = None
    least_updates: ClassVar = 0

    def __init__(self, module: Encoder, batch: Packed) -> None:
        self._encoder, self._batch = module, batch

    @property
    def module(self) -> nn.Module:
        return self._encoder

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        return {}

    def updates_per_epoch(self) -> int:
        return 2

    def updates(self, epoch: int, start: int) -> Iterator[Update[Packed]]:
        del epoch
        step = Update((MicroBatch(self._batch, float(len(self._batch.lengths)), sum(self._batch.lengths)),))
        yield from [step] * (2 - start)

    def loss(self, payload: Packed) -> Tensor:
        hidden_TH: Tensor = self._encoder(payload)
        return hidden_TH.square().mean()

    def validate(self) -> None:
        return None


if __name__ == "__main__":
    json.dump(run(json.load(sys.stdin)), sys.stdout)
