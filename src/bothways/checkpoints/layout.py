"""Model folders in the layout of Hugging Face: writing them for other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.checkpoints.files import HEAD_WEIGHTS, WEIGHTS, sha256_of, write_json, write_tensors
from bothways.checkpoints.schema import FORMAT_VERSION, OURS
from bothways.checkpoints.sentence_transformers import SentenceSettings
from bothways.checkpoints.vector_layers import DenseLayer, layer_settings
from bothways.encoder.config import EncoderConfig
from bothways.families import Family
from bothways.families.family import HEAD_FOLDER, HEAD_POOLING, PAIR, beside_settings
from bothways.families.layout import WeightRow, write_weights

if TYPE_CHECKING:
    from torch import Tensor, nn


_HEAD = f"{HEAD_FOLDER}/"


def encoder_tensors(
    family: Family, config: EncoderConfig, *modules: tuple[str, nn.Module], prefix: str = ""
) -> dict[str, Tensor]:
    """Return the tensors of modules, such as an encoder and its pooler, under the family's names.

    Each module comes with our prefix for its names (``""`` for the encoder, ``"pooler."``). ``prefix`` is the family's
    prefix for encoder names in a model with a head.
    """
    return write_weights(family.rows, config, _collect(modules), prefix)


def head_tensors(rows: tuple[WeightRow, ...], config: EncoderConfig, head: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a head under the family's names."""
    return write_weights(rows, config, _collect((("head.", head),)))


def write_model(
    folder: Path,
    settings: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    extras: Mapping[str, object] | None = None,
) -> None:
    """Write ``config.json``, ``model.safetensors`` and, with ``extras``, ``bothways.json`` with checksums.

    ``tensors`` have the family's names; the precision in ``config.json`` is set to theirs.
    """
    head = {name.removeprefix(_HEAD): value for name, value in tensors.items() if name.startswith(_HEAD)}
    beside = beside_settings(settings)
    kept = {name: value for name, value in settings.items() if head or name not in beside}
    write_json(folder / "config.json", {**kept, **_precision(settings, tensors)})
    write_tensors(folder / WEIGHTS, {name: value for name, value in tensors.items() if not name.startswith(_HEAD)})
    if head:
        length = None if extras is None else extras.get("max_length")
        max_length = length if isinstance(length, int) else None
        _write_head(folder, head, max_length, of_pairs=settings.get(HEAD_POOLING) == PAIR)
    if extras is not None:
        files = sorted(folder.rglob("*.safetensors"))
        checksums = {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
        write_json(folder / OURS, {"format_version": FORMAT_VERSION, **extras, "checksums": checksums})


def _write_head(folder: Path, head: Mapping[str, Tensor], max_length: int | None, *, of_pairs: bool) -> None:
    """Write the linear layer of a head that is stored beside the encoder.

    sentence-transformers can open the folder: it returns the head's outputs, or, for pairs, the embedding of each text.
    """
    labels, width = head["linear.weight"].shape
    hidden = (width - 1) // 3 if of_pairs else width
    layer = DenseLayer(HEAD_FOLDER, width, labels, bias=True, activation="Identity", residual=False)
    settings = SentenceSettings(
        poolings=("mean",), layers=() if of_pairs else (layer,), unit_length=of_pairs, max_length=max_length
    )
    settings.write(folder, hidden=hidden, cls_is_last=False)
    (folder / HEAD_FOLDER).mkdir(exist_ok=True)
    write_json(folder / HEAD_FOLDER / "config.json", layer_settings(layer))
    write_tensors(folder / HEAD_WEIGHTS, head)


def _precision(settings: Mapping[str, object], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the settings for the precision in which transformers loads the weights."""
    floating = {str(value.dtype).removeprefix("torch.") for value in tensors.values() if value.is_floating_point()}
    if len(floating) != 1:
        return {}
    return {key: next(iter(floating)) for key in ("dtype", "torch_dtype") if key in settings}


def _collect(modules: tuple[tuple[str, nn.Module], ...]) -> dict[str, Tensor]:
    return {prefix + name: value for prefix, module in modules for name, value in module.state_dict().items()}
