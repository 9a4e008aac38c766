"""The query stream of two-stream attention (Yang et al. 2019, arXiv:1906.08237, section 2.3).

The content stream is what every encoder computes, but that a token sees only itself and the tokens that do not come
behind it in a factorisation order. The query stream has a vector for each target: it begins at a learnt vector that
knows no token, and attends to the content states of the layer below of the tokens strictly before the target. So it
knows where the target stands, but not what it is. Both streams have the same weights.

DeBERTa's mask decoder (He et al. 2020, arXiv:2006.03654, section 3.2) is the same attention in the last layer alone,
with every token in sight.

Shapes: B sequences, S longest sequence, T packed tokens, M targets, P the most targets of a sequence, H hidden,
N heads, D head width, W = 2 S - 1 distances.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bothways.devices import on_device
from bothways.encoder.attention_call import AttentionCall, RelativeScores
from bothways.encoder.dropout import dropout as drop
from bothways.packing import Packed

VISIBLE = -1
"""Place in an order of the tokens that every token sees."""


@dataclass(frozen=True, slots=True)
class QueryStream:
    """Targets that a second stream predicts, with a factorisation order of the tokens.

    Attributes:
        hidden_MH: First vectors of the stream, see `Encoder.queries`.
        rows_M: Rows of the targets in the packed batch, ascending.
        counts: Number of targets of each sequence (B), on the host.
        order_T: Place of each token in a factorisation order of its sequence, from 0; `VISIBLE` for tokens that all
            see, and which see each other alone.
    """

    hidden_MH: Tensor
    rows_M: Tensor
    counts: tuple[int, ...]
    order_T: Tensor


@dataclass(frozen=True, slots=True)
class MaskDecoding:
    """Chosen tokens that the last layer decodes, applied several times with the same weights, keys and values.

    Queries begin at the states below the last layer; each application reads those of the one before.

    Attributes:
        added_MH: What the first queries gain, absolute positions.
        rows_M: Rows of the tokens in the packed batch, ascending.
        counts: Number of these of each sequence (B), on the host.
        times: Number of applications.
    """

    added_MH: Tensor
    rows_M: Tensor
    counts: tuple[int, ...]
    times: int = 2

    @property
    def order_T(self) -> None:
        """None: every token sees all."""
        return None


Queries = QueryStream | MaskDecoding


@dataclass(frozen=True, slots=True)
class Targets:
    """Tensors about the targets of a batch that all layers share.

    Attributes:
        order_T: See `QueryStream`; None where every token sees all.
        spaced_M: Where each stands if every sequence has room for P.
        shape: B and P.
        seen_BPS: Which tokens each sees.
        distance_BPS: Row of the tables of distances for target i and token j.
        differ_BPS: Whether both are of different segments.
    """

    order_T: Tensor | None
    spaced_M: Tensor
    shape: tuple[int, int]
    seen_BPS: Tensor
    distance_BPS: Tensor
    differ_BPS: Tensor

    @classmethod
    def of(cls, rows_M: Tensor, counts: tuple[int, ...], order_T: Tensor | None, batch: Packed) -> "Targets":
        """Compute them for a batch; see `QueryStream` for the arguments."""
        most, longest = max(counts, default=0), batch.max_length
        spaced_M = on_device(np.flatnonzero(np.arange(most) < np.array(counts)[:, None]), rows_M.device)
        shape = len(counts), most

        def of_targets(values_T: Tensor) -> Tensor:
            return _spaced(values_T[rows_M], spaced_M, shape)[..., None]

        def of_keys(values_T: Tensor, fill: int) -> Tensor:
            return batch.padded(values_T, fill)[:, None]

        if order_T is None:
            seen_BPS = batch.real_BS[:, None].expand(*shape, longest)
        else:
            seen_BPS = of_keys(order_T, torch.iinfo(order_T.dtype).max) < of_targets(order_T)
        place_S = torch.arange(longest, device=rows_M.device)
        return cls(
            order_T,
            spaced_M,
            shape,
            seen_BPS,
            of_targets(batch.positions_T) - place_S + (longest - 1),
            of_keys(batch.types_T, 0) != of_targets(batch.types_T),
        )

    def spaced(self, values: Tensor) -> Tensor:
        """Reshape rows of the targets (M, ...) to (B, P, ...), with zeros for missing ones."""
        return _spaced(values, self.spaced_M, self.shape)

    def rows(self, values: Tensor) -> Tensor:
        """Reverse `spaced`."""
        return values.flatten(0, 1).index_select(0, self.spaced_M)


def attend_before(q_MND: Tensor, targets: Targets, call: AttentionCall) -> Tensor:
    """Return the context (M, N, D) of targets over the tokens strictly before them, the same for every backend.

    A target with nothing before it gets zeros.

    Args:
        q_MND: Queries of the targets; those of ``call`` are not read.
        targets: Where they stand.
        call: Keys and values of the content stream; ``relative`` with the gains of the targets.
    """
    *_, k_TND, v_TND = call.qkv_T3ND.unbind(1)
    k_BNSD, v_BNSD = (call.batch.padded(each).transpose(1, 2) for each in (k_TND, v_TND))
    q_BNPD = targets.spaced(q_MND).transpose(1, 2)
    scores_BNPS = q_BNPD @ k_BNSD.transpose(2, 3)
    if call.relative is not None:
        scores_BNPS = scores_BNPS + _relative(q_BNPD, k_BNSD, targets, call.relative)
    hidden_B1PS = ~targets.seen_BPS[:, None]
    if call.binding_reach is not None:
        distance_B1PS = targets.distance_BPS[:, None] - (call.batch.max_length - 1)
        hidden_B1PS = hidden_B1PS | (distance_B1PS.abs() > call.binding_reach)
    # The least number, not minus infinity: where nothing is seen, a softmax of that has no gradient.
    least = torch.finfo(scores_BNPS.dtype).min
    weights_BNPS = (scores_BNPS * call.scale).masked_fill(hidden_B1PS, least).softmax(-1).masked_fill(hidden_B1PS, 0.0)
    weights_BNPS = drop(weights_BNPS, call.dropout) if call.dropout else weights_BNPS
    context_BPND = (weights_BNPS.to(v_BNSD.dtype) @ v_BNSD).transpose(1, 2)
    return targets.rows(context_BPND)


def _relative(q_BNPD: Tensor, k_BNSD: Tensor, targets: Targets, relative: RelativeScores) -> Tensor:
    """Return the contribution of distances and segments to the unscaled scores, (B, N, P, S)."""
    shape = (*q_BNPD.shape[:3], k_BNSD.shape[2])
    scores_BNPS = q_BNPD.new_zeros(shape)
    place_BNPS = targets.distance_BPS[:, None].expand(shape)
    if relative.keys_WND is not None:
        asking_BNPD = q_BNPD if relative.shift_ND is None else q_BNPD + relative.shift_ND[:, None]
        met_BNPW = asking_BNPD @ relative.keys_WND.permute(1, 2, 0)
        scores_BNPS = scores_BNPS + met_BNPW.gather(-1, place_BNPS)
    if relative.queries_WND is not None:
        met_BNSW = k_BNSD @ relative.queries_WND.permute(1, 2, 0)
        scores_BNPS = scores_BNPS + met_BNSW.gather(-1, place_BNPS.transpose(2, 3)).transpose(2, 3)
    if relative.gain_TN is not None:
        gain_BNP1 = targets.spaced(relative.gain_TN).transpose(1, 2)[..., None]
        scores_BNPS = scores_BNPS + gain_BNP1 * targets.differ_BPS[:, None]
    return scores_BNPS


def _spaced(values: Tensor, spaced_M: Tensor, shape: tuple[int, int]) -> Tensor:
    blank = values.new_zeros((shape[0] * shape[1], *values.shape[1:]))
    return blank.index_copy(0, spaced_M, values).view(*shape, *values.shape[1:])
