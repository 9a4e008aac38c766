"""Quantize the linear layers of a saved or published model to int8, using texts without labels.

Shapes: N texts, H hidden, W windows of a text.
"""

import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
from torch import Tensor, nn

from bothways.checkpoints import Checkpoint
from bothways.checkpoints.files import (
    FULL_WEIGHTS,
    INT8_WEIGHTS,
    PICKLED,
    PICKLED_INDEX,
    SHARD_INDEX,
    WEIGHTS,
    int8_tensors,
    sha256_of,
    write_json,
    write_tensors,
)
from bothways.checkpoints.hub import DESCRIPTION
from bothways.checkpoints.schema import FORMAT_VERSION, GOLDEN_FILE, OURS, Stored
from bothways.checkpoints.sentence_transformers import SentenceSettings
from bothways.choices import GoldenSource
from bothways.encoder.encoder import linear_weights
from bothways.encoder.head_kinds import FirstToken, LastToken, MeanOfTokens, Read, ScoreHeadKind
from bothways.encoder.heads import read_rows
from bothways.encoder.int8 import ANY_PAIR, SMALL_PAIR, Int8Weight, largest_pair
from bothways.encoder.linear import hold_bfloat16, release
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.families.family import HEAD_FOLDER
from bothways.families.keys import INT8_METHOD, QUANTIZATION
from bothways.families.layout import expand
from bothways.inference import TextRows
from bothways.packing import Packed
from bothways.products import has_bfloat16_product
from bothways.progress import phase, progress
from bothways.quantization.rounding import Choice, RoundedLayer, Vectors, choose_layers, fitted, sampled
from bothways.storage import MODEL, check_folder_free, new_folder
from bothways.tasks.backend import OpenOptions
from bothways.tasks.readme import README
from bothways.tasks.registry import write_golden_of
from bothways.tasks.torch_backend import TorchBackend
from bothways.text.windows import check_text
from bothways.threads import calling_thread_alone

MIN_COSINE = 0.999
MAX_TEXTS = 2000
# Texts that were not used to choose the layers lose more: 2,000 other sentences from Wikipedia lost 1.09 times as
# much.
_SHARE_TO_LOSE = 0.8
# Texts per batch while the layers' inputs are collected, and texts on which layers are compared.
_FITTING, _COMPARING = 64, 128


@dataclass(frozen=True, slots=True)
class Quantization:
    """The layers of a model that are in int8, and the effect of int8 on the vectors of texts.

    Attributes:
        texts: Number of compared texts.
        min_cosine: Minimum over the texts of the cosine between a text's vector and its vector in float32.
        mean_cosine: Mean of these cosines over the texts.
        vector: Name of the compared vector, such as ``"mean of tokens"``.
        int8: Names of the layers in int8.
        bfloat16: Names of the layers in bfloat16; processors without bfloat16 multiply them in float32.
        float32: Names of the layers in float32.
        portable: True if processors without VNNI multiply in int8 too.
    """

    texts: int
    min_cosine: float
    mean_cosine: float
    vector: str
    int8: tuple[str, ...]
    bfloat16: tuple[str, ...]
    float32: tuple[str, ...]
    portable: bool

    def to_dict(self) -> dict[str, object]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def quantize(
    name_or_path: str | Path,
    folder: str | Path,
    texts: Iterable[str],
    *,
    cosine: float = MIN_COSINE,
    most_texts: int = MAX_TEXTS,
    seed: int = 0,
    portable: bool = False,
    overwrite: bool = False,
    golden: GoldenSource | None = "validation",
    show_progress: bool | None = None,
    **options: Unpack[OpenOptions],
) -> Quantization:
    """Save a model with its linear layers in int8; layers that lose too much accuracy become bfloat16 or stay float32.

    The saved model opens like any other, for inference only. ``config.json`` and the model card state the cosines.

    Args:
        name_or_path: A folder or a name, see `bothways.load`.
        folder: Folder of the new model.
        texts: Texts of the kind that the model will read, without labels.
        cosine: Minimum cosine of a text's vector with its vector in float32. Layers are chosen with a margin
            on the given texts, so that other texts of this kind keep the minimum too.
        most_texts: Maximum number of texts to use; if more are given, a random sample is drawn.
        seed: Seed for drawing the sample.
        portable: Let processors without VNNI multiply in int8 too: weights are rounded more coarsely, and fewer layers
            become int8.
        overwrite: Replace an existing folder.
        golden: Inputs of the golden answers (default: those of the original model), ``"neutral"``, or None for none.
        show_progress: Force the progress bar on or off.
        options: Options to open the model, see `bothways.load`; the work is done on the CPU in float32.

    Raises:
        InvalidInput: There are no texts, the model is int8 already, or no layer can be int8 at this ``cosine``.
        OutputExists: The folder exists and ``overwrite`` is false, or it is not a model.
        OutOfDisk: The disk is full; nothing is left behind. Also raises everything that `bothways.load` raises.
    """
    if not 0 < cosine <= 1:
        raise InvalidInput(f"`cosine` must be above 0 and at most 1, got {cosine}.")
    if options.get("check"):
        raise InvalidInput("a model to quantize is not checked here: leave out check, and use bothways.compose.check.")
    check_folder_free(folder, overwrite=overwrite, kind=MODEL)
    chosen = _sample(texts, most_texts, seed)
    options["device"], options["dtype"] = "cpu", "float32"
    backend = TorchBackend.open(name_or_path, "", **options)
    backend.model.check_full("quantize")
    pair = SMALL_PAIR if portable else largest_pair() or ANY_PAIR
    if not largest_pair():
        phase("this processor or torch has no int8 multiplication: choosing the layers takes longer")
    read, vector = _read(backend)
    layers, vectors = linear_weights(backend.model.encoder), _vectors(backend, read)
    candidates = _candidates(backend, vectors, layers, chosen, seed, pair)
    choice, in_bfloat16 = _chosen(candidates, vectors, chosen, layers, cosine, show_progress)
    found = _described(choice, tuple(layers), vector, in_bfloat16=in_bfloat16, portable=pair == SMALL_PAIR)
    maps = {name: candidates[name].as_int8 for name in choice.names}
    with new_folder(folder, overwrite=overwrite, kind=MODEL) as new:
        write_int8_folder(new, backend.files, maps, found.to_dict())
        write_golden_of(new, backend.files.folder, golden)
    return found


def _sample(texts: Iterable[str], most: int, seed: int) -> list[str]:
    """Return the texts, or a sample of ``most`` of them in their order."""
    given = list(texts)
    if not given:
        raise InvalidInput("expected at least 1 text, got none: give texts of the kind that the model will read.")
    for number, text in enumerate(given):
        check_text(number, text)
    if len(given) <= most:
        return given
    return [given[number] for number in sorted(random.Random(seed).sample(range(len(given)), most))]


def _read(backend: TorchBackend) -> tuple[Read, str]:
    """Return the states that the model's head or its pooling reads, and their name."""
    checkpoint, tokenizer = backend.files, backend.model.tokenizer
    for name in checkpoint.family.architecture_heads(checkpoint.settings):
        kind = checkpoint.family.head(name, checkpoint.settings).kind
        if isinstance(kind, ScoreHeadKind) and isinstance(kind.read, FirstToken | LastToken):
            return kind.read, "first token" if isinstance(kind.read, FirstToken) else "last token"
    poolings: object = checkpoint.extras.get("pooling")
    if poolings is None:
        try:
            stored = SentenceSettings.read(
                backend.model.folder, hidden=backend.config.hidden, cls_is_last=tokenizer.cls_is_last
            )
            poolings = "+".join(stored.poolings or ())
        except UnsupportedConfig:  # modules or settings that are not supported
            poolings = None
    if poolings != "cls":
        return MeanOfTokens(), "mean of tokens"
    return (LastToken(), "last token") if tokenizer.cls_is_last else (FirstToken(), "first token")


def _vectors(backend: TorchBackend, read: Read) -> Callable[[Sequence[str]], Vectors]:
    """Return a function from texts to vectors (N, H), the mean over the windows of a text."""

    def forward(packed: Packed) -> Tensor:
        return read_rows(read, backend.model.encoder, packed)

    def vectors(texts: Sequence[str]) -> Vectors:
        read = backend.text_runner(forward).run(texts, total=len(texts), show_progress=False)
        rows = [each for each in read if isinstance(each, TextRows)]
        return np.stack([each.rows_WK.mean(0) for each in rows])

    return vectors


def _candidates(
    backend: TorchBackend,
    vectors: Callable[[Sequence[str]], Vectors],
    layers: Mapping[str, nn.Parameter],
    texts: Sequence[str],
    seed: int,
    pair: int,
) -> dict[str, RoundedLayer]:
    """Return the layers that receive input from these texts, each with its int8 weight."""
    modules = {name: backend.model.encoder.get_submodule(name.removesuffix(".weight")) for name in layers}
    # One batch after another, so that every run draws the same rows.
    with sampled(modules, seed) as samples, calling_thread_alone():
        for start in range(0, len(texts), _FITTING):
            vectors(texts[start : start + _FITTING])
            if all(sample.is_enough for sample in samples.values()):
                break
    candidates = {}
    with progress("rounding layers", len(samples)) as bar:
        for name, sample in samples.items():
            weight = layers[name]
            candidates[name] = RoundedLayer(weight, fitted(weight, sample, pair))
            bar.advance()
    return candidates


def _chosen(
    candidates: Mapping[str, RoundedLayer],
    vectors: Callable[[Sequence[str]], Vectors],
    texts: Sequence[str],
    layers: Mapping[str, nn.Parameter],
    cosine: float,
    show_progress: bool | None,
) -> tuple[Choice, bool]:
    """Return the choice of int8 layers, and True if all other layers are bfloat16, which is tried before float32."""
    expected_NH = vectors(texts)
    min_cosine = 1 - _SHARE_TO_LOSE * (1 - cosine)
    for others in (hold_bfloat16, release) if has_bfloat16_product() else (release,):
        others(layers.values())
        with progress("comparing layers", len(candidates), show=show_progress) as bar:
            choice = choose_layers(candidates, vectors, texts, expected_NH, _COMPARING, min_cosine, bar)
        if choice.names:
            return choice, others is hold_bfloat16
    raise InvalidInput(f"no layer can be quantized to int8 with a cosine of at least {cosine:g}: lower `cosine`.")


def _described(
    choice: Choice, layers: Sequence[str], vector: str, *, in_bfloat16: bool, portable: bool
) -> Quantization:
    kept = tuple(_layer(name) for name in layers if name not in choice.names)
    cosines_N = choice.cosines_N
    return Quantization(
        texts=len(cosines_N),
        min_cosine=float(cosines_N.min()),
        mean_cosine=float(cosines_N.mean()),
        vector=vector,
        int8=tuple(_layer(name) for name in layers if name in choice.names),
        bfloat16=kept if in_bfloat16 else (),
        float32=() if in_bfloat16 else kept,
        portable=portable,
    )


def _layer(weight: str) -> str:
    return weight.removeprefix("layers.").removesuffix(".weight")


_IN_INT8 = """\
## Linear layers in int8

Linear layers of this model were rounded to int8 by `bothways quantize`, for inference on a CPU. Everything else on this
page describes the original model. Over {texts} texts, the cosine of a text's vector ({vector}) with its vector in
float32 is at least {min_cosine:.5f} and {mean_cosine:.5f} on average. Only `bothways.load` opens this folder.
"""

# Files that would not match the new weights: weights for other programs, checksums and signatures.
_OTHERS = {".bin", ".onnx", ".data", ".h5", ".msgpack", ".ot", ".xml", ".pt", ".ckpt", ".gguf", ".pkl", ".sig"}
_LEFT = {WEIGHTS, PICKLED, PICKLED_INDEX, SHARD_INDEX, OURS, "config.json", "SHA256SUMS", DESCRIPTION, GOLDEN_FILE}


def write_int8_folder(
    folder: Path, checkpoint: Checkpoint, maps: Mapping[str, Int8Weight], described: Mapping[str, object]
) -> None:
    """Write a model to an empty folder; the int8 weights in ``maps``, by parameter name, replace its own.

    ``config.json`` and the model card get the description of the int8 layers.
    """
    stored = Stored.of(checkpoint.extras)
    _copy(checkpoint.folder, folder, kept=set(stored.checksums))
    family = checkpoint.family
    rounded = {
        name
        for mapped in expand(family.rows, checkpoint.config, family.prefix)
        if mapped.ours in maps
        for name in mapped.theirs
    }
    own = {name: value for name, value in checkpoint.tensors.items() if not name.startswith(f"{HEAD_FOLDER}/")}
    write_tensors(
        folder / FULL_WEIGHTS, {name: value.contiguous() for name, value in own.items() if name not in rounded}
    )
    write_tensors(folder / INT8_WEIGHTS, {name: each.contiguous() for name, each in int8_tensors(maps).items()})
    write_json(
        folder / "config.json", {**checkpoint.settings, QUANTIZATION: {"quant_method": INT8_METHOD, **described}}
    )
    path = folder / README
    before = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    path.write_text(f"{before.rstrip()}\n\n{_IN_INT8.format(**described)}".lstrip(), encoding="utf-8")
    files = sorted(folder.rglob("*.safetensors"))
    write_json(
        folder / OURS,
        {
            "format_version": FORMAT_VERSION,
            **checkpoint.extras,
            "card": {**stored.card, "quantization": dict(described)},
            "checksums": {path.relative_to(folder).as_posix(): sha256_of(path) for path in files},
        },
    )


def _copy(source: Path, folder: Path, kept: set[str]) -> None:
    """Copy a model's files except weights; copy a safetensors file only if it holds a head or is named in ``kept``."""
    for path in sorted(source.rglob("*")):
        place = path.relative_to(source)
        hidden = any(part.startswith(".") for part in place.parts)
        if not path.is_file() or hidden or place.as_posix() in _LEFT or path.suffix in _OTHERS:
            continue
        if path.suffix == ".safetensors" and place.as_posix() not in kept and place.parts[0] != HEAD_FOLDER:
            continue
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / place)
