"""The encoder: one module for the configurations of all families.

A layer has attention and feed-forward, each with a residual sum and a norm. The first layer of DeBERTa v2's large sizes
also has a convolution.

Shapes: B sequences, T packed tokens, H hidden, E embedding width, F inner width, L layers, M selected rows or queries,
P rows with a gap after each sequence.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor, nn

from bothways.encoder.attention import Recorder, Run, SelfAttention
from bothways.encoder.config import (
    AbsolutePositions,
    DisentangledPositions,
    EncoderConfig,
    FirstLayerConvolution,
    GatedFeedForward,
    Positions,
    PostNorm,
    PreNorm,
    ProjectedAfterNorm,
    ProjectedBeforeNorm,
    SharedGroups,
)
from bothways.encoder.linear import QKV, Linear
from bothways.encoder.modules import (
    ACTIVATIONS,
    IN_PLACE_ACTIVATIONS,
    Dropout,
    EmbeddingTable,
    checkpointed,
    computed_again,
    norm,
)
from bothways.encoder.positions import TransformerXL, shared_positions
from bothways.encoder.streams import MaskDecoding, Memory, Queries, QueryStream, Recurrence, targets_of
from bothways.errors import UnsupportedConfig
from bothways.packing import ALL_ROWS, NO_ROWS, Batch, NoRows, Packed, Rows, select
from bothways.products import ROWS_AT_ONCE, in_parts


class FeedForward(nn.Module):
    """A linear map, an activation and another linear map.

    With a gate, the first map is twice as wide: the activation is applied to one half of its output, which is then
    multiplied by the other half (Shazeer 2020, arXiv:2002.05202).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        kind = config.feed_forward
        self.gated = isinstance(kind, GatedFeedForward)
        self.inner = Linear(config.hidden, (1 + self.gated) * kind.width, bias=kind.bias)
        self.outer = Linear(kind.width, config.hidden, bias=kind.bias)
        self.activation = kind.activation
        self.dropout = Dropout(config.dropout.inner)

    def forward(self, hidden_TH: Tensor) -> Tensor:
        many = torch.is_inference_mode_enabled() and hidden_TH.shape[0] > ROWS_AT_ONCE
        if many and hidden_TH.device.type == "cpu":
            # In parts, so that the inner states stay in the cache.
            return in_parts(self.forward, hidden_TH, hidden_TH.shape[1])
        inner_TF = self.inner(hidden_TH)
        value_TF, gate_TF = inner_TF.chunk(2, 1) if self.gated else (inner_TF, None)
        # The inner states are the widest tensor: activation in place avoids page faults and cache misses.
        activation = (ACTIVATIONS if torch.is_grad_enabled() else IN_PLACE_ACTIVATIONS)[self.activation]
        # After dropout, the activated states cannot be recomputed.
        if not torch.is_grad_enabled() or (self.dropout.training and self.dropout.rate):
            activated_TF = activation(value_TF)
            output_TH: Tensor = self.outer(self.dropout(activated_TF if gate_TF is None else activated_TF * gate_TF))
            return output_TH
        # Activated states are a quarter of a layer's activation memory, but recomputing them takes 1 % of its time.
        kept_TF = value_TF.detach()
        again = partial(activation, kept_TF)
        if gate_TF is None:
            return computed_again(activation(value_TF), again, self.outer)
        kept_gate_TF = gate_TF.detach()
        inner_TF = computed_again(activation(value_TF), again, lambda activated_TF: activated_TF * gate_TF)
        return computed_again(inner_TF, lambda: activation(kept_TF) * kept_gate_TF, self.outer)


class PostNormLayer(nn.Module):
    """Attention, add and norm, feed-forward, add and norm."""

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index)
        self.attention_norm = norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = norm(config)
        self.dropout = Dropout(config.dropout.hidden)

    def forward(
        self, hidden_TH: Tensor, queries_MH: Tensor | None, run: Run, rows: Rows
    ) -> tuple[Tensor, Tensor | None]:
        """Return the next states of the selected rows, and of the query stream (M, H), if any."""
        attended_TH, answered_MH = self.attention(hidden_TH, queries_MH, run, rows)
        # After the attention, rows do not depend on each other, so rows that are not selected are left out.
        read_TH = self._behind(select(hidden_TH, rows, run.batch), attended_TH)
        return read_TH, None if queries_MH is None else self._behind(queries_MH, answered_MH)

    def _behind(self, read_TH: Tensor, attended_TH: Tensor) -> Tensor:
        hidden_TH = self.attention_norm(_add_into(self.dropout(attended_TH), read_TH))
        output_TH: Tensor = self.feed_forward_norm(_add_into(self.dropout(self.feed_forward(hidden_TH)), hidden_TH))
        return output_TH


class PreNormLayer(nn.Module):
    """Norm, attention and add; norm, feed-forward and add. The first layer has no first norm."""

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = norm(config) if index else nn.Identity()
        self.attention = SelfAttention(config, index)
        self.feed_forward_norm = norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = Dropout(config.dropout.hidden)

    def forward(
        self, hidden_TH: Tensor, queries_MH: Tensor | None, run: Run, rows: Rows
    ) -> tuple[Tensor, Tensor | None]:
        normed_MH = None if queries_MH is None else self.attention_norm(queries_MH)
        attended_TH, answered_MH = self.attention(self.attention_norm(hidden_TH), normed_MH, run, rows)
        read_TH = self._behind(select(hidden_TH, rows, run.batch), attended_TH)
        return read_TH, None if queries_MH is None else self._behind(queries_MH, answered_MH)

    def _behind(self, read_TH: Tensor, attended_TH: Tensor) -> Tensor:
        hidden_TH = _add_into(self.dropout(attended_TH), read_TH)
        return _add_into(self.dropout(self.feed_forward(self.feed_forward_norm(hidden_TH))), hidden_TH)


def _add_into(fresh_TH: Tensor, hidden_TH: Tensor) -> Tensor:
    """Add ``hidden_TH`` in place to ``fresh_TH``, a new output of dropout or a linear map.

    No other code uses ``fresh_TH``, and no gradient needs it. If autocast made it half precision, the sum is a new
    tensor in full precision.
    """
    return fresh_TH.add_(hidden_TH) if fresh_TH.dtype == hidden_TH.dtype else fresh_TH + hidden_TH


class Convolution(nn.Module):
    """A convolution of the first layer's input within each sequence: activated, added to the layer's output, normed."""

    def __init__(self, config: EncoderConfig, kind: FirstLayerConvolution) -> None:
        super().__init__()
        self.kernel = nn.Conv1d(config.hidden, config.hidden, kind.kernel, groups=kind.groups)
        self.reach = (kind.kernel - 1) // 2
        self.activation = ACTIVATIONS[kind.activation]
        self.norm = nn.LayerNorm(config.hidden, eps=config.norm.eps)
        self.dropout = Dropout(config.dropout.hidden)

    def forward(self, input_TH: Tensor, output_TH: Tensor, batch: Batch) -> Tensor:
        """Combine the first layer's input and output, (T, H) each, to (T, H)."""
        rows, width = input_TH.shape
        # Zeros between the sequences, as at the ends of a single text.
        places_T = torch.arange(rows, device=input_TH.device) + batch.sequence_T * self.reach
        spaced_PH = input_TH.new_zeros(rows + (batch.count - 1) * self.reach, width)
        spaced_HP = spaced_PH.index_copy(0, places_T, batch.blanked(input_TH)).t()
        convolved_HP = self.kernel(F.pad(spaced_HP, (self.reach, self.reach))[None])[0]
        convolved_TH = self.activation(self.dropout(convolved_HP.t().index_select(0, places_T)))
        normed_TH: Tensor = self.norm(output_TH + convolved_TH)
        return normed_TH


Step: TypeAlias = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""A layer as a function of the hidden states (T, H) and the query stream (M, H), if any."""


class Embedding(nn.Module):
    """Token, position and segment vectors, projection, norm and dropout, as configured."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, kind = config.embedding.width, config.embedding.projection
        self.tokens = EmbeddingTable(config.vocabulary, width)
        self.offset, rows = _position_rows(config.positions)
        self.positions = EmbeddingTable(rows, width) if rows else None
        self.types = EmbeddingTable(config.embedding.types, width) if config.embedding.types else None
        early, late = isinstance(kind, ProjectedBeforeNorm), isinstance(kind, ProjectedAfterNorm)
        self.early_projection = Linear(width, config.hidden, bias=False) if early else None
        normed = config.hidden if early else width
        self.norm = (
            nn.LayerNorm(normed, eps=config.norm.eps, bias=config.norm.bias) if config.embedding.normed else None
        )
        # Used only by the query stream of permutation language modelling.
        self.blank = nn.Parameter(torch.zeros(width)) if config.embedding.blank else None
        self.dropout = Dropout(config.dropout.embedding)
        self.projection = Linear(width, config.hidden) if late else None

    def blanks(self, count: int) -> Tensor:
        """Return the initial hidden states (M, H) of a query stream with ``count`` targets."""
        if self.blank is None:
            raise UnsupportedConfig("this encoder has no query stream; only XLNet has one.")
        return self._finished(self.blank.expand(count, -1))

    def forward(self, batch: Batch) -> Tensor:
        """Return the input of the first layer (T, H)."""
        embedded_TE = self.tokens(batch.ids_T)
        if self.positions is not None:
            embedded_TE = embedded_TE + self.positions(batch.positions_T + self.offset)
        if self.types is not None:
            embedded_TE = embedded_TE + self.types(batch.types_T)
        return self._finished(embedded_TE)

    def _finished(self, embedded_TE: Tensor) -> Tensor:
        for step in (self.early_projection, self.norm, self.dropout, self.projection):
            embedded_TE = embedded_TE if step is None else step(embedded_TE)
        hidden_TH: Tensor = embedded_TE
        return hidden_TH


def _position_rows(positions: Positions) -> tuple[int, int]:
    """Return (row of position 0, number of rows) of the table of absolute positions; (0, 0) without a table."""
    match positions:
        case AbsolutePositions(count=count, offset=offset):
            return offset, count + offset
        case DisentangledPositions(count=count, absolute=True):
            return 0, count
        case _:
            return 0, 0


class Encoder(nn.Module):
    """Embedding and L layers over packed tokens.

    Weights start as in BERT: matrices normal with standard deviation `initializer_range`, biases zero, norms the
    identity. A batch runs through ``layers[index]`` for each index in `steps`; `inner` steps in a row form one layer.
    """

    checkpointing = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        order = layer_order(config)
        self.config = config
        self.steps, self.inner = tuple(index for step in order for index in step), len(order[0])
        self.embedding = Embedding(config)
        self.positions = shared_positions(config)
        layer = PostNormLayer if isinstance(config.norm, PostNorm) else PreNormLayer
        self.layers = nn.ModuleList(layer(config, index) for index in range(1 + max(self.steps)))
        kind = config.convolution
        self.convolution = Convolution(config, kind) if isinstance(kind, FirstLayerConvolution) else None
        self.final_norm = norm(config) if isinstance(config.norm, PreNorm) else nn.Identity()
        self.dropout = Dropout(config.dropout.output)
        initialize(self, config.initializer_range)

    def queries(self, rows_M: Tensor, counts: tuple[int, ...], order_T: Tensor) -> QueryStream:
        """Return a query stream; see `QueryStream` for the arguments."""
        return QueryStream(self.embedding.blanks(len(rows_M)), rows_M, counts, order_T)

    def forward(
        self,
        batch: Batch,
        *,
        hidden_TH: Tensor | None = None,
        rows: Rows = ALL_ROWS,
        backend: str | None = None,
        record: Recorder | None = None,
        queries: Queries | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """Return the last hidden states.

        Args:
            batch: The batch.
            hidden_TH: Input of the first layer. Default: ``encoder.embedding(batch)``.
            rows: Rows of the packed batch to return; the last layer skips as much work as it can for all others.
            backend: Name of the attention backend. Default: the fastest that supports the call.
            record: Receives the hidden states of all layers and, if requested, the attention weights.
            queries: A query stream or mask decoding. If given, its states are returned and ``rows`` is ignored.
            memory: Cached hidden states of the tokens before each sequence, see `Memory`.

        Returns:
            (T, H) for all rows, (B, H) for first or last tokens, (M, H) for selected rows or queries.
        """
        if hidden_TH is None:
            hidden_TH = self.embedding(batch)
        recurrence = None if memory is None else Recurrence.of(memory, batch, len(self.steps))
        targets = None if queries is None else targets_of(queries, batch, recurrence)
        joined = batch if recurrence is None else recurrence.batch
        shared = None if self.positions is None else self.positions(joined, hidden_TH.dtype)
        wants_attentions = record is not None and record.wants_attentions
        run = Run(joined, shared, backend, record, wants_attentions, targets)
        # Some families' last layer cannot be exported to a graph for selected rows only.
        computed = rows if isinstance(batch, Packed) or isinstance(rows, NoRows) else ALL_ROWS
        recomputes = self.checkpointing and torch.is_grad_enabled() and not wants_attentions
        queries_MH = queries.hidden_MH if isinstance(queries, QueryStream) else None
        last = len(self.steps) - 1
        for place in range(last + 1):
            if record is not None and place % self.inner == 0:
                record.hidden_states.append(hidden_TH)
            if place == last and isinstance(queries, MaskDecoding):
                queries_MH = self._decoded(hidden_TH, queries, run, recurrence)
                break
            read = ALL_ROWS if place < last else computed if queries_MH is None else NO_ROWS
            layer = self.layers[self.steps[place]]
            step: Step = partial(layer, run=run, rows=read)
            if recurrence is not None or (place == 0 and self.convolution is not None):
                step = self._wider_step(place, batch, run, read, recurrence)
            if recomputes and place < last:
                hidden_TH, queries_MH = checkpointed(step, hidden_TH, queries_MH)
            else:
                hidden_TH, queries_MH = step(hidden_TH, queries_MH)
        output_TH: Tensor = self.dropout(self.final_norm(hidden_TH if queries_MH is None else queries_MH))
        if record is not None:
            record.hidden_states.append(output_TH)
        return output_TH if computed is rows else select(output_TH, rows, batch)

    def _wider_step(self, place: int, batch: Batch, run: Run, rows: Rows, recurrence: Recurrence | None) -> Step:
        """Return a function that runs one layer that reads a memory of earlier tokens, has a convolution, or both."""
        layer, beside = self.layers[self.steps[place]], self.convolution if place == 0 else None

        def step(hidden_TH: Tensor, queries_MH: Tensor | None) -> tuple[Tensor, Tensor | None]:
            # The convolution needs all rows of the first layer's output.
            computed = rows if beside is None else ALL_ROWS
            if recurrence is None:
                output_TH, queries_MH = layer(hidden_TH, queries_MH, run, computed)
            else:
                joined_UH = recurrence.joined(hidden_TH, place)
                output_TH, queries_MH = layer(joined_UH, queries_MH, run, recurrence.rows(computed))
            if beside is not None:
                output_TH = select(beside(hidden_TH, output_TH, batch), rows, batch)
            return output_TH, queries_MH

        return step

    def _decoded(self, hidden_TH: Tensor, queries: MaskDecoding, run: Run, recurrence: Recurrence | None) -> Tensor:
        """Return the states (M, H) after applying the last layer to the queries repeatedly."""
        queries_MH: Tensor = hidden_TH[queries.rows_M] + queries.added_MH
        if recurrence is not None:
            hidden_TH = recurrence.joined(hidden_TH, len(self.steps) - 1)
        for _ in range(queries.times):
            _, queries_MH = self.layers[self.steps[-1]](hidden_TH, queries_MH, run, NO_ROWS)
        return queries_MH


def linear_weights(encoder: Encoder) -> dict[str, nn.Parameter]:
    """Return the weights of all linear maps in an encoder's layers, by name."""
    parts = encoder.layers.named_modules(prefix="layers")
    return {
        f"{name}.weight": encoder.get_parameter(f"{name}.weight")
        for name, part in parts
        if isinstance(part, Linear | QKV)
    }


@contextmanager
def activation_checkpointing(module: nn.Module) -> Iterator[None]:
    """Within the block, make all encoders in a module keep only each layer's input for the backward pass.

    The backward pass recomputes a layer when it needs the layer's activations. It starts with the last layer, which
    therefore keeps everything.
    """
    encoders = [part for part in module.modules() if isinstance(part, Encoder) and not part.checkpointing]
    for each in encoders:
        each.checkpointing = True
    try:
        yield
    finally:
        for each in encoders:
            del each.checkpointing


def layer_order(config: EncoderConfig) -> tuple[tuple[int, ...], ...]:
    """Return for each of the L layers the indices in ``Encoder.layers`` that it applies one after the other.

    >>> # 4 layers in 2 shared groups: layer_order(config) == ((0,), (0,), (1,), (1,))
    """
    if isinstance(config.sharing, SharedGroups):
        groups, inner = config.sharing.groups, config.sharing.inner
        return tuple(
            tuple(group * inner + index for index in range(inner))
            for group in (step * groups // config.layers for step in range(config.layers))
        )
    return tuple((index,) for index in range(config.layers))


def initialize(module: nn.Module, spread: float) -> None:
    """Draw matrices from a normal distribution with standard deviation ``spread``, zero the biases, reset the norms.

    A module on the meta device is left as it is: it has no values, and drawing them would import sympy.
    """
    if any(parameter.is_meta for parameter in module.parameters()):
        return
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding | nn.Conv1d | QKV):
            nn.init.normal_(part.weight, std=spread)
        if isinstance(part, TransformerXL):
            nn.init.normal_(part.segments, std=spread)
        if isinstance(part, Embedding) and part.blank is not None:
            nn.init.normal_(part.blank, std=spread)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
        for name, parameter in part.named_parameters(recurse=False):
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
