"""One run of a batch through the layers, and a recorder of what happens on the way.

Shapes: T packed tokens, H hidden, N heads, L layers, n tokens of one sequence.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import Tensor

from bothways.encoder.backends import AttentionBackend
from bothways.encoder.batch import Batch
from bothways.encoder.positions import Shared
from bothways.encoder.query_stream import Targets


class Recorder:
    """A record of one run through an encoder, for inspection.

    Args:
        attentions: Keep the attention weights too. They come from the reference backend.

    Attributes:
        hidden_states: The embedding and then each layer's output: L + 1 tensors (T, H). The last one is what the
            encoder returns, with no more rows than it was asked for.
        attentions: For each layer, for each sequence of n tokens, its attention weights (N, n, n) before dropout.
    """

    def __init__(self, *, attentions: bool = False) -> None:
        self.wants_attentions = attentions
        self.hidden_states: list[Tensor] = []
        self.attentions: list[list[Tensor]] = []


@dataclass(frozen=True, slots=True)
class Run:
    """Inputs of every layer beside the hidden states.

    Attributes:
        batch: The batch.
        shared: What all layers share of the positions.
        backend: Name of the attention backend to hold to; the best that serves the call when None.
        record: Where to keep what happens; None where nobody asked.
        targets: Tokens with queries of their own; None where there are none.
        backends: The attention backends that were chosen, by what the layers need of them.
    """

    batch: Batch
    shared: Shared
    backend: str | None
    record: Recorder | None
    targets: Targets | None = None
    backends: dict[Hashable, AttentionBackend] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def order_T(self) -> Tensor | None:
        """Place of each token in a factorisation order; None if every token sees all."""
        return None if self.targets is None else self.targets.order_T

    @property
    def wants_attentions(self) -> bool:
        """True if the attention weights are kept."""
        return self.record is not None and self.record.wants_attentions
