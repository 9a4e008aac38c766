"""A GPU: vectors, fine-tuning and masked language modelling in bfloat16, ours beside transformers.

Models of the published base sizes with drawn weights read drawn token ids, so that nothing is downloaded and nobody's
tokenizer is timed. Lengths are those of mixed texts: log-normal, 8 to 512 tokens, 128 on average. Ours batches as it
does by itself; the peers at their best: sentences in order of length for vectors, in the fastest of some batches,
padded to their longest, torch's attention, with and without `torch.compile`, a fused optimizer. Ours is also timed with
other attention backends. "from texts" has tokenizers and drawn words, beside sentence-transformers. Rounds are
interleaved in one process.

"Of the product rate" divides the floating point operations of the real tokens by the rate of a product of two large
matrices in bfloat16 in the same minute. "Memory" is the peak above what lies on the device before the work: no weights
and no optimizer. On a CPU (`--quick`) the figures mean nothing.
"""

import gc
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.embedders import SPECIAL, Bothways, SentenceTransformers, write_bert
from benchmarks.gpu_sides import FINE_TUNING, MASKED_LM, VECTORS, Ours, Transformers, drawn_texts, drawn_windows, words
from benchmarks.harness import Options, Spread, interleaved, say, table, write_results
from benchmarks.reference import TRAINING_FACTOR, Trial, floating_point_operations, speedup
from bothways.encoder.config import EncoderConfig, GatedFeedForward
from bothways.families import FAMILIES

TEXTS = "from texts"
OURS, COMPILED = "bothways", ", compiled"
MODELS = {
    "BERT-base": ("bert", "bert-base-uncased"),
    "ModernBERT-base": ("modernbert", "ModernBERT-base"),
    "DeBERTa-v3-base": ("deberta-v2", "deberta-v3-base"),
}
# Beside the one that is chosen: padding, and torch's FlexAttention.
BACKENDS = {"bert": ("padded", "flex"), "modernbert": ("padded", "flex"), "deberta-v2": ("flex",)}
SIZE_OF_PRODUCT = 8192


@dataclass(frozen=True)
class Work:
    """What is timed: a title, what is computed, on how many texts, and how many make a batch.

    Vectors are of all texts, in the fastest of the contestant's own ``batches``.
    """

    title: str
    kind: str
    texts: int | None = None
    batch: int = 0

    def run(self, side: Any, texts: Sequence[Any], batch: int) -> None:  # noqa: ANN401
        """Do the work on the first of the texts."""
        texts = texts[: self.texts]
        if self.kind == VECTORS:
            side.encode(texts, *([batch] if batch else []))
            return
        for start in range(0, len(texts), batch):
            side.step(texts[start : start + batch], self.kind)


WORK = (
    Work("vectors", VECTORS),
    Work("fine-tuning, batches of 32", FINE_TUNING, 256, 32),
    Work("fine-tuning, batches of 128", FINE_TUNING, 512, 128),
    Work("masked language modelling, batches of 128", MASKED_LM, 512, 128),
)


def run(options: Options) -> Path:
    """Time and write the results, a file for each model."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.quick:
        raise SystemExit("the GPU benchmark needs a CUDA device; --quick runs a tiny model on a CPU")
    path = options.output
    for title in options.models or (TEXTS, *MODELS):
        figures: dict[str, Any] = {"absent": {}, "work": {}}
        if device.type == "cuda":
            figures["gpu"] = torch.cuda.get_device_name(device)
        with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
            section = _part(title, Path(folder), device, options, figures)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        about = f"{figures.get('gpu', 'CPU')}, bfloat16. {section}"
        path = write_results(f"gpu-{title.lower().replace(' ', '-')}", options, figures, about)
    return path


def _part(title: str, folder: Path, device: torch.device, options: Options, figures: dict[str, Any]) -> str:
    """Time all work of one result file, and return its table; from texts these are vectors alone."""
    model_type, name = MODELS.get(title, MODELS["BERT-base"])
    settings = _settings(model_type, name, quick=options.quick)
    windows = drawn_windows(24 if options.quick else 8192 if title == TEXTS else 2048)
    lengths = [len(each.ids) for each in windows]
    about = f"Texts of {min(lengths)} to {max(lengths)} tokens, {sum(lengths) / len(lengths):.0f} on average."
    texts: Sequence[Any] = windows
    work, peer = WORK, "transformers"
    if title == TEXTS:
        work, peer = WORK[:1], "sentence-transformers"
        known = words(settings["vocab_size"] - len(SPECIAL))
        write_bert(folder, known, "bfloat16", **settings)
        texts = drawn_texts(windows, known)
        theirs = partial(SentenceTransformers, options.threads, folder, device=device.type, dtype="bfloat16")
        makers: dict[str, Callable[[], Any]] = {
            OURS: partial(Bothways, options.threads, folder, device=device.type, dtype="auto"),
            peer: theirs,
            f"{peer}{COMPILED}": partial(theirs, compiled=True),
        }
    else:
        peers = partial(Transformers, model_type, settings, device)
        attention = "eager" if model_type == "deberta-v2" else "sdpa"
        makers = {
            OURS: partial(Ours, model_type, settings, device),
            **{f"{OURS}, {name}": partial(Ours, model_type, settings, device, name) for name in BACKENDS[model_type]},
            peer: partial(peers, attention),
            f"{peer}{COMPILED}": partial(peers, attention, compiled=True),
            f"{peer}, flash_attention_2": partial(peers, "flash_attention_2"),
        }
    sides = _made(makers, options, figures["absent"])
    rows = []
    for each in work:
        trials, rounds = _timed(each, sides, texts, device, options, figures["absent"])
        tokens = lengths[: each.texts]
        figures["work"][each.title] = {
            name: {"rounds": singles, "tokens": sum(tokens), "batch_trial": trials[name].seconds}
            for name, singles in rounds.items()
        }
        operations = _operations(each, tokens, FAMILIES[model_type].config(settings))
        rows += _rows(each, trials, rounds, sum(tokens), operations, peer)
    if title == TEXTS:
        figures["min_cosine_with_ours"] = cosines = _cosines({name: sides[name] for name in trials}, texts[:256])
        alike = ", ".join(f"{name} {cosine:.5f}" for name, cosine in cosines.items())
        about += f" {len(texts):,} texts, BERT-base, {options.threads} threads. Smallest cosine with ours: {alike}."
    header = ("work", "contestant", "batch", "tokens/s", "of the product rate", "memory, MiB", f"times {peer}")
    return f"{about}\n\n{table((*header, 'times compiled'), rows)}"


def _settings(model_type: str, name: str, *, quick: bool) -> dict[str, Any]:
    size = next(size for size in FAMILIES[model_type].published if size.name.endswith(name))
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return {**size.settings, **(small if quick else {})}


def _made(makers: Mapping[str, Callable[[], Any]], options: Options, absent: dict[str, str]) -> dict[str, Any]:
    sides = {}
    for name in options.chosen([*makers]):
        say(f"making {name}")
        try:
            sides[name] = makers[name]()
        except (ImportError, ValueError) as error:
            absent[name] = _reason(error)
    return sides


def _timed(
    work: Work,
    sides: Mapping[str, Any],
    texts: Sequence[Any],
    device: torch.device,
    options: Options,
    absent: dict[str, str],
) -> tuple[dict[str, Trial], dict[str, list[dict[str, float]]]]:
    """Return a trial of batches of each contestant that can do the work, which compiles all kernels, and the rounds."""
    trials: dict[str, Trial] = {}
    for name, side in sides.items():
        if work.kind != VECTORS and name.endswith(COMPILED):
            continue  # to compile a training step of any shape takes minutes

        def seconds_at(batch: int, side: Any = side) -> float:  # noqa: ANN401
            work.run(side, texts, batch)
            return _measured(partial(work.run, side, texts, batch), device)[0]

        say(f"{work.title}: trying {name}")
        try:
            trials[name] = Trial.of(seconds_at, len(texts), (work.batch,) if work.batch else side.batches)
        except Exception as error:  # a peer or a backend that cannot is named with its reason
            absent[f"{work.title}: {name}"] = _reason(error)

    def once(name: str, _: int) -> dict[str, float]:
        rate = _product_rate(device, 64 if options.quick else SIZE_OF_PRODUCT)
        seconds, memory = _measured(partial(work.run, sides[name], texts, trials[name].batch), device)
        return {"seconds": seconds, "product_rate": rate, "mebibytes": memory}

    return trials, interleaved([*trials], options.rounds, once, what=work.title)


def _rows(
    work: Work,
    trials: Mapping[str, Trial],
    rounds: Mapping[str, Sequence[dict[str, float]]],
    tokens: int,
    operations: float,
    peer: str,
) -> list[list[str]]:
    """Return a row for each contestant, with its speed as a multiple of each peer's."""
    rows = []
    for name, singles in rounds.items():
        share = Spread.of([operations / single["seconds"] / single["product_rate"] for single in singles])
        faster = (speedup(rounds, other, name, "seconds") for other in (peer, f"{peer}{COMPILED}"))
        cells = [
            str(trials[name].batch or ""),
            Spread.of([tokens / single["seconds"] for single in singles]).text(0),
            share.text(),
            f"{max(single['mebibytes'] for single in singles):,.0f}",
            *(each.ratio() if each else "" for each in faster),
        ]
        rows.append([work.title, name, *cells])
    return rows


def _operations(work: Work, lengths: Sequence[int], config: EncoderConfig) -> float:
    """Return the FLOP of the real tokens; a gate makes three matrices of two."""
    inner = config.feed_forward.width * (3 if isinstance(config.feed_forward, GatedFeedForward) else 2) // 2
    forward = floating_point_operations(lengths, config.hidden, inner, config.layers)
    return forward if work.kind == VECTORS else TRAINING_FACTOR * forward


def _cosines(sides: Mapping[str, Any], texts: Sequence[Any]) -> dict[str, float]:
    """Return the smallest cosine of a contestant's vectors with ours."""
    found = {name: torch.from_numpy(side.encode(texts)).float() for name, side in sides.items()}
    return {
        name: float(torch.cosine_similarity(found[OURS], each).min()) for name, each in found.items() if OURS in found
    }


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0].split('. ')[0]}"


def _measured(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Return the seconds of some work and its peak of memory on the device above what was there, in MiB."""
    on_gpu = device.type == "cuda"
    before = 0
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    began = time.perf_counter()
    work()
    if not on_gpu:
        return time.perf_counter() - began, 0.0
    torch.cuda.synchronize(device)
    return time.perf_counter() - began, (torch.cuda.max_memory_allocated(device) - before) / 2**20


def _product_rate(device: torch.device, size: int) -> float:
    """Return FLOP/s of a product of two square matrices in bfloat16."""
    first, second = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        first @ second
    seconds, _ = _measured(lambda: [first @ second for _ in range(10)] and None, device)
    return 10 * 2 * size**3 / seconds
