"""What stands on top of an encoder and turns hidden states into answers.

Shapes: B sequences, M selected rows, H hidden, E embedding width, V vocabulary, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bothways.encoder.config import Activation, EncoderConfig
from bothways.encoder.dropout import Dropout
from bothways.encoder.encoder import initialize
from bothways.encoder.feedforward import ACTIVATIONS
from bothways.encoder.linear import Linear


class Pooler(nn.Module):
    """Linear and tanh on the first token (Devlin et al. 2018, arXiv:1810.04805)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden, config.hidden)
        initialize(self, config.initializer_range)

    def forward(self, first_BH: Tensor) -> Tensor:
        """Pooled output (B, H) of the first tokens' last hidden states."""
        return torch.tanh(self.dense(first_BH))


@dataclass(frozen=True, slots=True)
class MaskedLMHeadKind:
    """How a family turns hidden states into vocabulary logits.

    Attributes:
        activation: Between the dense layer and the norm; None for the feed-forward's own.
    """

    activation: Activation | None = None


class MaskedLMHead(nn.Module):
    """Dense, activation, norm, and the tied token embedding as output matrix with a bias of its own."""

    def __init__(self, config: EncoderConfig, kind: MaskedLMHeadKind) -> None:
        super().__init__()
        self.dense = Linear(config.hidden, config.embedding.width)
        self.norm = nn.LayerNorm(config.embedding.width, eps=config.norm.eps)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.activation = ACTIVATIONS[kind.activation or config.feed_forward.activation]
        initialize(self, config.initializer_range)

    def forward(self, hidden_MH: Tensor, tokens_VE: Tensor) -> Tensor:
        """Logits (M, V) of the selected rows, given the encoder's token table (V, E)."""
        transformed_ME = self.norm(self.activation(self.dense(hidden_MH)))
        return nn.functional.linear(transformed_ME, tokens_VE, self.bias)


@dataclass(frozen=True, slots=True)
class SequenceHeadKind:
    """How a family turns the first token's hidden state into class logits.

    Attributes:
        activation: Behind the dense layer.
        dropout_first: Whether dropout also stands before the dense layer.
    """

    activation: Activation
    dropout_first: bool


class SequenceHead(nn.Module):
    """Dense, activation, dropout, linear on the first token. In BERT and ALBERT the dense layer is the pooler's."""

    def __init__(self, config: EncoderConfig, kind: SequenceHeadKind, classes: int) -> None:
        super().__init__()
        self.dropout_first = Dropout(config.dropout.head if kind.dropout_first else 0.0)
        self.dense = Linear(config.hidden, config.hidden)
        self.activation = ACTIVATIONS[kind.activation]
        self.dropout = Dropout(config.dropout.head)
        self.output = Linear(config.hidden, classes)
        initialize(self, config.initializer_range)

    def forward(self, first_BH: Tensor) -> Tensor:
        """Logits (B, C) of the first tokens' last hidden states."""
        transformed_BH = self.activation(self.dense(self.dropout_first(first_BH)))
        logits_BC: Tensor = self.output(self.dropout(transformed_BH))
        return logits_BC
