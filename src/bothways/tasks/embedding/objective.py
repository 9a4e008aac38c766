"""The training objective of sentence embedders: batches of rows, and a loss with gradient caching.

A loss compares all vectors of a batch, but a large batch does not fit into memory at once. A batch of several
micro-batches therefore goes through the model twice (Gao et al. 2021, arXiv:2101.06983):

1. without an autograd graph: compute all vectors, the loss, and its gradient with respect to each vector;
2. micro-batch by micro-batch with a graph: backpropagate the sum of each vector times its cached gradient.

Each micro-batch draws the same dropout in both passes, because the random generators are restored. Memory grows with
the size of a micro-batch, and with the vectors of the batch, which are small.

Shapes: R rows, N rows of a batch, K texts per row, P texts of a batch (N times K), W windows of a batch, B windows of
a micro-batch, H hidden.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.choices import SimilarityName
from bothways.data.windows import WindowStore, digest_of
from bothways.devices import on_device
from bothways.errors import InvalidInput
from bothways.evaluation.intervals import correlation_error, share_error
from bothways.evaluation.metrics.regression import spearman
from bothways.evaluation.report import Validation
from bothways.inference.runner import Runner, counted, row_answers
from bothways.inference.texts import by_token_budget
from bothways.packing import Packed
from bothways.progress import Progress
from bothways.tasks.card import data_part
from bothways.tasks.embedding.losses import EmbeddingLoss, VectorBatch, unit
from bothways.tasks.embedding.outputs import Floats, RowTexts, Truth, Vectors, found_at, similarities_of, unit_rows
from bothways.tasks.embedding.settings import EmbeddingSettings
from bothways.tasks.embedding.spec import PlainTexts, ScoredPairs
from bothways.tasks.embedding.vector_model import VectorModel, merge_windows
from bothways.training.objective import Baseline, MicroBatch, Update
from bothways.training.state import RandomState

# Maximum held-out texts whose pairwise cosines are compared with the teacher's.
COMPARED = 512


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows(RowTexts):
    """Rows with their tokenised texts."""

    store: WindowStore

    @property
    def part(self) -> dict[str, object]:
        """The card's entry of the rows: their number, and SHA-256 of their tokens and targets."""
        truth = {} if self.truth_R is None else {"labels_sha256": digest_of(self.truth_R)}
        return {**data_part(len(self.texts_RK), self.store), **truth}

    @property
    def digest(self) -> str:
        """A checksum of tokens and targets."""
        parts = (self.texts_RK,) if self.truth_R is None else (self.texts_RK, self.truth_R)
        return f"{self.store.digest} {digest_of(*parts)}"


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of an epoch or a batch."""

    texts_RK: NDArray[np.int64]  # indices of the rows' texts
    truth_R: Truth | None  # scores, encoded labels, or a teacher's vectors; None if there are none

    def batch(self, chosen: NDArray[np.int64]) -> "BatchRows":
        """Select rows by index."""
        return BatchRows(self.texts_RK[chosen], None if self.truth_R is None else self.truth_R[chosen])


@dataclass(frozen=True, slots=True)
class GivenRows:
    """The rows of the data, the same in each epoch."""

    data: StoredRows

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.data.texts_RK)

    def epoch(self, epoch: int) -> BatchRows:
        """Return all rows; ``epoch`` has no effect."""
        del epoch
        return BatchRows(self.data.texts_RK, self.data.truth_R)


class DrawnRows:
    """Rows drawn again for each epoch: a text, a text with the same label, and optionally one with another label.

    Each text is the anchor of ``pairs`` rows, or of fewer if its label has fewer other texts. A text whose label occurs
    once is not used as an anchor, but can be drawn as a negative.
    """

    def __init__(self, data: StoredRows, *, pairs: int, negatives: bool, seed: int) -> None:
        if pairs < 1:
            raise InvalidInput(f"pairs_per_text must be at least 1, got {pairs}.")
        self.data = data
        self._label_N = data.truth.astype(np.int64)
        self._texts_of_label = [np.flatnonzero(self._label_N == label) for label in np.unique(self._label_N)]
        if len(self._texts_of_label) < 2:
            raise InvalidInput("expected texts of at least two labels, got only one. Check the column of the labels.")
        if all(len(texts) < 2 for texts in self._texts_of_label):
            raise InvalidInput("expected a label with at least two texts, but every label occurs once. Give more rows.")
        self._pairs, self._negatives, self._seed = pairs, negatives, seed
        self.count = sum(len(texts) * min(pairs, len(texts) - 1) for texts in self._texts_of_label)

    def epoch(self, epoch: int) -> BatchRows:
        """Draw the rows of an epoch, sorted by label."""
        generator = np.random.default_rng([self._seed, epoch, 1])
        texts_RK = np.array(list(self._drawn(generator)), dtype=np.int64)
        if self._negatives:
            others = [self._other(generator, self._label_N[text]) for text in texts_RK[:, 0]]
            texts_RK = np.column_stack([texts_RK, others])
        return BatchRows(texts_RK, self._label_N[texts_RK[:, 0]])

    def _drawn(self, generator: np.random.Generator) -> Iterator[tuple[int, int]]:
        for texts in self._texts_of_label:
            for place, text in enumerate(texts):
                for other in generator.permutation(np.delete(texts, place))[: self._pairs]:
                    yield int(text), int(other)

    def _other(self, generator: np.random.Generator, label: int) -> int:
        """Draw a text with another label, uniformly."""
        while True:
            drawn = int(generator.integers(len(self._label_N)))
            if self._label_N[drawn] != label:
                return drawn


RowSource: TypeAlias = GivenRows | DrawnRows


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch of rows and the windows of their texts."""

    rows: BatchRows
    windows: list[int]  # indices of the windows in the store, text by text
    text_W: NDArray[np.int64]  # the text of each window, as an index into the batch
    lengths_W: NDArray[np.int64]  # number of tokens of each window


@dataclass(frozen=True, slots=True)
class Alone:
    """A micro-batch without cached gradients: not yet cached, or the only micro-batch of its batch."""

    packed: Packed
    places: list[int]  # indices of the windows in the plan
    plan: BatchPlan


@dataclass(frozen=True, slots=True)
class CachedMicroBatch:
    """A micro-batch with the cached gradient of its batch's loss."""

    packed: Packed
    # The gradient of (batch loss times batch weight) with respect to the windows' vectors.
    gradient_BH: Tensor
    value: Tensor  # this micro-batch's share of the weighted loss
    random: RandomState  # the random generators before its first pass


Payload = Alone | CachedMicroBatch


@dataclass(eq=False)
class EmbeddingObjective:
    """The objective of an embedder for the training loop.

    An update has at most ``batch_size`` rows, which the loss compares with each other; update sizes differ by at most
    one row. A micro-batch has at most ``tokens`` tokens. ``held_out`` rows are evaluated after each epoch.
    ``run_settings`` are further settings that determine the run.
    """

    baseline: ClassVar = Baseline("embedder before the training", margin=0.0)
    min_updates: ClassVar = 0

    model: VectorModel
    settings: EmbeddingSettings
    source: RowSource
    loss_of_batch: EmbeddingLoss
    held_out: StoredRows | None
    _: KW_ONLY
    batch_size: int
    tokens: int
    seed: int
    run_settings: Mapping[str, str | int | float | bool | None]

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise InvalidInput(f"batch_size must be at least 2, since rows are compared, got {self.batch_size}.")
        if self.source.count < 2:
            raise InvalidInput("rows of a batch are compared, so training needs at least two rows: give more data.")

    @property
    def module(self) -> nn.Module:
        """The trained module: encoder and pooling."""
        return self.model

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        """Settings and data that determine the run, besides the training options."""
        return {
            "training data": self.source.data.digest,
            "batch size": self.batch_size,
            "token budget": self.tokens,
            **self.run_settings,
        }

    def validate(self) -> Validation | None:
        """Return metrics on the held-out rows; None without held-out rows."""
        rows = self.held_out
        return None if rows is None else validation_of(self.vectors_of(rows), rows, self.settings.similarity)

    def vectors_of(self, rows: StoredRows, bar: Progress | None = None) -> NDArray[np.float32]:
        """Embed the texts of rows (P, H)."""
        store, compute = rows.store, counted(row_answers(self.model, per_token=False), bar)
        answers = Runner(compute, self.model.device, self.tokens).run(store.windows())
        vectors_PH: NDArray[np.float32] = self._merged(
            torch.from_numpy(np.stack(answers)), store.text_of_window, store.lengths
        ).numpy()
        return vectors_PH

    def updates_per_epoch(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-self.source.count // self.batch_size)

    def updates(self, epoch: int, start: int) -> Iterator[Update[Payload]]:
        """Yield the epoch's rows in a random order, in batches of nearly equal size."""
        rows = self.source.epoch(epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.source.count)
        for chosen in np.array_split(order, self.updates_per_epoch())[start:]:
            plan = self._plan(rows.batch(chosen))
            yield Update(tuple(self._micro_batches(plan)))

    def joined(self, update: Update[Payload]) -> Update[Payload]:
        """Return the update with cached gradients in its micro-batches; a single micro-batch stays as it is."""
        parts = [each.payload for each in update.micro_batches if isinstance(each.payload, Alone)]
        if len(parts) < 2:
            return update
        randoms, vectors = [], []
        with torch.no_grad():
            for part in parts:
                randoms.append(RandomState.capture())
                vectors.append(self.model(part.packed).float())
        plan = parts[0].plan
        ordered_WH = _in_order(torch.cat(vectors), [place for part in parts for place in part.places])
        leaf_WH = ordered_WH.requires_grad_()
        with torch.enable_grad():
            loss = self.batch_loss(leaf_WH, plan) * update.weight
        (gradient_WH,) = torch.autograd.grad(loss, leaf_WH)
        cached = [
            CachedMicroBatch(
                part.packed, gradient_WH[part.places], loss.detach() * (each.weight / update.weight), random
            )
            for each, part, random in zip(update.micro_batches, parts, randoms, strict=True)
        ]
        return Update(
            tuple(replace(each, payload=payload) for each, payload in zip(update.micro_batches, cached, strict=True))
        )

    def loss(self, payload: Payload) -> Tensor:
        """Return the loss of a batch times its number of rows, or a cached micro-batch's share of that."""
        match payload:
            case Alone(packed, places, plan):
                vectors_WH = _in_order(self.model(packed).float(), places)
                return self.batch_loss(vectors_WH, plan) * len(plan.rows.texts_RK)
            case CachedMicroBatch(packed, gradient_BH, value, random):
                random.restore()
                # Only the gradient of this sum matters; the value is the cached one.
                carrier: Tensor = (self.model(packed).float() * gradient_BH).sum()
                return carrier - carrier.detach() + value

    def batch_loss(self, vectors_WH: Tensor, plan: BatchPlan) -> Tensor:
        """Return the loss of a batch in float32, given the vectors of all its windows in the order of the plan."""
        device, rows = vectors_WH.device, plan.rows
        with torch.autocast(device.type, enabled=False):
            vectors_PH = self._merged(vectors_WH, plan.text_W, plan.lengths_W)
            vectors_NKH = vectors_PH.view(*rows.texts_RK.shape, -1)
            identity_NK = self.source.data.identity_P[rows.texts_RK]
            truth = None if rows.truth_R is None else on_device(rows.truth_R, device)
            settings = self.settings
            batch = VectorBatch(vectors_NKH.unbind(1), identity_NK, truth, settings.unit_length, settings.similarity)
            return self.loss_of_batch.value(batch)

    def _merged(self, vectors_WH: Tensor, text_W: NDArray[np.int64], lengths_W: NDArray[np.int64]) -> Tensor:
        """Merge window vectors into text vectors, truncated and scaled according to the settings."""
        settings = self.settings
        merged_PH = merge_windows(vectors_WH, text_W, lengths_W, by_maximum=settings.merges_by_maximum)
        cut_PH = merged_PH[:, : settings.dimensions]
        return (unit(cut_PH) if settings.unit_length else cut_PH)[:, : settings.truncate_dim]

    def _plan(self, rows: BatchRows) -> BatchPlan:
        store, texts = self.source.data.store, rows.texts_RK.reshape(-1)
        windows, counts = store.windows_of(texts), np.bincount(store.text_of_window)[texts]
        return BatchPlan(rows, windows, np.repeat(np.arange(len(texts)), counts), store.lengths[windows])

    def _micro_batches(self, plan: BatchPlan) -> Iterator[MicroBatch[Payload]]:
        """Yield the windows of all texts in order of length; a micro-batch is weighted by its share of the tokens."""
        total, rows = int(plan.lengths_W.sum()), len(plan.rows.texts_RK)
        for places in by_token_budget(plan.lengths_W.tolist(), self.tokens):
            tokens = int(plan.lengths_W[places].sum())
            packed = self.source.data.store.pack([plan.windows[place] for place in places]).to(self.model.device)
            yield MicroBatch(Alone(packed, places, plan), rows * tokens / total, tokens)


def validation_of(vectors_PH: Vectors, rows: RowTexts, similarity: SimilarityName) -> Validation:
    """Return the metrics of held-out rows, given their vectors.

    The validation score is Spearman's correlation of the similarities with the scores, or with the teacher's cosines
    for plain texts; for other rows, it is the mean reciprocal rank.
    """
    match rows.columns:
        case ScoredPairs():
            value = spearman(rows.truth, similarities_of(vectors_PH, rows, similarity))
            return Validation({"spearman": value}, value, correlation_error(value, len(rows.texts_RK)))
        case PlainTexts():
            cosines = (above_diagonal(square_cosines(each)) for each in (rows.truth, vectors_PH))
            value = spearman(*(each if len(each) else np.zeros(1) for each in cosines))
            # The pairs are not independent, so the number of texts is taken as the sample size.
            return Validation({"spearman_with_teacher": value}, value, correlation_error(value, len(vectors_PH)))
        case _:
            ranks_N = found_at(vectors_PH, rows, similarity)
            mrr = float(ranks_N.mean())
            metrics = {"accuracy": float((ranks_N == 1).mean()), "mrr": mrr}
            return Validation(metrics, mrr, share_error(mrr, len(ranks_N)))


def square_cosines(vectors_PH: Truth) -> Floats:
    """Return the matrix of cosines between the first `COMPARED` texts."""
    unit_PH = unit_rows(vectors_PH[:COMPARED].astype(np.float64))
    return unit_PH @ unit_PH.T


def above_diagonal(square: Floats) -> Floats:
    """Return the values above the diagonal of a square matrix."""
    above: Floats = square[np.triu_indices(len(square), 1)]
    return above


def _in_order(vectors_WH: Tensor, places: Sequence[int]) -> Tensor:
    """Sort vectors by their window index in ``places``."""
    return vectors_WH[on_device(np.argsort(places), vectors_WH.device)]
