"""The process that the memory benchmark watches: ``python -m benchmarks.stream FOLDER TEXTS THREADS``.

It pulls texts from a generator through ``SentenceEmbedder.encode_stream``, keeps no vector, and writes one line of JSON
for each of about 200 samples: texts done, bytes resident, seconds. Some vectors are compared with ``encode`` of the
same text, so that an empty or disordered stream cannot pass.
"""

import json
import random
import sys
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.harness import peak_memory, resident_memory

SAMPLES, CHECKS = 200, 20
WORDS = tuple(f"{first}{second}" for first in "bdfglmnprst" for second in ("ab", "ed", "in", "or", "un", "ay"))


def text(number: int) -> str:
    """Text ``number``: 3 to 9 words, always the same."""
    chooser = random.Random(number)
    return " ".join(chooser.choices(WORDS, k=chooser.randint(3, 9)))


def texts(count: int) -> Iterator[str]:
    """All of them, made one at a time."""
    return (text(number) for number in range(count))


def vectors(stream: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """One vector at a time, whether the stream yields vectors or blocks of them."""
    for part in stream:
        yield from np.atleast_2d(np.asarray(part))


def main() -> None:
    """Stream and report."""
    folder, count, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    import torch

    from bothways import SentenceEmbedder

    torch.set_num_threads(threads)
    embedder = SentenceEmbedder.from_pretrained(folder, device="cpu")
    began = time.perf_counter()
    every, check_every = max(1, count // SAMPLES), max(1, count // CHECKS)
    done, worst = 0, 0.0
    for done, vector in enumerate(vectors(iter(embedder.encode_stream(texts(count)))), start=1):
        if (done - 1) % check_every == 0:
            alone = np.asarray(embedder.encode([text(done - 1)]))[0]
            difference = float(np.abs(alone - vector).max())
            # Written so that NaN counts as the worst.
            worst = worst if difference <= worst else difference
        if done % every == 0:
            _write({"done": done, "resident": resident_memory(), "seconds": time.perf_counter() - began})
    _write({"total": done, "peak": peak_memory(), "worst_difference": worst, "seconds": time.perf_counter() - began})


def _write(line: dict[str, float]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
