"""`audit_data`: the rows of a data set by how likely they are poisoned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.audit.backdoor.poisoned import (
    SuspectPhrase,
    SuspectRow,
    TrainingObservations,
    margins_of_others,
    suspect_rows,
)
from bothways.audit.backdoor.probe import Probe, run
from bothways.checkpoints import MINILM
from bothways.choices import Format
from bothways.data import Source, read_rows
from bothways.data.columns import class_label
from bothways.encoder.heads import read_rows as states_read
from bothways.errors import InvalidInput
from bothways.packing import Packed
from bothways.progress import phase
from bothways.tasks import SentenceEmbedder, TextClassifier
from bothways.tasks.columns import TextColumns
from bothways.tasks.heads.model import HeadModel

_FEWEST = 20


@dataclass(frozen=True, slots=True)
class DataAudit:
    """The rows of a data set, the most suspicious first.

    Attributes:
        rows: All rows, as JSON values: ``row`` (from 1), ``score`` (0 to 1, above 0.5 if it is suspected),
            ``triggers``, ``reason``, ``text``, ``label``.
        phrases: The suspect phrases and groups of phrases, the most significant first.
    """

    rows: tuple[dict[str, object], ...]
    phrases: tuple[SuspectPhrase, ...]

    @property
    def suspected(self) -> int:
        """Number of rows that are in a suspect group."""
        return len({row for phrase in self.phrases for row in phrase.rows})


def audit_data(
    data: Source,
    model: str | TextClassifier[Any] | None = None,
    *,
    embedder: str = MINILM,
    text: str | tuple[str, ...] | None = None,
    label: str | None = None,
    data_format: Format | None = None,
    open_options: dict[str, Any] | None = None,
    show_progress: bool | None = None,
) -> DataAudit:
    """Rank labelled rows by how likely they are poisoned.

    >>> audit = audit_data("train.jsonl")  # doctest: +SKIP
    >>> [phrase.phrase for phrase in audit.phrases]  # doctest: +SKIP
    ['cf']

    Args:
        data: Rows with texts and labels.
        model: A classifier that was trained on the rows; its answers to the texts without their suspect phrases, and
            clusters and spectral signatures of its states, count too.
        embedder: A sentence embedder that was not trained on the rows.
        text: Column of the texts, or several; by default those of the model, else ``text``.
        label: Column of the labels; by default that of the model, else ``label``.
        data_format: Of the data, where the name does not say it.
        open_options: How both models are opened, see `TextClassifier.from_pretrained`.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: There are fewer than 20 rows, or fewer than two labels, or a row has no text or label.
        NotFitted: The model is no trained classifier.
    """
    opening = open_options or {}
    classifier = TextClassifier.from_pretrained(model, **opening) if isinstance(model, str) else model
    columns = _columns(classifier, text, label)
    texts, labels = _labelled(data, columns, data_format)
    encoder = SentenceEmbedder.from_pretrained(embedder, **opening)

    def embed(wanted: Sequence[str]) -> NDArray[np.floating]:
        phase("embedding the rows")
        return np.asarray(encoder.encode(wanted, show_progress=show_progress))

    trained = None if classifier is None else trained_on(classifier, texts, sorted(set(labels)))
    found, phrases = suspect_rows(texts, labels, embed, trained)
    return DataAudit(tuple(_as_row(each, texts, labels) for each in found), tuple(phrases))


def _columns(
    classifier: TextClassifier[Any] | None, text: str | tuple[str, ...] | None, label: str | None
) -> TextColumns:
    usual = TextColumns() if classifier is None else classifier.columns
    texts = usual.text if text is None else (text,) if isinstance(text, str) else text
    return TextColumns(texts, usual.label if label is None else label)


def _labelled(data: Source, columns: TextColumns, data_format: Format | None) -> tuple[list[str], list[str]]:
    texts, labels = [], []
    for row in read_rows(data, format=data_format):
        texts.append(columns.read(row))
        if columns.label not in row.values:
            raise InvalidInput(
                f"{row.where}: column {columns.label!r} not found; it has {', '.join(row.values)}. Name it with label."
            )
        try:
            labels.append(class_label(row.values[columns.label]))
        except InvalidInput as error:
            raise InvalidInput(f"{row.where}: {error}") from error
    if len(texts) < _FEWEST or len(set(labels)) < 2:
        raise InvalidInput(
            f"expected at least {_FEWEST} rows of at least two labels, got {len(texts)} of {len(set(labels))}: "
            "poisoned rows are told from the others of their label."
        )
    return texts, labels


class _States(nn.Module):
    """The vectors that a head reads."""

    def __init__(self, model: HeadModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, packed: Packed) -> Tensor:
        return states_read(self.model.head.kind.read, self.model.encoder, packed)


def trained_on(classifier: TextClassifier[Any], texts: Sequence[str], labels: Sequence[str]) -> TrainingObservations:
    """Return the model's states, and its margins; rows of labels that it does not know have a margin of 0."""
    probe = Probe(classifier)
    places_C = np.array([probe.labels.index(each) if each in probe.labels else -1 for each in labels])

    def margins(wanted: Sequence[str], labels_N: NDArray[np.int64]) -> NDArray[np.floating]:
        phase("asking the model")
        own_N = places_C[labels_N]
        found_N = margins_of_others(probe.logits(probe.encode(wanted)), np.maximum(own_N, 0))
        found_N[own_N < 0] = 0
        return found_N

    phase("reading the states of the model")
    framed = [probe.frame.around(ids) for ids in probe.encode(texts)]
    return TrainingObservations(
        run(_States(classifier.backend.weights("audit").head_model), framed, lambda: None), margins
    )


def _as_row(found: SuspectRow, texts: Sequence[str], labels: Sequence[str]) -> dict[str, object]:
    return {
        "row": found.row + 1,
        "score": found.score,
        "triggers": list(found.triggers),
        "reason": found.reason,
        "text": texts[found.row],
        "label": labels[found.row],
    }
