"""Masked language modelling, alone or with next sentence or sentence order prediction.

Shapes: N texts, W windows, P sequences with two segments, M chosen places, H hidden, V vocabulary.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bothways.data.windows import WindowStore
from bothways.encoder import Encoder, MaskedLMHead
from bothways.encoder.heads import ScoreHead
from bothways.encoder.rows import SelectedRows
from bothways.errors import InvalidInput
from bothways.evaluation.metrics.masked_lm import TokenLosses
from bothways.objectives.mask_decoder import MaskDecoder
from bothways.objectives.masking import Masker
from bothways.objectives.pretraining import MASKED, PartOutput, UnitPredictions, sequence_sums
from bothways.objectives.sequences import MaskedBatch, TextWindows
from bothways.objectives.vocabulary import TokenPredictions, predict_tokens
from bothways.packing import Packed
from bothways.training.objective import micro_batch_tokens

RELATION = "segments"
"""Name of the loss of next sentence prediction and of sentence order prediction."""


class MaskedLM(nn.Module):
    """An encoder and its masked language modelling head; tokens are predicted at the chosen places only.

    Args:
        encoder: The encoder.
        head: Its head.
        relation: A head above the first token that classifies the relation between two segments: next sentence
            prediction (Devlin et al. 2018, section 3.1), sentence order prediction (Lan et al. 2019, section 3.1).
        decoder: Reads the last layer where absolute positions come in late (DeBERTa).

    Raises:
        InvalidInput: A relation and a decoder are given; no published model has both.
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
        """Logits (M, V) of some rows of the packed batch."""
        hidden_MH = self.encoder(packed, rows=SelectedRows(rows_M))
        logits_MV: Tensor = self.head(hidden_MH, self.encoder.embedding.tokens.weight)
        return logits_MV

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.encoder.embedding.tokens.weight.device

    @property
    def module(self) -> nn.Module:
        """Encoder and heads."""
        return self

    @property
    def identity(self) -> Mapping[str, str]:
        """Presence of a mask decoder; the losses give the rest."""
        return {} if self.decoder is None else {"mask decoder": "absolute positions"}

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of each head's mean loss."""
        return {MASKED: 1.0} | ({} if self.relation is None else {RELATION: 1.0})

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return the numbers of chosen places and of sequences with two segments."""
        counted = {MASKED: len(batch.rows_M)}
        return counted if self.relation is None else {**counted, RELATION: len(batch.pairs_P)}

    def outputs(self, batch: MaskedBatch) -> Mapping[str, PartOutput]:
        """Return the predictions of the chosen places, and of the relations between segments."""
        if self.decoder is not None:
            hidden_MH = self.decoder(self.encoder, batch.packed, batch.rows_M, batch.counts)
            return {MASKED: self._predictions(hidden_MH, batch)}
        if self.relation is None:
            hidden_MH = self.encoder(batch.packed, rows=SelectedRows(batch.rows_M))
            return {MASKED: self._predictions(hidden_MH, batch)}
        first_P = batch.packed.first_tokens_B[batch.pairs_P]
        selected = SelectedRows(torch.cat([batch.rows_M, first_P]))
        hidden_MH, first_PH = self.encoder(batch.packed, rows=selected).tensor_split([len(batch.rows_M)])
        return {
            MASKED: self._predictions(hidden_MH, batch),
            RELATION: UnitPredictions(self.relation(first_PH), batch.relations_P, first_P),
        }

    def _predictions(self, hidden_MH: Tensor, batch: MaskedBatch) -> TokenPredictions:
        table = self.encoder.embedding.tokens.weight
        return predict_tokens(self.head, table, hidden_MH, batch.targets_M, batch.rows_M)


def masked_losses(model: MaskedLM, store: WindowStore, masker: Masker, tokens: int) -> TokenLosses:
    """Return the losses of raw texts at the places that are chosen for validation.

    Args:
        model: The model, in evaluation mode.
        store: The texts.
        masker: Draws the places.
        tokens: Token budget of a batch.

    Raises:
        InvalidInput: The texts have no token to mask.
    """
    source = TextWindows(store, masker, "given")
    sums_W3 = sequence_sums(model, source, masker, micro_batch_tokens(tokens, model.device))[0]
    sums_N3 = np.zeros((store.texts, 3))
    np.add.at(sums_N3, store.text_of_window[source.windows_W], sums_W3)
    return TokenLosses(losses_N=sums_N3[:, 0], right_N=sums_N3[:, 1], tokens_N=sums_N3[:, 2])
