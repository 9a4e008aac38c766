"""The one encoder that every family is a configuration of.

Shapes: B sequences, T packed tokens, H hidden, L layers, M selected rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from bothways.encoder.axes import PreNorm, SharedGroups
from bothways.encoder.batch import Batch, PaddedRows
from bothways.encoder.config import EncoderConfig
from bothways.encoder.dropout import Dropout
from bothways.encoder.embeddings import Embedding
from bothways.encoder.layer import Convolution, Layer, convolution, layer, norm
from bothways.encoder.linear import Linear
from bothways.encoder.memory import Memory, Segment, segment_of
from bothways.encoder.positions import SharedPositions, TransformerXL, shared_positions
from bothways.encoder.projection import QKV
from bothways.encoder.query_stream import MaskDecoding, Queries, QueryStream
from bothways.encoder.recomputation import checkpointed
from bothways.encoder.rows import ALL_ROWS, NO_ROWS, AllRows, NoRows, Rows, select
from bothways.encoder.run import Recorder, Run


class Layers(nn.ModuleList):
    """The layers of an encoder, from the embedding to the last hidden states.

    Args:
        config: The encoder.
        positions: What all layers share of the positions.
        convolution: Beside the first layer, if there is one.
        final_norm: Behind the last layer.
        dropout: Behind the final norm.

    Attributes:
        checkpointing: Whether the backward pass computes each layer but the last again; see `activation_checkpointing`.
    """

    checkpointing = False

    def __init__(
        self,
        config: EncoderConfig,
        positions: SharedPositions,
        convolution: Convolution | None,
        final_norm: nn.Module,
        dropout: nn.Module,
    ) -> None:
        order = layer_order(config)
        super().__init__(layer(config, index) for index in range(1 + max(index for step in order for index in step)))
        self.steps, self.inner = tuple(index for step in order for index in step), len(order[0])
        # In tuples, so that their weights keep the names that they have as parts of the encoder.
        self._around = positions, convolution
        self._finish = final_norm, dropout

    def forward(
        self,
        hidden_TH: Tensor,
        batch: Batch,
        *,
        rows: Rows = ALL_ROWS,
        backend: str | None = None,
        record: Recorder | None = None,
        queries: Queries | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """Return the last hidden states.

        Args:
            hidden_TH: First hidden states, as `Encoder.embed` gives them or altered.
            batch: The batch that they are of.
            rows: See `Encoder.forward`.
            backend: See `Encoder.forward`.
            record: See `Encoder.forward`.
            queries: A query stream, or tokens to decode, whose states are then returned; ``rows`` are not read.
            memory: Hidden states of the tokens before each sequence.

        Returns:
            (T, H), or (B, H) or (M, H) for first or last tokens or selected rows; (M, H) for queries.

        Raises:
            InvalidInput: The memory is of another batch or encoder.
            UnsupportedAttention: The named backend cannot serve this call.
        """
        segment = segment_of(batch, memory, len(self.steps))
        targets = None if queries is None else segment.targets(queries)
        shared = self._around[0](segment.batch, hidden_TH.dtype)
        run = Run(segment.batch, shared, backend, record, targets)
        hidden_TH = self._all_steps(hidden_TH, queries, segment, run, rows)
        for step in self._finish:
            hidden_TH = step(hidden_TH)
        if record is not None:
            record.hidden_states.append(hidden_TH)
        return hidden_TH

    def _all_steps(self, hidden_TH: Tensor, queries: Queries | None, segment: Segment, run: Run, rows: Rows) -> Tensor:
        """Return the states behind the last layer: the selected rows, or the queries' (M, H) if there are any."""
        queries_MH = queries.hidden_MH if isinstance(queries, QueryStream) else None
        for place in range(len(self.steps)):
            if run.record is not None and place % self.inner == 0:
                run.record.hidden_states.append(hidden_TH)
            last = place == len(self.steps) - 1
            read = ALL_ROWS if not last else rows if queries_MH is None else NO_ROWS
            step = partial(self._step, place, segment, run, read)
            if last and isinstance(queries, MaskDecoding):
                queries_MH = self._decoded(hidden_TH, queries, segment, run)
            elif last or not self._recomputes(run):
                hidden_TH, queries_MH = step(hidden_TH, queries_MH)
            else:
                hidden_TH, queries_MH = checkpointed(step, hidden_TH, queries_MH)
        return hidden_TH if queries_MH is None else queries_MH

    def _recomputes(self, run: Run) -> bool:
        """Test whether layers are checkpointed; a second run would record attention weights twice."""
        return self.checkpointing and torch.is_grad_enabled() and not run.wants_attentions

    def _step(
        self, place: int, segment: Segment, run: Run, rows: Rows, hidden_TH: Tensor, queries_MH: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the selected rows of the states behind a layer, and those of the query stream if there is one."""
        step, beside = cast("Layer", self[self.steps[place]]), self._around[1] if place == 0 else None
        # What convolves the first layer's output reads all of its rows.
        computed = segment.rows(rows if beside is None else ALL_ROWS)
        joined_UH = segment.joined(hidden_TH, place)
        if queries_MH is None:
            output_TH = step(joined_UH, run, computed)
        else:
            output_TH, queries_MH = step.two_streams(joined_UH, queries_MH, run, computed)
        if beside is not None:
            output_TH = select(beside(hidden_TH, output_TH, segment.own), rows, segment.own)
        return output_TH, queries_MH

    def _decoded(self, hidden_TH: Tensor, queries: MaskDecoding, segment: Segment, run: Run) -> Tensor:
        """Return the states (M, H) of the last layer's repeated application."""
        step, joined_UH = cast("Layer", self[self.steps[-1]]), segment.joined(hidden_TH, len(self.steps) - 1)
        queries_MH = hidden_TH[queries.rows_M] + queries.added_MH
        for _ in range(queries.times):
            _, queries_MH = step.two_streams(joined_UH, queries_MH, run, NO_ROWS)
        return queries_MH


class Encoder(nn.Module):
    """Embedding and L layers over packed tokens.

    Weights start as in BERT: normal with the configured spread for matrices, zero biases, identity norms.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.positions = shared_positions(config)
        beside, dropout = convolution(config), Dropout(config.dropout.output)
        final_norm = norm(config) if isinstance(config.norm, PreNorm) else nn.Identity()
        self.layers = Layers(config, self.positions, beside, final_norm, dropout)
        self.convolution, self.final_norm, self.dropout = beside, final_norm, dropout
        initialize(self, config.initializer_range)

    def embed(self, batch: Batch) -> Tensor:
        """Return the first hidden states (T, H), the input of `layers`."""
        hidden_TH: Tensor = self.embedding(batch)
        return hidden_TH

    def queries(self, rows_M: Tensor, counts: tuple[int, ...], order_T: Tensor) -> QueryStream:
        """Return a query stream, an input of `layers`; see `QueryStream` for the arguments.

        Raises:
            UnsupportedConfig: The encoder has no vector that it begins with.
        """
        return QueryStream(self.embedding.blanks(len(rows_M)), rows_M, counts, order_T)

    def forward(
        self,
        batch: Batch,
        *,
        rows: Rows = ALL_ROWS,
        backend: str | None = None,
        record: Recorder | None = None,
    ) -> Tensor:
        """Return the last hidden states: ``encoder.layers(encoder.embed(batch), batch, ...)``.

        Args:
            batch: The batch.
            rows: Rows of the packed batch that are read afterwards; the last layer computes only those to the end.
            backend: Name of the attention backend to hold to; the best that serves the call when left out.
            record: Keeps the hidden states of all layers and, where it wants them, the attention weights.

        Returns:
            (T, H), or (B, H) or (M, H) for first or last tokens or selected rows.

        Raises:
            UnsupportedAttention: The named backend cannot serve this call, or has no attention weights to record.
        """
        if isinstance(batch, PaddedRows) and not isinstance(rows, AllRows | NoRows):
            # Not every family's last layer can be recorded for some rows alone.
            whole_TH: Tensor = self.layers(self.embed(batch), batch, backend=backend, record=record)
            return select(whole_TH, rows, batch)
        output: Tensor = self.layers(self.embed(batch), batch, rows=rows, backend=backend, record=record)
        return output


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
    """Have all encoders in a module keep each layer's input alone for the backward pass while the block runs.

    The backward pass computes a layer once more before it needs what is inside. The last layer is needed at once, so it
    keeps everything.
    """
    encoders = [part for part in module.modules() if isinstance(part, Layers) and not part.checkpointing]
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

    Weights on the meta device have no values, and drawing them all the same would import a symbolic algebra system.
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
