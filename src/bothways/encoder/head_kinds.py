"""Kinds of heads: the states that a head reads, its transform, and its outputs. Does not import torch."""

from dataclasses import dataclass
from typing import Literal

from bothways.encoder.config import Activation

# A dropout rate: one of the encoder's, or a number.
Rate = Literal["head", "hidden"] | float


# Which hidden states a head reads.


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The state of each sequence's first token."""


@dataclass(frozen=True, slots=True)
class LastToken:
    """The state of each sequence's last token, padding not counted."""


@dataclass(frozen=True, slots=True)
class MeanOfTokens:
    """The mean of all tokens of each sequence, special ones included."""


@dataclass(frozen=True, slots=True)
class EachToken:
    """The state of each token."""


@dataclass(frozen=True, slots=True)
class TextsOfPair:
    """The mean of all tokens of a pair, and a comparison of its two texts, each encoded alone.

    `start` and `separator` are the ids of the tokens before and after a text.
    """

    start: int
    separator: int


Read = FirstToken | LastToken | MeanOfTokens | EachToken | TextsOfPair


# The transform of these states.


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """A layer norm with the encoder's epsilon."""

    bias: bool = True


@dataclass(frozen=True, slots=True)
class Transform:
    """Dropout, linear map, activation (None for that of the feed-forward networks), norm."""

    activation: Activation | None = None
    norm: HeadNorm | None = None
    bias: bool = True
    dropout: Rate = 0.0


# The outputs.


@dataclass(frozen=True, slots=True)
class Labels:
    """A score for each label of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Two scores: the second text follows the first, or not."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """One score: the token was replaced."""


@dataclass(frozen=True, slots=True)
class SpanLogits:
    """Two scores: an answer starts at the token, an answer ends there."""


@dataclass(frozen=True, slots=True)
class ChoiceLogit:
    """One score, compared across the choices of a question."""


Scores = Labels | Relation | Replaced | SpanLogits | ChoiceLogit


@dataclass(frozen=True, slots=True)
class MaskedLMHeadKind:
    """A head from hidden states to vocabulary logits; the output matrix is the token table.

    Without a transform, the hidden states are multiplied by the table directly.
    """

    transform: Transform | None


@dataclass(frozen=True, slots=True)
class ScoreHeadKind:
    """A head from hidden states to a few scores.

    In many families, the linear map of the transform is stored as that of the pooler. `dropout` is applied before the
    last linear map.
    """

    read: Read
    transform: Transform | None
    scores: Scores
    dropout: Rate = "head"


HeadKind = MaskedLMHeadKind | ScoreHeadKind
