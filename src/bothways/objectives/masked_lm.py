"""Masked language modelling, alone or with next sentence or sentence order prediction.

Shapes: N texts, W windows, P sequences with two segments, M chosen positions, H hidden, V vocabulary.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bothways.data.windows import WindowStore
from bothways.encoder import Encoder, EncoderConfig, MaskedLMHead
from bothways.encoder.config import DisentangledPositions
from bothways.encoder.heads import ScoreHead
from bothways.encoder.modules import EmbeddingTable
from bothways.encoder.streams import MaskDecoding
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.evaluation.outcomes import TokenLosses
from bothways.objectives.masking import Masker
from bothways.objectives.pretraining import MASKED, PretrainingModel, UnitLosses, sequence_sums
from bothways.objectives.sequences import MaskedBatch, TextWindows
from bothways.objectives.vocabulary import predict_tokens
from bothways.packing import Packed, SelectedRows
from bothways.training.objective import micro_batch_tokens

RELATION = "segments"
"""Name of the loss of next sentence prediction and of sentence order prediction."""


class MaskDecoder(nn.Module):
    """DeBERTa's enhanced mask decoder (He et al. 2020, arXiv:2006.03654, section 3.2).

    Absolute positions are added just below the softmax: the encoder's last layer is applied twice with the same weights
    to the states below it, and its queries begin at these states plus vectors of the positions, as in the published
    code (microsoft/DeBERTa, apps/models/masked_language_model.py). In use the encoder's last layer runs once and the
    vectors of the positions are not needed.
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
        """Return the states (M, H) of chosen rows, ``counts`` in each sequence."""
        added_MH = self.positions(packed.positions_T[rows_M])
        states_MH: Tensor = encoder(packed, queries=MaskDecoding(added_MH, rows_M, counts))
        return states_MH


class MaskedLM(PretrainingModel):
    """An encoder and its masked language modelling head; tokens are predicted at the chosen positions only.

    A ``relation`` head above the first token classifies the relation between two segments: next sentence prediction
    (Devlin et al. 2018, section 3.1), sentence order prediction (Lan et al. 2019, section 3.1). A ``decoder`` adds
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
        """Return the logits (M, V) of some rows of the packed batch."""
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
            RELATION: UnitLosses.of_classes(self.relation(first_PH), batch.relations_P, first_P),
        }

    def _predictions(self, hidden_MH: Tensor, batch: MaskedBatch) -> UnitLosses:
        table = self.encoder.embedding.tokens.weight
        return predict_tokens(self.head, table, hidden_MH, batch.targets_M, batch.rows_M)


def masked_losses(model: MaskedLM, store: WindowStore, masker: Masker, tokens: int) -> TokenLosses:
    """Return the losses of raw texts at the validation positions that a masker draws."""
    source = TextWindows(store, masker, "given")
    sums_W3 = sequence_sums(model, source, masker, micro_batch_tokens(tokens, model.device))[0]
    sums_N3 = np.zeros((store.texts, 3))
    np.add.at(sums_N3, store.text_of_window[source.windows_W], sums_W3)
    return TokenLosses(losses_N=sums_N3[:, 0], right_N=sums_N3[:, 1], tokens_N=sums_N3[:, 2])
