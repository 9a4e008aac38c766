"""Calls of attention, and backends in plain torch that together support all of them.

A backend tells whether it supports a request, and if not, why.

Shapes: B sequences, S longest sequence, T packed tokens, N heads, D head width, n tokens of one sequence,
W = 2 S - 1 distances between tokens.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor

from bothways.encoder.batch import Batch, PaddedRows
from bothways.encoder.modules import dropout
from bothways.packing import Packed


@dataclass(frozen=True, slots=True)
class RelativeScores:
    """Score terms of the distance between query i and key j and of their segments, before scaling.

    ``(q_i + shift) . keys[i - j + S - 1] + k_j . queries[i - j + S - 1]``, if a family has both.

    Attributes:
        keys_WND: Vectors of the distances ``i - j``, from ``1 - S`` on, that are multiplied by queries.
        queries_WND: Vectors of the same distances that are multiplied by keys.
        shift_ND: Added to queries before they are multiplied by ``keys_WND``.
        gain_TN: Added to each query's scores, before scaling, for keys in another segment (Yang et al. 2019,
            arXiv:1906.08237). Upstream adds one number if the segments are equal and another if they differ; only
            the difference of the two affects the softmax.
    """

    keys_WND: Tensor | None
    queries_WND: Tensor | None
    shift_ND: Tensor | None = None
    gain_TN: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Attention within each sequence of a batch.

    Attributes:
        qkv_T3ND: Queries, keys and values; or keys and values alone if the queries are separate (`attend_once`).
        batch: The packed batch.
        scale: Factor of the scores before the softmax.
        dropout: Rate applied to the attention weights; 0 outside training.
        reach: Number of visible tokens on either side; None for the whole sequence.
        relative: Contribution of distances to the scores.
        order_T: Place of each token in a factorisation order of its sequence (see `QueryStream`): a token sees those
            that do not come after it. None: it sees all.
        weights: Receives each sequence's attention weights (N, n, n) from the reference backend; None to drop
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
        """The batch, for a backend that does not support padding."""
        assert isinstance(self.batch, Packed)  # the request said so
        return self.batch

    @property
    def binding_reach(self) -> int | None:
        """The reach, if it hides any token in this batch."""
        return self.reach if self.reach is not None and self.batch.hides(self.reach) else None


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """Requirements of an attention call on its backend.

    Attributes:
        device: Type of the device: ``"cpu"``, ``"cuda"``, ...
        dtype: Type of queries, keys and values.
        head_width: D.
        dropout: Rate applied to the attention weights; 0 outside training.
        weights: Whether the attention weights are needed.
        padding: Whether the batch keeps its padding.
        local: Whether tokens see only a part of their sequence.
        relative: Whether distances add to the scores.
        ordered: Whether tokens see only those that do not come after them in an order.
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
        """Return the reason why a backend with only these abilities cannot serve the request; None if it can."""
        if self.weights and not weights:
            return "it does not return attention weights"
        if self.padding and not padding:
            return "it needs a batch without padding, whose lengths the host knows"
        if self.relative and not relative:
            return "it has no scores that depend on distances"
        if self.ordered and not ordered:
            return "it has no factorisation orders"
        return "it has no local windows" if self.local and not local else None


class AttentionBackend(Protocol):
    """Scaled dot-product attention within each sequence of a packed batch."""

    name: str

    def refusal(self, request: AttentionRequest) -> str | None:
        """Return the reason why this backend cannot serve the request; None if it can."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""


class Reference:
    """Plain matrix product and softmax, one sequence at a time, on any device and dtype: the others' oracle."""

    name = "reference"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Refuse padding."""
        return request.unmet(weights=True, local=True, relative=True, ordered=True)

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""
        contexts, start = [], 0
        for sequence_n3ND in call.qkv_T3ND.split_with_sizes(list(call.packed.lengths)):
            length = len(sequence_n3ND)
            q_NnD, k_NnD, v_NnD = sequence_n3ND.permute(1, 2, 0, 3)
            scores_Nnn = q_NnD @ k_NnD.transpose(1, 2)
            if call.relative is not None:
                scores_Nnn = scores_Nnn + _relative_scores(q_NnD, k_NnD, call, start)
            scores_Nnn = scores_Nnn * call.scale
            if call.binding_reach is not None:
                scores_Nnn = scores_Nnn.masked_fill(call.batch.once(_far, length, call.binding_reach), -torch.inf)
            if call.order_T is not None:
                order_n = call.order_T[start : start + length]
                scores_Nnn = scores_Nnn.masked_fill(order_n[:, None] < order_n, -torch.inf)
            weights_Nnn = scores_Nnn.softmax(-1)
            if call.weights is not None:
                call.weights.append(weights_Nnn)
            dropped_Nnn = dropout(weights_Nnn, call.dropout) if call.dropout else weights_Nnn
            contexts.append((dropped_Nnn @ v_NnD).transpose(0, 1))
            start += length
        return torch.cat(contexts)


class SDPA:
    """torch's fused attention, over runs of sequences of equal length so that nothing is masked or padded."""

    name = "sdpa"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Refuse anything but plain products over whole sequences."""
        return request.unmet()

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""
        heads, width = call.qkv_T3ND.shape[2:]
        runs = call.batch.once(runs_of_equal_length)
        contexts = []
        # One split, not a slice for each run: the backward of a slice fills a gradient of the whole batch.
        parts = call.qkv_T3ND.split_with_sizes([end - start for start, end, _ in runs])
        for part_T3ND, (start, end, length) in zip(parts, runs, strict=True):
            q_BNnD, k_BNnD, v_BNnD = part_T3ND.view(-1, length, 3, heads, width).permute(2, 0, 3, 1, 4)
            context_BNnD = F.scaled_dot_product_attention(
                q_BNnD, k_BNnD, v_BNnD, dropout_p=call.dropout, scale=call.scale
            )
            contexts.append(context_BNnD.transpose(1, 2).reshape(end - start, heads, width))
        return contexts[0] if len(contexts) == 1 else torch.cat(contexts)


class Padded:
    """torch's fused attention over a padded batch with a mask, for devices where many small calls cost more."""

    name = "padded"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Refuse to return attention weights."""
        return request.unmet(padding=True, local=True, relative=True, ordered=True)

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""
        q_BNSD, k_BNSD, v_BNSD = call.batch.padded(call.qkv_T3ND).permute(2, 0, 3, 1, 4)
        mask = call.batch.once(_seen, call.binding_reach)
        if call.order_T is not None:
            # Padding comes behind everything, so that its softmax is defined.
            order_BS = call.batch.padded(call.order_T, torch.iinfo(call.order_T.dtype).max)
            mask = mask & (order_BS[:, None, :, None] >= order_BS[:, None, None, :])
        if call.relative is not None:
            mask = self._biases(q_BNSD, k_BNSD, call).masked_fill(~mask, -torch.inf)
        context_BNSD = F.scaled_dot_product_attention(
            q_BNSD, k_BNSD, v_BNSD, attn_mask=mask, dropout_p=call.dropout, scale=call.scale
        )
        return call.batch.rows(context_BNSD.transpose(1, 2))

    @staticmethod
    def _biases(q_BNSD: Tensor, k_BNSD: Tensor, call: AttentionCall) -> Tensor:
        """Return the contribution of distances and segments to scaled scores: (B, N, S, S)."""
        assert call.relative is not None  # the caller looked
        relative, batch = call.relative, call.batch
        if isinstance(batch, PaddedRows):
            # A graph would read a strided view by a larger index still.
            bias = distance_scores(q_BNSD, k_BNSD, relative, batch.once(_padded_distances)) * call.scale
        else:
            bias = _shifted_scores(q_BNSD, k_BNSD, relative, call.scale)
        if relative.gain_TN is not None:
            gain_BNS1 = batch.padded(relative.gain_TN * call.scale).transpose(1, 2)[..., None]
            bias = bias + gain_BNS1 * batch.once(_segments_differ)
        return bias


def runs_of_equal_length(packed: Packed) -> list[tuple[int, int, int]]:
    """Return first row, row after the last, and length of each run of neighbouring sequences of equal length.

    >>> from bothways.packing import pack
    >>> runs_of_equal_length(pack([[7, 7, 7], [8, 8, 8], [9, 9, 9, 9, 9]]))
    [(0, 6, 3), (6, 11, 5)]
    """
    runs: list[tuple[int, int, int]] = []
    row = 0
    for length in packed.lengths:
        joins = bool(runs) and runs[-1][2] == length
        start = runs.pop()[0] if joins else row
        row += length
        runs.append((start, row, length))
    return runs


def _far(packed: Packed, length: int, reach: int) -> Tensor:
    """Return the mask of token pairs out of reach, (n, n)."""
    place_n = torch.arange(length, device=packed.cu_seqlens.device)
    return (place_n[:, None] - place_n).abs() > reach


def _seen(batch: Batch, reach: int | None) -> Tensor:
    """Return the mask of visible keys in padded form: (B, 1, 1, S), or (B, 1, S, S) for local windows."""
    real_BS = batch.real_BS
    if reach is None:
        return real_BS[:, None, None, :]
    place_S = torch.arange(batch.max_length, device=real_BS.device)
    near_SS = (place_S[:, None] - place_S).abs() <= reach
    # Padding sees itself, so that its softmax is defined.
    return (real_BS[:, None, None, :] | ~real_BS[:, None, :, None]) & near_SS


def _segments_differ(batch: Batch) -> Tensor:
    """Return the mask of pairs with different segments in the padded form, (B, 1, S, S)."""
    types_BS = batch.padded(batch.types_T)
    return types_BS[:, None, :, None] != types_BS[:, None, None, :]


def _distances(batch: Batch, length: int) -> Tensor:
    """Return the row of the batch's tables for the distance from query i to key j, (n, n)."""
    place_n = torch.arange(length, device=batch.cu_seqlens.device)
    return place_n[:, None] - place_n + (batch.max_length - 1)


def _padded_distances(batch: Batch) -> Tensor:
    """Return `_distances` of sequences with padding, (S, S); while a graph is recorded, S is symbolic."""
    return _distances(batch, batch.max_length)


def _relative_scores(q_NnD: Tensor, k_NnD: Tensor, call: AttentionCall, start: int) -> Tensor:
    """Return the contribution of distances and segments to one sequence's unscaled scores, (N, n, n).

    It begins at row ``start``.
    """
    assert call.relative is not None  # the caller looked
    length, gain_TN = q_NnD.shape[1], call.relative.gain_TN
    scores_Nnn = distance_scores(q_NnD, k_NnD, call.relative, call.batch.once(_distances, length))
    if gain_TN is not None:
        rows = slice(start, start + length)
        gain_Nn, types_n = gain_TN[rows].t(), call.batch.types_T[rows]
        scores_Nnn = scores_Nnn + gain_Nn[..., None] * (types_n[:, None] != types_n)
    return scores_Nnn


def distance_scores(q_NnD: Tensor, k_NmD: Tensor, relative: RelativeScores, place_nm: Tensor) -> Tensor:
    """Return the contribution of distances to unscaled scores, (..., N, n, m), gathered with an index of n x m.

    Args:
        q_NnD: Queries.
        k_NmD: Keys.
        relative: The vectors of distances.
        place_nm: Row of these for each query and key.
    """
    scores_Nnm = q_NnD.new_zeros(*q_NnD.shape[:-1], k_NmD.shape[-2])
    if relative.keys_WND is not None:
        asking_NnD = q_NnD if relative.shift_ND is None else q_NnD + relative.shift_ND[:, None]
        met_NnW = asking_NnD @ relative.keys_WND.permute(1, 2, 0)
        scores_Nnm = scores_Nnm + met_NnW.gather(-1, place_nm.expand(scores_Nnm.shape))
    if relative.queries_WND is not None:
        met_NmW = k_NmD @ relative.queries_WND.permute(1, 2, 0)
        # Rows are keys here, so the distance is j - i by row and column.
        by_key_Nmn = met_NmW.gather(-1, place_nm.expand(scores_Nnm.shape).transpose(-1, -2))
        scores_Nnm = scores_Nnm + by_key_Nmn.transpose(-1, -2)
    return scores_Nnm


def _shifted_scores(q_BNSD: Tensor, k_BNSD: Tensor, relative: RelativeScores, scale: float) -> Tensor:
    """Return the distance terms of scaled scores, (B, N, S, S), without an index of S x S."""
    terms = []
    if relative.keys_WND is not None:
        asking_BNSD = q_BNSD if relative.shift_ND is None else q_BNSD + relative.shift_ND[:, None]
        # The table is by i - j, and rows are queries.
        terms.append(_met(asking_BNSD * scale, relative.keys_WND.flip(0)))
    if relative.queries_WND is not None:
        terms.append(_met(k_BNSD * scale, relative.queries_WND).transpose(-1, -2))
    return sum(terms[1:], terms[0])


def _met(rows_BNSD: Tensor, table_WND: Tensor) -> Tensor:
    """Return products of each row with the vectors of W distances, (B, N, S, S): row i and column j for j - i.

    They are a view of the products in which each row starts one place earlier (Dai et al. 2019, arXiv:1901.02860,
    appendix B).
    """
    count, heads, longest, width = rows_BNSD.shape
    # One distance more, which nobody reads: a GPU multiplies an even width faster.
    table_NDV = F.pad(table_WND, (0, 0, 0, 0, 0, 1)).permute(1, 2, 0)
    # All sequences in one product, which also sums the gradients of the table.
    met_NRV = torch.bmm(rows_BNSD.transpose(0, 1).reshape(heads, count * longest, width), table_NDV)
    block, step = 2 * longest * longest, 2 * longest - 1
    size, steps = (count, heads, longest, longest), (block, count * block, step, 1)
    return met_NRV.as_strided(size, steps, storage_offset=longest - 1)
