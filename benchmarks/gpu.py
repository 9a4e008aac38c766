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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_sides import (
    BATCHES,
    FINE_TUNING,
    MASKED_LM,
    VECTORS,
    OurEmbedder,
    Ours,
    SentenceTransformers,
    Side,
    Transformers,
    Window,
    drawn_texts,
    drawn_windows,
    write_embedder,
)
from benchmarks.harness import Options, Spread, interleaved, ratios, say, table, write_results
from benchmarks.reference import TRAINING_FACTOR, floating_point_operations
from bothways.encoder.config import EncoderConfig, GatedFeedForward
from bothways.families import FAMILIES

TEXTS = "from texts"
OURS, PEER, COMPILED = "bothways", "transformers", "transformers, compiled"
FLASH = "transformers, flash_attention_2"
EMBEDDER, COMPILED_EMBEDDER = "sentence-transformers", "sentence-transformers, compiled"
MODELS = {
    "BERT-base": ("bert", "bert-base-uncased"),
    "ModernBERT-base": ("modernbert", "ModernBERT-base"),
    "DeBERTa-v3-base": ("deberta-v2", "deberta-v3-base"),
}
# Beside the one that is chosen: padding, and torch's FlexAttention.
BACKENDS = {"bert": ("padded", "flex"), "modernbert": ("padded", "flex"), "deberta-v2": ("skewed", "flex")}
# A backend of ours that takes so many times as long as the chosen one is named with that, without rounds.
HOPELESS = 8
SIZE_OF_PRODUCT = 8192


@dataclass(frozen=True)
class Work:
    """What is timed: a title, what is computed, on how many texts, in batches of how many (of vectors, see `Side`)."""

    title: str
    kind: str
    texts: int
    batch: int

    def run(self, side: Side, windows: Sequence[Window], batch: int) -> None:
        """Do the work on the first of the windows."""
        windows = windows[: self.texts]
        if self.kind == VECTORS:
            side.vectors(windows, batch)
            return
        for start in range(0, len(windows), batch):
            side.step(windows[start : start + batch], self.kind)


WORK = (
    Work("vectors", VECTORS, 2048, 0),
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
        figures: dict[str, Any] = {"absent": {}}
        if device.type == "cuda":
            figures["gpu"] = torch.cuda.get_device_name(device)
        section = (_of_texts if title == TEXTS else partial(_of_model, title))(device, options, figures)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        about = f"{figures.get('gpu', 'CPU')}, bfloat16. {section}"
        path = write_results(f"gpu-{title.lower().replace(' ', '-')}", options, figures, about)
    return path


# --- models beside models ---


def _of_model(title: str, device: torch.device, options: Options, figures: dict[str, Any]) -> str:
    model_type, name = MODELS[title]
    settings = _settings(model_type, name, quick=options.quick)
    windows = drawn_windows(24 if options.quick else 2048)
    sides = _sides(model_type, settings, device, options, figures["absent"])
    # Everybody does all work once before the first round, so that all kernels are compiled.
    first: dict[tuple[str, str], float] = {}
    able = {work: _able(work, sides, windows, device, figures["absent"], first) for work in WORK}
    rows = []
    for work, names in able.items():
        batches = {each: _fastest_batch(work, sides[each], windows, device) for each in names}

        def once(name: str, _: int, work: Work = work, batches: dict[str, int] = batches) -> tuple[float, float, float]:
            rate = _product_rate(device, 64 if options.quick else SIZE_OF_PRODUCT)
            seconds, memory = _measured(partial(work.run, sides[name], windows, batches[name]), device)
            return seconds, rate, memory

        rounds = interleaved(names, options.rounds, once, what=f"{title}, {work.title}")
        seconds = {name: [each for each, *_ in singles] for name, singles in rounds.items()}
        lengths = [len(each.ids) for each in windows[: work.texts]]
        operations = _operations(lengths, FAMILIES[model_type].config(settings)) * (
            1 if work.kind == VECTORS else TRAINING_FACTOR
        )
        for name, singles in rounds.items():
            memory = max(each for *_, each in singles)
            figures.setdefault("work", {}).setdefault(work.title, {})[name] = {
                "seconds": seconds[name],
                "tokens": sum(lengths),
                "product_rates": [rate for _, rate, _ in singles],
                "mebibytes": memory,
                "batch": batches[name],
                "seconds_of_first_pass": first[work.title, name],
            }
            cells = _cells(name, batches[name], sum(lengths), seconds, (PEER, COMPILED))
            share = Spread.of([operations / spent / rate for spent, rate, _ in singles])
            rows.append([work.title, *cells, share.text(), f"{memory:,.0f}"])
            say(f"{title}, {work.title}: {' | '.join(cells)}")
    header = ("work", "contestant", "batch", "tokens/s", f"times {PEER}", "times compiled", "of the product rate")
    lengths = [len(each.ids) for each in windows]
    about = f"Texts of {min(lengths)} to {max(lengths)} tokens, {sum(lengths) / len(lengths):.0f} on average."
    return f"{about}\n\n{table((*header, 'memory, MiB'), rows)}"


def _able(
    work: Work,
    sides: dict[str, Side],
    windows: list[Window],
    device: torch.device,
    absent: dict[str, str],
    first: dict[tuple[str, str], float],
) -> list[str]:
    """Return the names of the contestants that can do the work, and do it once with each.

    The seconds of this pass go into ``first``: some kernels are planned for every shape of a batch.
    """
    names: list[str] = []
    ours = 0.0
    for name, side in sides.items():
        if work.kind != VECTORS and name == COMPILED:
            continue  # to compile a training step of any shape takes minutes
        say(f"{work.title}: trying {name}")
        try:
            for size in _sizes(work, side):
                work.run(side, windows[:: max(1, len(windows) // 128)], size)
                seconds, _ = _measured(partial(work.run, side, windows, size), device)
                first.setdefault((work.title, name), seconds)
        except Exception as error:  # a peer or a backend that cannot is named with its reason
            absent[f"{work.title}: {name}"] = _reason(error)
            continue
        ours = seconds if name == OURS else ours
        if name.startswith(f"{OURS},") and ours and seconds > HOPELESS * ours:
            absent[f"{work.title}: {name}"] = f"took {seconds / ours:.0f} times as long as {OURS}"
            continue
        names.append(name)
    return names


def _fastest_batch(work: Work, side: Side, windows: list[Window], device: torch.device) -> int:
    sizes = _sizes(work, side)
    if len(sizes) == 1:
        return sizes[0]
    return min(sizes, key=lambda size: _measured(partial(work.run, side, windows, size), device)[0])


def _sizes(work: Work, side: Side) -> tuple[int, ...]:
    return BATCHES if work.kind == VECTORS and isinstance(side, Transformers) else (work.batch,)


def _sides(
    model_type: str, settings: dict[str, Any], device: torch.device, options: Options, absent: dict[str, str]
) -> dict[str, Side]:
    attention = "eager" if model_type == "deberta-v2" else "sdpa"
    makers: dict[str, Callable[[], Side]] = {
        OURS: partial(Ours, model_type, settings, device),
        **{f"{OURS}, {name}": partial(Ours, model_type, settings, device, name) for name in BACKENDS[model_type]},
        PEER: partial(Transformers, model_type, settings, device, attention),
        COMPILED: partial(Transformers, model_type, settings, device, attention, compiled=True),
        FLASH: partial(Transformers, model_type, settings, device, "flash_attention_2"),
    }
    sides: dict[str, Side] = {}
    for name in options.chosen([*makers]):
        say(f"making {name}")
        try:
            sides[name] = makers[name]()
        except (ImportError, ValueError) as error:
            absent[name] = _reason(error)
    return sides


def _settings(model_type: str, name: str, *, quick: bool) -> dict[str, Any]:
    size = next(size for size in FAMILIES[model_type].published if size.name.endswith(name))
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return {**size.settings, **(small if quick else {})}


def _operations(lengths: Sequence[int], config: EncoderConfig) -> float:
    """Return the FLOP of a forward pass; a gate makes three matrices of two."""
    inner = config.feed_forward.width * (3 if isinstance(config.feed_forward, GatedFeedForward) else 2) // 2
    return floating_point_operations(lengths, config.hidden, inner, config.layers)


# --- from texts to vectors ---


def _of_texts(device: torch.device, options: Options, figures: dict[str, Any]) -> str:
    """Time `encode` of a BERT-base-shaped embedder with texts, their tokenizing included."""
    settings = _settings(*MODELS["BERT-base"], quick=options.quick)
    texts, tokens = drawn_texts(24 if options.quick else 8192, settings["vocab_size"])
    sides: dict[str, tuple[OurEmbedder | SentenceTransformers, int]] = {}
    vectors: dict[str, torch.Tensor] = {}
    with tempfile.TemporaryDirectory() as name:
        write_embedder(Path(name), "bert", settings, device)
        makers: dict[str, Callable[[], OurEmbedder | SentenceTransformers]] = {
            OURS: partial(OurEmbedder, Path(name), device),
            EMBEDDER: partial(SentenceTransformers, Path(name), device),
            COMPILED_EMBEDDER: partial(SentenceTransformers, Path(name), device, compiled=True),
        }
        for title in options.chosen([*makers]):
            say(f"{TEXTS}: trying {title}")
            try:
                side = makers[title]()
                for size in side.batches:
                    side.encode(texts[:: max(1, len(texts) // 512)], size)
                timed = {size: _measured(partial(side.encode, texts, size), device)[0] for size in side.batches}
                sides[title] = side, min(timed, key=timed.__getitem__)
                vectors[title] = torch.from_numpy(side.encode(texts[:256], sides[title][1])).float()
            except Exception as error:
                figures["absent"][title] = _reason(error)

        def once(title: str, _: int) -> tuple[float, float]:
            side, batch = sides[title]
            return _measured(partial(side.encode, texts, batch), device)

        rounds = interleaved([*sides], options.rounds, once, what=TEXTS)
    seconds = {title: [each for each, _ in singles] for title, singles in rounds.items()}
    rows = []
    for title, singles in rounds.items():
        cosine = float(torch.cosine_similarity(vectors[OURS], vectors[title]).min()) if OURS in vectors else None
        figures.setdefault("texts", {})[title] = {
            "seconds": seconds[title],
            "tokens": tokens,
            "mebibytes": max(memory for _, memory in singles),
            "batch": sides[title][1],
            "min_cosine_with_ours": cosine,
        }
        cells = _cells(title, sides[title][1], tokens, seconds, (EMBEDDER, COMPILED_EMBEDDER))
        rows.append([*cells, f"{max(memory for _, memory in singles):,.0f}", "" if cosine is None else f"{cosine:.5f}"])
        say(f"{TEXTS}: {' | '.join(cells)}")
    header = ("contestant", "batch", "tokens/s", f"times {EMBEDDER}", "times compiled", "memory, MiB", "cosine")
    about = f"From texts to vectors, BERT-base: {len(texts):,} texts, {tokens:,} tokens; {options.threads} threads."
    return f"{about}\n\n{table(header, rows)}"


# --- tables and clocks ---


def _cells(
    name: str, batch: int, tokens: int, seconds: dict[str, list[float]], peers: Sequence[str]
) -> tuple[str, str, str, *tuple[str, ...]]:
    """Return contestant, batch, tokens a second, and the speed as a multiple of each peer's."""
    speed = Spread.of([tokens / each for each in seconds[name]])
    of_peers = [ratios(seconds[peer], seconds[name]).ratio() if peer in seconds else "" for peer in peers]
    return name, str(batch or ""), speed.text(0), *of_peers


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
