"""Permutation language modelling: targets are predicted from the tokens before them in a random factorisation order.

Yang et al. 2019, arXiv:1906.08237. The query stream of an encoder gives the states that targets are predicted from; the
content stream reads every token as it is. Where sequences know the tokens before them, these are the memory of segment
recurrence (section 2.4): their hidden states, without a gradient.

The published code keeps the states that an earlier update has computed, with weights that have changed since. Here
they are computed anew, with the weights of now, from up to as many tokens: a memory is a function of the weights and
the corpus, so that sequences can be read in any order and a resumed run has no memory to restore. It costs the forward
pass of one stream over these tokens, and it has not itself read a memory, as a kept one has.

Shapes: T packed tokens, M targets, H hidden, V vocabulary, Z tokens before the sequences.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bothways.encoder import Encoder, MaskedLMHead, Recorder
from bothways.encoder.memory import Memory
from bothways.encoder.rows import NO_ROWS
from bothways.errors import InvalidInput
from bothways.objectives.pretraining import PREDICTED, HeadOutput
from bothways.objectives.sequences import MaskedBatch, Preceding


class PermutationLM(nn.Module):
    """An encoder with a query stream and its head; logits are computed for targets only.

    Args:
        encoder: The encoder.
        head: Its head.
    """

    def __init__(self, encoder: Encoder, head: MaskedLMHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.encoder.embedding.tokens.weight.device

    @property
    def module(self) -> nn.Module:
        """Encoder and head."""
        return self

    @property
    def identity(self) -> Mapping[str, str]:
        """No settings beyond the loss."""
        return {}

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of the only head."""
        return {PREDICTED: 1.0}

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return the number of targets."""
        return {PREDICTED: len(batch.rows_M)}

    def outputs(self, batch: MaskedBatch) -> Mapping[str, HeadOutput]:
        """Return the logits of the targets.

        Raises:
            InvalidInput: The batch has no factorisation orders.
        """
        return {PREDICTED: HeadOutput(self(batch), batch.targets_M, batch.rows_M)}

    def forward(self, batch: MaskedBatch) -> Tensor:
        """Logits (M, V) of the targets."""
        if batch.order_T is None:
            raise InvalidInput("permutation language modelling needs factorisation orders: draw them with a Permuter.")
        queries = self.encoder.queries(batch.rows_M, batch.counts, batch.order_T)
        memory = None if batch.preceding is None else remember(self.encoder, batch.preceding)
        hidden_TH = self.encoder.embed(batch.packed)
        states_MH = self.encoder.layers(hidden_TH, batch.packed, queries=queries, memory=memory)
        logits_MV: Tensor = self.head(states_MH, self.encoder.embedding.tokens.weight)
        return logits_MV


@torch.no_grad()
def remember(encoder: Encoder, preceding: Preceding) -> Memory:
    """Return the hidden states of tokens that precede the sequences of a batch."""
    record = Recorder()
    encoder(preceding.packed, rows=NO_ROWS, record=record)
    # The last ones are those behind all layers.
    return Memory(preceding.lengths, tuple(record.hidden_states[:-1]))
