"""What an encoder answers when it is called as the ecosystem's models are.

Shapes: B texts (or windows of texts), S longest of them in tokens, H hidden, N heads, L layers.
"""

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from bothways.errors import MissingOutput

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Absent:
    """An output that was not computed, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """Padded outputs of an encoder.

    Attributes:
        last_hidden_state: (B, S, H); zeros in the padding.
        attention_mask: (B, S), 1 for real tokens.
        text_of_row: For each of the B rows, the index of the text that it is (a window of).
        dropped_tokens: For each text, how many of its tokens were cut off.
    """

    last_hidden_state: Tensor
    attention_mask: Tensor
    text_of_row: tuple[int, ...]
    dropped_tokens: tuple[int, ...]
    pooled: Tensor | Absent
    states: tuple[Tensor, ...] | Absent
    weights: tuple[Tensor, ...] | Absent

    @property
    def pooler_output(self) -> Tensor:
        """(B, H): linear and tanh on the first token, where the checkpoint carries a pooler that was trained.

        Raises:
            MissingOutput: It does not.
        """
        return _present("pooler_output", self.pooled)

    @property
    def hidden_states(self) -> tuple[Tensor, ...]:
        """The embedding and each layer's output: L + 1 tensors (B, S, H).

        Raises:
            MissingOutput: They were not asked for.
        """
        return _present("hidden_states", self.states)

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """Attention weights: L tensors (B, N, S, S); zeros in the padding.

        Raises:
            MissingOutput: They were not asked for.
        """
        return _present("attentions", self.weights)


def _present(name: str, value: V | Absent) -> V:
    if isinstance(value, Absent):
        raise MissingOutput(f"{name} was not computed: {value.reason}")
    return value
