"""Sentence embeddings.

Shapes: N texts, H hidden, K kept dimensions, W windows of one text.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Unpack, overload

import numpy as np
import torch

from bothways.checkpoints import PretrainedEncoder, fingerprint, open_checkpoint, pretrained
from bothways.data import Row, Source, text_at
from bothways.errors import InvalidInput, TextsTruncated
from bothways.evaluation import Outcomes, Report
from bothways.storage import new_folder
from bothways.tasks import predictions
from bothways.tasks.embedding.data import (
    EmbeddingColumns,
    LabelledTexts,
    ScoredPairs,
    read_embedding_rows,
    stored_kind,
)
from bothways.tasks.embedding.evaluation import Measured, outcomes_of, similarities_of
from bothways.tasks.embedding.losses import EmbeddingLoss, usual_loss
from bothways.tasks.embedding.pooling import Pooling, check_pooling
from bothways.tasks.embedding.sentence_layout import TASK, EmbeddingSettings, settings_to_store, write_sentence_layout
from bothways.tasks.embedding.training import EmbeddingExamples, EmbeddingTraining
from bothways.tasks.embedding.vectors import AskedSettings, Vectors, settings_of, text_vectors
from bothways.tasks.fitting import FitOptions, FitPlan, fit_plan, undone_on_failure
from bothways.tasks.given import given_many
from bothways.tasks.predictions import Similarity
from bothways.tasks.stored import stored_card
from bothways.tasks.twos import PAIR, OneOfMany, Two, given_twos
from bothways.text import Overflow
from bothways.training.record import TrainingRecord

__all__ = ["SentenceEmbedder", "Vectors"]


class SentenceEmbedder:
    """Turns texts into vectors whose cosine says how alike they are.

    >>> embedder = SentenceEmbedder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
    >>> embedder.encode(["The cat sat.", "A cat was sitting."]).shape
    (2, 384)

    Attributes:
        model: The encoder and its tokenizer.
        settings: How texts become vectors.
        columns: Where the parts of a row stood in training; scored pairs under their usual names before any.
        card: What the model says of its making; empty before a training.
        extras: The checkpoint's ``bothways.json``.
    """

    task: ClassVar[str] = TASK

    def __init__(self, model: PretrainedEncoder, settings: EmbeddingSettings) -> None:
        self.model = model
        self.settings = settings
        self.columns: EmbeddingColumns = ScoredPairs()
        self.card: dict[str, Any] = {}
        self.extras: Mapping[str, object] = {}
        self._trainings = 0

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        pooling: Pooling | None = None,
        unit_length: bool | None = None,
        dimensions: int | None = None,
        max_length: int | None = None,
        on_overflow: Overflow | None = None,
        stride: int | None = None,
        revision: str | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        download: bool = False,
        allow_pickle: bool = False,
    ) -> "SentenceEmbedder":
        """Load an encoder as an embedder. What is left out is as the checkpoint says.

        Args:
            name_or_path: A folder or a name, see `bothways.load`.
            pooling: The mean where the checkpoint does not say. ``"cls"`` is the token [CLS] of the checkpoint's
                tokenizer: the first of a text, or the last (XLNet).
            unit_length: Scale vectors to length 1, as is done unless an embedder was saved here without.
            dimensions: Keep this many leading dimensions, for models trained to allow it.
            max_length: Most tokens read at once; as many as the model can where the checkpoint does not say.
            on_overflow: Longer texts are read in overlapping windows whose vectors are averaged with their lengths as
                weights (for ``max``: their maximum; ``"window"``, the default), or refused, or cut.
            stride: Tokens that neighbouring windows share; a quarter of a window's room when left out.
            revision: The commit that a hub name is pinned to.
            device: ``"auto"`` takes a GPU where there is one.
            dtype: Precision of the weights.
            download: Whether the hub may be asked for it.
            allow_pickle: Whether a ``.bin`` file may be read, after a scan.

        Raises:
            InvalidInput: A setting is out of range.
            UnsupportedConfig: The checkpoint's embedder has modules or a pooling that are not built.
            CorruptCheckpoint: A file is damaged.
        """
        checkpoint = open_checkpoint(name_or_path, revision=revision, download=download, allow_pickle=allow_pickle)
        model = pretrained(checkpoint, device=device, dtype=dtype)
        asked = AskedSettings(pooling, unit_length, dimensions, max_length, on_overflow, stride)
        settings = settings_of(model, checkpoint.extras, asked)
        made = cls(model, settings)
        made.extras = checkpoint.extras
        if checkpoint.extras.get("task") == cls.task:
            made.card = stored_card(checkpoint.extras)
            made.columns = stored_kind(made.card)
        return made

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return self.settings.dimensions or self.model.config.hidden

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling | None = None,
        max_tokens: int | None = None,
        show_progress: bool | None = None,
    ) -> Vectors:
        """Vectors of texts (N, K), or of one text (K).

        Args:
            texts: One text or many.
            pooling: Instead of this embedder's own.
            max_tokens: Token budget of a batch; what suits the device when left out.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed, alone = given_many(texts)
        vectors_NK = np.empty((len(listed), self.dimensions), dtype=np.float32)
        stream = self.encode_stream(
            listed, pooling=pooling, max_tokens=max_tokens, total=len(listed), show_progress=show_progress
        )
        for index, vector_K in enumerate(stream):
            vectors_NK[index] = vector_K
        return vectors_NK[0] if alone else vectors_NK

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        max_tokens: int | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Vectors]:
        """Vectors (K), one for each text of an iterable of any length, in order and in flat memory.

        Warns:
            TextsTruncated: At the end, if texts were cut (only with ``on_overflow="truncate"``).
        """
        cut = dropped = 0
        answers = self.read_stream(
            texts, pooling=pooling, max_tokens=max_tokens, total=total, show_progress=show_progress
        )
        for vector_K, reading in answers:
            cut, dropped = cut + (reading.dropped_tokens > 0), dropped + reading.dropped_tokens
            yield vector_K
        if cut:
            texts_were = "1 text was" if cut == 1 else f"{cut:,} texts were"
            warnings.warn(TextsTruncated(f"{texts_were} cut: {dropped:,} tokens were not read."), stacklevel=2)

    def read_stream(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        max_tokens: int | None = None,
        total: int | None = None,
        description: str = "embedding",
        show_progress: bool | None = None,
    ) -> Iterator[tuple[Vectors, predictions.Reading]]:
        """As `encode_stream`, and beside each vector how much of its text was read."""
        chosen = check_pooling(pooling) if pooling else self.settings.pooling
        return text_vectors(
            self.model,
            replace(self.settings, pooling=chosen),
            texts,
            tokens=max_tokens,
            total=total,
            description=description,
            show_progress=show_progress,
        )

    def read(
        self, texts: Sequence[str], *, show_progress: bool | None = None
    ) -> tuple[Vectors, list[predictions.Reading]]:
        """As `encode` of many texts (N, K), and how much of each was read instead of a warning."""
        said = list(self.read_stream(texts, total=len(texts), show_progress=show_progress))
        vectors_NK = np.empty((len(said), self.dimensions), dtype=np.float32)
        for index, (vector_K, _) in enumerate(said):
            vectors_NK[index] = vector_K
        return vectors_NK, [reading for _, reading in said]

    def fit(
        self,
        train_data: Source,
        *,
        validation: Source | None = None,
        columns: EmbeddingColumns | None = None,
        loss: EmbeddingLoss | None = None,
        pairs_per_text: int = 1,
        **options: Unpack[FitOptions],
    ) -> TrainingRecord:
        """Fine-tune, and keep a good epoch.

        Kept is the latest epoch whose validation score is within a standard error of the best.

        Args:
            train_data: A file, or a list of mappings.
            validation: Held-out data; when left out, about a tenth of the training rows, at most some 2,000, drawn with
                ``seed``: those with the same first text together, and of labelled texts none where too few share their
                label to measure anything.
            columns: What the rows are and where their parts stand: `ScoredPairs` (the default), `Pairs`, `Triplets`,
                `LabelledTexts` or `PlainTexts` of `bothways.tasks.embedding.data`.
            loss: One of `bothways.tasks.embedding.losses`; `CoSENT` for scores and `MultipleNegativesRanking` for
                everything else when left out. A `Distillation` names the teacher that plain texts need.
            pairs_per_text: With how many others of its label each labelled text is put together in an epoch.
            options: ``epochs``, ``learning_rate``, ``batch_size``, ``seed`` and more, see
                `bothways.tasks.fitting.FitPlan`. A batch may be larger than memory: the loss sees all of it, the
                encoder only as many tokens at a time as ``settings`` say.

        Raises:
            InvalidInput: The data or a setting is not usable; the message names the row.
        """
        plan = fit_plan(self, options)
        examples = EmbeddingExamples.read(train_data, validation, columns or ScoredPairs(), plan.seed)
        return self.fit_examples(examples, plan, loss=loss, pairs_per_text=pairs_per_text)

    def fit_examples(
        self, examples: EmbeddingExamples, plan: FitPlan, *, loss: EmbeddingLoss | None = None, pairs_per_text: int = 1
    ) -> TrainingRecord:
        """`fit` on rows that are read already."""
        training = EmbeddingTraining(self.model, self.settings, loss or usual_loss(examples.columns), pairs_per_text)
        objective, card = training.prepare(examples, plan)
        with undone_on_failure(self, "columns", "card") as attempt:
            self.columns, self.card = examples.columns, {}
            try:
                record = attempt.train(plan, objective, self.model)
            finally:
                self._trainings += attempt.kept
        if not record.came_to_nothing:
            self.card = card(record)
        return record

    def evaluate(
        self,
        data: Source,
        *,
        columns: EmbeddingColumns | None = None,
        resamples: int = 1000,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> Report:
        """Metrics on rows, with 95 % bootstrap intervals.

        Of scored pairs, the correlation of their cosines with the scores. Of other rows, how early each text finds
        what belongs to it: its positive among all positives and negatives, or a text of its label among all others.

        Args:
            data: A file, or a list of mappings.
            columns: What the rows are; as in training when left out.
            resamples: Bootstrap resamples for the intervals.
            seed: Of the bootstrap.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: The data are not usable, or are texts alone.
        """
        kind = columns or self.columns
        return outcomes_of(kind, self._measured(data, kind, show_progress)).report(resamples=resamples, seed=seed)

    def outcomes(self, data: Source, *, show_progress: bool | None = None) -> Outcomes:
        """Return the results on pairs with scores, or on what belongs to each text, to compare with another model's."""
        return outcomes_of(self.columns, self._measured(data, self.columns, show_progress))

    @overload
    def predict(self, pairs: Two, *, show_progress: bool | None = ...) -> Similarity: ...

    @overload
    def predict(self, pairs: Sequence[OneOfMany], *, show_progress: bool | None = ...) -> list[Similarity]: ...

    def predict(
        self, pairs: Two | Sequence[OneOfMany], *, show_progress: bool | None = None
    ) -> Similarity | list[Similarity]:
        """How alike the two texts of pairs are, in order; one similarity for a single pair.

        Args:
            pairs: A tuple of two texts, or many pairs, each a tuple or a list.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: A text is empty, or something is no pair.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        listed, alone = given_twos(pairs, PAIR)
        texts = (text for pair in listed for text in pair)
        found = list(similarities_of(self.read_stream(texts, total=2 * len(listed), show_progress=show_progress)))
        return found[0] if alone else found

    def predict_rows(self, rows: Iterable[Row], *, show_progress: bool | None = None) -> Iterator[Similarity]:
        """The cosine of the first two texts of each row, in order and in flat memory.

        Raises:
            InvalidInput: A row has one text only, or lacks one.
        """
        first, second = self._two_columns()
        texts = (text_at(row, column) for row in rows for column in (first, second))
        return similarities_of(self.read_stream(texts, show_progress=show_progress))

    def rows_of(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """One row, as it would stand in a file, of two texts.

        Raises:
            InvalidInput: They are not two.
        """
        first, second = self._two_columns()
        if len(texts) != 2:
            raise InvalidInput(f"an embedder says how alike two texts are, but got {len(texts)}.")
        return [{first: texts[0], second: texts[1]}]

    def facts(self) -> dict[str, object]:
        """How texts become vectors, and what trained them, as JSON values."""
        shown = [name for name in ("loss", "matryoshka") if name in self.card]
        return {"pooling": self.settings.pooling, "dimensions": self.dimensions} | {
            name: self.card[name] for name in shown
        }

    @property
    def trainings(self) -> int:
        """How often it was trained since it was opened: vectors from before and after do not belong together."""
        return self._trainings

    def fingerprint(self) -> str:
        """SHA-256 of the weights on disk, which says whether two embedders are the same model.

        Raises:
            InvalidInput: It was trained and not saved since, so what is on disk is another model.
        """
        if self.model.trainings:
            raise InvalidInput("this embedder was trained and is not what is on disk: save it first.")
        return fingerprint(self.model.folder)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the embedder so that it opens here and in the ecosystem's sentence embedders, whole or not at all.

        With ``dimensions``, sentence-transformers cuts the vectors after they were scaled to length 1, this package
        before: they point the same way there, but are shorter. After a training, the folder is from then on where
        this embedder comes from.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        self.save_with(folder, lambda _: {"card": self.card}, overwrite=overwrite)

    def save_with(
        self, folder: str | Path, beside: Callable[[Path], Mapping[str, object]], *, overwrite: bool = False
    ) -> None:
        """`save` of what is built on an embedder.

        Args:
            folder: As for `save`.
            beside: Writes further files into a folder, and returns what ``bothways.json`` is to say.
            overwrite: As for `save`.
        """
        model, settings = self.model, self.settings
        with new_folder(folder, overwrite=overwrite) as new:
            extras = beside(new)
            model.write(new, {**settings_to_store(settings), **extras})
            write_sentence_layout(new, model.config.hidden, settings, cls_is_last=model.tokenizer.cls_is_last)
        if model.trainings:
            model.name, model.folder, model.revision, model.trainings = str(folder), Path(folder), None, 0

    def _measured(self, data: Source, columns: EmbeddingColumns, show_progress: bool | None) -> Measured:
        rows = read_embedding_rows(data, columns)
        vectors_PH, readings = self.read([text for row in rows for text in row.texts], show_progress=show_progress)
        return Measured.of(rows, columns, vectors_PH, readings)

    def _two_columns(self) -> tuple[str, str]:
        if isinstance(self.columns, LabelledTexts) or len(self.columns.texts) < 2:
            raise InvalidInput(
                f"this embedder was trained on {self.columns.kind}, so a row has no two texts to compare. For vectors: "
                "encode, or bothways embed."
            )
        return self.columns.texts[0], self.columns.texts[1]
