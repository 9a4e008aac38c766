"""Bidirectional multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2).

Every token attends to all tokens of its own sequence: there is no causal mask, and no padding to mask.
The backends are in `bothways.encoder.backends`; `choose` picks the first that supports a call, or checks that a
named one does.

Shapes: T packed tokens, H hidden, N heads, D head width, n tokens of one sequence, B sequences, M selected rows,
S longest sequence.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from bothways.encoder.backends.basic import (
    SDPA,
    AttentionBackend,
    AttentionCall,
    AttentionRequest,
    Grouped,
)
from bothways.encoder.backends.gpu import Flex, VarLen
from bothways.encoder.backends.masked import Local, Padded, Reference
from bothways.encoder.backends.relative import Skewed
from bothways.encoder.config import DisentangledPositions, EncoderConfig, LocalGlobalAttention
from bothways.encoder.linear import KEY, QKV, QUERY, Linear
from bothways.encoder.modules import Dropout, dropout
from bothways.encoder.positions import Shared, layer_positions
from bothways.encoder.streams import Targets, attend_before
from bothways.errors import UnsupportedAttention
from bothways.packing import Batch, FirstTokens, LastTokens, NoRows, PaddedRows, Rows, select, sum_rows, take_rows

REFERENCE = Reference()
_VARLEN, _SDPA, _GROUPED, _PADDED, _SKEWED, _LOCAL = VarLen(), SDPA(), Grouped(), Padded(), Skewed(), Local()
# Chosen only by name: on an H200 it takes 1.5 to 1.7 times as long as the backends that are chosen there.
_FLEX = Flex()
BACKENDS: dict[str, AttentionBackend] = {
    backend.name: backend for backend in (_VARLEN, _SDPA, _GROUPED, _PADDED, _SKEWED, _LOCAL, _FLEX, REFERENCE)
}

# Backends in the order in which they are tried. On a GPU, padding costs less than one call per length.
_ON_CPU: tuple[AttentionBackend, ...] = (_SDPA, _SKEWED, _LOCAL, REFERENCE, _PADDED)
_ON_CPU_WITH_DROPOUT: tuple[AttentionBackend, ...] = (_GROUPED, _SKEWED, _LOCAL, REFERENCE, _PADDED)
_ELSEWHERE: tuple[AttentionBackend, ...] = (_VARLEN, _LOCAL, _PADDED, REFERENCE)


def choose(request: AttentionRequest, name: str | None = None) -> AttentionBackend:
    """Return the named backend for a request, or the fastest one on its device that supports it."""
    if name is None:
        on_cpu = _ON_CPU_WITH_DROPOUT if request.dropout else _ON_CPU
        for backend in on_cpu if request.device == "cpu" else _ELSEWHERE:
            if backend.refusal(request) is None:
                return backend
        reasons = "; ".join(f"{name!r}: {backend.refusal(request)}" for name, backend in BACKENDS.items())
        raise UnsupportedAttention(f"no attention backend can serve this call. {reasons}.")
    if name not in BACKENDS:
        raise UnsupportedAttention(f"there is no attention backend {name!r}. Choose one of {', '.join(BACKENDS)}.")
    refusal = BACKENDS[name].refusal(request)
    if refusal is not None:
        able = ", ".join(repr(name) for name, backend in BACKENDS.items() if backend.refusal(request) is None)
        raise UnsupportedAttention(
            f"the attention backend {name!r} cannot serve this call: {refusal}. Backends that can: {able or 'none'}."
        )
    return BACKENDS[name]


class Recorder:
    """A recorder of the hidden states, and optionally the attention weights, of one forward pass.

    Args:
        attentions: Record the attention weights too, which only the reference backend returns.

    Attributes:
        hidden_states: The embedding and then each layer's output: L + 1 tensors (T, H). The last one is the encoder's
            output, for the selected rows only.
        attentions: Attention weights before dropout: for each layer a list with (N, n, n) for each sequence.
    """

    def __init__(self, *, attentions: bool = False) -> None:
        self.wants_attentions = attentions
        self.hidden_states: list[Tensor] = []
        self.attentions: list[list[Tensor]] = []


@dataclass(frozen=True, slots=True)
class Run:
    """The inputs of one forward pass that are the same for all layers.

    `shared` holds the position tensors. `targets` are the tokens of a query stream or a mask decoder. `backends` caches
    the backend chosen for each kind of layer.
    """

    batch: Batch
    shared: Shared
    backend: str | None
    record: Recorder | None
    wants_attentions: bool
    targets: Targets | None = None
    backends: dict[Hashable, AttentionBackend] = field(default_factory=dict, init=False, repr=False, compare=False)


class SelfAttention(nn.Module):
    """Self-attention: a fused query, key and value projection, attention within each sequence, an output projection."""

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        pattern, positions = config.pattern, config.positions
        local = isinstance(pattern, LocalGlobalAttention) and not pattern.seen_whole[index]
        self.reach = pattern.reach if isinstance(pattern, LocalGlobalAttention) and local else None
        self.head_width = config.head_width
        # 1 / sqrt(head width * number of score terms); DeBERTa has up to three terms.
        terms = 1
        if isinstance(positions, DisentangledPositions):
            terms += positions.content_to_position + positions.position_to_content
        self.scale = 1.0 / math.sqrt(config.head_width * terms)
        self.dropout = config.dropout.attention
        self.qkv = QKV(config.hidden, config.heads, config.attention_biases)
        self.positions = layer_positions(config, local=local)
        biased = config.attention_biases in ("all", "query and value, and output")
        self.output = Linear(config.hidden, config.hidden, bias=biased)
        self.output_dropout = Dropout(config.dropout.attention_output)

    def forward(
        self, hidden_TH: Tensor, queries_MH: Tensor | None, run: Run, rows: Rows
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs for the selected rows, (T, H), (B, H) or (M, H), and for the query stream, if any, (M, H).

        If only first or last tokens are selected (one query per sequence), all backends share one implementation,
        since a single query leaves nothing to fuse. A backend requested by name must support the call nevertheless.
        """
        unread, answered_MH = isinstance(rows, NoRows), None
        if unread and queries_MH is None:
            return _nothing(hidden_TH), None
        backend = self._backend(hidden_TH, run)
        if isinstance(rows, FirstTokens | LastTokens) and not (
            run.wants_attentions or isinstance(run.batch, PaddedRows)
        ):
            first = isinstance(rows, FirstTokens)
            rows_B = run.batch.first_tokens_B if first else run.batch.last_tokens_B
            if self.positions is not None and self.positions.reads_queries:
                call = self._call(self.qkv(hidden_TH), run)
                q_BND = call.qkv_T3ND[rows_B, 0]
            else:
                call = self._call(self.qkv.parts(hidden_TH, KEY, 2), run)
                q_BND = self.qkv.parts(hidden_TH[rows_B], QUERY).squeeze(1)
            return self.output_dropout(self.output(attend_once(q_BND, rows_B, call).flatten(1))), None
        call = self._call(self.qkv(hidden_TH), run)
        if queries_MH is not None:
            assert run.targets is not None  # there is a query stream
            q_MND = self.qkv.parts(queries_MH, QUERY).squeeze(1)
            if self.positions is None:
                answered_MH = attend_before(q_MND, run.targets, call)
            else:
                # The distance terms are computed again, for the targets' queries.
                _, relative = self.positions(q_MND[:, None], self.qkv, run.shared)
                answered_MH = attend_before(q_MND, run.targets, replace(call, relative=relative))
        if unread:
            read_TH = _nothing(hidden_TH)
        else:
            if run.record is not None and call.weights is not None:
                run.record.attentions.append(call.weights)
            context_TH = select(backend.attend(call).flatten(1), rows, run.batch)
            read_TH = self.output_dropout(self.output(context_TH))
        if answered_MH is not None:
            answered_MH = self.output_dropout(self.output(answered_MH.flatten(1)))
        return read_TH, answered_MH

    def _call(self, qkv_T3ND: Tensor, run: Run) -> AttentionCall:
        relative = None
        if self.positions is not None:
            qkv_T3ND, relative = self.positions(qkv_T3ND, self.qkv, run.shared)
        return AttentionCall(
            qkv_T3ND,
            run.batch,
            self.scale,
            self.dropout if self.training else 0.0,
            self.reach if self.reach is not None and run.batch.hides(self.reach) else None,
            relative,
            order_T=None if run.targets is None else run.targets.order_T,
            weights=[] if run.wants_attentions else None,
        )

    def _backend(self, hidden_TH: Tensor, run: Run) -> AttentionBackend:
        """Return the named or fastest backend; it is chosen once for all layers with the same requirements."""
        rate = self.dropout if self.training else 0.0
        needs = self.reach, rate, hidden_TH.dtype
        if needs not in run.backends:
            device = hidden_TH.device.type
            # Under autocast, the projection returns another dtype than the hidden states have.
            autocast = torch.is_autocast_enabled(device)
            request = AttentionRequest(
                device,
                torch.get_autocast_dtype(device) if autocast else hidden_TH.dtype,
                self.head_width,
                rate,
                weights=run.wants_attentions,
                padding=isinstance(run.batch, PaddedRows),
                local=self.reach is not None and run.batch.hides(self.reach),
                relative=self.positions is not None and self.positions.has_scores,
                ordered=run.targets is not None and run.targets.order_T is not None,
                capability=torch.cuda.get_device_capability(hidden_TH.device)[0] if device == "cuda" else 0,
            )
            run.backends[needs] = choose(request, run.backend)
        return run.backends[needs]


def _nothing(hidden_TH: Tensor) -> Tensor:
    """Return an empty tensor (0, H), a new one each time, since a layer adds to it in place."""
    return hidden_TH.new_empty(0, hidden_TH.shape[1])


def attend_once(q_BND: Tensor, rows_B: Tensor, call: AttentionCall) -> Tensor:
    """Compute attention for one query per sequence; return the context vectors (B, N, D).

    ``rows_B`` are the rows of the querying tokens, ``q_BND`` their queries; the queries in ``call`` are ignored.
    """
    *_, k_TND, v_TND = call.qkv_T3ND.unbind(1)
    batch = call.batch
    sequence_T = batch.sequence_T
    distance_T = batch.positions_T[rows_B][sequence_T] - batch.positions_T
    scores_TN = (take_rows(q_BND, sequence_T) * k_TND).sum(-1)
    if call.relative is not None:
        scores_TN = scores_TN + _relative(q_BND, k_TND, sequence_T, distance_T, rows_B, call)
    scores_TN = scores_TN * call.scale
    if call.reach is not None:
        scores_TN = scores_TN.masked_fill((distance_T.abs() > call.reach)[:, None], -torch.inf)
    places = sequence_T, batch.positions_T
    scores_BSN = scores_TN.new_full((len(q_BND), batch.max_length, q_BND.shape[1]), -torch.inf)
    weights_BSN = scores_BSN.index_put(places, scores_TN).softmax(1)
    weights_TN = (dropout(weights_BSN, call.dropout) if call.dropout else weights_BSN)[places]
    return sum_rows(weights_TN[..., None] * v_TND, sequence_T, len(q_BND)).to(q_BND.dtype)


def _relative(
    q_BND: Tensor, k_TND: Tensor, sequence_T: Tensor, distance_T: Tensor, rows_B: Tensor, call: AttentionCall
) -> Tensor:
    """Return the contribution of distances and segments to the unscaled scores, (T, N)."""
    assert call.relative is not None  # checked by the caller
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
