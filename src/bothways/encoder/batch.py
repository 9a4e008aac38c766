"""A batch on its way through the layers."""

from dataclasses import dataclass

from bothways.encoder.positions import Shared
from bothways.packing import Packed


@dataclass(frozen=True, slots=True)
class Batch:
    """What every layer needs beside the hidden states.

    Attributes:
        packed: Where the sequences begin and end.
        shared: What all layers share of the positions.
        backend: Name of the attention backend to hold to; the best that serves the call when None.
    """

    packed: Packed
    shared: Shared
    backend: str | None
