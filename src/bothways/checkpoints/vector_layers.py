"""The layers of sentence-transformers on a pooled vector: their settings, and the folders of their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, get_args

from bothways.checkpoints.files import Known, StoredModule, read_count, read_known
from bothways.choices import ActivationModule
from bothways.errors import CorruptCheckpoint, UnsupportedConfig

_ACTIVATIONS: tuple[ActivationModule, ...] = get_args(ActivationModule)
_ON_VECTORS: Known = {
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("sentence_embedding",),
}
_OF_DENSE: Known = {
    **_ON_VECTORS,
    "in_features": None,
    "out_features": None,
    "bias": (True, False),
    "activation_function": None,
    "use_residual": (True, False),
}


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A linear layer with an activation; with ``residual``, its input is added to its output.

    If the widths differ, the input is projected by a matrix without bias first.
    """

    folder: str
    inputs: int
    outputs: int
    bias: bool
    activation: ActivationModule
    residual: bool


@dataclass(frozen=True, slots=True)
class NormalizeLayer:
    """Scaling to length 1; at the end it is ``SentenceSettings.unit_length``."""

    folder: str


@dataclass(frozen=True, slots=True)
class LayerNormLayer:
    """Normalisation of a vector to mean 0 and variance 1, with trained scales and shifts."""

    folder: str
    width: int


@dataclass(frozen=True, slots=True)
class DropoutLayer:
    """Dropout, which has an effect in training only."""

    folder: str
    rate: float


VectorLayer: TypeAlias = DenseLayer | NormalizeLayer | LayerNormLayer | DropoutLayer

LAYERS: dict[type[VectorLayer], str] = {
    DenseLayer: "Dense",
    NormalizeLayer: "Normalize",
    LayerNormLayer: "LayerNorm",
    DropoutLayer: "Dropout",
}
"""The class of sentence-transformers of each layer."""


def layer_settings(layer: VectorLayer) -> dict[str, object]:
    """Return the content of a layer's ``config.json``; empty for a layer without settings."""
    match layer:
        case DenseLayer():
            module = "linear" if layer.activation == "Identity" else "activation"
            settings: dict[str, object] = {
                "in_features": layer.inputs,
                "out_features": layer.outputs,
                "bias": layer.bias,
                "activation_function": f"torch.nn.modules.{module}.{layer.activation}",
            }
            return {**settings, "use_residual": True} if layer.residual else settings
        case NormalizeLayer():
            return {}
        case LayerNormLayer():
            return {"dimension": layer.width}
        case DropoutLayer():
            return {"dropout": layer.rate}


def read_layer(folder: Path, module: StoredModule) -> VectorLayer:
    """Read the settings of a layer.

    Raises:
        UnsupportedConfig: It has a setting that is not supported.
        CorruptCheckpoint: Its settings are damaged or missing.
    """
    path, name = folder / module.folder / "config.json", module.folder
    if module.name == "Normalize":
        read_known(path, _ON_VECTORS)
        return NormalizeLayer(name)
    if not path.is_file():
        raise CorruptCheckpoint(f"{str(path)!r} is missing, but the folder lists this {module.name} module.")
    if module.name == "LayerNorm":
        return LayerNormLayer(name, _needed(path, read_known(path, {"dimension": None}), "dimension"))
    if module.name == "Dropout":
        rate = read_known(path, {"dropout": None}).get("dropout", 0.2)
        match rate:
            case int() | float() if 0 <= rate < 1:
                return DropoutLayer(name, float(rate))
        raise CorruptCheckpoint(
            f"{str(path)!r} must give dropout as a number from 0 to below 1, but it is {rate!r:.80}."
        )
    stored = read_known(path, _OF_DENSE)
    activation = _activation(path, stored.get("activation_function", "torch.nn.modules.activation.Tanh"))
    bias, residual = stored.get("bias") is not False, stored.get("use_residual") is True
    inputs, outputs = _needed(path, stored, "in_features"), _needed(path, stored, "out_features")
    return DenseLayer(name, inputs, outputs, bias=bias, activation=activation, residual=residual)


def width_after(folder: Path, layers: Sequence[VectorLayer], width: int) -> int:
    """Return the width of vectors after the layers; ``width`` is that before them.

    Raises:
        CorruptCheckpoint: A layer reads vectors of another width than the one before it gives.
    """
    for layer in layers:
        reads = width
        match layer:
            case DenseLayer(inputs=inputs):
                reads = inputs
            case LayerNormLayer(width=normed):
                reads = normed
        if reads != width:
            raise CorruptCheckpoint(
                f"the {LAYERS[type(layer)]} module in {str(folder / layer.folder)!r} reads vectors of {reads} "
                f"dimensions, but those before it have {width}: they do not belong together."
            )
        width = layer.outputs if isinstance(layer, DenseLayer) else width
    return width


def _needed(path: Path, settings: Mapping[str, object], name: str) -> int:
    found = read_count(path, settings, name)
    if found is None:
        raise CorruptCheckpoint(f"{str(path)!r} must give {name}, but it does not.")
    return found


def _activation(path: Path, named: object) -> ActivationModule:
    """Return the activation with the name of a class in ``torch.nn``."""
    name = str(named)
    found = next((each for each in _ACTIVATIONS if name.endswith(f".{each}")), None)
    if found is None or not name.startswith("torch.nn."):
        raise UnsupportedConfig(
            f"{str(path)!r} sets activation_function to {name!r:.200}, which is not supported: expected a class of "
            f"torch.nn, one of {', '.join(_ACTIVATIONS)}."
        )
    return found
