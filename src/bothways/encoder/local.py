"""Local attention: every token sees some tokens on either side, at a cost that grows with the length, not its square.

Shapes: T packed tokens, N heads, D head width, n tokens of one sequence, b blocks of r queries, c = r + 2 reach keys
that a block can see.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor

from bothways.encoder.attention_call import AttentionCall, AttentionRequest
from bothways.packing import Packed

# Queries of a block, in multiples of the reach: fewer would look at the same keys too often, more at too many.
_REACHES = 1


class Local:
    """torch's fused attention over blocks of queries and the keys around them."""

    name = "local"

    def refusal(self, request: AttentionRequest) -> str | None:
        """Refuse all but local windows."""
        return request.unmet(local=True) or (None if request.local else "it is for local windows")

    def attend(self, call: AttentionCall) -> Tensor:
        """Return the context of every token, (T, N, D)."""
        assert call.reach is not None  # the request said so
        parts = call.qkv_T3ND.split_with_sizes(list(call.packed.lengths))
        return torch.cat([_sequence(part, call, call.reach) for part in parts])


def _sequence(qkv_n3ND: Tensor, call: AttentionCall, reach: int) -> Tensor:
    """Return the context (n, N, D) of one sequence."""
    length, dropout, scale = len(qkv_n3ND), call.dropout, call.scale
    q_NnD, k_NnD, v_NnD = qkv_n3ND.permute(1, 2, 0, 3)
    if length <= reach + 1:
        whole_NnD = F.scaled_dot_product_attention(
            q_NnD[None], k_NnD[None], v_NnD[None], dropout_p=dropout, scale=scale
        )[0]
        return whole_NnD.transpose(0, 1)
    rows = max(1, _REACHES * reach)
    blocks = -(-length // rows)
    q_bNrD = F.pad(q_NnD, (0, 0, 0, blocks * rows - length)).view(len(q_NnD), blocks, rows, -1).transpose(0, 1)
    width = rows + 2 * reach
    around = (0, 0, reach, blocks * rows - length + reach)
    k_bNcD, v_bNcD = (F.pad(part, around).unfold(1, width, rows).permute(1, 0, 3, 2) for part in (k_NnD, v_NnD))
    mask_b1rc = call.packed.once(_mask, length, rows, reach)
    context_bNrD = F.scaled_dot_product_attention(
        q_bNrD, k_bNcD, v_bNcD, attn_mask=mask_b1rc, dropout_p=dropout, scale=scale
    )
    context_nND: Tensor = context_bNrD.transpose(1, 2).flatten(0, 1)[:length]
    return context_nND


def _mask(packed: Packed, length: int, rows: int, reach: int) -> Tensor:
    """Return the mask in which query ``block * rows + r`` sees key ``block * rows + c - reach``: (b, 1, r, c)."""
    blocks, device = -(-length // rows), packed.cu_seqlens.device
    query_r, key_c = torch.arange(rows, device=device), torch.arange(rows + 2 * reach, device=device) - reach
    near_rc = (query_r[:, None] - key_c).abs() <= reach
    place_bc = torch.arange(blocks, device=device)[:, None] * rows + key_c
    real_bc = (place_bc >= 0) & (place_bc < length)
    seen_brc = near_rc & real_bc[:, None]
    # Rows behind the end see something, so that their softmax is defined; they are cut off.
    seen_brc |= torch.arange(blocks, device=device)[:, None, None] * rows + query_r[:, None] >= length
    return seen_brc[:, None]
