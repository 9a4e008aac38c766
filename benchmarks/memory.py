"""Memory: the peaks of inference and fine-tuning beside the peers (`benchmarks.peaks`), and a stream's over time.

The stream is constant memory: a million short texts from a generator through ``encode_stream``.

The encoder is tiny and random (one layer of 32), so that the stream and not the arithmetic is what runs: memory that
grows by a few bytes a text shows after a million texts, whatever the encoder. Warm-up is the first tenth.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import REPOSITORY, Options, say, table, write_results
from benchmarks.peaks import measured
from benchmarks.stream import WORDS
from benchmarks.workers import Worker

WARM_UP, END = 0.1, 0.9


class TinyCheckpoint:
    """Writes a tiny BERT; in a process of its own, because transformers is imported for it."""

    def write(self, folder: Path) -> None:
        """A checkpoint of one layer with mean pooling, laid out as sentence-transformers does."""
        import torch
        from transformers import BertConfig, BertModel, BertTokenizerFast

        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
        BertModel(config).save_pretrained(folder)
        BertTokenizerFast(vocab={word: index for index, word in enumerate(vocabulary)}).save_pretrained(folder)
        kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(kinds)
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
        (folder / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def run(options: Options) -> Path:
    """Stream and write the results."""
    count = min(options.texts, 20_000) if options.quick else options.texts
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as name:
        folder = Path(name)
        say("making a tiny checkpoint")
        with Worker(TinyCheckpoint) as maker:
            maker.call("write", folder)
        command = [sys.executable, "-m", "benchmarks.stream", str(folder), str(count), str(options.threads)]
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
            if process.stdout is None:
                raise RuntimeError("the process has no pipe")
            for line in process.stdout:
                samples.append(json.loads(line))
                if "done" in samples[-1] and len(samples) % 10 == 0:
                    say(f"{samples[-1]['done']:,} texts, {samples[-1]['resident'] / 2**20:,.1f} MiB resident")
    if process.returncode != 0 or not samples or "total" not in samples[-1]:
        raise RuntimeError(f"the stream ended with exit code {process.returncode}; its error is above")
    figures, stream = _report(samples[-1], samples[:-1], count)
    peaks, tables = measured(options)
    return write_results(
        "memory", replace(options, rounds=0), {**figures, **peaks}, f"{tables}\n\n## Stream\n\n{stream}"
    )


def _report(end: dict[str, float], samples: list[dict[str, float]], count: int) -> tuple[dict[str, Any], str]:
    if end["total"] != count:
        raise RuntimeError(f"expected {count} vectors, got {end['total']}")
    if not end["worst_difference"] <= 1e-4:
        raise RuntimeError(f"the stream's vectors differ from encode's by {end['worst_difference']:.1e}")
    warm = [single["resident"] for single in samples if WARM_UP <= single["done"] / count <= WARM_UP + 0.05]
    last = [single["resident"] for single in samples if single["done"] / count >= END]
    growth = statistics.median(last) - statistics.median(warm)
    rows = [
        ["texts", f"{count:,}"],
        ["seconds", f"{end['seconds']:,.0f}"],
        ["texts per second", f"{count / end['seconds']:,.0f}"],
        ["resident after the first tenth, MiB", f"{statistics.median(warm) / 2**20:,.1f}"],
        ["resident in the last tenth, MiB", f"{statistics.median(last) / 2**20:,.1f}"],
        ["growth after the first tenth, MiB", f"{growth / 2**20:,.2f}"],
        ["growth per text, bytes", f"{growth / (0.825 * count):,.2f}"],
        ["peak resident, MiB", f"{end['peak'] / 2**20:,.1f}"],
        ["worst difference from encode", f"{end['worst_difference']:.1e}"],
    ]
    return {"samples": samples, "end": end, "growth_bytes": growth}, table(("encode_stream", ""), rows)
