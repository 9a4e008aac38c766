"""Selection of the last layer's rows that are read; the others are not computed to the end.

Shapes: B sequences, T packed tokens, M selected rows.
"""

from dataclasses import dataclass

from torch import Tensor

from bothways.encoder.batch import Batch


@dataclass(frozen=True, slots=True)
class AllRows:
    """Every token, as pooling by the mean needs."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The first token of each sequence, for classification; it alone has a query, all tokens have keys."""

    def of(self, batch: Batch) -> Tensor:
        """Return their rows, (B,)."""
        return batch.first_tokens_B


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The last token of each sequence, XLNet's classification token."""

    def of(self, batch: Batch) -> Tensor:
        """Return their rows, (B,)."""
        return batch.last_tokens_B


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Some rows of the packed batch, for masked language modelling."""

    rows_M: Tensor


@dataclass(frozen=True, slots=True)
class NoRows:
    """No token, for query streams or earlier states; the last layer computes none."""


Rows = AllRows | FirstTokens | LastTokens | SelectedRows | NoRows

ALL_ROWS, FIRST_TOKENS, LAST_TOKENS, NO_ROWS = AllRows(), FirstTokens(), LastTokens(), NoRows()


def select(values_TH: Tensor, rows: Rows, batch: Batch) -> Tensor:
    """Return the selected rows of a packed tensor: (T, ...), (B, ...) or (M, ...)."""
    match rows:
        case AllRows():
            return values_TH
        case FirstTokens() | LastTokens():
            return values_TH[rows.of(batch)]
        case SelectedRows(rows_M):
            return values_TH[rows_M]
        case NoRows():
            return values_TH[:0]
