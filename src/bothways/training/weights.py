"""The weights of a module as a table of named tensors: copied out, and copied back in."""

import torch
from torch import Tensor, nn

from bothways.errors import IncompatibleWeights
from bothways.training.sharding import divided_like, is_sharded

Weights = dict[str, Tensor]


def live_weights(module: nn.Module) -> Weights:
    """Parameters and persistent buffers by name; not copies. Tied tensors appear once, under their first name."""
    first = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    return {name: value for name, value in module.state_dict().items() if name in first}


def copy_weights(module: nn.Module, over: Weights | None = None) -> Weights:
    """Return a copy on the CPU that later updates leave alone.

    Args:
        module: The module.
        over: An earlier copy, which nobody needs any more: its memory becomes that of the new one.
    """
    return {name: _copied(value.detach(), (over or {}).get(name)) for name, value in live_weights(module).items()}


def _copied(value: Tensor, over: Tensor | None) -> Tensor:
    if over is None or is_sharded(value) or is_sharded(over) or (over.shape, over.dtype) != (value.shape, value.dtype):
        return value.to("cpu", copy=True)
    return over.copy_(value)


def restore_weights(module: nn.Module, weights: Weights) -> None:
    """Copy ``weights`` into ``module`` in place.

    Raises:
        IncompatibleWeights: Names or shapes differ; the module is unchanged.
    """
    live = live_weights(module)
    differing = sorted(
        name
        for name in live.keys() | weights.keys()
        if name not in live or name not in weights or live[name].shape != weights[name].shape
    )
    if differing:
        raise IncompatibleWeights(
            f"the stored weights are not of this model: {len(differing)} tensors are missing, left over or of another "
            f"shape, the first is {differing[0]!r}. Build the model as it was when they were stored."
        )
    with torch.no_grad():
        for name, value in live.items():
            value.copy_(divided_like(weights[name], value))
