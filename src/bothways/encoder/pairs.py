"""The two texts of a pair, each read by itself, and what a head is told of them beside the pair as a whole.

A sentence embedder has learnt to read texts one by one and to make near vectors of those that mean the same; a pair is
to it a text like no other. So a head above it reads both (the comparison of two vectors: Reimers and Gurevych 2019,
arXiv:1908.10084).

Shapes: B pairs, T tokens of the pairs, H hidden.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bothways.encoder.batch import Batch, PaddedRows
from bothways.packing import Packed


def means(hidden_TH: Tensor, batch: Batch) -> Tensor:
    """Return the mean of each sequence's tokens (B, H)."""
    return (batch.sums(hidden_TH) / batch.lengths_B[:, None]).to(hidden_TH.dtype)


def compared_width(hidden: int) -> int:
    """Return the width of `compared`."""
    return 3 * hidden + 1


def compared(pairs_BH: Tensor, texts_2BH: Tensor) -> Tensor:
    """Return each pair's state at length 1, and differences, products and cosine of its texts' (B, 3 H + 1).

    Products of unit vectors are smaller than their differences by the root of H, by which they are scaled. The cosine,
    which tells most of few pairs, is scaled by 4, so that a penalty on weights holds it back less.

    Args:
        pairs_BH: States of the pairs.
        texts_2BH: States of all first texts, then of all second ones.
    """
    first_BH, second_BH = normalize(texts_2BH.float(), dim=-1).view(2, *pairs_BH.shape)
    products_BH = first_BH * second_BH
    parts = [
        normalize(pairs_BH.float(), dim=-1),
        (first_BH - second_BH).abs(),
        products_BH * products_BH.shape[-1] ** 0.5,
        4 * products_BH.sum(-1, keepdim=True),
    ]
    return torch.cat(parts, dim=-1).to(pairs_BH.dtype)


def texts_of_pairs(batch: Batch, start: int, separator: int) -> Batch:
    """Return a batch of 2 B texts, first and second of each pair in turn, as if each were read alone.

    A first text ends with its pair's first separator. The second begins at the last of the separators that follow each
    other there (BERT has one, RoBERTa two), in whose place it has the token that a text begins with.

    Args:
        batch: The pairs.
        start: Id of the token that a text begins with.
        separator: Id of the token that it ends with.
    """
    separators_T, beyond = batch.ids_T == separator, batch.max_length
    ends_B = torch.minimum(_first(batch, separators_T, beyond), batch.lengths_B - 1)
    other_T = ~separators_T & (batch.positions_T > ends_B[batch.sequence_T])
    begins_B = torch.minimum(_first(batch, other_T, beyond), batch.lengths_B) - 1
    places_T = batch.positions_T - begins_B[batch.sequence_T]
    ids_T = torch.where(places_T == 0, start, batch.ids_T)
    in_first_T, in_second_T = batch.positions_T <= ends_B[batch.sequence_T], places_T >= 0
    if isinstance(batch, PaddedRows):
        shape = batch.mask_BS.shape
        masks = (batch.mask_BS & in_first_T.view(shape), batch.mask_BS & in_second_T.view(shape))
        return PaddedRows.of(torch.cat([batch.ids_T.view(shape), ids_T.view(shape)]), torch.cat(masks).long())
    lengths_2B = torch.cat([ends_B + 1, batch.lengths_B - begins_B])
    texts_T = torch.cat([batch.ids_T[in_first_T], ids_T[in_second_T]])
    starts = torch.cat([lengths_2B.new_zeros(1), lengths_2B.cumsum(0)]).int()
    positions_T = torch.cat([batch.positions_T[in_first_T], places_T[in_second_T]])
    return Packed(texts_T, torch.zeros_like(texts_T), positions_T, starts, tuple(lengths_2B.tolist()))


def _first(batch: Batch, chosen_T: Tensor, beyond: int) -> Tensor:
    """Return the first of the chosen places in each sequence, or ``beyond`` (B)."""
    return batch.padded(torch.where(chosen_T, batch.positions_T, beyond), fill=beyond).amin(1).long()
