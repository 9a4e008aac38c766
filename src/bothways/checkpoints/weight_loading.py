"""Loading weights into modules that take no memory beforehand."""

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

from bothways.encoder.config import AbsolutePositions, DisentangledPositions, EncoderConfig, OwnWeights
from bothways.errors import IncompatibleWeights

M = TypeVar("M", bound=nn.Module)


def fill(checkpoint: str, module: M, weights: Mapping[str, Tensor]) -> M:
    """Load all weights of a module on the meta device, checking their shapes; further weights are ignored.

    Raises:
        IncompatibleWeights: Weights are missing or of another shape.
    """
    expected = module.state_dict()
    missing = sorted(set(expected) - set(weights))
    if missing:
        raise IncompatibleWeights(
            f"{checkpoint!r} lacks {len(missing)} of the {len(expected)} tensors of its config.json: {some(missing)}."
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
    """Compare the sizes in a configuration with the tensors, which bounds the memory before a module is built.

    Raises:
        IncompatibleWeights: A size exceeds that of any tensor, or there are more layers than tensors.
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
    for name, size, limit in (
        ("number of layers", layers, len(tensors)),
        *((*each, largest) for each in sizes.items()),
    ):
        if size > limit:
            raise IncompatibleWeights(
                f"{checkpoint!r} has {len(tensors)} tensors with sizes up to {largest}, but config.json gives a {name} "
                f"of {size}. config.json and the weights do not belong together."
            )


def some(names: list[str], shown: int = 5) -> str:
    """Join the first names, with the number of the others."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
