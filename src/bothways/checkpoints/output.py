"""Outputs of an encoder that is called like the ecosystem's models.

Shapes: B texts (or windows of texts), S longest of them in tokens, H hidden, N heads, L layers, V vocabulary, C labels,
G groups of K choices.
"""

from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor

from bothways.errors import MissingOutput
from bothways.families import HeadName

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Absent:
    """The reason why an output was not computed."""

    reason: str


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """Padded outputs of an encoder.

    Attributes:
        last_hidden_state: (B, S, H); zeros in the padding.
        attention_mask: (B, S), 1 for real tokens.
        text_of_row: Index of the text of each of the B rows.
        dropped_tokens: Number of truncated tokens of each text.
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
        """Linear and tanh on the first token (B, H); MissingOutput if the checkpoint has no trained pooler."""
        return _present("pooler_output", self.pooled)

    @property
    def hidden_states(self) -> tuple[Tensor, ...]:
        """The embedding and each layer's output: L + 1 tensors (B, S, H); MissingOutput unless requested."""
        return _present("hidden_states", self.states)

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """Attention weights: L tensors (B, N, S, S), zeros in the padding; MissingOutput unless requested."""
        return _present("attentions", self.weights)


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """The output of a head.

    Attributes:
        head: Name of the head.
        logits: For ``masked_lm`` and ``permutation_lm`` (B, S, V), for ``token`` (B, S, C) and for ``replaced_token``
            (B, S), zeros in the padding; for ``span`` (B, S, 2), start and end, minus infinity in the padding; for
            ``sequence`` and ``sentence_order`` (B, C); for ``next_sentence`` (B, 2), the second text following the
            first or not; for ``multiple_choice`` (G, K).
        labels: Names of the C scores, for a head with labels.
        attention_mask: (B, S), 1 for real tokens; for ``multiple_choice`` (G K, S).
        text_of_row: Index of the text of each row of the mask.
        dropped_tokens: Number of truncated tokens of each text.
    """

    head: HeadName
    logits: Tensor
    labels: tuple[str, ...]
    attention_mask: Tensor
    text_of_row: tuple[int, ...]
    dropped_tokens: tuple[int, ...]

    @property
    def start_logits(self) -> Tensor:
        """Logits of an answer starting at each token (B, S), minus infinity in the padding; for ``span`` heads only."""
        return self._ends()[..., 0]

    @property
    def end_logits(self) -> Tensor:
        """Logits of an answer ending at each token (B, S), minus infinity in the padding; for ``span`` heads only."""
        return self._ends()[..., 1]

    def _ends(self) -> Tensor:
        if self.head != "span":
            raise MissingOutput(
                f"only a span head gives the start and end of an answer, and this one is a {self.head} head."
            )
        return self.logits


def _present(name: str, value: V | Absent) -> V:
    if isinstance(value, Absent):
        raise MissingOutput(f"{name} was not computed: {value.reason}")
    return value


def padded_weights(weights: list[Tensor], longest: int) -> Tensor:
    """Pad the attention weights (N, n, n) of each text to one tensor (B, N, S, S)."""
    rooms = [longest - weights_Nnn.shape[-1] for weights_Nnn in weights]
    return torch.stack(
        [F.pad(weights_Nnn, (0, room, 0, room)) for weights_Nnn, room in zip(weights, rooms, strict=True)]
    )
