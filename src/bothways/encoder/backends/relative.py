"""Attention whose scores depend on the distance of query and key (DeBERTa, XLNet), with its own backward pass.

Each query is multiplied by the vectors of all distances; the scores of pairs are then read through a view whose rows
are shifted against each other, so no n x n index is ever built. Keys are stored in reverse order: the distance of
query i to the key stored at j is then ``i + j - (n - 1)``, which grows along rows and columns, as a view's strides do.
Long sequences are computed head by head in blocks of rows: a block is multiplied only by its possible distances, and a
head's scores stay in the cache.

Shapes: T packed tokens, N heads, D head width, S longest sequence, W = 2 S - 1 distances; in one tile: h heads, n
tokens, G blocks of r rows (over all heads), w = n + r - 1 possible distances of r rows, R = n filled to whole blocks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bothways.encoder.backends.basic import AttentionCall, AttentionRequest
from bothways.encoder.modules import FunctionContext, kept_scale, mark_dropped
from bothways.packing import Packed

# Up to this length a sequence is computed with all heads at once and in one block.
_SHORT = 128
# Rows per block of a longer sequence.
_BLOCK = 64


class Skewed:
    """Attention with distance-dependent scores, read through shifted views (see the module)."""

    name = "skewed"

    def refusal(self, request: AttentionRequest) -> str | None:
        return request.unmet(relative=True, ordered=True) or (
            None if request.relative else "it supports only scores that depend on distances"
        )

    def attend(self, call: AttentionCall) -> Tensor:
        relative = call.relative
        assert relative is not None  # checked by `refusal`
        q_TND = call.qkv_T3ND[:, 0]
        shifted_TND = None if relative.shift_ND is None else q_TND + relative.shift_ND.to(q_TND.dtype)
        options = _Options(call.packed.lengths, call.scale, call.dropout)
        return _attention(
            call.qkv_T3ND,
            shifted_TND,
            relative.keys_WND,
            relative.queries_WND,
            relative.gain_TN,
            call.packed.types_T,
            call.order_T,
            call.packed.once(_reversed_rows),
            options,
        )


@dataclass(frozen=True, slots=True)
class _Options:
    lengths: tuple[int, ...]
    scale: float
    dropout: float


@dataclass(frozen=True, slots=True)
class _Tile:
    """One or more heads of one sequence, computed together.

    The sequence is the n rows of the packed batch from `start` on. `block` is r, which is n if there are several heads.
    """

    start: int
    length: int
    heads: slice
    block: int

    @property
    def whole(self) -> int:
        return -(-self.length // self.block) * self.block

    def rows(self, values_NTD: Tensor) -> Tensor:
        return values_NTD[self.heads, self.start : self.start + self.length]

    def whole_rows(self, values_NTD: Tensor) -> Tensor:
        """Return the rows in whole blocks, (h, R, D); the last may include later rows, whose results are ignored."""
        return values_NTD[self.heads, self.start : self.start + self.whole]

    def blocks(self, values_NTD: Tensor) -> Tensor:
        """Return the rows in blocks: (G, r, D)."""
        return self.whole_rows(values_NTD).reshape(-1, self.block, values_NTD.shape[-1])

    def distances(self, table_NWD: Tensor) -> Tensor:
        """Return the vectors of each block's possible distances, (G, w, D), as overlapping views of the table."""
        table = table_NWD[self.heads]
        # The table has `_BLOCK` more rows after its W rows.
        first = (table.shape[1] - _BLOCK) // 2 - (self.length - 1)
        if self.whole == self.block:
            return table[:, first : first + 2 * self.length - 1]
        size = (self.whole // self.block, self.length + self.block - 1, table.shape[2])
        steps = (self.block * table.stride(1), table.stride(1), table.stride(2))
        return table.as_strided(size, steps, table.storage_offset() + first * table.stride(1))

    def add_to_distances(self, table_NWD: Tensor, values_GwD: Tensor) -> None:
        """Add values to the table's rows that `distances` returns; overlaps add up."""
        views = self.distances(table_NWD)
        if self.whole == self.block:
            views += values_GwD
        else:
            for view_wD, values_wD in zip(views, values_GwD, strict=True):
                view_wD += values_wD

    def read(self, products_Grw: Tensor) -> Tensor:
        """Return a view of the products of rows and distances with one entry for each pair of tokens, (G, r, n)."""
        count, rows, width = products_Grw.shape
        return products_Grw.as_strided((count, rows, self.length), (rows * width, width + 1, 1))

    def pairs(self, products_Grw: Tensor) -> Tensor:
        """Return the entries of `read` as a contiguous tensor, (h, R, n)."""
        return self.read(products_Grw).contiguous().view(-1, self.whole, self.length)

    def write(self, pairs_hnn: Tensor) -> Tensor:
        """Invert `read`: return (G, r, w), with zeros at entries that belong to no pair."""
        heads, _, length = pairs_hnn.shape
        blocks_Grw = pairs_hnn.new_zeros(heads * self.whole // self.block, self.block, length + self.block - 1)
        view_Grn = self.read(blocks_Grw)
        if self.whole == length:
            view_Grn.copy_(pairs_hnn.reshape(-1, self.block, length))
        else:
            full = length // self.block
            view_Grn[:full].copy_(pairs_hnn[0, : full * self.block].view(-1, self.block, length))
            view_Grn[full, : length - full * self.block].copy_(pairs_hnn[0, full * self.block :])
        return blocks_Grw


def _tiles(lengths: tuple[int, ...], heads: int) -> Iterator[_Tile]:
    start = 0
    for length in lengths:
        if length <= _SHORT:
            yield _Tile(start, length, slice(0, heads), length)
        else:
            for head in range(heads):
                yield _Tile(start, length, slice(head, head + 1), _BLOCK)
        start += length


class _Context(FunctionContext, Protocol):
    terms: "_Terms"
    options: _Options
    weights: list[Tensor]
    reverse_T: Tensor


class _Attention(torch.autograd.Function):
    """Attention over packed queries, keys and values; returns the context (T, N, D)."""

    @staticmethod
    def forward(
        ctx: _Context,
        qkv_T3ND: Tensor,
        shifted_TND: Tensor | None,
        keys_WND: Tensor | None,
        queries_WND: Tensor | None,
        gain_TN: Tensor | None,
        types_T: Tensor,
        order_T: Tensor | None,
        reverse_T: Tensor,
        options: _Options,
    ) -> Tensor:
        # The queries are copied too, which costs nothing: contiguous rows are copied several times as fast.
        _, k_TND, v_TND = qkv_T3ND.contiguous().index_select(0, reverse_T).unbind(1)
        q_TND = qkv_T3ND[:, 0]
        terms = _Terms(
            q=_by_head(q_TND * options.scale),
            k=_by_head(k_TND),
            v=_by_head(v_TND),
            shifted=None if shifted_TND is None else _by_head(shifted_TND * options.scale),
            keys=None if keys_WND is None else _by_head(keys_WND),
            queries=None if queries_WND is None else _by_head(queries_WND * options.scale),
            gain=None if gain_TN is None else (gain_TN * options.scale).t(),
            types=types_T,
            order=order_T,
        )
        wanted = any(ctx.needs_input_grad)
        context_TND = torch.empty_like(q_TND, memory_format=torch.contiguous_format)
        weights = []
        for tile in _tiles(options.lengths, q_TND.shape[1]):
            weights_hnn = terms.scores(tile)
            torch.softmax(weights_hnn, -1, out=weights_hnn)
            if options.dropout:
                mark_dropped(weights_hnn, options.dropout)
            rows = slice(tile.start, tile.start + tile.length)
            context_TND[rows, tile.heads] = torch.bmm(_kept(weights_hnn, options), tile.rows(terms.v)).transpose(0, 1)
            if wanted:
                weights.append(weights_hnn)
        if options.dropout:
            context_TND *= kept_scale(context_TND, options.dropout)
        if wanted:
            ctx.terms, ctx.options, ctx.weights, ctx.reverse_T = terms, options, weights, reverse_T
            ctx.save_for_backward(context_TND)
        return context_TND

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient_TND: Tensor) -> tuple[Tensor | None, ...]:
        terms, options, reverse_T = ctx.terms, ctx.options, ctx.reverse_T
        (context_TND,) = ctx.saved_tensors
        gradients = terms.zeros()
        agreement_NT = (gradient_TND * context_TND).sum(-1).t()
        if options.dropout:
            gradient_TND = gradient_TND * kept_scale(gradient_TND, options.dropout)
        gradient_NTD = gradient_TND.transpose(0, 1)
        tiles = _tiles(options.lengths, context_TND.shape[1])
        for tile, weights_hnn in zip(tiles, ctx.weights, strict=True):
            out_hnD = tile.rows(gradient_NTD)
            tile.rows(gradients.v).copy_(torch.bmm(_kept(weights_hnn, options).transpose(1, 2), out_hnD))
            scores_hnn = torch.bmm(out_hnD, tile.rows(terms.v).transpose(1, 2))
            if options.dropout:
                scores_hnn = torch.ops.aten.threshold_backward(scores_hnn, weights_hnn, 0)
                weights_hnn.abs_()
            scores_hnn.sub_(tile.rows(agreement_NT[..., None])).mul_(weights_hnn)
            terms.add_gradients(tile, scores_hnn, gradients)
        del ctx.weights, ctx.terms
        return gradients.of_inputs(options, reverse_T, len(context_TND))


_attention: Callable[..., Tensor] = _Attention.apply


@dataclass(slots=True)
class _Terms:
    """Inputs of the attention scores, heads first; queries are scaled, keys and values in reverse order.

    A second instance holds the gradients.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    shifted: Tensor | None
    keys: Tensor | None
    queries: Tensor | None
    gain: Tensor | None
    types: Tensor | None
    order: Tensor | None

    def scores(self, tile: _Tile) -> Tensor:
        q_hRD, k_hDn = tile.whole_rows(self.q), tile.rows(self.k).transpose(1, 2)
        if self.keys is None:
            scores_hRn = torch.bmm(q_hRD, k_hDn)
        else:
            asking = self.q if self.shifted is None else self.shifted
            products_Grw = torch.bmm(tile.blocks(asking), tile.distances(self.keys).transpose(1, 2))
            scores_hRn = tile.pairs(products_Grw)
            scores_hRn.baddbmm_(q_hRD, k_hDn)
        scores_hnn = scores_hRn[:, : tile.length]
        if self.queries is not None:
            products_Grw = torch.bmm(tile.blocks(self.k), tile.distances(self.queries).transpose(1, 2))
            scores_hnn += _transposed(tile.pairs(products_Grw)[:, : tile.length])
        if self.gain is not None:
            scores_hnn += tile.rows(self.gain[..., None]) * self._differ(tile)
        if self.order is not None:
            order_n = self.order[tile.start : tile.start + tile.length]
            scores_hnn.masked_fill_(order_n[:, None] < order_n.flip(0), -torch.inf)
        return scores_hnn

    def add_gradients(self, tile: _Tile, scores_hnn: Tensor, into: "_Terms") -> None:
        """Add the gradients of a tile's inputs to ``into``, given the gradient of its scores."""
        tile.rows(into.q).add_(torch.bmm(scores_hnn, tile.rows(self.k)))
        transposed_hnn = scores_hnn.transpose(1, 2)
        tile.rows(into.k).add_(torch.bmm(transposed_hnn, tile.rows(self.q)))
        if self.keys is not None and into.keys is not None:
            asking, gradient = (self.q, into.q) if self.shifted is None else (self.shifted, into.shifted)
            self._add_product_gradients(tile, scores_hnn, asking, self.keys, gradient, into.keys)
        if self.queries is not None and into.queries is not None:
            self._add_product_gradients(tile, transposed_hnn, self.k, self.queries, into.k, into.queries)
        if into.gain is not None:
            tile.rows(into.gain[..., None]).copy_((scores_hnn * self._differ(tile)).sum(-1, keepdim=True))

    @staticmethod
    def _add_product_gradients(
        tile: _Tile,
        pairs_hnn: Tensor,
        rows_NTD: Tensor,
        table_NWD: Tensor,
        rows_gradient_NTD: Tensor | None,
        table_gradient_NWD: Tensor,
    ) -> None:
        """Add to the gradients of rows and distances, given the gradient of their products."""
        products_Grw = tile.write(pairs_hnn)
        found_hRD = torch.bmm(products_Grw, tile.distances(table_NWD)).view(len(pairs_hnn), tile.whole, -1)
        assert rows_gradient_NTD is not None  # a gradient exists for each input
        tile.rows(rows_gradient_NTD).add_(found_hRD[:, : tile.length])
        tile.add_to_distances(table_gradient_NWD, torch.bmm(products_Grw.transpose(1, 2), tile.blocks(rows_NTD)))

    def _differ(self, tile: _Tile) -> Tensor:
        """Return 1 for each query and key of different segments, else 0, (n, n)."""
        assert self.types is not None  # None only in the gradients
        types_n = self.types[tile.start : tile.start + tile.length]
        return (types_n[:, None] != types_n.flip(0)).to(self.q.dtype)

    def zeros(self) -> "_Terms":
        def like(value: Tensor | None) -> Tensor | None:
            return None if value is None else torch.zeros_like(value)

        shifted, keys, queries, gain = map(like, (self.shifted, self.keys, self.queries, self.gain))
        q, k, v = map(torch.zeros_like, (self.q, self.k, self.v))
        return _Terms(q, k, v, shifted, keys, queries, gain, types=None, order=None)

    def of_inputs(self, options: _Options, reverse_T: Tensor, rows: int) -> tuple[Tensor | None, ...]:
        """Return the gradients of `_Attention`'s inputs, which are unscaled and in the original order."""
        scale = options.scale

        def back(values: Tensor | None, count: int, factor: float = 1.0) -> Tensor | None:
            return None if values is None else values[:, :count].transpose(0, 1) * factor

        width = 2 * max(options.lengths) - 1
        q_TND = self.q[:, :rows].transpose(0, 1) * scale
        k_TND, v_TND = (values[:, :rows].transpose(0, 1).contiguous() for values in (self.k, self.v))
        qkv_T3ND = torch.stack([q_TND, k_TND.index_select(0, reverse_T), v_TND.index_select(0, reverse_T)], 1)
        gain_TN = None if self.gain is None else self.gain.t() * scale
        tables = back(self.keys, width), back(self.queries, width, scale)
        return qkv_T3ND, back(self.shifted, rows, scale), *tables, gain_TN, None, None, None, None


def _kept(weights_hnn: Tensor, options: _Options) -> Tensor:
    """Set dropped weights, which are marked by a minus sign, to zero; kept weights are not scaled up."""
    return weights_hnn.relu() if options.dropout else weights_hnn


def _transposed(pairs_hnn: Tensor) -> Tensor:
    """Transpose the last two dimensions; a single matrix is copied, which torch does fast."""
    return pairs_hnn[0].t().contiguous()[None] if len(pairs_hnn) == 1 else pairs_hnn.transpose(1, 2)


def _by_head(values_TND: Tensor) -> Tensor:
    """Return a contiguous copy (N, T + block, D), with zeros after the last sequence for blocks that extend past it."""
    rows, heads, width = values_TND.shape
    dense_NTD = values_TND.new_empty(heads, rows + _BLOCK, width)
    dense_NTD[:, :rows] = values_TND.transpose(0, 1)
    dense_NTD[:, rows:] = 0.0
    return dense_NTD


def _reversed_rows(packed: Packed) -> Tensor:
    """Return the row indices that reverse each sequence of a packed batch."""
    ends_B = packed.first_tokens_B + packed.last_tokens_B
    return ends_B[packed.sequence_T] - torch.arange(len(packed.ids_T), device=ends_B.device)
