"""Training of sentence embedders as the training loop sees it, with gradient caching.

The losses look at all vectors of a batch at once, but a batch need not go through the model at once. Where it is more
than one micro-batch, it is read twice (Gao et al. 2021, arXiv:2101.06983):

1. without a graph, only for the vectors; the loss of all of them, and its gradient with respect to each;
2. micro-batch by micro-batch with a graph, where the sum of vector times cached gradient has the gradient that the
   loss would have had.

Each micro-batch draws the same dropout in both, because the random generators are put back to where they stood. Memory
then grows with the micro-batch, and with the vectors of the batch, which are small.

Shapes: N rows, K texts of a row, P texts of a batch (N times K), W windows of a batch, B windows of a micro-batch,
H hidden.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.data.windows import WindowStore
from bothways.devices import on_device
from bothways.errors import InvalidInput
from bothways.inference.batching import by_token_budget
from bothways.inference.runner import Runner, row_answers
from bothways.packing import Packed
from bothways.tasks.embedding.batches import BatchRows, RowSource
from bothways.tasks.embedding.losses import EmbeddingLoss, VectorBatch, unit
from bothways.tasks.embedding.pooling import merge_windows
from bothways.tasks.embedding.sentence_layout import EmbeddingSettings
from bothways.tasks.embedding.vector_model import VectorModel
from bothways.training.objective import Baseline, MicroBatch, Update, Validation
from bothways.training.seeding import RandomState


def finished(vectors_PH: Tensor, settings: EmbeddingSettings) -> Tensor:
    """Return vectors of texts as an embedder gives them: cut to its dimensions, and at length 1 if it wants that."""
    cut_PH = vectors_PH[:, : settings.dimensions]
    return unit(cut_PH) if settings.unit_length else cut_PH


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch of rows and the windows that their texts are read in.

    Attributes:
        rows: The rows.
        windows: Numbers of the windows in the store, those of the first text first.
        text_W: Place of the text, in the batch, that each window belongs to.
        lengths_W: Tokens of each window.
    """

    rows: BatchRows
    windows: list[int]
    text_W: NDArray[np.int64]
    lengths_W: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Alone:
    """A micro-batch before the loss of its batch is known; if it is the whole batch, it has its own.

    Attributes:
        packed: The windows.
        places: Which windows of the plan they are.
        plan: The batch.
    """

    packed: Packed
    places: list[int]
    plan: BatchPlan


@dataclass(frozen=True, slots=True)
class CachedMicroBatch:
    """A micro-batch of a batch whose loss is known.

    Attributes:
        packed: The windows.
        gradient_BH: Of the loss times the weight of the batch, with respect to their vectors.
        value: This micro-batch's part of that product.
        random: Where the random generators stood when the vectors were made.
    """

    packed: Packed
    gradient_BH: Tensor
    value: Tensor
    random: RandomState


Payload = Alone | CachedMicroBatch


class EmbeddingObjective:
    """Trains an encoder so that the vectors of its texts have a small loss.

    Args:
        model: What to train.
        settings: How windows become the vector of a text.
        source: The rows to learn from.
        loss: Of a batch of them.
        validate: Metrics on held-out data, computed after each epoch.
        batch_size: Rows in one update, which the loss sees together; rows are spread evenly over the updates.
        tokens: Token budget of a micro-batch.
        seed: Orders the rows, together with the epoch.
        identity: What else decides the course of the run.

    Raises:
        InvalidInput: The batch size is below 2, or there are fewer than two rows.
    """

    # The embedder as it came.
    baseline: ClassVar = Baseline("embedder before the training", margin=0.0)
    least_updates: ClassVar = 0

    def __init__(
        self,
        model: VectorModel,
        settings: EmbeddingSettings,
        source: RowSource,
        loss: EmbeddingLoss,
        validate: Callable[[], Validation | None],
        *,
        batch_size: int,
        tokens: int,
        seed: int,
        identity: Mapping[str, str | int | float | bool | None],
    ) -> None:
        if batch_size < 2:
            raise InvalidInput(f"rows are compared with each other, so batch_size must be 2 or more, not {batch_size}.")
        if source.count < 2:
            raise InvalidInput("rows are compared with each other, so at least two are needed to train on.")
        self.model = model
        self.settings = settings
        self.source = source
        self.loss_of_batch = loss
        self.validate = validate
        self.batch_size = batch_size
        self.tokens = tokens
        self.seed = seed
        self._identity = identity

    @property
    def module(self) -> nn.Module:
        """Encoder and pooling."""
        return self.model

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        """Everything besides the settings that decides the course of the run."""
        return {
            "training data": self.source.data.digest,
            "batch size": self.batch_size,
            "token budget": self.tokens,
            **self._identity,
        }

    def updates_per_epoch(self) -> int:
        """Return the number of batches of at most ``batch_size`` rows."""
        return -(-self.source.count // self.batch_size)

    def updates(self, epoch: int, start: int) -> Iterator[Update[Payload]]:
        """Yield the epoch's rows in an order of its own, in batches that differ by one row at most."""
        rows = self.source.epoch(epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.source.count)
        for chosen in np.array_split(order, self.updates_per_epoch())[start:]:
            plan = self._plan(rows.batch(chosen))
            yield Update(tuple(self._micro_batches(plan)))

    def joined(self, update: Update[Payload]) -> Update[Payload]:
        """Return the micro-batches, each with its cached gradient; a batch that is one micro-batch stays as it is."""
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
        """Return the loss of a batch times its rows; of a cached micro-batch, its part."""
        match payload:
            case Alone(packed, places, plan):
                vectors_WH = _in_order(self.model(packed).float(), places)
                return self.batch_loss(vectors_WH, plan) * len(plan.rows.texts_RK)
            case CachedMicroBatch(packed, gradient_BH, value, random):
                random.restore()
                # Its value is beside the point, its gradient is not.
                carrier: Tensor = (self.model(packed).float() * gradient_BH).sum()
                return carrier - carrier.detach() + value

    def batch_loss(self, vectors_WH: Tensor, plan: BatchPlan) -> Tensor:
        """Return the loss of a batch, given the vectors of all its windows in the order of the plan; in float32."""
        device, rows = vectors_WH.device, plan.rows
        with torch.autocast(device.type, enabled=False):
            merged_PH = merge_windows(vectors_WH, plan.text_W, plan.lengths_W, self.settings.pooling)
            vectors_NKH = finished(merged_PH, self.settings).view(*rows.texts_RK.shape, -1)
            identity_NK = self.source.data.identity_P[rows.texts_RK]
            truth = None if rows.truth_R is None else on_device(rows.truth_R, device)
            batch = VectorBatch(vectors_NKH.unbind(1), identity_NK, truth, self.settings.unit_length)
            return self.loss_of_batch.value(batch)

    def _plan(self, rows: BatchRows) -> BatchPlan:
        store, texts = self.source.data.store, rows.texts_RK.reshape(-1)
        windows, counts = store.windows_of(texts), np.bincount(store.text_of_window)[texts]
        return BatchPlan(rows, windows, np.repeat(np.arange(len(texts)), counts), store.lengths[windows])

    def _micro_batches(self, plan: BatchPlan) -> Iterator[MicroBatch[Payload]]:
        """Yield windows of all texts of all columns, sorted by length; each batch weighs as much as its tokens."""
        total, rows = int(plan.lengths_W.sum()), len(plan.rows.texts_RK)
        for places in by_token_budget(plan.lengths_W.tolist(), self.tokens):
            tokens = int(plan.lengths_W[places].sum())
            packed = self.source.data.store.pack([plan.windows[place] for place in places]).to(self.model.device)
            yield MicroBatch(Alone(packed, places, plan), rows * tokens / total, tokens)


def stored_vectors(
    model: VectorModel, store: WindowStore, tokens: int, settings: EmbeddingSettings
) -> NDArray[np.float32]:
    """Return vectors of stored texts (P, H), as an embedder with these settings gives them."""
    rows = Runner(row_answers(model, per_token=False), model.device, tokens).run(store.windows())
    vectors_WH = torch.from_numpy(np.stack(rows))
    merged_PH = merge_windows(vectors_WH, store.text_of_window, store.lengths, settings.pooling)
    vectors_PH: NDArray[np.float32] = finished(merged_PH, settings).numpy()
    return vectors_PH


def _in_order(vectors_WH: Tensor, places: Sequence[int]) -> Tensor:
    """Return vectors that stand in the order of ``places`` in that of the windows."""
    return vectors_WH[on_device(np.argsort(places), vectors_WH.device)]
