"""The folder of a model in int8: the files of the original model with new weights."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from bothways.checkpoints import Checkpoint
from bothways.checkpoints.files import FULL_WEIGHTS, PICKLED, PICKLED_INDEX, SHARD_INDEX, WEIGHTS, sha256_of
from bothways.checkpoints.int8 import INT8_WEIGHTS, int8_tensors
from bothways.checkpoints.save import write_json, write_tensors
from bothways.checkpoints.schema import FORMAT_VERSION, OURS, Stored
from bothways.encoder.int8 import Int8Weight
from bothways.families.config_keys import INT8_METHOD, QUANTIZATION
from bothways.families.family import HEAD_FOLDER
from bothways.families.weight_map import expand
from bothways.tasks.readme import README

_IN_INT8 = """\
## Linear layers in int8

Linear layers of this model were rounded to int8 by `bothways quantize`, for inference on a CPU. Everything else on this
page describes the original model. Over {texts} texts, the smallest cosine of the vector ({vector}) with that in float32
is {min_cosine:.5f}, the mean {mean_cosine:.5f}. Only bothways reads this folder: `bothways.load`.
"""

# Files that do not fit the new weights: weights for other programs, checksums and signatures.
_OTHERS = {".bin", ".onnx", ".data", ".h5", ".msgpack", ".ot", ".xml", ".pt", ".ckpt", ".gguf", ".pkl", ".sig"}
_LEFT = {WEIGHTS, PICKLED, PICKLED_INDEX, SHARD_INDEX, OURS, "config.json", "SHA256SUMS", "export.json"}


def write_int8_folder(
    folder: Path, checkpoint: Checkpoint, maps: Mapping[str, Int8Weight], described: Mapping[str, object]
) -> None:
    """Fill an empty folder with a model whose layers (by the encoder's parameters) are in int8.

    Their description goes into ``config.json`` and the card.
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
    """Copy a model's files without its weights; of safetensors files only heads and those in ``bothways.json``."""
    for path in sorted(source.rglob("*")):
        place = path.relative_to(source)
        hidden = any(part.startswith(".") for part in place.parts)
        if not path.is_file() or hidden or place.as_posix() in _LEFT or path.suffix in _OTHERS:
            continue
        if path.suffix == ".safetensors" and place.as_posix() not in kept and place.parts[0] != HEAD_FOLDER:
            continue
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / place)
