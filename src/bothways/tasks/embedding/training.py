"""Fine-tuning of a sentence embedder, from rows of data to a trained encoder."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.checkpoints.golden import choose_inputs
from bothways.choices import SimilarityName
from bothways.data.known_rows import KnownRows, TrainingRows, normalised
from bothways.data.label_rows import names_in
from bothways.data.windows import digest_of_texts
from bothways.errors import InvalidInput
from bothways.evaluation.metrics.regression import agreement_outcomes, undefined_correlation
from bothways.progress import shown, stage
from bothways.tasks.backend import stored_windows
from bothways.tasks.card import BaseModel, CardMetrics, DataUsed, SavedBaseline, optimistic, unmeasured, written_card
from bothways.tasks.embedding.losses import (
    CoSENT,
    Distillation,
    EmbeddingLoss,
    MultipleNegativesRanking,
    PlainLoss,
    Triplet,
    check_settings,
    loss_settings,
    plain,
)
from bothways.tasks.embedding.objective import (
    DrawnRows,
    EmbeddingObjective,
    GivenRows,
    RowSource,
    StoredRows,
    above_diagonal,
    square_cosines,
    validation_of,
)
from bothways.tasks.embedding.outputs import (
    EmbeddingRow,
    RowTexts,
    Vectors,
    found_at,
    outcomes_of,
    read_embedding_rows,
    similarities_of,
    without_contrast,
)
from bothways.tasks.embedding.settings import with_prompt
from bothways.tasks.embedding.spec import (
    EmbeddingColumns,
    EmbeddingLearning,
    LabelledTexts,
    Pairs,
    PlainTexts,
    ScoredPairs,
    Triplets,
)
from bothways.tasks.embedding.trained import TrainedEmbedder
from bothways.tasks.heads.diagnostics import notes_on_training
from bothways.tasks.heads.splits import TrainingData, hold_out, hold_out_pairs
from bothways.tasks.opening import with_weights
from bothways.tasks.spec import TaskSpec
from bothways.tasks.torch_backend import TorchBackend
from bothways.training.forecast import Reads
from bothways.training.objective import ON_CPU
from bothways.training.options import TrainingOptions, rows_in_update
from bothways.training.stages import ARRAY, announce, kept, second_time
from bothways.training.state import TrainingRecord

# Approximate maximum of held-out rows; more would make validation slow and hardly more accurate.
MOST_HELD_OUT = 2000

Encode: TypeAlias = Callable[[NDArray[np.int64]], object]  # embeds the texts with these indices

# The kinds of rows that each loss can train on.
KINDS_OF_LOSS: dict[type[PlainLoss], tuple[type[EmbeddingColumns], ...]] = {
    MultipleNegativesRanking: (Pairs, Triplets, LabelledTexts),
    CoSENT: (ScoredPairs,),
    Triplet: (Triplets, LabelledTexts),
    Distillation: (PlainTexts,),
}


@dataclass(frozen=True, slots=True)
class EmbeddingExamples:
    """The training data of an embedder."""

    columns: EmbeddingColumns  # the kind of rows
    training: list[EmbeddingRow]
    # The held-out rows choose the epoch to keep; without them, or if they allow no metric, the last epoch is kept.
    held_out: list[EmbeddingRow]
    split: bool  # True if the held-out rows were drawn from the training data

    @classmethod
    def read(cls, data: TrainingData, columns: EmbeddingColumns, options: EmbeddingLearning) -> "EmbeddingExamples":
        """Read the rows; without validation data, hold out about a tenth of the training rows, at most some 2,000.

        Rows with the same first text stay together. If no held-out part of labelled texts would allow a ranking
        metric, because too few texts share a label, all of them are used for training.
        """
        rows = read_embedding_rows(data.train, columns, options.reading)
        if data.validation is None:
            rows, held_out = _split(rows, columns, data.seed)
            return cls(columns, rows, data.unshared(rows, held_out, options.shared) if held_out else [], split=True)
        known = {name for row in rows for name in names_in(row.label)}
        held_out = read_embedding_rows(data.validation, columns, options.reading, known)
        held_out = data.unshared(rows, held_out, options.shared)
        why = without_contrast(columns, [row.label for row in held_out])
        if why is not None:
            raise InvalidInput(
                f"the validation data allow no metric: {why}. Give at least two labels, one of them with at "
                "least two texts, or leave out the validation data."
            )
        return cls(columns, rows, held_out, split=False)

    def golden(self, seed: int) -> tuple[object, ...]:
        """Return held-out texts for golden answers."""
        held_out = ((text, row.label) for row in self.held_out for text in row.text)
        return choose_inputs(held_out, (text for row in self.training for text in row.text), seed)

    @property
    def unmeasured(self) -> str | None:
        """The reason why the held-out rows allow no metric; None if they allow one."""
        if not self.held_out:
            return "no rows were held out, since too few texts share a label"
        why = without_contrast(self.columns, [row.label for row in self.held_out])
        return None if why is None else f"in the held-out rows, {why}"


@dataclass(frozen=True, slots=True)
class EmbedderTraining:
    """An embedder that is ready to be trained."""

    start: TrainedEmbedder  # its encoder is trained in place
    examples: EmbeddingExamples
    known: KnownRows
    notes: list[str]  # on held-out rows that are training rows
    stored: StoredRows  # the tokenised training rows
    held: StoredRows | None  # the held-out rows; None if there are none
    training: TrainingOptions
    objective: EmbeddingObjective

    unit: ClassVar[float] = 1.0

    @property
    def reads(self) -> Reads:
        """The tokens that the training reads besides those of its updates."""
        return Reads.of(self.stored.store, None if self.held is None else self.held.store)

    def finish(self, record: TrainingRecord) -> TrainedEmbedder:
        """Return the trained embedder with its card."""
        examples, held, why = self.examples, self.held, self.examples.unmeasured
        used = DataUsed(examples.columns, self.stored.part, None if held is None else held.part, split=examples.split)
        metrics, notes = CardMetrics(None, (unmeasured(str(why)),)), self.notes
        if held is not None and why is None:
            vectors = self._vectors(held)
            with stage("evaluating on the held-out rows"):
                metrics = metrics_of(vectors, held, self.start.settings.similarity, seed=self.training.seed)
            again = partial(validation_of, vectors, held, self.start.settings.similarity)
            notes = [*notes, *notes_on_training(record, len(examples.held_out), again)]
        model = with_weights(self.start.backend, "train").model
        card = written_card(model, record, used, metrics)
        card = {**card, **loss_settings(self.objective.loss_of_batch), "notes": notes}
        base = None if record.kept_epoch == 0 else BaseModel.of(model)
        baseline = None if base is None else SavedBaseline(self.objective.baseline.name, base=base)
        trained = replace(
            self.start, columns=examples.columns, card=card, golden_inputs=examples.golden(self.training.seed)
        )
        return replace(trained, baseline=baseline, known=TrainingRows(self.known))

    def _vectors(self, held: StoredRows) -> NDArray[np.float32]:
        objective = self.objective
        return kept(
            "embedding the held-out rows",
            ARRAY,
            lambda bar: objective.vectors_of(held, bar),
            objective.model,
            f"{held.store.digest} tokens {objective.tokens}",
            total=len(held.store.lengths),
        )


def train_embedder(
    spec: TaskSpec,
    backend: TorchBackend,
    before: TrainedEmbedder,
    data: TrainingData,
    columns: EmbeddingColumns,
    options: EmbeddingLearning,
    training: TrainingOptions,
) -> EmbedderTraining:
    """Read and tokenise the data, and prepare the training; the embedder's encoder is trained in place."""
    del spec
    with stage("reading the data"):
        data = replace(data, known=before.known.rows(), seed=training.seed)
        examples = EmbeddingExamples.read(data, columns, options)
    settings = before.settings
    start = replace(before, backend=backend, layers=deepcopy(before.layers))
    loss = options.loss or usual_loss(columns, settings.similarity)
    check_loss(loss, columns, start.dimensions)
    module = start.module(backend.model, start.prompt_ids(columns))

    def objective(stored: StoredRows, held: StoredRows | None = None) -> EmbeddingObjective:
        return EmbeddingObjective(
            module,
            settings,
            _source(stored, loss, options.pairs_per_text, training.seed),
            loss,
            held if examples.unmeasured is None else None,
            batch_size=rows_in_update(training),
            tokens=training.max_tokens,
            seed=training.seed,
            run_settings={
                "validation data": None if held is None else held.digest,
                "loss": str(loss_settings(loss)),
                "pooling": settings.pooling,
                "unit length": settings.unit_length,
                "dimensions": settings.dimensions,
                "pairs per text": options.pairs_per_text,
            },
        )

    def before_teaching(blank: StoredRows, encode: Encode) -> None:
        if shown():
            _announce(objective, blank, encode, training, backend)

    stored = _stored(start, examples.training, loss, before_teaching)
    held = _stored(start, examples.held_out, loss) if examples.held_out else None
    known = data.compared(examples.training, examples.held_out)
    return EmbedderTraining(start, examples, *known, stored, held, training, objective(stored, held))


def _announce(
    objective: Callable[[StoredRows], EmbeddingObjective],
    blank: StoredRows,
    encode: Encode,
    training: TrainingOptions,
    backend: TorchBackend,
) -> None:
    """Estimate the duration of a distillation from a few rows; ``blank`` has all of them, with zeros as targets."""
    whole, store = objective(blank), blank.store
    tokens = int(store.lengths.sum())
    number = max(2, min(whole.batch_size, 2 * ON_CPU * store.texts // tokens))
    few = np.random.default_rng(0).permutation(store.texts)[:number]
    rows = np.arange(len(few))[:, None]
    part = StoredRows(blank.columns, rows, blank.identity_P[few], blank.truth[few], store.take(few))

    def measure() -> tuple[float, float]:
        read = second_time(lambda: whole.vectors_of(part)) / int(part.store.lengths.sum())
        return read, second_time(lambda: encode(few)) / len(few) * store.texts

    announce(
        whole,
        objective(part),
        tokens / whole.updates_per_epoch(),
        training,
        backend.model,
        Reads.of(store, None),
        measure,
    )


def _stored(
    start: TrainedEmbedder,
    rows: Sequence[EmbeddingRow],
    loss: EmbeddingLoss,
    before_teaching: Callable[[StoredRows, Encode], None] = lambda *_: None,
) -> StoredRows:
    """Tokenise rows; for distillation, each text becomes a row with the teacher's vector as its target.

    ``before_teaching`` gets the rows with zeros as targets, before the teacher embeds the texts.
    """
    texts, known, inner = [text for row in rows for text in row.text], RowTexts.of(rows), plain(loss)
    prompts = start.settings.prompts_of(rows[0].columns)
    store = stored_windows(
        start.backend, [with_prompt(text, prompts[place > 0]) for row in rows for place, text in enumerate(row.text)]
    )
    texts_RK, truth_R = known.texts_RK, known.truth_R
    if isinstance(inner, Distillation):
        teacher, texts_RK, digest = inner.teacher, texts_RK.reshape(-1, 1), digest_of_texts(texts)
        some = np.asarray(teacher.encode(texts[:8], show_progress=False))  # tells teachers apart
        zeros = np.zeros((len(texts), some.shape[1]), np.float32)
        blank = StoredRows(known.columns, texts_RK, known.identity_P, zeros, store)
        before_teaching(blank, lambda few: teacher.encode([texts[each] for each in few], show_progress=False))
        name = "embedding the texts with the teacher"
        parts = torch.from_numpy(some), digest
        truth_R = kept(name, ARRAY, lambda _: np.asarray(teacher.encode(texts), np.float32), *parts)
    return StoredRows(known.columns, texts_RK, known.identity_P, truth_R, store)


def _source(stored: StoredRows, loss: EmbeddingLoss, pairs_per_text: int, seed: int) -> RowSource:
    if isinstance(stored.columns, LabelledTexts):
        return DrawnRows(stored, pairs=pairs_per_text, negatives=isinstance(plain(loss), Triplet), seed=seed)
    if pairs_per_text != 1:
        raise InvalidInput(f"pairs_per_text needs labelled texts, not {stored.columns.kind}: leave out pairs_per_text.")
    return GivenRows(stored)


def _split(
    rows: list[EmbeddingRow], columns: EmbeddingColumns, seed: int
) -> tuple[list[EmbeddingRow], list[EmbeddingRow]]:
    """Split rows into training and held-out rows; for labelled texts, the held-out rows may be empty."""
    fraction = min(0.1, MOST_HELD_OUT / len(rows))
    if not isinstance(columns, LabelledTexts):
        return hold_out(rows, fraction, seed, lambda _: (), group=_first)
    parts = hold_out(rows, fraction, seed, lambda label: (label,), group=_first)
    for each in (parts, hold_out_pairs(rows, fraction, seed, group=_first)):
        if each is not None and all(without_contrast(columns, [row.label for row in part]) is None for part in each):
            return each
    return rows, []


def _first(row: EmbeddingRow) -> str:
    """Return the first text in a normal form; rows with the same first text stay together in a split."""
    return normalised(row.text[0])


def usual_loss(columns: EmbeddingColumns, similarity: SimilarityName) -> PlainLoss:
    """Return the default loss for a kind of rows; refuse plain texts, which need a teacher."""
    scale = usual_scale(similarity)
    match columns:
        case ScoredPairs():
            return CoSENT(scale)
        case PlainTexts():
            raise InvalidInput("to train on texts alone, give a teacher: loss=Distillation(teacher). Or give labels.")
        case _:
            return MultipleNegativesRanking(scale)


def usual_scale(similarity: SimilarityName) -> float:
    """Return the default scale of a loss: 20 for cosines, which are at most 1; 1 for similarities without a bound."""
    return 20.0 if similarity == "cosine" else 1.0


def check_loss(loss: EmbeddingLoss, columns: EmbeddingColumns, width: int) -> None:
    """Refuse a loss that does not fit the rows or the ``width`` of the embedder's vectors."""
    inner = plain(loss)
    kinds = KINDS_OF_LOSS[type(inner)]
    if not isinstance(columns, kinds):
        expected = " or ".join(kind.kind for kind in kinds)
        raise InvalidInput(f"the {inner.name} loss needs {expected}, but the data are {columns.kind}. Change the loss.")
    check_settings(loss, width)


def metrics_of(vectors_PH: Vectors, rows: RowTexts, similarity: SimilarityName, *, seed: int) -> CardMetrics:
    """Compute the metrics on held-out rows for the card, with sentences on their limits."""
    chose, alike = optimistic("rows", "the epoch to keep"), "The metrics hold for texts like the held-out rows."
    match rows.columns:
        case PlainTexts():
            cosines = [square_cosines(each) for each in (rows.truth, vectors_PH)]
            why = undefined_correlation(*map(above_diagonal, cosines))
            if why is not None:
                return CardMetrics(None, (unmeasured(f"of the held-out texts, {why}"),))
            like_it = "The metrics measure the agreement with the teacher, not the quality of either model."
            return CardMetrics(agreement_outcomes(*cosines).report(resamples=200, seed=seed), (chose, alike, like_it))
        case ScoredPairs():
            similar_R, scores_R = similarities_of(vectors_PH, rows, similarity), rows.truth.astype(np.float64)
            why = undefined_correlation(scores_R, similar_R)
            if why is not None:
                return CardMetrics(None, (unmeasured(f"of the held-out rows, {why}"),))
            return CardMetrics(outcomes_of(similar_R, scores_R).report(seed=seed), (chose, alike))
        case _:
            among = "Only the texts of the validation rows were ranked; ranks are worse in a larger collection."
            found = outcomes_of(found_at(vectors_PH, rows, similarity), None)
            return CardMetrics(found.report(seed=seed), (chose, alike, among))
