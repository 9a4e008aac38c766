"""The parts of one call of attention, whoever computes it.

Shapes: B sequences, S longest sequence, T packed tokens, N heads, D head width, n tokens of one sequence,
W = 2 S - 1 distances between tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bothways.encoder.batch import Batch
from bothways.packing import Packed


@dataclass(frozen=True, slots=True)
class RelativeScores:
    """Score terms of the distance between query i and key j and of their segments, before scaling.

    ``(q_i + shift) . keys[i - j + S - 1] + k_j . queries[i - j + S - 1]``, where a family has both.

    Attributes:
        keys_WND: What queries meet, by ``i - j`` from ``1 - S`` on.
        queries_WND: What keys meet, likewise.
        shift_ND: Added to queries before they meet a distance's key.
        gain_TN: What each query gains, before scaling, where the key is of another segment (Yang et al. 2019,
            arXiv:1906.08237). Upstream adds one number where the segments are equal and another where they differ; only
            the difference of both survives the softmax.
    """

    keys_WND: Tensor | None
    queries_WND: Tensor | None
    shift_ND: Tensor | None = None
    gain_TN: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Attention within each sequence of a batch.

    Attributes:
        qkv_T3ND: Queries, keys and values; keys and values alone where the queries come apart (`single.attend_once`).
        batch: Where the sequences begin and end.
        scale: What scores are multiplied by before the softmax.
        dropout: Rate applied to the attention weights; 0 outside training.
        reach: Tokens that are seen on either side; None for all of the sequence.
        relative: What distances add to the scores.
        order_T: Place of each token in a factorisation order of its sequence (see `QueryStream`): a token sees those
            that do not come behind it. None: it sees all.
        weights: Where the reference backend puts each sequence's attention weights (N, n, n); None where nobody wants
            them.
    """

    qkv_T3ND: Tensor
    batch: Batch
    scale: float
    dropout: float = 0.0
    reach: int | None = None
    relative: RelativeScores | None = None
    order_T: Tensor | None = None
    weights: list[Tensor] | None = None

    @property
    def packed(self) -> Packed:
        """The batch, for a backend that refuses padding."""
        assert isinstance(self.batch, Packed)  # the request said so
        return self.batch

    @property
    def binding_reach(self) -> int | None:
        """The reach, if it hides anything in this batch."""
        return self.reach if self.reach is not None and self.batch.hides(self.reach) else None


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """Requirements of an attention call on its backend.

    Attributes:
        device: Type of the device: ``"cpu"``, ``"cuda"``, ...
        dtype: Of queries, keys and values.
        head_width: D.
        dropout: Rate applied to the attention weights; 0 outside training.
        weights: Whether the attention weights themselves are wanted.
        padding: Whether the batch keeps its padding.
        local: Whether tokens see only a part of their sequence.
        relative: Whether distances add to the scores.
        ordered: Whether tokens see only what does not come behind them in an order.
        capability: Major version of the compute capability of a CUDA device.
    """

    device: str
    dtype: torch.dtype
    head_width: int
    dropout: float
    weights: bool
    padding: bool = False
    local: bool = False
    relative: bool = False
    ordered: bool = False
    capability: int = 0

    def unmet(
        self,
        *,
        weights: bool = False,
        padding: bool = False,
        local: bool = False,
        relative: bool = False,
        ordered: bool = False,
    ) -> str | None:
        """Return why a backend with only these abilities cannot serve the request; None if it can."""
        if self.weights and not weights:
            return "it does not return attention weights"
        if self.padding and not padding:
            return "it needs a batch without padding, whose lengths the host knows"
        if self.relative and not relative:
            return "it has no scores that depend on distances"
        if self.ordered and not ordered:
            return "it has no factorisation orders"
        return "it has no local windows" if self.local and not local else None
