"""Modules that take no memory until they are given their weights."""

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

from bothways.encoder.axes import AbsolutePositions, DisentangledPositions, OwnWeights
from bothways.encoder.config import EncoderConfig
from bothways.errors import IncompatibleWeights

M = TypeVar("M", bound=nn.Module)


def fill(checkpoint: str, module: M, weights: Mapping[str, Tensor]) -> M:
    """Give a module without memory its weights, all of them and in the right shapes.

    Args:
        checkpoint: Its name, for messages.
        module: Made on the meta device.
        weights: By the module's names; others may be among them.

    Raises:
        IncompatibleWeights: Weights are missing or of another shape.
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
    module.load_state_dict({name: weights[name] for name in expected}, assign=True)
    return module.eval()


def check_sizes(checkpoint: str, config: EncoderConfig, tensors: Mapping[str, Tensor]) -> None:
    """Compare sizes that a configuration gives with the tensors that are there, before anything is built of it.

    This bounds what is built; `fill` compares every shape.

    Raises:
        IncompatibleWeights: A size is larger than any tensor's, or there are more layers than tensors.
    """
    sharing, positions = config.sharing, config.positions
    layers = config.layers if isinstance(sharing, OwnWeights) else sharing.groups * sharing.inner
    largest = max((size for value in tensors.values() for size in value.shape), default=0)
    sizes = {
        "vocabulary": config.vocabulary,
        "hidden size": config.hidden,
        "embedding width": config.embedding.width,
        "number of token types": config.embedding.types,
        "feed-forward width": config.feed_forward.width,
        "number of positions": positions.count if isinstance(positions, AbsolutePositions) else 0,
        "span of distances": positions.distances.span if isinstance(positions, DisentangledPositions) else 0,
    }
    for name, size, most in (("number of layers", layers, len(tensors)), *((*each, largest) for each in sizes.items())):
        if size > most:
            raise IncompatibleWeights(
                f"{checkpoint!r} has {len(tensors)} tensors with sizes up to {largest}, but config.json gives a {name} "
                f"of {size}. config.json and the weights do not belong together."
            )


def some(names: list[str], most: int = 5) -> str:
    """Return the first of many names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
