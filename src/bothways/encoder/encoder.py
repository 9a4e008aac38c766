"""The encoder: one module, which the configurations of all families describe.

Shapes: B sequences, T packed tokens, H hidden, E embedding width, L layers, M selected rows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from bothways.encoder.attention import Recorder, Run
from bothways.encoder.batch import ALL_ROWS, NO_ROWS, Batch, NoRows, Rows, select
from bothways.encoder.config import (
    AbsolutePositions,
    DisentangledPositions,
    EncoderConfig,
    Positions,
    PreNorm,
    ProjectedAfterNorm,
    ProjectedBeforeNorm,
    SharedGroups,
)
from bothways.encoder.layer import convolution, layer
from bothways.encoder.linear import QKV, Linear
from bothways.encoder.modules import Dropout, EmbeddingTable, norm
from bothways.encoder.positions import TransformerXL, shared_positions
from bothways.encoder.recomputation import checkpointed
from bothways.encoder.streams import MaskDecoding, Memory, Queries, QueryStream, Recurrence, Targets, unpadded
from bothways.errors import UnsupportedConfig
from bothways.packing import Packed

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
        # Read by the query stream of permutation language modelling only.
        self.blank = nn.Parameter(torch.zeros(width)) if config.embedding.blank else None
        self.dropout = Dropout(config.dropout.embedding)
        self.projection = Linear(width, config.hidden) if late else None

    def blanks(self, count: int) -> Tensor:
        """Return the first vectors (M, H) of a query stream."""
        if self.blank is None:
            raise UnsupportedConfig("this encoder has no vector that a query stream begins with; XLNet has one.")
        return self._finished(self.blank.expand(count, -1))

    def forward(self, batch: Batch) -> Tensor:
        """Return the first hidden states (T, H)."""
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
    """Return the row of position 0 in the table of absolute positions, and the number of rows; 0 without a table."""
    match positions:
        case AbsolutePositions(count=count, offset=offset):
            return offset, count + offset
        case DisentangledPositions(count=count, absolute=True):
            return 0, count
        case _:
            return 0, 0


class Encoder(nn.Module):
    """Embedding and L layers over packed tokens.

    Weights start as in BERT: normal with the configured spread for matrices, zero biases, identity norms.

    Attributes:
        steps: Indices in ``layers`` of the layers that a batch runs through, in order.
        inner: Number of layers inside each of the L steps.
        checkpointing: Whether the backward pass computes each layer but the last again; see `activation_checkpointing`.
    """

    checkpointing = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        order = layer_order(config)
        self.config = config
        self.steps, self.inner = tuple(index for step in order for index in step), len(order[0])
        self.embedding = Embedding(config)
        self.positions = shared_positions(config)
        self.layers = nn.ModuleList(layer(config, index) for index in range(1 + max(self.steps)))
        self.convolution = convolution(config)
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
            hidden_TH: First hidden states; by default those of ``encoder.embedding(batch)``.
            rows: Selected rows of the packed batch; the last layer computes only these to the end.
            backend: Name of the required attention backend; by default the best that supports the call.
            record: Receives the hidden states of all layers and, if requested, the attention weights.
            queries: A query stream, or tokens to decode, whose states are then returned; ``rows`` is ignored.
            memory: Hidden states of the tokens before each sequence.

        Returns:
            (T, H), or (B, H) or (M, H) for first or last tokens or selected rows; (M, H) for queries.

        Raises:
            InvalidInput: The memory belongs to another batch or encoder.
            UnsupportedAttention: The named backend does not support this call, or gives no attention weights to record.
        """
        if hidden_TH is None:
            hidden_TH = self.embedding(batch)
        recurrence = None if memory is None else Recurrence.of(memory, batch, len(self.steps))
        run = self._run(batch, hidden_TH.dtype, backend, record, queries, recurrence)
        # In a graph, not every family's last layer can be recorded for some rows alone.
        computed = rows if isinstance(batch, Packed) or isinstance(rows, NoRows) else ALL_ROWS
        recomputes = self.checkpointing and torch.is_grad_enabled() and not run.wants_attentions
        queries_MH = queries.hidden_MH if isinstance(queries, QueryStream) else None
        last = len(self.steps) - 1
        for place in range(last + 1):
            if record is not None and place % self.inner == 0:
                record.hidden_states.append(hidden_TH)
            if place == last and isinstance(queries, MaskDecoding):
                queries_MH = self._decoded(hidden_TH, queries, run, recurrence)
                break
            read = ALL_ROWS if place < last else computed if queries_MH is None else NO_ROWS
            step = self._step(place, batch, run, read, recurrence)
            if recomputes and place < last:
                hidden_TH, queries_MH = checkpointed(step, hidden_TH, queries_MH)
            else:
                hidden_TH, queries_MH = step(hidden_TH, queries_MH)
        output_TH: Tensor = self.dropout(self.final_norm(hidden_TH if queries_MH is None else queries_MH))
        if record is not None:
            record.hidden_states.append(output_TH)
        return output_TH if computed is rows else select(output_TH, rows, batch)

    def _run(
        self,
        batch: Batch,
        dtype: torch.dtype,
        backend: str | None,
        record: Recorder | None,
        queries: Queries | None,
        recurrence: Recurrence | None,
    ) -> Run:
        if recurrence is not None:
            targets = None if queries is None else recurrence.targets(queries)
            batch = recurrence.batch
        elif queries is not None:
            targets = Targets.of(queries.rows_M, queries.counts, queries.order_T, unpadded(batch))
        else:
            targets = None
        shared = None if self.positions is None else self.positions(batch, dtype)
        wants_attentions = record is not None and record.wants_attentions
        return Run(batch, shared, backend, record, wants_attentions, targets)

    def _step(self, place: int, batch: Batch, run: Run, rows: Rows, recurrence: Recurrence | None) -> Step:
        """Return a layer as a function of hidden states and query stream, with memory and convolution, if any."""
        layer, beside = self.layers[self.steps[place]], self.convolution if place == 0 else None
        if recurrence is None and beside is None:
            return partial(layer, run=run, rows=rows)

        def step(hidden_TH: Tensor, queries_MH: Tensor | None) -> tuple[Tensor, Tensor | None]:
            # The convolution of the first layer's output reads all of its rows.
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
        """Return the states (M, H) of the last layer's repeated application."""
        queries_MH: Tensor = hidden_TH[queries.rows_M] + queries.added_MH
        if recurrence is not None:
            hidden_TH = recurrence.joined(hidden_TH, len(self.steps) - 1)
        for _ in range(queries.times):
            _, queries_MH = self.layers[self.steps[-1]](hidden_TH, queries_MH, run, NO_ROWS)
        return queries_MH


def linear_weights(encoder: Encoder) -> dict[str, nn.Parameter]:
    """Return the weights of the linear maps of an encoder's layers by their names."""
    parts = encoder.layers.named_modules(prefix="layers")
    return {
        f"{name}.weight": encoder.get_parameter(f"{name}.weight")
        for name, part in parts
        if isinstance(part, Linear | QKV)
    }


@contextmanager
def activation_checkpointing(module: nn.Module) -> Iterator[None]:
    """Have all encoders in a module keep only each layer's input for the backward pass while the block runs.

    The backward pass computes a layer once more before it needs its activations. It starts with the last layer, which
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
    """Return the index of the weights of each of the L steps.

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
    """Draw matrices from a normal distribution with standard deviation ``spread``; zero biases, identity norms.

    Weights on the meta device have no values, and drawing them would import a symbolic algebra system.
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


def count_parameters(config: EncoderConfig) -> int:
    """Count the parameters of the encoder without its pooler, on a model without memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Encoder(config).parameters())
