"""Linear maps in int8 on disk: ``int8.safetensors`` beside the other weights in ``float32.safetensors``.

The names there are those of this package. There is no ``model.safetensors``, and ``config.json`` names a method of
quantisation that no other program knows, so that other programs refuse the folder instead of drawing the missing
weights.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bothways.checkpoints.files import read_json, read_safetensors
from bothways.encoder import Encoder
from bothways.encoder.encoder import linear_weights
from bothways.encoder.int8 import Int8Weight, largest_pair
from bothways.encoder.linear import hold, hold_bfloat16
from bothways.errors import CorruptCheckpoint, IncompatibleWeights
from bothways.families import Family
from bothways.families.weight_map import write_weights
from bothways.products import has_bfloat16_product
from bothways.progress import phase

INT8_WEIGHTS = "int8.safetensors"
_PARTS = {"codes": torch.int8, "scale": torch.float32, "shift": torch.float32, "stretch": torch.float32}


def int8_tensors(maps: Mapping[str, Int8Weight]) -> dict[str, Tensor]:
    """Return the tensors of maps by their names in the file; the keys are names of the encoder's parameters."""
    return {
        f"{name}.{part}": value
        for name, each in maps.items()
        for part, value in zip(_PARTS, (each.codes_OI, each.scale_O, each.shift_I, each.stretch_I), strict=True)
    }


def read_int8(folder: Path) -> dict[str, Int8Weight]:
    """Return the maps of a folder by the names of the encoder's parameters; none without the file.

    Raises:
        CorruptCheckpoint: The file is damaged, or holds something else.
    """
    path = folder / INT8_WEIGHTS
    if not path.is_file():
        return {}
    tensors = read_safetensors(path)
    names = sorted({key.rpartition(".")[0] for key in tensors})
    if len(tensors) != len(names) * len(_PARTS):
        raise _damaged(path, f"{len(_PARTS)} tensors for each of {len(names)} weights", f"{len(tensors)} tensors")
    return {name: _checked(path, name, tensors) for name in names}


def rounded_weights(folder: Path, family: Family) -> dict[str, Tensor]:
    """Return the int8 weights of a folder, in float32 under the family's names."""
    maps = read_int8(folder)
    if not maps:
        return {}
    config = family.config(read_json(folder / "config.json"))
    return write_weights(family.rows, config, {name: each.weight() for name, each in maps.items()}, family.prefix)


def hold_int8(encoder: Encoder, folder: Path, described: Mapping[str, object]) -> None:
    """Let an encoder multiply by the int8 maps of its folder, and by others in bfloat16, if this machine can.

    Else it multiplies by the weights in float32, which is slower. ``described`` is their entry in ``config.json``,
    which names the layers in bfloat16.

    Raises:
        IncompatibleWeights: The file holds a weight that the encoder does not have.
    """
    maps = read_int8(folder)
    parameters = dict(encoder.named_parameters())
    for name, each in maps.items():
        if name not in parameters or parameters[name].shape != each.codes_OI.shape:
            raise IncompatibleWeights(
                f"{str(folder / INT8_WEIGHTS)!r} holds {name} {tuple(each.codes_OI.shape)}, which the encoder of "
                "config.json does not have. The files do not belong together: get the model again."
            )
    if not all(each.is_fast for each in maps.values()):
        why = (
            "this processor has no VNNI, for which this model was quantized (quantize --portable makes it for both)"
            if largest_pair()
            else "this processor or torch multiplies no int8"
        )
        phase(f"{why}: the rounded weights are used in float32, which is slower")
        return
    for name, each in maps.items():
        hold(parameters[name], each)
    if maps and has_bfloat16_product() and isinstance(layers := described.get("bfloat16"), list):
        wanted = {f"layers.{name}.weight" for name in layers}
        hold_bfloat16(weight for name, weight in linear_weights(encoder).items() if name in wanted)


def _checked(path: Path, name: str, tensors: Mapping[str, Tensor]) -> Int8Weight:
    parts = [tensors.get(f"{name}.{part}") for part in _PARTS]
    codes, *others = parts
    if codes is None or codes.dim() != 2:
        raise _damaged(path, f"a matrix {name}.codes", "none" if codes is None else str(tuple(codes.shape)))
    shapes = (codes.shape, codes.shape[:1], codes.shape[1:], codes.shape[1:])
    for (part, dtype), value, shape in zip(_PARTS.items(), parts, shapes, strict=True):
        if value is None or value.dtype != dtype or value.shape != shape:
            found = "nothing" if value is None else f"{value.dtype} {tuple(value.shape)}"
            raise _damaged(path, f"{name}.{part} as {dtype} {tuple(shape)}", found)
    scale, shift, stretch = (value for value in others if value is not None)
    finite = all(bool(each.isfinite().all()) for each in (scale, shift, stretch))
    if not finite or bool((scale <= 0).any()) or bool((stretch <= 0).any()):
        raise _damaged(path, f"finite numbers, and scales above 0, for {name}", "others")
    return Int8Weight(codes, scale, shift, stretch)


def _damaged(path: Path, expected: str, found: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"expected {str(path)!r} to hold {expected}, got {found}: it was altered or damaged. Get the model again."
    )
