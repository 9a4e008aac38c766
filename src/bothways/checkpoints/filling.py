"""Modules that take no memory until they are given their weights."""

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

from bothways.errors import IncompatibleWeights

M = TypeVar("M", bound=nn.Module)


def fill(checkpoint: str, module: M, weights: Mapping[str, Tensor]) -> M:
    """Give a module without memory its weights, all of them and in the right shapes.

    Args:
        checkpoint: Its name, for messages.
        module: Made on the meta device.
        weights: By the module's names; others may be among them.

    Raises:
        IncompatibleWeights: Weights are missing, of another shape, or no floating point numbers.
    """
    expected = module.state_dict()
    missing = sorted(set(expected) - set(weights))
    if missing:
        raise IncompatibleWeights(
            f"{checkpoint!r} lacks {len(missing)} of the {len(expected)} tensors that its config.json calls for: "
            f"{some(missing)}."
        )
    misshapen = [
        f"{name} should be {tuple(value.shape)} but is {tuple(weights[name].shape)}"
        for name, value in expected.items()
        if weights[name].shape != value.shape
    ]
    if misshapen:
        raise IncompatibleWeights(
            f"{checkpoint!r} has {len(misshapen)} tensors of another shape than its config.json says: "
            f"{some(misshapen)}."
        )
    whole = sorted(name for name in expected if not weights[name].is_floating_point())
    if whole:
        raise IncompatibleWeights(
            f"{checkpoint!r} should hold floating point weights, but {len(whole)} tensors are not: {some(whole)}. "
            "Quantised weights are not read."
        )
    module.load_state_dict({name: weights[name] for name in expected}, assign=True)
    return module.eval()


def some(names: list[str], most: int = 5) -> str:
    """The first of many names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
