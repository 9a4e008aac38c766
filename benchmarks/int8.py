"""Models in bfloat16 and int8: vectors, throughput and latency beside other runtimes, and accuracy of int8 classifiers.

Our model is fitted to sentences of which none is embedded here. Classifiers of three data sets are trained with the
defaults, quantized by texts of their training rows, and asked for the whole test set.
"""

import random
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.embedders import INT8_NAMES
from benchmarks.embedding import measured
from benchmarks.harness import DATA, MODEL, Options, say, table, write_results
from benchmarks.texts import labelled_texts

_SETS = ("sst2", "ag_news", "clinc150")
_ROWS = 1500
"""Training rows, drawn with a seed."""


def run(options: Options) -> Path:
    """Measure both, and write two pages."""
    accuracies(options)
    return measured("int8", options, INT8_NAMES)


def accuracies(options: Options) -> Path:
    """Write the accuracy of classifiers in float32 and in int8."""
    figures = {name: _accuracy(name, options) for name in _SETS}
    header = (
        "data",
        "training rows",
        "test rows",
        "float32",
        "int8",
        "answers that differ",
        "layers in int8",
        "smallest cosine",
    )
    rows = [
        [
            name, f"{each['training']:,}", f"{each['test']:,}", f"{each['float32']:.4f}", f"{each['int8']:.4f}",
            str(each["different"]), f"{len(each['cost']['int8'])} of {each['layers']}",
            f"{each['cost']['min_cosine']:.5f}",
        ]
        for name, each in figures.items()
    ]  # fmt: skip
    return write_results("int8-accuracy", options, figures, f"Accuracy of MiniLM classifiers.\n\n{table(header, rows)}")


def _accuracy(name: str, options: Options) -> dict[str, Any]:
    from bothways import TextClassifier
    from bothways.quantization import quantize

    say(f"training on {name}")
    rows = labelled_texts(DATA / f"{name}/train.jsonl.gz")
    train = random.Random(1).sample(rows, 300 if options.quick else _ROWS)
    test = labelled_texts(DATA / f"{name}/test.jsonl.gz")[: 50 if options.quick else None]
    texts, truth = [row["text"] for row in test], [row["label"] for row in test]
    classifier = TextClassifier.from_pretrained(MODEL, device="cpu")
    classifier.fit(train, seed=1, show_progress=False)
    before = [each.label for each in classifier.predict(texts, show_progress=False)]
    with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
        classifier.save(Path(folder) / "float32")
        cost = quantize(
            Path(folder) / "float32", Path(folder) / "int8", [row["text"] for row in train], show_progress=False
        ).to_dict()
        rounded = TextClassifier.from_pretrained(str(Path(folder) / "int8"), device="cpu")
        after = [each.label for each in rounded.predict(texts, show_progress=False)]
    right = {
        kind: sum(map(str.__eq__, found, truth)) / len(truth) for kind, found in (("float32", before), ("int8", after))
    }
    say(f"{name}: {right}")
    layers = sum(len(cost[kind]) for kind in ("int8", "bfloat16", "float32"))
    different = sum(map(str.__ne__, before, after))
    return {"training": len(train), "test": len(test), **right, "different": different, "layers": layers, "cost": cost}
