"""A sentence embedder as a value: it embeds texts, and writes itself into a folder.

Shapes: N texts, H hidden, K kept dimensions, W windows of one text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.schema import Stored
from bothways.errors import InvalidInput
from bothways.inference import Rows, TextRows, TextRunner, TokenBudget
from bothways.tasks.backend import Backend
from bothways.tasks.columns import Card
from bothways.tasks.embedding.outputs import EmbeddingOutputs, VectorScores
from bothways.tasks.embedding.sentence_layout import EmbeddingSettings, changed, settings_of, write_sentence_layout
from bothways.tasks.embedding.spec import (
    EMBEDDING,
    EmbeddingColumns,
    EmbeddingOpening,
    ScoredPairs,
    VectorArguments,
    stored_kind,
)
from bothways.tasks.scores import Scores, TokensRead
from bothways.tasks.spec import TaskSpec, chosen, options_of

Vectors: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class TrainedEmbedder:
    """An encoder that embeds texts: an immutable value.

    Attributes:
        backend: The encoder and its text options.
        settings: The conversion of texts to vectors.
        columns: Columns of a row's parts in training; scored pairs under their usual names before any training.
        card: The model's record of its training; empty before one.
        outputs: The meaning of the vectors.
    """

    backend: Backend
    settings: EmbeddingSettings
    columns: EmbeddingColumns = ScoredPairs()  # noqa: RUF009 (frozen)
    card: Card = field(default_factory=dict)

    outputs: ClassVar[EmbeddingOutputs] = EmbeddingOutputs()

    @property
    def dimensions(self) -> int:
        """Length of a vector, K."""
        return self.settings.dimensions or self.backend.config.hidden

    def with_settings(self, **asked: Unpack[VectorArguments]) -> TrainedEmbedder:
        """Return the same encoder with other options for its vectors; options that are left out stay.

        Raises:
            InvalidInput: A setting is out of range.
        """
        if not asked:
            return self
        known = chosen(EmbeddingOpening, asked, "SentenceEmbedder.encode()", known=("max_tokens", "show_progress"))
        return replace(self, settings=changed(self.settings, known, self.backend.config.hidden))

    def vectors(
        self,
        texts: Iterable[str],
        *,
        max_tokens: int | None = None,
        total: int | None = None,
        description: str = "embedding",
        show_progress: bool | None = None,
    ) -> Iterator[tuple[Vectors, TokensRead]]:
        """Yield a vector (K) for each text, in order and in flat memory, and how much of the text was read.

        Raises:
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        runner = self._runner(self.backend.budget if max_tokens is None else TokenBudget(max_tokens))
        rows = runner.run(texts, total=total, description=description, show_progress=show_progress)
        return map(self._vector, rows)

    def encode(
        self,
        texts: Sequence[Any],
        *,
        max_tokens: int | None = None,
        description: str = "embedding",
        show_progress: bool | None = None,
    ) -> tuple[Vectors, list[TokensRead]]:
        """Return the vectors of texts (N, K), and how much of each was read."""
        stream = self.vectors(
            texts, max_tokens=max_tokens, total=len(texts), description=description, show_progress=show_progress
        )
        vectors_NK, reads = np.empty((len(texts), self.dimensions), dtype=np.float32), []
        for vector_NK, (vector_K, read) in zip(vectors_NK, stream, strict=True):
            vector_NK[:] = vector_K
            reads.append(read)
        return vectors_NK, reads

    def score_blocks(self, inputs: Iterable[Sequence[str]], options: object = None) -> Iterator[list[VectorScores]]:
        """Yield the vectors of the texts of rows, in blocks of rows."""
        del options
        for block in self._runner(self.backend.budget).blocks(inputs, lambda row: row):
            scores = []
            for _, rows in block:
                vectors, reads = zip(*map(self._vector, rows), strict=True)
                read = TokensRead(max(one.windows for one in reads), sum(one.dropped_tokens for one in reads))
                scores.append(Scores(np.stack(vectors).astype(np.float64), reads, read))
            yield scores

    def facts(self) -> dict[str, object]:
        """Return pooling, dimensions and loss, as JSON values."""
        shown = {name: self.card[name] for name in ("loss", "matryoshka") if name in self.card}
        return {"pooling": self.settings.pooling, "dimensions": self.dimensions, **shown}

    def write(self, folder: Path) -> None:
        """Write the embedder in the ecosystem's layout into an existing folder.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """
        model, settings = self.backend.weights("save").model, self.settings
        model.write(folder, {"task": EMBEDDING.name, **settings.to_dict(), "card": dict(self.card)})
        write_sentence_layout(folder, model.config.hidden, settings, cls_is_last=model.tokenizer.cls_is_last)

    def _runner(self, budget: TokenBudget) -> TextRunner:
        """Return a runner that gives a vector for each window.

        Raises:
            InvalidInput: The graph of an exported model makes no vectors, or uses another pooling.
        """
        export = self.backend.export
        if export is not None:
            if export.rows.pooling != self.settings.pooling:
                raise InvalidInput(
                    f"expected the pooling that {self.backend.name!r} was exported with, {export.rows.pooling!r}, got "
                    f"{self.settings.pooling!r}: leave it out, or export the model that it was made of with this one."
                )
            return replace(self.backend, budget=budget).runner
        from bothways.tasks.embedding.vector_model import VectorModel

        model = replace(self.backend.weights("embed"), budget=budget)
        return model.text_runner(VectorModel.of(model.model, self.settings.pooling))

    def _vector(self, rows: Rows) -> tuple[Vectors, TokensRead]:
        if not isinstance(rows, TextRows):
            raise TypeError("vectors are read from a row for each window")
        return self._finished(self._merged(rows)), TokensRead(len(rows.lengths), rows.dropped_tokens)

    def _merged(self, rows: TextRows) -> Vectors:
        if len(rows.rows_WK) == 1:
            only: Vectors = rows.rows_WK[0]
            return only
        if self.settings.pooling == "max":
            highest: Vectors = rows.rows_WK.max(0)
            return highest
        merged: NDArray[np.float64] = np.average(rows.rows_WK, axis=0, weights=rows.lengths)
        return merged.astype(np.float32)

    def _finished(self, vector_H: Vectors) -> Vectors:
        vector_K = vector_H[: self.settings.dimensions]
        if not self.settings.unit_length:
            return vector_K
        length = np.float32(max(float(np.linalg.norm(vector_K)), 1e-12))
        unit_K: Vectors = np.divide(vector_K, length)
        return unit_K


def open_embedder(spec: TaskSpec, backend: Backend) -> TrainedEmbedder:
    """Return the embedder of a checkpoint: any encoder is one.

    Raises:
        NotFitted: It is an export with a head.
        InvalidInput: A setting is out of range.
        UnsupportedConfig: The checkpoint's embedder has unsupported modules or an unsupported pooling.
        CorruptCheckpoint: A file is damaged.
    """
    if backend.export is not None and backend.export.rows.head is not None:
        raise backend.not_fitted(spec.name, "embedder")
    settings = settings_of(backend, options_of(EmbeddingOpening, backend.options))
    card = Stored.of(backend.extras).card if backend.trained_for == spec.name else {}
    return TrainedEmbedder(backend, settings, stored_kind(card), card)
