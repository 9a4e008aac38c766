"""Masked language modelling, alone or with next sentence or sentence order prediction.

Logits over the vocabulary and their cross-entropy are computed for one chunk of positions at a time. The logits of all
chosen positions would be the largest tensors of a training: 1,229 positions with BERT's vocabulary take 143 MiB, and
cross-entropy makes three copies. The forward pass computes the logits, losses and gradients of one chunk before the
next (as Cut Cross-Entropy, Wijmans et al. 2024, arXiv:2411.09009, and Liger Kernel, Hsu et al. 2024,
arXiv:2410.10989, do).

Shapes: N texts, W windows, P sequences with two segments, M chosen positions, m those of a chunk, H hidden, E embedding
width, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bothways.data.windows import WindowStore
from bothways.encoder import Encoder, EncoderConfig, MaskedLMHead
from bothways.encoder.config import DisentangledPositions
from bothways.encoder.heads import ScoreHead
from bothways.encoder.linear import linear
from bothways.encoder.modules import EmbeddingTable, FunctionContext
from bothways.encoder.streams import MaskDecoding
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.evaluation.outcomes import TokenLosses
from bothways.objectives.masking import Masker
from bothways.objectives.pretraining import MASKED, PretrainingModel, UnitLosses, sequence_sums
from bothways.objectives.sequences import MaskedBatch, TextWindows
from bothways.packing import Packed, SelectedRows
from bothways.products import ROW_BLOCK
from bothways.progress import Progress
from bothways.training.objective import micro_batch_tokens

RELATION = "segments"
"""Name of the loss of next sentence prediction and of sentence order prediction."""


class MaskDecoder(nn.Module):
    """DeBERTa's enhanced mask decoder (He et al. 2020, arXiv:2006.03654, section 3.2).

    Absolute positions are added just below the softmax: the encoder's last layer is applied twice, with equal weights
    and with the states below it as keys and values. Its first queries are these states plus position vectors, as in the
    published code (microsoft/DeBERTa, apps/models/masked_language_model.py). At inference the encoder's last layer runs
    once, and the position vectors are not needed.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        positions = config.positions
        if not isinstance(positions, DisentangledPositions) or positions.absolute:
            raise UnsupportedConfig(
                "a mask decoder needs an encoder without absolute positions, such as DeBERTa or DeBERTa v2 and v3 "
                "without position_biased_input."
            )
        self.positions = EmbeddingTable(positions.count, config.hidden)
        nn.init.normal_(self.positions.weight, std=config.initializer_range)

    def forward(self, encoder: Encoder, packed: Packed, rows_M: Tensor, counts: tuple[int, ...]) -> Tensor:
        """Return the states (M, H) of the chosen rows; ``counts`` has their number in each sequence."""
        added_MH = self.positions(packed.positions_T[rows_M])
        states_MH: Tensor = encoder(packed, queries=MaskDecoding(added_MH, rows_M, counts))
        return states_MH


class MaskedLM(PretrainingModel):
    """An encoder and its masked language modelling head; tokens are predicted at the chosen positions only.

    A ``relation`` head on the first token classifies the relation between two segments: next sentence prediction
    (Devlin et al. 2018, section 3.1) or sentence order prediction (Lan et al. 2019, section 3.1). A ``decoder`` adds
    absolute positions below the head (DeBERTa); no published model has both.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: MaskedLMHead,
        relation: ScoreHead | None = None,
        decoder: MaskDecoder | None = None,
    ) -> None:
        super().__init__()
        if relation is not None and decoder is not None:
            raise InvalidInput("expected a relation between segments or a mask decoder, got both.")
        self.encoder = encoder
        self.head = head
        self.relation = relation
        self.decoder = decoder

    def forward(self, packed: Packed, rows_M: Tensor) -> Tensor:
        """Return the logits (M, V) of the given rows of the packed batch."""
        hidden_MH = self.encoder(packed, rows=SelectedRows(rows_M))
        logits_MV: Tensor = self.head(hidden_MH, self.encoder.embedding.tokens.weight)
        return logits_MV

    @property
    def identity(self) -> Mapping[str, str]:
        return {} if self.decoder is None else {"mask decoder": "absolute positions"}

    @property
    def weights(self) -> Mapping[str, float]:
        return {MASKED: 1.0} | ({} if self.relation is None else {RELATION: 1.0})

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        counted = {MASKED: len(batch.rows_M)}
        return counted if self.relation is None else {**counted, RELATION: len(batch.pairs_P)}

    def outputs(self, batch: MaskedBatch) -> Mapping[str, UnitLosses]:
        if self.relation is None:
            if self.decoder is None:
                hidden_MH = self.encoder(batch.packed, rows=SelectedRows(batch.rows_M))
            else:
                hidden_MH = self.decoder(self.encoder, batch.packed, batch.rows_M, batch.counts)
            return {MASKED: self._predictions(hidden_MH, batch)}
        first_P = batch.packed.first_tokens_B[batch.pairs_P]
        selected = SelectedRows(torch.cat([batch.rows_M, first_P]))
        hidden_MH, first_PH = self.encoder(batch.packed, rows=selected).tensor_split([len(batch.rows_M)])
        return {
            MASKED: self._predictions(hidden_MH, batch),
            RELATION: UnitLosses.of_classes(self.relation(first_PH), batch.relations_P, first_P),
        }

    def _predictions(self, hidden_MH: Tensor, batch: MaskedBatch) -> UnitLosses:
        table = self.encoder.embedding.tokens.weight
        return predict_tokens(self.head, table, hidden_MH, batch.targets_M, batch.rows_M)


def masked_losses(
    model: MaskedLM, store: WindowStore, masker: Masker, tokens: int, bar: Progress | None = None
) -> TokenLosses:
    """Return the losses and right predictions of each text at the positions that the masker chooses for validation."""
    source = TextWindows(store, masker, "given")
    sums_W3 = sequence_sums(model, source, masker, micro_batch_tokens(tokens, model.device), bar=bar)[0]
    sums_N3 = np.zeros((store.texts, 3))
    np.add.at(sums_N3, store.text_of_window[source.windows_W], sums_W3)
    return TokenLosses(losses_N=sums_N3[:, 0], right_N=sums_N3[:, 1], tokens_N=sums_N3[:, 2])


Look = Callable[[Tensor, slice], None]
"""A function that is called with the probabilities (m, V) of a chunk and the slice of its positions."""

_ON_CPU, _ELSEWHERE = 2**23, 2**26
"""Maximum number of logits in a chunk; the kernels of a GPU need larger chunks."""


def predict_tokens(
    head: MaskedLMHead,
    tokens_VE: Tensor,
    hidden_MH: Tensor,
    targets_M: Tensor,
    rows_M: Tensor,
    look: Look | None = None,
) -> UnitLosses:
    """Return a head's losses at M positions, from their hidden states (M, H) and target tokens (M).

    ``rows_M`` has the row of each position in the packed batch; ``look`` is called with each chunk's probabilities.
    """
    own_ME, bias_V = head.transformed(hidden_MH, tokens_VE.dtype), head.bias.to(tokens_VE.dtype)
    if torch.is_grad_enabled():
        total, losses_M, right_M = _cross_entropy(own_ME, tokens_VE, bias_V, targets_M, look)
    else:
        losses_M, right_M, _ = _scan(own_ME, tokens_VE, bias_V, targets_M, look, (False, False, False))
        total = losses_M.sum()
    return UnitLosses(total, losses_M, right_M, rows_M)


Gradients = list[Tensor | None]


class _Context(FunctionContext, Protocol):
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class _CrossEntropy(torch.autograd.Function):
    """The sum of all losses, each loss (M), and a mask of right predictions (M)."""

    @staticmethod
    def forward(
        ctx: _Context,
        own_ME: Tensor,
        tokens_VE: Tensor,
        bias_V: Tensor,
        targets_M: Tensor,
        look: Look | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        losses_M, right_M, gradients = _scan(own_ME, tokens_VE, bias_V, targets_M, look, ctx.needs_input_grad[:3])
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(losses_M, right_M)
        return losses_M.sum(), losses_M, right_M

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, factor: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # In place: nothing else uses these tensors, and one of them is as large as the embedding table.
        return *(None if each is None else each.mul_(factor) for each in ctx.saved_tensors), None, None


_cross_entropy: Callable[[Tensor, Tensor, Tensor, Tensor, Look | None], tuple[Tensor, Tensor, Tensor]] = (
    _CrossEntropy.apply
)


def _scan(
    own_ME: Tensor,
    tokens_VE: Tensor,
    bias_V: Tensor,
    targets_M: Tensor,
    look: Look | None,
    needed: tuple[bool, ...],
) -> tuple[Tensor, Tensor, Gradients]:
    """Return losses (M), right predictions (M), and the gradients of states, tokens and biases that are ``needed``."""
    losses_M = torch.empty(len(own_ME), device=own_ME.device)
    right_M = torch.empty(len(own_ME), dtype=torch.bool, device=own_ME.device)
    gradients: Gradients = [
        torch.empty_like(own_ME) if needed[0] else None,
        torch.zeros_like(tokens_VE) if needed[1] else None,
        torch.zeros_like(bias_V) if needed[2] else None,
    ]
    step = rows_of_chunk(own_ME.device, len(tokens_VE))
    for start in range(0, len(own_ME), step):
        chunk = slice(start, start + step)
        scores_mV = linear(own_ME[chunk], tokens_VE, bias_V).float()
        top_m, likeliest_m = scores_mV.max(-1)
        own_m = scores_mV.gather(-1, targets_M[chunk, None]).squeeze(-1)
        # In place, step by step: torch does not guarantee an in-place softmax.
        parts_mV = scores_mV.sub_(top_m[:, None]).exp_()
        sums_m = parts_mV.sum(-1)
        losses_M[chunk] = sums_m.log() + top_m - own_m
        right_M[chunk] = likeliest_m == targets_M[chunk]
        probabilities_mV = parts_mV.div_(sums_m[:, None])
        if look is not None:
            look(probabilities_mV, chunk)
        if any(needed):
            _add_gradients(gradients, probabilities_mV, own_ME[chunk], tokens_VE, targets_M[chunk], chunk)
    return losses_M, right_M, gradients


def _add_gradients(
    gradients: Gradients,
    probabilities_mV: Tensor,
    own_mE: Tensor,
    tokens_VE: Tensor,
    targets_m: Tensor,
    chunk: slice,
) -> None:
    """Add a chunk's part to the gradients, overwriting its probabilities."""
    by_own_ME, by_tokens_VE, by_bias_V = gradients
    by_scores_mV = probabilities_mV.scatter_add_(
        -1, targets_m[:, None], probabilities_mV.new_full((len(targets_m), 1), -1.0)
    )
    if by_own_ME is not None:
        by_own_ME[chunk] = linear(by_scores_mV, tokens_VE.t(), None)
    if by_tokens_VE is not None:
        if torch.is_autocast_enabled(own_mE.device.type) or own_mE.dtype != by_scores_mV.dtype:
            by_tokens_VE += by_scores_mV.to(own_mE.dtype).t() @ own_mE
        else:  # avoids an intermediate product as large as the table
            by_tokens_VE.addmm_(by_scores_mV.t(), own_mE)
    if by_bias_V is not None:
        by_bias_V += by_scores_mV.sum(0)


def rows_of_chunk(device: torch.device, vocabulary: int) -> int:
    """Return the number of positions in a chunk."""
    rows = (_ON_CPU if device.type == "cpu" else _ELSEWHERE) // vocabulary
    return max(1, rows // ROW_BLOCK) * ROW_BLOCK
