"""The process that the start-up benchmark starts: ``python -m benchmarks.cold NAME THREADS GRAPH``.

It embeds one sentence, writes the line ``vector`` at once and then, untimed, its figures as one line of JSON. Only the
standard library and what the contestant itself needs are imported before the vector is there.
"""

import json
import sys
from pathlib import Path

SENTENCE = "An encoder reads both ways: every token sees the whole text."
IMPORT_TORCH = "import torch, nothing else"


def main() -> None:
    """Embed and report."""
    name, threads, graph = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if name == IMPORT_TORCH:
        import torch

        vector = torch.zeros(0).tolist()
    else:
        from benchmarks.contestants import build

        subject = build(name, threads, graph)
        subject.keep("first", [SENTENCE])
        vector = subject.vectors("first")[0].tolist()
    print("vector", flush=True)
    from benchmarks.harness import peak_memory

    print(json.dumps({"peak": peak_memory(), "vector": vector}), flush=True)


if __name__ == "__main__":
    main()
