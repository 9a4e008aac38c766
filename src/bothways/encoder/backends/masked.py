"""Attention backends in plain torch that support local windows, distance scores, attention weights or padding.

Shapes: B sequences, S longest sequence, T packed tokens, N heads, D head width, W = 2 S - 1 distances between tokens;
n tokens of one sequence, b blocks of r queries, c = r + 2 reach keys that a block can see.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bothways.encoder.backends.basic import AttentionCall, AttentionRequest, RelativeScores
from bothways.encoder.modules import dropout
from bothways.packing import Batch, Packed, PaddedRows

# Without cuDNN, which torch prefers on Hopper: it takes 40 ms to plan for each new shape of a batch, as long as a batch
# of DeBERTa takes on an H200.
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Reference:
    """Plain matrix product and softmax, one sequence at a time, on any device and dtype; the reference in tests."""

    name = "reference"

    def refusal(self, request: AttentionRequest) -> str | None:
        return request.unmet(weights=True, local=True, relative=True, ordered=True)

    def attend(self, call: AttentionCall) -> Tensor:
        contexts, start = [], 0
        for sequence_n3ND in call.qkv_T3ND.split_with_sizes(list(call.packed.lengths)):
            length = len(sequence_n3ND)
            q_NnD, k_NnD, v_NnD = sequence_n3ND.permute(1, 2, 0, 3)
            scores_Nnn = q_NnD @ k_NnD.transpose(1, 2)
            if call.relative is not None:
                scores_Nnn = scores_Nnn + _relative_scores(q_NnD, k_NnD, call, start)
            scores_Nnn = scores_Nnn * call.scale
            if call.reach is not None:
                scores_Nnn = scores_Nnn.masked_fill(call.batch.once(_far, length, call.reach), -torch.inf)
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


class Padded:
    """torch's fused attention over a padded batch with a mask, for devices where many calls cost more than padding."""

    name = "padded"

    def refusal(self, request: AttentionRequest) -> str | None:
        return request.unmet(padding=True, local=True, relative=True, ordered=True)

    def attend(self, call: AttentionCall) -> Tensor:
        q_BNSD, k_BNSD, v_BNSD = call.batch.padded(call.qkv_T3ND).permute(2, 0, 3, 1, 4)
        mask = call.batch.once(_seen, call.reach)
        if call.order_T is not None:
            # Padding is last in the order and sees everything, so that its softmax is defined.
            order_BS = call.batch.padded(call.order_T, torch.iinfo(call.order_T.dtype).max)
            mask = mask & (order_BS[:, None, :, None] >= order_BS[:, None, None, :])
        if call.relative is not None:
            mask = self._biases(q_BNSD, k_BNSD, call).masked_fill(~mask, -torch.inf)
        with _kernels(q_BNSD.device):
            context_BNSD = F.scaled_dot_product_attention(
                q_BNSD, k_BNSD, v_BNSD, attn_mask=mask, dropout_p=call.dropout, scale=call.scale
            )
        return call.batch.rows(context_BNSD.transpose(1, 2))

    @staticmethod
    def _biases(q_BNSD: Tensor, k_BNSD: Tensor, call: AttentionCall) -> Tensor:
        """Return the contribution of distances and segments to scaled scores: (B, N, S, S)."""
        assert call.relative is not None  # checked by the caller
        relative, batch = call.relative, call.batch
        if isinstance(batch, PaddedRows):
            # In an exported graph, the strided view of `_shifted_scores` would become an even larger index.
            bias = distance_scores(q_BNSD, k_BNSD, relative, batch.once(_padded_distances)) * call.scale
        else:
            bias = _shifted_scores(q_BNSD, k_BNSD, relative, call.scale)
        if relative.gain_TN is not None:
            gain_BNS1 = batch.padded(relative.gain_TN * call.scale).transpose(1, 2)[..., None]
            bias = bias + gain_BNS1 * batch.once(_segments_differ)
        return bias


class Local:
    """Local attention by torch's fused attention, for blocks of queries and the keys near them."""

    name = "local"

    def refusal(self, request: AttentionRequest) -> str | None:
        return request.unmet(local=True) or (None if request.local else "it supports only local windows")

    def attend(self, call: AttentionCall) -> Tensor:
        assert call.reach is not None  # checked by `refusal`
        parts = call.qkv_T3ND.split_with_sizes(list(call.packed.lengths))
        return torch.cat([_sequence(part, call, call.reach) for part in parts])


def _kernels(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which torch's fused attention on a GPU uses only kernels that support every shape at once."""
    return sdpa_kernel(_KERNELS) if device.type == "cuda" else nullcontext()


def _sequence(qkv_n3ND: Tensor, call: AttentionCall, reach: int) -> Tensor:
    """Return the context (n, N, D) of one sequence."""
    length, rate, scale = len(qkv_n3ND), call.dropout, call.scale
    q_NnD, k_NnD, v_NnD = qkv_n3ND.permute(1, 2, 0, 3)
    if length <= reach + 1:
        whole_NnD = F.scaled_dot_product_attention(q_NnD[None], k_NnD[None], v_NnD[None], dropout_p=rate, scale=scale)[
            0
        ]
        return whole_NnD.transpose(0, 1)
    # Smaller blocks would read the same keys too often; larger ones would compute too many masked scores.
    rows = max(1, reach)
    blocks = -(-length // rows)
    q_bNrD = F.pad(q_NnD, (0, 0, 0, blocks * rows - length)).view(len(q_NnD), blocks, rows, -1).transpose(0, 1)
    width = rows + 2 * reach
    around = (0, 0, reach, blocks * rows - length + reach)
    k_bNcD, v_bNcD = (F.pad(part, around).unfold(1, width, rows).permute(1, 0, 3, 2) for part in (k_NnD, v_NnD))
    mask_b1rc = call.packed.once(_mask, length, rows, reach)
    context_bNrD = F.scaled_dot_product_attention(
        q_bNrD, k_bNcD, v_bNcD, attn_mask=mask_b1rc, dropout_p=rate, scale=scale
    )
    context_nND: Tensor = context_bNrD.transpose(1, 2).flatten(0, 1)[:length]
    return context_nND


def _mask(packed: Packed, length: int, rows: int, reach: int) -> Tensor:
    """Return the mask (b, 1, r, c): True if query ``block * rows + r`` sees key ``block * rows + c - reach``."""
    blocks, device = -(-length // rows), packed.cu_seqlens.device
    query_r, key_c = torch.arange(rows, device=device), torch.arange(rows + 2 * reach, device=device) - reach
    near_rc = (query_r[:, None] - key_c).abs() <= reach
    place_bc = torch.arange(blocks, device=device)[:, None] * rows + key_c
    real_bc = (place_bc >= 0) & (place_bc < length)
    seen_brc = near_rc & real_bc[:, None]
    # Rows past the end see all keys, so that their softmax is defined; they are dropped afterwards.
    seen_brc |= torch.arange(blocks, device=device)[:, None, None] * rows + query_r[:, None] >= length
    return seen_brc[:, None]


def _far(packed: Packed, length: int, reach: int) -> Tensor:
    """Return the mask of token pairs that are farther apart than ``reach``, (n, n)."""
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
    """Return the index in the batch's distance tables for each query i and key j, (n, n)."""
    place_n = torch.arange(length, device=batch.cu_seqlens.device)
    return place_n[:, None] - place_n + (batch.max_length - 1)


def _padded_distances(batch: Batch) -> Tensor:
    """Return `_distances` for sequences padded to the longest, (S, S); S is symbolic while a graph is exported."""
    return _distances(batch, batch.max_length)


def _relative_scores(q_NnD: Tensor, k_NnD: Tensor, call: AttentionCall, start: int) -> Tensor:
    """Return the contribution of distances and segments to one sequence's unscaled scores, (N, n, n).

    The sequence begins at row ``start``.
    """
    assert call.relative is not None  # checked by the caller
    length, gain_TN = q_NnD.shape[1], call.relative.gain_TN
    scores_Nnn = distance_scores(q_NnD, k_NnD, call.relative, call.batch.once(_distances, length))
    if gain_TN is not None:
        rows = slice(start, start + length)
        gain_Nn, types_n = gain_TN[rows].t(), call.batch.types_T[rows]
        scores_Nnn = scores_Nnn + gain_Nn[..., None] * (types_n[:, None] != types_n)
    return scores_Nnn


def distance_scores(q_NnD: Tensor, k_NmD: Tensor, relative: RelativeScores, place_nm: Tensor) -> Tensor:
    """Return the contribution of distances to unscaled scores, (..., N, n, m).

    ``place_nm`` gives the row of the distance tables for each query and key.
    """
    scores_Nnm = q_NnD.new_zeros(*q_NnD.shape[:-1], k_NmD.shape[-2])
    if relative.keys_WND is not None:
        asking_NnD = q_NnD if relative.shift_ND is None else q_NnD + relative.shift_ND[:, None]
        products_NnW = asking_NnD @ relative.keys_WND.permute(1, 2, 0)
        scores_Nnm = scores_Nnm + products_NnW.gather(-1, place_nm.expand(scores_Nnm.shape))
    if relative.queries_WND is not None:
        products_NmW = k_NmD @ relative.queries_WND.permute(1, 2, 0)
        # Rows are keys here, so the distance is j - i by row and column.
        by_key_Nmn = products_NmW.gather(-1, place_nm.expand(scores_Nnm.shape).transpose(-1, -2))
        scores_Nnm = scores_Nnm + by_key_Nmn.transpose(-1, -2)
    return scores_Nnm


def _shifted_scores(q_BNSD: Tensor, k_BNSD: Tensor, relative: RelativeScores, scale: float) -> Tensor:
    """Return the distance terms of scaled scores, (B, N, S, S), without building an index tensor (S, S)."""
    terms = []
    if relative.keys_WND is not None:
        asking_BNSD = q_BNSD if relative.shift_ND is None else q_BNSD + relative.shift_ND[:, None]
        # The table is by i - j, and rows are queries.
        terms.append(_skewed_products(asking_BNSD * scale, relative.keys_WND.flip(0)))
    if relative.queries_WND is not None:
        terms.append(_skewed_products(k_BNSD * scale, relative.queries_WND).transpose(-1, -2))
    return sum(terms[1:], terms[0])


def _skewed_products(rows_BNSD: Tensor, table_WND: Tensor) -> Tensor:
    """Return the products of row i and the vector of distance j - i, for all i and j, (B, N, S, S).

    The result is a view of the products with all W distances; each row of the view starts one element earlier (Dai et
    al. 2019, arXiv:1901.02860, appendix B).
    """
    count, heads, longest, width = rows_BNSD.shape
    # One more distance, which is never read: a GPU multiplies an even width faster.
    table_NDV = F.pad(table_WND, (0, 0, 0, 0, 0, 1)).permute(1, 2, 0)
    # All sequences in one product, which also sums the gradients of the table.
    products_NRV = torch.bmm(rows_BNSD.transpose(0, 1).reshape(heads, count * longest, width), table_NDV)
    block, step = 2 * longest * longest, 2 * longest - 1
    size, steps = (count, heads, longest, longest), (block, count * block, step, 1)
    return products_NRV.as_strided(size, steps, storage_offset=longest - 1)
