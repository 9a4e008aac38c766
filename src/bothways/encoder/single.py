"""Attention of one query for each sequence, the same for every backend: there is nothing to fuse.

Shapes: B sequences, S longest sequence, T packed tokens, N heads, D head width.
"""

import torch
from torch import Tensor

from bothways.encoder.attention_call import AttentionCall
from bothways.encoder.dropout import dropout as drop
from bothways.packing import sum_rows, take_rows


def attend_once(q_BND: Tensor, rows_B: Tensor, call: AttentionCall) -> Tensor:
    """Return the context (B, N, D) of one token of each sequence, over all keys that it sees.

    Args:
        q_BND: Their queries; those of ``call`` are not read.
        rows_B: Where they stand in the packed batch.
        call: Keys, values and everything else.
    """
    *_, k_TND, v_TND = call.qkv_T3ND.unbind(1)
    batch = call.batch
    sequence_T = batch.sequence_T
    distance_T = batch.positions_T[rows_B][sequence_T] - batch.positions_T
    scores_TN = (take_rows(q_BND, sequence_T) * k_TND).sum(-1)
    if call.relative is not None:
        scores_TN = scores_TN + _relative(q_BND, k_TND, sequence_T, distance_T, rows_B, call)
    scores_TN = scores_TN * call.scale
    if call.binding_reach is not None:
        scores_TN = scores_TN.masked_fill((distance_T.abs() > call.binding_reach)[:, None], -torch.inf)
    places = sequence_T, batch.positions_T
    scores_BSN = scores_TN.new_full((len(q_BND), batch.max_length, q_BND.shape[1]), -torch.inf)
    weights_BSN = scores_BSN.index_put(places, scores_TN).softmax(1)
    weights_TN = (drop(weights_BSN, call.dropout) if call.dropout else weights_BSN)[places]
    return sum_rows(weights_TN[..., None] * v_TND, sequence_T, len(q_BND)).to(q_BND.dtype)


def _relative(
    q_BND: Tensor, k_TND: Tensor, sequence_T: Tensor, distance_T: Tensor, rows_B: Tensor, call: AttentionCall
) -> Tensor:
    """Return the contribution of distances and segments to the unscaled scores, (T, N)."""
    assert call.relative is not None  # the caller looked
    relative = call.relative
    place_T = distance_T + call.batch.max_length - 1
    scores_TN = k_TND.new_zeros(k_TND.shape[:2])
    if relative.keys_WND is not None:
        asking_BND = q_BND if relative.shift_ND is None else q_BND + relative.shift_ND
        scores_TN = scores_TN + (take_rows(asking_BND, sequence_T) * take_rows(relative.keys_WND, place_T)).sum(-1)
    if relative.queries_WND is not None:
        scores_TN = scores_TN + (k_TND * take_rows(relative.queries_WND, place_T)).sum(-1)
    if relative.gain_TN is not None:
        types_T, gain_TN = call.batch.types_T, relative.gain_TN
        differ_T = types_T[rows_B][sequence_T] != types_T
        scores_TN = scores_TN + take_rows(gain_TN[rows_B], sequence_T) * differ_T[:, None]
    return scores_TN
