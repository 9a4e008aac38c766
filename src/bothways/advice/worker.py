"""The process that `bothways.advice.measuring` starts for each model, to measure the memory of this model alone.

It reads a job as JSON from standard input and writes the measurements as JSON to standard output.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from bothways.encoder import Encoder
from bothways.families import family_of
from bothways.packing import Packed, pack

MIN_REPEATS, MAX_REPEATS = 3, 200
_CPU = torch.device("cpu")


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a `bothways.advice.measuring.Job`; return memory and speeds as JSON values."""
    torch.manual_seed(0)
    config = family_of(job["family"]).config(job["settings"])
    before = resident_bytes("VmRSS")
    encoder = Encoder(config).eval()
    speeds = [
        speed_of(encoder, length, random_texts(job["batch"], length, config.vocabulary), job["seconds"])
        for length in job["lengths"]
    ]
    return {
        "runtime_bytes": before,
        "peak_bytes": resident_bytes("VmHWM"),
        "threads": torch.get_num_threads(),
        "speeds": speeds,
    }


def resident_bytes(kind: str) -> int | None:
    """Return the memory of this process: ``VmRSS`` now, ``VmHWM`` at its peak; None if the system does not report it.

    On Linux, ``ru_maxrss`` would begin with the memory of the parent process.
    """
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    lines = (line.split() for line in status.read_text(encoding="ascii", errors="replace").splitlines())
    return next((int(words[1]) * 1024 for words in lines if words and words[0] == f"{kind}:"), None)


def random_texts(count: int, length: int, vocabulary: int) -> Packed:
    """Return a batch of texts of equal length, with random tokens."""
    ids = torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(0))
    return pack([row.numpy() for row in ids])


def speed_of(
    encoder: Encoder, length: int, batch: Packed, seconds: float, device: torch.device = _CPU
) -> dict[str, float]:
    """Return the median latency of one text and the median tokens per second of a batch."""
    single = pack([batch.ids_T[:length].numpy()]).to(device)
    many_texts = batch.to(device)

    def finish(packed: Packed) -> None:
        encoder(packed)
        wait_for(device)

    with torch.inference_mode():
        one = median_seconds(lambda: finish(single), seconds)
        many = median_seconds(lambda: finish(many_texts), seconds)
    return {"length": length, "latency_ms": one * 1e3, "tokens_per_second": sum(batch.lengths) / many}


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def median_seconds(call: Callable[[], object], budget: float) -> float:
    """Return the median time of a call, repeated for about ``budget`` seconds after a first one."""
    call()
    times: list[float] = []
    while len(times) < MIN_REPEATS or (sum(times) < budget and len(times) < MAX_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    json.dump(run(json.load(sys.stdin)), sys.stdout)
