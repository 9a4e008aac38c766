"""Heads: modules on top of an encoder that turn hidden states into outputs.

A head is composed of three choices, each a union type: the hidden states that it reads, their transform, and its
outputs. A `MaskedLMHead` gives a logit for each entry of the vocabulary, a `ScoreHead` a few scores for each row.

Shapes: B sequences, T packed tokens, M rows that a head reads, H hidden, E embedding width, V vocabulary, C scores.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from bothways.encoder.attention import Recorder
from bothways.encoder.config import EncoderConfig
from bothways.encoder.encoder import Encoder, initialize
from bothways.encoder.head_kinds import (
    ChoiceLogit,
    EachToken,
    FirstToken,
    HeadKind,
    Labels,
    LastToken,
    MaskedLMHeadKind,
    MeanOfTokens,
    Rate,
    Read,
    Relation,
    Replaced,
    ScoreHeadKind,
    Scores,
    SpanLogits,
    TextsOfPair,
    Transform,
)
from bothways.encoder.linear import Linear, linear
from bothways.encoder.modules import ACTIVATIONS, Dropout
from bothways.packing import ALL_ROWS, FIRST_TOKENS, LAST_TOKENS, Batch, Packed, PaddedRows, Rows, select


class Pooler(nn.Module):
    """Linear and tanh on the first token (Devlin et al. 2018, arXiv:1810.04805)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden, config.hidden)
        initialize(self, config.initializer_range)

    def forward(self, first_BH: Tensor) -> Tensor:
        """Return the pooled output (B, H) of the first tokens' last hidden states."""
        return torch.tanh(self.dense(first_BH))


class TransformLayer(nn.Module):
    """A `Transform` with its weights."""

    def __init__(self, config: EncoderConfig, kind: Transform, width: int) -> None:
        super().__init__()
        self.dropout = Dropout(_rate(config, kind.dropout))
        self.dense = Linear(config.hidden, width, bias=kind.bias)
        self.activation = ACTIVATIONS[kind.activation or config.feed_forward.activation]
        norm = kind.norm and nn.LayerNorm(width, eps=config.norm.eps, bias=kind.norm.bias)
        self.norm = norm or nn.Identity()

    def forward(self, hidden_MH: Tensor) -> Tensor:
        """Map (M, H) to (M, H), or to (M, E) for a masked language modelling head."""
        transformed: Tensor = self.norm(self.activation(self.dense(self.dropout(hidden_MH))))
        return transformed


class MaskedLMHead(nn.Module):
    """A transform, then the tied token table as output matrix, with a separate bias."""

    def __init__(self, config: EncoderConfig, kind: MaskedLMHeadKind) -> None:
        super().__init__()
        self.kind = kind
        self.transform = _transform(config, kind.transform, config.embedding.width)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        initialize(self, config.initializer_range)

    def forward(self, hidden_MH: Tensor, tokens_VE: Tensor) -> Tensor:
        """Return logits (M, V) of hidden states (M, H), given the encoder's token table (V, E)."""
        return linear(self.transformed(hidden_MH, tokens_VE.dtype), tokens_VE, self.bias.to(tokens_VE.dtype))

    def transformed(self, hidden_MH: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the transformed states (M, E) as ``dtype``, before the product with the token table."""
        # A head may have a more precise dtype than its encoder.
        own_ME: Tensor = self.transform(hidden_MH.to(self.bias.dtype)).to(dtype)
        return own_ME


class ScoreHead(nn.Module):
    """A transform, dropout, and a linear map to scores."""

    def __init__(self, config: EncoderConfig, kind: ScoreHeadKind, labels: int = 1) -> None:
        super().__init__()
        self.kind = kind
        self.transform = _transform(config, kind.transform, config.hidden)
        self.dropout = Dropout(_rate(config, kind.dropout))
        self.output = Linear(read_width(kind.read, config.hidden), score_count(kind.scores, labels))
        initialize(self, config.initializer_range)

    def forward(self, hidden_MH: Tensor) -> Tensor:
        """Return scores (M, C) of the input rows that `read_rows` returns."""
        # A head may have a more precise dtype than its encoder.
        own_MH = hidden_MH.to(self.output.weight.dtype)
        scores_MC: Tensor = self.output(self.dropout(self.transform(own_MH)))
        return scores_MC


Head = MaskedLMHead | ScoreHead


def new_head(config: EncoderConfig, kind: HeadKind, labels: int = 1) -> Head:
    """Return a head of this kind with newly initialised weights."""
    match kind:
        case MaskedLMHeadKind():
            return MaskedLMHead(config, kind)
        case ScoreHeadKind():
            return ScoreHead(config, kind, labels)


def score_count(scores: Scores, labels: int) -> int:
    """Return the number of scores, C."""
    match scores:
        case Labels():
            return labels
        case Relation() | SpanLogits():
            return 2
        case Replaced() | ChoiceLogit():
            return 1


def read_width(read: Read, hidden: int) -> int:
    """Return the width of a head's input, given the hidden size H; the first H values are always a hidden state."""
    return 3 * hidden + 1 if isinstance(read, TextsOfPair) else hidden


_ROWS: dict[type[Read], Rows] = {FirstToken: FIRST_TOKENS, LastToken: LAST_TOKENS}
"""Rows of the last layer that a head with this input needs; other heads need all rows."""


def read_rows(
    read: Read, encoder: Encoder, batch: Batch, *, hidden_TH: Tensor | None = None, backend: str | None = None
) -> Tensor:
    """Return a head's input, computed from the last layer's ``hidden_TH``, or by running the encoder without it.

    Returns:
        (B, H), or (T, H) for a head that reads each token, or (B, 3 H + 1) for one that reads the texts of pairs.
    """
    rows = _ROWS.get(type(read), ALL_ROWS)
    hidden_MH = encoder(batch, rows=rows, backend=backend) if hidden_TH is None else select(hidden_TH, rows, batch)
    match read:
        case FirstToken() | LastToken() | EachToken():
            return hidden_MH
        case MeanOfTokens():
            return means(hidden_MH, batch)
        case TextsOfPair(start, separator):
            texts = texts_of_pairs(batch, start, separator)
            return compared(means(hidden_MH, batch), means(encoder(texts, backend=backend), texts))


def layer_rows(read: Read, encoder: Encoder, states: Sequence[Tensor], batch: Batch) -> tuple[Tensor, ...]:
    """Return a head's input, and the same selection of rows from every earlier layer, last layer first, (B, H) each.

    For a head that reads the texts of pairs separately, the result for earlier layers is the mean over a pair's tokens.
    ``states`` come from `layer_states`.
    """
    last_TH, *others = states
    before = MeanOfTokens() if isinstance(read, TextsOfPair) else read
    return (
        read_rows(read, encoder, batch, hidden_TH=last_TH),
        *(read_rows(before, encoder, batch, hidden_TH=hidden_TH) for hidden_TH in others),
    )


def layer_states(encoder: Encoder, batch: Batch) -> tuple[Tensor, ...]:
    """Return the hidden states of all tokens in every layer, the last layer first, (T, H) each."""
    record = Recorder()
    encoder(batch, record=record)
    return tuple(record.hidden_states[:0:-1])


def head_logits(
    head: Head,
    encoder: Encoder,
    batch: Batch,
    *,
    hidden_TH: Tensor | None = None,
    choices: int = 1,
    backend: str | None = None,
) -> Tensor:
    """Return a head's scores for a batch, from the last layer's ``hidden_TH``, or by running the encoder without it.

    Returns:
        (B, S, V) for a masked language modelling head; (B, S, C) for other heads on tokens, or (B, S) for replaced
        tokens; (B, C) for heads on sequences; (B / K, K) for a choice among K consecutive sequences. Padding gets 0, or
        minus infinity for the start and end of a span.
    """
    if isinstance(head, MaskedLMHead):
        read_TH = encoder(batch, backend=backend) if hidden_TH is None else hidden_TH
        return batch.padded(head(read_TH, encoder.embedding.tokens.weight))
    scores_MC: Tensor = head(read_rows(head.kind.read, encoder, batch, hidden_TH=hidden_TH, backend=backend))
    match head.kind.scores:
        case ChoiceLogit():
            return scores_MC.view(-1, choices)
        case Replaced():
            return batch.padded(scores_MC.squeeze(-1))
        case SpanLogits():
            return batch.padded(scores_MC, fill=float("-inf"))
        case Labels() | Relation():
            return batch.padded(scores_MC) if isinstance(head.kind.read, EachToken) else scores_MC


def _transform(config: EncoderConfig, kind: Transform | None, width: int) -> nn.Module:
    return nn.Identity() if kind is None else TransformLayer(config, kind, width)


def _rate(config: EncoderConfig, rate: Rate) -> float:
    match rate:
        case "head":
            return config.dropout.head
        case "hidden":
            return config.dropout.hidden
        case _:
            return rate


# --- comparison of the two texts of a pair, each encoded alone ---
# A sentence embedder was trained on single texts and has never seen pairs. A head on it therefore also compares the
# vectors of the two texts, each encoded alone (Reimers and Gurevych 2019, arXiv:1908.10084).


def means(hidden_TH: Tensor, batch: Batch) -> Tensor:
    """Return the mean of each sequence's tokens (B, H)."""
    return (batch.sums(hidden_TH) / batch.lengths_B[:, None]).to(hidden_TH.dtype)


def compared(pairs_BH: Tensor, texts_2BH: Tensor) -> Tensor:
    """Return (B, 3 H + 1): each pair's unit-length state, and the differences, products and cosine of its texts.

    ``texts_2BH`` holds all first texts, then all second texts. Products of unit vectors are smaller than differences by
    a factor of sqrt(H), so they are multiplied by it. The cosine, the most informative value if pairs are few, is
    multiplied by 4, so that weight decay restrains it less.
    """
    first_BH, second_BH = normalize(texts_2BH.float(), dim=-1).view(2, *pairs_BH.shape)
    products_BH = first_BH * second_BH
    parts = [
        normalize(pairs_BH.float(), dim=-1),
        (first_BH - second_BH).abs(),
        products_BH * products_BH.shape[-1] ** 0.5,
        4 * products_BH.sum(-1, keepdim=True),
    ]
    return torch.cat(parts, dim=-1).to(pairs_BH.dtype)


def texts_of_pairs(batch: Batch, start: int, separator: int) -> Batch:
    """Return a batch of 2 B single texts: the first texts of all pairs, then the second texts.

    A first text ends with its pair's first separator. The second text starts at the last of the separators between the
    texts (BERT has one, RoBERTa two), which is replaced by the ``start`` token.
    """
    separators_T, beyond = batch.ids_T == separator, batch.max_length
    ends_B = torch.minimum(_first(batch, separators_T, beyond), batch.lengths_B - 1)
    other_T = ~separators_T & (batch.positions_T > ends_B[batch.sequence_T])
    begins_B = torch.minimum(_first(batch, other_T, beyond), batch.lengths_B) - 1
    places_T = batch.positions_T - begins_B[batch.sequence_T]
    ids_T = torch.where(places_T == 0, start, batch.ids_T)
    in_first_T, in_second_T = batch.positions_T <= ends_B[batch.sequence_T], places_T >= 0
    if isinstance(batch, PaddedRows):
        shape = batch.mask_BS.shape
        masks = (batch.mask_BS & in_first_T.view(shape), batch.mask_BS & in_second_T.view(shape))
        return PaddedRows.of(torch.cat([batch.ids_T.view(shape), ids_T.view(shape)]), torch.cat(masks).long())
    lengths_2B = torch.cat([ends_B + 1, batch.lengths_B - begins_B])
    texts_T = torch.cat([batch.ids_T[in_first_T], ids_T[in_second_T]])
    starts = torch.cat([lengths_2B.new_zeros(1), lengths_2B.cumsum(0)]).int()
    positions_T = torch.cat([batch.positions_T[in_first_T], places_T[in_second_T]])
    return Packed(texts_T, torch.zeros_like(texts_T), positions_T, starts, tuple(lengths_2B.tolist()))


def _first(batch: Batch, chosen_T: Tensor, beyond: int) -> Tensor:
    """Return the first position that ``chosen_T`` marks in each sequence, or ``beyond`` if there is none, (B)."""
    return batch.padded(torch.where(chosen_T, batch.positions_T, beyond), fill=beyond).amin(1).long()
