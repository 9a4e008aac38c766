"""An encoder, with or without a head, as a function of padded tensors alone: what an ONNX file records.

Shapes: B sequences, K choices of a question, S longest sequence, H hidden, V vocabulary, C labels.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from bothways.checkpoints.exported import ROWS
from bothways.encoder import Encoder, Head, MaskedLMHead, ScoreHead
from bothways.encoder.batch import PaddedRows
from bothways.encoder.head_kinds import ChoiceLogit, EachToken, Labels, Relation, Replaced, SpanLogits
from bothways.encoder.heads import logits_from
from bothways.export.answers import RowsModule

HIDDEN = "last_hidden_state"
BATCH, CHOICES, LENGTH = "batch", "choices", "length"


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a graph.

    Attributes:
        name: Its name.
        shape: Its dimensions: a name for one that changes from call to call, a number for one that does not.
    """

    name: str
    shape: tuple[str | int, ...]


class EncoderGraph(nn.Module):
    """Hidden states and, with a head, its answers, of a padded batch.

    Padding may stand on the left or on the right of a row; hidden states and logits are zero there, and minus infinity
    where an answer may not start or end.

    Args:
        encoder: The encoder.
        head: Its head; None for hidden states alone.
        rows: Gives the numbers that this package reads.
        width: How many they are, of a window or a token.
    """

    def __init__(self, encoder: Encoder, head: Head | None, rows: RowsModule | None = None, width: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.rows = rows
        self.width = width
        scores = head.kind.scores if isinstance(head, ScoreHead) else None
        self.per_token = bool(getattr(rows, "per_token", False))
        self.grouped, self.spanning = isinstance(scores, ChoiceLogit), isinstance(scores, SpanLogits)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return what `outputs` names, of token ids (B, S), or of (B, K, S) for a head that chooses."""
        choices = input_ids.shape[1] if self.grouped else 1
        shape = input_ids.shape
        if self.grouped:
            input_ids, attention_mask = input_ids.flatten(0, 1), attention_mask.flatten(0, 1)
            token_type_ids = None if token_type_ids is None else token_type_ids.flatten(0, 1)
        batch = PaddedRows.of(input_ids, attention_mask, token_type_ids)
        hidden_TH = self.encoder(batch)
        found = [batch.padded(hidden_TH).view(*shape, hidden_TH.shape[-1])]
        if self.head is not None:
            logits = logits_from(self.head, self.encoder, batch, hidden_TH, choices=choices)
            found += logits.unbind(-1) if self.spanning else (logits,)
        if self.rows is not None:
            rows = self.rows(batch, attention_mask)
            found.append(rows.view(-1, choices, self.width) if self.grouped else rows)
        return tuple(found)

    def inputs(self) -> tuple[Port, ...]:
        """Return what it takes, in order; all int64."""
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if self.encoder.config.reads_types else [])]
        return tuple(Port(name, self._places()) for name in names)

    def outputs(self) -> tuple[Port, ...]:
        """Return what it gives, in order; all floating point."""
        ports = [Port(HIDDEN, (*self._places(), self.encoder.config.hidden))]
        if self.spanning:
            ports += Port("start_logits", (BATCH, LENGTH)), Port("end_logits", (BATCH, LENGTH))
        elif self.head is not None:
            ports.append(Port("logits", _logits_shape(self.head)))
        if self.rows is not None:
            places = (BATCH, CHOICES) if self.grouped else (BATCH, LENGTH) if self.per_token else (BATCH,)
            ports.append(Port(ROWS, (*places, self.width)))
        return tuple(ports)

    def _places(self) -> tuple[str, ...]:
        return (BATCH, CHOICES, LENGTH) if self.grouped else (BATCH, LENGTH)


def _logits_shape(head: Head) -> tuple[str | int, ...]:
    if isinstance(head, MaskedLMHead):
        return BATCH, LENGTH, len(head.bias)
    match head.kind.scores:
        case ChoiceLogit():
            return BATCH, CHOICES
        case Replaced():
            return BATCH, LENGTH
        case Labels() | Relation() | SpanLogits():
            count = head.output.out_features
            return (BATCH, LENGTH, count) if isinstance(head.kind.read, EachToken) else (BATCH, count)
