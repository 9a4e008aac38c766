"""`audit_data`: the rows of a data set by how likely they are poisoned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.audit.backdoor.poisoned import SuspectPhrase, SuspectRow, suspect_rows
from bothways.audit.backdoor.probe import frame_of, run
from bothways.choices import Format
from bothways.data import Source, read_rows
from bothways.data.columns import class_label
from bothways.encoder.heads import read_rows as states_read
from bothways.errors import InvalidInput
from bothways.packing import Packed
from bothways.progress import phase
from bothways.tasks import SentenceEmbedder, TextClassifier
from bothways.tasks.columns import TextColumns
from bothways.tasks.objective import HeadModel

EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"
_FEWEST = 20
_TOKENS = 128


@dataclass(frozen=True, slots=True)
class DataAudit:
    """The rows of a data set, the most suspicious first.

    Attributes:
        rows: All rows, as JSON values: ``row`` (from 1), ``score`` (0 to 1, above 0.5 where a suspect phrase is in
            it), ``triggers``, ``reason``, ``text``, ``label``.
        phrases: The suspect phrases, the most significant first.
    """

    rows: tuple[dict[str, object], ...]
    phrases: tuple[SuspectPhrase, ...]

    @property
    def suspected(self) -> int:
        """Number of rows that have a suspect phrase."""
        return sum(bool(row["triggers"]) for row in self.rows)


def audit_data(
    data: Source,
    model: str | TextClassifier[Any] | None = None,
    *,
    embedder: str = EMBEDDER,
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
        model: A classifier that was trained on the rows; the states that it reads are searched too.
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
    phase("embedding the rows")
    vectors_NH = np.asarray(
        SentenceEmbedder.from_pretrained(embedder, **opening).encode(texts, show_progress=show_progress)
    )
    states_NH = None if classifier is None else _states(classifier, texts)
    found, phrases = suspect_rows(texts, labels, vectors_NH, states_NH)
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


def _states(classifier: TextClassifier[Any], texts: Sequence[str]) -> NDArray[np.float32]:
    frame = frame_of(classifier)
    bare = classifier.model.tokenizer.encode_bare(texts)
    length = min(_TOKENS, classifier.fitted.opened.reading.max_length) - len(frame.before) - len(frame.after)
    phase("reading the states of the model")
    return run(_States(classifier.fitted.model), [frame.around(tuple(ids[:length])) for ids in bare], _no_limit)


def _no_limit() -> None:
    """There is no time limit."""


def _as_row(found: SuspectRow, texts: Sequence[str], labels: Sequence[str]) -> dict[str, object]:
    return {
        "row": found.row + 1,
        "score": found.score,
        "triggers": list(found.triggers),
        "reason": found.reason,
        "text": texts[found.row],
        "label": labels[found.row],
    }
