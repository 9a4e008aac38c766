"""Fine-tuning a sentence embedder, from rows to a trained encoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bothways.checkpoints import PretrainedEncoder
from bothways.data import Source
from bothways.errors import InvalidInput
from bothways.inference import TextOptions
from bothways.tasks.card import DataUsed, Worth, unmeasured, written_card
from bothways.tasks.embedding.batches import DrawnRows, GivenRows, RowSource
from bothways.tasks.embedding.data import (
    EmbeddingColumns,
    EmbeddingRow,
    LabelledTexts,
    Pairs,
    PlainTexts,
    ScoredPairs,
    StoredRows,
    Triplets,
    read_embedding_rows,
)
from bothways.tasks.embedding.evaluation import Measured, untelling, validation_of, worth_of
from bothways.tasks.embedding.losses import (
    Distillation,
    EmbeddingLoss,
    Triplet,
    check_loss,
    loss_settings,
    plain,
)
from bothways.tasks.embedding.objective import EmbeddingObjective, VectorModel, stored_vectors
from bothways.tasks.embedding.sentence_layout import EmbeddingSettings
from bothways.tasks.fitting import FitPlan
from bothways.tasks.splits import hold_out, hold_out_pairs
from bothways.training.objective import Validation
from bothways.training.record import TrainingRecord

# From the record of a training.
WriteCard = Callable[[TrainingRecord], dict[str, Any]]

# More held-out rows than this make validation slow and not much surer.
MOST_HELD_OUT = 2000


@dataclass(frozen=True, slots=True)
class EmbeddingExamples:
    """What an embedder is trained on.

    Attributes:
        columns: What the rows are.
        training: Rows to learn from.
        held_out: Rows to choose the epoch to keep by; without any that tell something, the last epoch stays.
        split: Whether those were drawn from the training data.
    """

    columns: EmbeddingColumns
    training: list[EmbeddingRow]
    held_out: list[EmbeddingRow]
    split: bool

    @classmethod
    def read(
        cls, train_data: Source, validation: Source | None, columns: EmbeddingColumns, seed: int
    ) -> "EmbeddingExamples":
        """Read both; without validation data, about a tenth of the training rows is held out, and at most some 2,000.

        Rows with the same first text stay together. Labelled texts of which no such part can be looked for among each
        other are all learnt from.

        Raises:
            InvalidInput: The data are not usable; the message names the row.
        """
        rows = read_embedding_rows(train_data, columns)
        if validation is None:
            return cls(columns, *_split(rows, columns, seed), split=True)
        held_out = read_embedding_rows(validation, columns)
        why = untelling(columns, [row.label for row in held_out])
        if why is not None:
            raise InvalidInput(
                f"the validation data say nothing of the vectors: {why}. Give texts of two labels or more, at least "
                "two of a label, or no validation data."
            )
        return cls(columns, rows, held_out, split=False)

    @property
    def unmeasured(self) -> str | None:
        """Why the held-out rows say nothing of the vectors; None where they do."""
        if not self.held_out:
            few = self.split and isinstance(self.columns, LabelledTexts)
            return "no rows were held out" + (", as too few texts share their label" if few else "")
        why = untelling(self.columns, [row.label for row in self.held_out])
        return None if why is None else f"of the held-out rows, {why}"


@dataclass(frozen=True, slots=True)
class EmbeddingTraining:
    """An encoder to train as an embedder.

    Attributes:
        model: The encoder and its tokenizer.
        settings: How texts become vectors.
        loss: What makes vectors good.
        pairs_per_text: With how many others of its label each labelled text is put together in an epoch.
    """

    model: PretrainedEncoder
    settings: EmbeddingSettings
    loss: EmbeddingLoss
    pairs_per_text: int

    def prepare(self, examples: EmbeddingExamples, plan: FitPlan) -> tuple[EmbeddingObjective, WriteCard]:
        """What to train, and what writes the card when that is done.

        Raises:
            InvalidInput: The data or a setting is not usable.
        """
        columns = examples.columns
        check_loss(self.loss, columns, self.settings.dimensions or self.model.config.hidden)
        training = self._stored(examples.training, columns, plan)
        held = self._stored(examples.held_out, columns, plan) if examples.held_out else None
        module = VectorModel.of(self.model, self.settings.pooling)
        why = examples.unmeasured

        def measured() -> Measured | None:
            if held is None or why is not None:
                return None
            vectors_PH = stored_vectors(module, held.store, plan.settings.tokens, self.settings)
            return Measured(vectors_PH, held.texts_RK, held.identity_N, held.truth_R)

        def validate() -> Validation | None:
            found = measured()
            return None if found is None else validation_of(columns, found)

        def card(record: TrainingRecord) -> dict[str, Any]:
            used = DataUsed(columns, training.part, None if held is None else held.part, split=examples.split)
            found = measured()
            worth = Worth(None, (unmeasured(str(why)),)) if found is None else worth_of(columns, found, seed=plan.seed)
            return {**written_card(self.model, record, used, worth), **loss_settings(self.loss)}

        objective = EmbeddingObjective(
            module,
            self.settings,
            self._source(training, columns, plan.seed),
            self.loss,
            validate,
            batch_size=plan.batch_size,
            tokens=plan.settings.tokens,
            seed=plan.seed,
            identity=self._identity(held),
        )
        return objective, card

    def _identity(self, held: StoredRows | None) -> dict[str, str | int | float | bool | None]:
        """What decides the course of the run besides the training data and the plan."""
        return {
            "validation data": None if held is None else held.digest,
            "loss": str(loss_settings(self.loss)),
            "pooling": self.settings.pooling,
            "unit length": self.settings.unit_length,
            "dimensions": self.settings.dimensions,
            "pairs per text": self.pairs_per_text,
        }

    def _stored(self, rows: Sequence[EmbeddingRow], columns: EmbeddingColumns, plan: FitPlan) -> StoredRows:
        settings = self.settings
        reading = TextOptions(settings.max_length, settings.on_overflow, settings.stride)
        stored = StoredRows.of(rows, columns, self.model.tokenizer, reading)
        inner = plain(self.loss)
        if not (isinstance(columns, PlainTexts) and isinstance(inner, Distillation)):
            return stored
        # Each text is a row of its own, and its truth is what the teacher makes of it.
        vectors_ND = inner.teacher.encode(
            [text for row in rows for text in row.texts], show_progress=plan.show_progress
        )
        return replace(stored, texts_RK=stored.texts_RK.reshape(-1, 1), truth_R=np.asarray(vectors_ND, np.float32))

    def _source(self, stored: StoredRows, columns: EmbeddingColumns, seed: int) -> RowSource:
        if not isinstance(columns, LabelledTexts):
            if self.pairs_per_text != 1:
                raise InvalidInput(f"pairs_per_text is for labelled texts, but the columns are of {columns.kind}.")
            return GivenRows(stored)
        negatives = isinstance(plain(self.loss), Triplet)
        return DrawnRows(stored, pairs=self.pairs_per_text, negatives=negatives, seed=seed)


def _split(
    rows: list[EmbeddingRow], columns: EmbeddingColumns, seed: int
) -> tuple[list[EmbeddingRow], list[EmbeddingRow]]:
    """What to learn from, and what to hold out, which may be nothing of labelled texts.

    Raises:
        InvalidInput: No row can be held out.
    """
    fraction = min(0.1, MOST_HELD_OUT / len(rows))
    match columns:
        case LabelledTexts():
            parts = hold_out(rows, fraction, seed, lambda label: (label,), group=_first)
            for each in (parts, hold_out_pairs(rows, fraction, seed, group=_first)):
                if each is not None and all(untelling(columns, [row.label for row in part]) is None for part in each):
                    return each
            return rows, []
        case PlainTexts() | ScoredPairs() | Pairs() | Triplets():
            return hold_out(rows, fraction, seed, lambda _: (), group=_first)


def _first(row: EmbeddingRow) -> str:
    """What rows share of which one gives the other away."""
    return row.texts[0]
