"""Outputs of an encoder that is called as the ecosystem's models are.

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


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """The output of a head.

    Attributes:
        head: Which head it is.
        logits: For ``masked_lm`` and ``permutation_lm`` (B, S, V), for ``token`` (B, S, C) and for ``replaced_token``
            (B, S), zeros in the padding; for ``span`` (B, S, 2), start and end, minus infinity in the padding; for
            ``sequence`` and ``sentence_order`` (B, C); for ``next_sentence`` (B, 2), the second text following the
            first or not; for ``multiple_choice`` (G, K).
        labels: Names of the C scores, for a head that gives one for each label.
        attention_mask: (B, S), 1 for real tokens; for ``multiple_choice`` (G K, S).
        text_of_row: For each row of the mask, the index of the text that it is (a window of).
        dropped_tokens: For each text, how many of its tokens were cut off.
    """

    head: HeadName
    logits: Tensor
    labels: tuple[str, ...]
    attention_mask: Tensor
    text_of_row: tuple[int, ...]
    dropped_tokens: tuple[int, ...]

    @property
    def start_logits(self) -> Tensor:
        """(B, S): whether an answer starts at each token, minus infinity in the padding.

        Raises:
            MissingOutput: The head is not ``span``.
        """
        return self._ends()[..., 0]

    @property
    def end_logits(self) -> Tensor:
        """(B, S): whether an answer ends at each token, minus infinity in the padding.

        Raises:
            MissingOutput: The head is not ``span``.
        """
        return self._ends()[..., 1]

    def _ends(self) -> Tensor:
        if self.head != "span":
            raise MissingOutput(f"only a span head gives the start and end of an answer; this is a {self.head} head's.")
        return self.logits


def _present(name: str, value: V | Absent) -> V:
    if isinstance(value, Absent):
        raise MissingOutput(f"{name} was not computed: {value.reason}")
    return value


def padded_weights(weights: list[Tensor], longest: int) -> Tensor:
    """Attention weights (N, n, n) of each text as one tensor (B, N, S, S)."""
    rooms = [longest - weights_Nnn.shape[-1] for weights_Nnn in weights]
    return torch.stack(
        [F.pad(weights_Nnn, (0, room, 0, room)) for weights_Nnn, room in zip(weights, rooms, strict=True)]
    )
