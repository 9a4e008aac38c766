"""The weights of a module as a table of named tensors: copied out, and copied back in."""

import torch
from torch import Tensor, nn

from bothways.errors import IncompatibleWeights

Weights = dict[str, Tensor]


def live_weights(module: nn.Module) -> Weights:
    """Parameters and persistent buffers by name; not copies. Tied tensors appear once, under their first name."""
    weights: Weights = {}
    seen: set[tuple[int, torch.Size, torch.dtype]] = set()
    for name, value in module.state_dict().items():
        key = (value.data_ptr(), value.shape, value.dtype)
        if value.numel() and key in seen:
            continue
        seen.add(key)
        weights[name] = value
    return weights


def copy_weights(module: nn.Module) -> Weights:
    """A copy on the CPU that later updates leave alone."""
    return {name: value.detach().to("cpu", copy=True) for name, value in live_weights(module).items()}


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
            value.copy_(weights[name])
