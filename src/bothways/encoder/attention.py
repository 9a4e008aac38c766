"""Bidirectional multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2).

Every token attends to tokens of its own sequence, before and behind it: no causal mask, and no padding to mask.
One query for each sequence is the same for every backend: there is nothing to fuse.

Shapes: T packed tokens, H hidden, N heads, D head width, n tokens of one sequence, B sequences, M selected rows,
S longest sequence.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from bothways.devices import compute_capability
from bothways.encoder.attention_call import AttentionCall, AttentionRequest
from bothways.encoder.axes import DisentangledPositions, LocalGlobalAttention
from bothways.encoder.backends import AttentionBackend, choose
from bothways.encoder.batch import PaddedRows
from bothways.encoder.config import EncoderConfig
from bothways.encoder.dropout import Dropout
from bothways.encoder.dropout import dropout as drop
from bothways.encoder.linear import Linear
from bothways.encoder.positions import layer_positions
from bothways.encoder.projection import QKV
from bothways.encoder.query_stream import attend_before
from bothways.encoder.rows import FirstTokens, LastTokens, NoRows, Rows, select
from bothways.encoder.run import Run
from bothways.packing import sum_rows, take_rows


class SelfAttention(nn.Module):
    """One fused projection to queries, keys and values, attention within each sequence, one projection back.

    Args:
        config: The encoder.
        index: Number of the layer, from 0.
    """

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.reach = _reach(config, index)
        self.head_width = config.head_width
        self.scale = _scale(config)
        self.dropout = config.dropout.attention
        self.qkv = QKV(config.hidden, config.heads, config.attention_biases)
        self.positions = layer_positions(config, local=self.reach is not None)
        biased = config.attention_biases in ("all", "query and value, and output")
        self.output = Linear(config.hidden, config.hidden, bias=biased)
        self.output_dropout = Dropout(config.dropout.attention_output)

    def forward(self, hidden_TH: Tensor, run: Run, rows: Rows) -> Tensor:
        """Attend and project the rows that are read: (T, H), (B, H) or (M, H).

        The first or last tokens alone take a way of their own, the same for every backend: one query a sequence leaves
        nothing to fuse. The named backend is held to serve the call all the same.

        Raises:
            UnsupportedAttention: The named backend cannot serve this call, or has no attention weights to record.
        """
        if isinstance(rows, NoRows):
            return _nothing(hidden_TH)
        chosen = self._backend(hidden_TH, run)
        alone = not (run.wants_attentions or isinstance(run.batch, PaddedRows))
        if alone and isinstance(rows, FirstTokens | LastTokens):
            return self._out(self._of_one_token(hidden_TH, run, rows.of(run.batch)).flatten(1))
        return self._read(chosen, self._call(self.qkv(hidden_TH), run), run, rows)

    def two_streams(self, hidden_TH: Tensor, queries_MH: Tensor, run: Run, rows: Rows) -> tuple[Tensor, Tensor]:
        """Attend with both streams: the selected rows of the content stream, and the query stream (M, H).

        Raises:
            UnsupportedAttention: The named backend has no factorisation orders.
        """
        assert run.targets is not None  # there is a query stream
        chosen = self._backend(hidden_TH, run)
        call = self._call(self.qkv(hidden_TH), run)
        q_MND = self.qkv.queries(queries_MH)
        # What distances add is worked out anew, for the targets' gains.
        _, relative = self.positions(q_MND[:, None], self.qkv, run.shared)
        context_MND = attend_before(q_MND, run.targets, replace(call, relative=relative))
        read_TH = _nothing(hidden_TH) if isinstance(rows, NoRows) else self._read(chosen, call, run, rows)
        return read_TH, self._out(context_MND.flatten(1))

    def _read(self, chosen: AttentionBackend, call: AttentionCall, run: Run, rows: Rows) -> Tensor:
        if run.record is not None and call.weights is not None:
            run.record.attentions.append(call.weights)
        context_TND = chosen.attend(call)
        return self._out(select(context_TND.flatten(1), rows, run.batch))

    def _of_one_token(self, hidden_TH: Tensor, run: Run, rows_B: Tensor) -> Tensor:
        """Return the context (B, N, D) of one token per sequence; other queries only if positions need them."""
        if self.positions.reads_queries:
            call = self._call(self.qkv(hidden_TH), run)
            return attend_once(call.qkv_T3ND[rows_B, 0], rows_B, call)
        call = self._call(self.qkv.keys_and_values(hidden_TH), run)
        return attend_once(self.qkv.queries(hidden_TH[rows_B]), rows_B, call)

    def _call(self, qkv_T3ND: Tensor, run: Run) -> AttentionCall:
        qkv_T3ND, relative = self.positions(qkv_T3ND, self.qkv, run.shared)
        weights: list[Tensor] | None = [] if run.wants_attentions else None
        return AttentionCall(
            qkv_T3ND,
            run.batch,
            self.scale,
            self._dropout_rate,
            self.reach,
            relative,
            run.order_T,
            weights,
        )

    @property
    def _dropout_rate(self) -> float:
        return self.dropout if self.training else 0.0

    def _backend(self, hidden_TH: Tensor, run: Run) -> AttentionBackend:
        """Return the named or best backend; layers with equal requests share the first one's choice."""
        needs = self.reach, self._dropout_rate, hidden_TH.dtype
        if needs not in run.backends:
            run.backends[needs] = choose(self._request(hidden_TH, run), run.backend)
        return run.backends[needs]

    def _request(self, hidden_TH: Tensor, run: Run) -> AttentionRequest:
        device = hidden_TH.device.type
        # Under autocast the projection changes the precision.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_TH.dtype
        local = self.reach is not None and run.batch.hides(self.reach)
        return AttentionRequest(
            device,
            dtype,
            self.head_width,
            self._dropout_rate,
            weights=run.wants_attentions,
            padding=isinstance(run.batch, PaddedRows),
            local=local,
            relative=self.positions.has_scores,
            ordered=run.order_T is not None,
            capability=compute_capability(hidden_TH.device),
        )

    def _out(self, context_TH: Tensor) -> Tensor:
        output_TH: Tensor = self.output_dropout(self.output(context_TH))
        return output_TH


def _nothing(hidden_TH: Tensor) -> Tensor:
    """Return no rows, (0, H), as a tensor of its own: a layer adds to it in place."""
    return hidden_TH.new_empty(0, hidden_TH.shape[1])


def _reach(config: EncoderConfig, index: int) -> int | None:
    pattern = config.pattern
    return pattern.reach if isinstance(pattern, LocalGlobalAttention) and not pattern.seen_whole[index] else None


def _scale(config: EncoderConfig) -> float:
    """Return one over the root of the head width, times the number of score terms (DeBERTa)."""
    terms = 1
    if isinstance(config.positions, DisentangledPositions):
        terms += config.positions.content_to_position + config.positions.position_to_content
    return 1.0 / math.sqrt(config.head_width * terms)


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
