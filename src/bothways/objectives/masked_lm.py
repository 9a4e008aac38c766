"""Masked language modelling, alone or with a head that tells what stands between two segments.

Shapes: N texts, B windows of a batch, T packed tokens, M chosen places, H hidden, V vocabulary.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.data.windows import StoredWindow, WindowStore
from bothways.encoder import Encoder, MaskedLMHead
from bothways.encoder.heads import ScoreHead
from bothways.encoder.rows import SelectedRows
from bothways.evaluation.masked_lm import TokenLosses
from bothways.inference.runner import Runner
from bothways.objectives.masking import Masker
from bothways.objectives.pretraining import MASKED, HeadOutput
from bothways.objectives.sequences import MaskedBatch, TextWindows, masked_pack
from bothways.packing import Packed

RELATION = "segments"
"""Name of the part of a loss that is next sentence prediction's, or sentence order prediction's."""


class MaskedLM(nn.Module):
    """An encoder and its masked language modelling head; logits are computed at the chosen places only.

    Args:
        encoder: The encoder.
        head: Its head.
        relation: A head that reads the first token and says what stands between two segments (Devlin et al. 2018,
            section 3.1; Lan et al. 2019, section 3.1).
    """

    def __init__(self, encoder: Encoder, head: MaskedLMHead, relation: ScoreHead | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.relation = relation

    def forward(self, packed: Packed, rows_M: Tensor) -> Tensor:
        """Logits (M, V) of some rows of the packed batch."""
        hidden_MH = self.encoder(packed, rows=SelectedRows(rows_M))
        logits_MV: Tensor = self.head(hidden_MH, self.encoder.embedding.tokens.weight)
        return logits_MV

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.encoder.embedding.tokens.weight.device

    @property
    def module(self) -> nn.Module:
        """Encoder and heads."""
        return self

    @property
    def weights(self) -> Mapping[str, float]:
        """The mean losses count alike."""
        return {MASKED: 1.0} | ({} if self.relation is None else {RELATION: 1.0})

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return how many places are chosen, and how many sequences have two segments."""
        counted = {MASKED: len(batch.targets_M)}
        return counted if self.relation is None else {**counted, RELATION: int((batch.relations_B >= 0).sum())}

    def outputs(self, batch: MaskedBatch) -> Mapping[str, HeadOutput]:
        """Return the logits of the chosen places, and those of what stands between segments."""
        if self.relation is None:
            return {MASKED: HeadOutput(self(batch.packed, batch.rows_M), batch.targets_M)}
        pairs_B = batch.relations_B >= 0
        rows = torch.cat([batch.rows_M, batch.packed.first_tokens_B[pairs_B]])
        hidden_MH, first_BH = self.encoder(batch.packed, rows=SelectedRows(rows)).tensor_split([len(batch.rows_M)])
        logits_MV = self.head(hidden_MH, self.encoder.embedding.tokens.weight)
        return {
            MASKED: HeadOutput(logits_MV, batch.targets_M),
            RELATION: HeadOutput(self.relation(first_BH), batch.relations_B[pairs_B]),
        }


def masked_losses(model: MaskedLM, store: WindowStore, masker: Masker, tokens: int) -> TokenLosses:
    """Return the losses of a model that is in evaluation mode, at the places that are chosen for validation.

    Args:
        model: The model.
        store: The texts.
        masker: Draws the places.
        tokens: Token budget of a batch.

    Raises:
        InvalidInput: The texts have no token to mask.
    """

    def compute(packed: Packed, windows: Sequence[StoredWindow]) -> list[NDArray[np.float64]]:
        """Of each window the sum of the losses, and how many places are right and chosen (B, 3)."""
        masked = [masker.validation(window.ids, window.number) for window in windows]
        with_masks, rows_M, targets_M = masked_pack(packed, masked)
        logits_MV = model(with_masks, rows_M).float()
        losses_M = nn.functional.cross_entropy(logits_MV, targets_M, reduction="none")
        right_M = (logits_MV.argmax(-1) == targets_M).float()
        counted_M3 = torch.stack([losses_M, right_M, torch.ones_like(right_M)], dim=1).cpu().double().numpy()
        begins_B = np.cumsum([0, *(len(one.places_M) for one in masked[:-1])])
        return [*np.add.reduceat(counted_M3, begins_B)]

    chosen = TextWindows(store, masker, "given").windows_W
    sums_N3 = np.zeros((store.texts, 3))
    np.add.at(sums_N3, store.text_of_window[chosen], Runner(compute, model.device, tokens).run(store.windows(chosen)))
    return TokenLosses(losses_N=sums_N3[:, 0], right_N=sums_N3[:, 1], tokens_N=sums_N3[:, 2])
