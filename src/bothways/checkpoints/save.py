"""Writing checkpoints in the ecosystem's layout, so that what is saved here opens anywhere."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from bothways.checkpoints.checkpoint import OURS
from bothways.checkpoints.files import WEIGHTS, sha256_of
from bothways.encoder.config import EncoderConfig
from bothways.families import Family
from bothways.families.weight_map import WeightRow, write_weights


def encoder_tensors(
    family: Family, config: EncoderConfig, *modules: tuple[str, nn.Module], prefix: str = ""
) -> dict[str, Tensor]:
    """The family's names for the tensors of an encoder and, where given, its pooler.

    Args:
        family: Whose names.
        config: The encoder's.
        modules: Pairs of a prefix of ours (``""`` for the encoder, ``"pooler."``) and the module.
        prefix: What the family writes before the encoder's names in a model with a head.
    """
    return write_weights(family.rows, config, _collect(modules), prefix)


def head_tensors(rows: tuple[WeightRow, ...], config: EncoderConfig, head: nn.Module) -> dict[str, Tensor]:
    """The family's names for the tensors of a head."""
    return write_weights(rows, config, _collect((("head.", head),)))


def write_model(
    folder: Path,
    settings: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    extras: Mapping[str, object] | None = None,
) -> None:
    """Write ``config.json``, ``model.safetensors`` and, if given, ``bothways.json`` with the weights' checksum.

    Args:
        folder: An existing folder, best one from ``bothways.storage.new_folder``.
        settings: Content of ``config.json``.
        tensors: Weights under the family's names.
        extras: What this package keeps beside them.
    """
    write_json(folder / "config.json", settings)
    save_file({name: value.cpu() for name, value in tensors.items()}, folder / WEIGHTS, metadata={"format": "pt"})
    if extras is not None:
        checksums = {WEIGHTS: sha256_of(folder / WEIGHTS)}
        write_json(folder / OURS, {"format_version": 1, **extras, "checksums": checksums})


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON object, indented, in UTF-8."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _collect(modules: tuple[tuple[str, nn.Module], ...]) -> dict[str, Tensor]:
    return {prefix + name: value for prefix, module in modules for name, value in module.state_dict().items()}
