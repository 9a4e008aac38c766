"""The training objective of a head and the encoder below it, on windows of texts.

A `LabelLoss` holds the targets of the windows: a label per text, a tag per word, or a span. A long text is split into
several windows.

Shapes: N inputs, W windows, B windows in a batch, C outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.checkpoints import PretrainedEncoder
from bothways.data import Example
from bothways.data.windows import WindowStore
from bothways.evaluation.report import Validation
from bothways.inference import Rows, TextRows, TokenOutputs
from bothways.inference.runner import Runner, counted, row_answers
from bothways.inference.texts import by_token_budget
from bothways.packing import Packed
from bothways.progress import Progress, reporting
from bothways.tasks.backend import Backend, stored_windows
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import AnyOutputs, PlacedOutputs, TrainedHead
from bothways.tasks.scores import Scores
from bothways.tasks.torch_backend import HeadModel
from bothways.training.forecast import Reads
from bothways.training.objective import ON_CPU, Baseline, MicroBatch, Update, micro_batch_tokens
from bothways.training.options import EPOCHS, TrainingOptions
from bothways.training.stages import ROWS, announce, kept, second_time
from bothways.training.workers import current_workers

PlacesT = TypeVar("PlacesT")

# Minimum updates of a training, even with few rows, and of an epoch, since each epoch ends with a validation.
MIN_UPDATES, _MIN_IN_EPOCH = 150, 15
# Maximum tokens in the minimum number of updates: with long texts, fewer updates suffice and each takes longer.
MIN_TOKENS = 600_000

_RELEASED = np.empty(0)


class LabelLoss(Protocol):
    """The targets of stored windows, and their loss; ``weights_W`` has the loss weight of each window.

    ``joint`` is True if the loss of an input needs the scores of all its windows at once.
    """

    joint: ClassVar[bool]
    weights_W: NDArray[np.float64]

    @property
    def digest(self) -> str:
        """A checksum of the targets."""

    def loss(self, scores: Tensor, windows: Sequence[int]) -> Tensor:
        """Return the weighted sum of the windows' losses, given the model's scores."""


@dataclass(frozen=True, slots=True, eq=False)
class LossUnits:
    """Units over which losses are summed: the windows themselves, or the words in them.

    Attributes:
        rows_U: Index of each unit's row among the head's output rows for its window.
        shares_U: Weight of each unit; the units of one text, or of one word, share a weight of 1.
        starts: First unit of each window, then the number of units; W + 1 long.
        heights_W: Number of the head's output rows for each window.
    """

    rows_U: NDArray[np.int64]
    shares_U: NDArray[np.float64]
    starts: NDArray[np.int64]
    heights_W: NDArray[np.int64]

    @classmethod
    def of_texts(cls, store: WindowStore) -> LossUnits:
        """Return the windows of a store as units; the windows of a text share a weight of 1."""
        shares_W = store.shares_W
        ones_W = np.ones(len(shares_W), dtype=np.int64)
        return cls(np.zeros_like(ones_W), shares_W, np.arange(len(shares_W) + 1), ones_W)

    @property
    def weights_W(self) -> NDArray[np.float64]:
        """Weight of each window: the sum over its units."""
        return np.array([self.shares_U[start:end].sum() for start, end in itertools.pairwise(self.starts)])

    def of(self, windows: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices of the units in some windows, and their rows in a batch of these windows."""
        taken = np.asarray(windows)
        counts, heights = self.starts[taken + 1] - self.starts[taken], self.heights_W[taken]
        before = np.cumsum(counts) - counts
        numbers = np.arange(counts.sum()) + np.repeat(self.starts[taken] - before, counts)
        return numbers, self.rows_U[numbers] + np.repeat(np.cumsum(heights) - heights, counts)


@dataclass(frozen=True, slots=True, eq=False)
class StoredInputs:
    """Tokenised inputs, and their labels as encoded by `Outputs.encode` (``truth``).

    The store counts each input as one text. ``text_of_window`` (W) is the index of a window's text among the texts of
    its input, such as the choices of a question; None if every input has one text.
    """

    store: WindowStore
    truth: Any
    inputs: Sequence[Any]
    text_of_window: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, backend: Backend, outputs: AnyOutputs, examples: Sequence[Example[object]]) -> StoredInputs:
        """Tokenise labelled inputs; raises the errors of `Outputs.encode`, and `TextTooLong`."""
        stored = cls.unlabelled(backend, outputs, [each.text for each in examples])
        return replace(stored, truth=outputs.encode(examples))

    @classmethod
    def unlabelled(cls, backend: Backend, outputs: AnyOutputs, given: Sequence[object]) -> StoredInputs:
        """Tokenise inputs without labels."""
        texts = [outputs.texts(value) for value in given]
        store = stored_windows(backend, [text for each in texts for text in each], offsets=outputs.per_token)
        if all(len(each) == 1 for each in texts):
            return cls(store, None, given)
        counts = [len(each) for each in texts]
        input_of_text, place = np.repeat(np.arange(len(texts)), counts), np.concatenate(list(map(np.arange, counts)))
        dropped = np.bincount(input_of_text, store.dropped_tokens, len(texts)).astype(np.int64)
        grouped = replace(store, text_of_window=input_of_text[store.text_of_window], dropped_tokens=dropped)
        return cls(grouped, None, given, place[store.text_of_window])

    def take(self, numbers_N: NDArray[np.int64]) -> StoredInputs:
        """Return the inputs with these indices; each input must have one text and one row of scores."""
        inputs = [self.inputs[number] for number in numbers_N.tolist()]
        return StoredInputs(self.store.take(numbers_N), self.truth[numbers_N], inputs)

    def scores(
        self, outputs: PlacedOutputs[PlacesT], model: HeadModel, tokens: int, stage: str | None = None
    ) -> list[Scores[PlacesT]]:
        """Return a model's scores for all inputs, computed in batches of ``tokens`` tokens.

        With ``stage``, its name, this is a stage of the training, whose result is kept for a resumed run.
        """
        store = self.store
        if stage is None:
            return self.merged(outputs, window_scores(model, store, tokens))
        parts = (model, f"{store.digest} layers {model.layers} tokens {tokens}")
        rows = kept(
            stage,
            ROWS,
            lambda bar: window_scores(model, store, tokens, bar),
            *parts,
            total=len(store.lengths),
        )
        return self.merged(outputs, rows)

    def merged(self, outputs: PlacedOutputs[PlacesT], rows: list[NDArray[np.float64]]) -> list[Scores[PlacesT]]:
        """Return the scores of all inputs, given the rows of their windows; merged rows are freed to save memory."""
        lengths = self.store.lengths.tolist()
        dropped = self.store.dropped_tokens.tolist()
        found = []
        for number, own in enumerate(self.store.windows_of_texts):
            texts: list[Sequence[int]] = [own]
            if self.text_of_window is not None:
                places_W = self.text_of_window[own.start : own.stop]
                texts = [(own.start + np.flatnonzero(places_W == place)).tolist() for place in range(places_W[-1] + 1)]
            values = [self._rows(rows, each, lengths, dropped[number], outputs) for each in texts]
            found.append(outputs.scores(self.inputs[number], values))
            # With thousands of labels the rows are as large as the scores.
            rows[own.start : own.stop] = [_RELEASED] * len(own)
        return found

    def _rows(
        self,
        rows: Sequence[NDArray[np.float64]],
        windows: Sequence[int],
        lengths: Sequence[int],
        dropped: int,
        outputs: AnyOutputs,
    ) -> Rows:
        own = [rows[window] for window in windows]
        if outputs.per_token:
            return TokenOutputs(tuple(own), tuple(self.store.places(window) for window in windows), dropped)
        return TextRows(np.stack(own), tuple(lengths[window] for window in windows), dropped)


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: packed windows, and their indices in the store."""

    packed: Packed
    windows: list[int]


def kept_scores(
    fitted: TrainedHead[AnyOutputs], inputs: Sequence[object], *, description: str, show_progress: bool | None = None
) -> list[Scores[object]]:
    """Return a trained model's scores of inputs, as a stage of its training."""
    backend = with_weights(fitted.backend, "read")
    with reporting(show_progress):
        stored = StoredInputs.unlabelled(backend, fitted.outputs, inputs)
        return stored.scores(fitted.outputs, backend.head_model, backend.budget.tokens, description)


def of_epoch(found: Validation) -> Validation:
    """Call the negative log-likelihood of an epoch its loss: its probabilities are not calibrated yet."""
    return replace(found, metrics={"loss" if name == "nll" else name: each for name, each in found.metrics.items()})


def passes_in_epoch(texts: int, batch_size: int, min_updates: int = MIN_UPDATES) -> int:
    """Return the number of passes through the texts in an epoch of default length.

    An epoch has at least 15 updates, since it ends with a validation, or a third of ``min_updates`` if that is less.
    """
    return max(1, -(-min(_MIN_IN_EPOCH, min_updates // EPOCHS) // -(-texts // batch_size)))


@dataclass(eq=False)
class WindowObjective:
    """Trains a `HeadModel` on the windows of a store; ``validate`` measures held-out data after each epoch.

    An update is ``batch_size`` texts, in micro-batches of at most ``tokens`` tokens (on a CPU 1,024). Each epoch has
    ``passes`` passes through the texts (`passes_in_epoch`), in an order that depends on the seed and the epoch.
    ``run_settings`` are further settings that determine the run, and ``baseline`` describes the model before it.
    """

    model: HeadModel
    store: WindowStore
    targets: LabelLoss
    validate: Callable[[], Validation | None]
    _: KW_ONLY
    batch_size: int
    tokens: int
    seed: int
    run_settings: Mapping[str, str | int | float | bool | None]
    passes: int = 1
    baseline: Baseline | None = None
    min_updates: int = MIN_UPDATES

    @property
    def module(self) -> nn.Module:
        """Encoder and head."""
        return self.model

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]:
        """Everything, besides the training options, that determines the run."""
        return {
            "training data": f"{self.store.digest} {self.targets.digest}",
            "batch size": self.batch_size,
            "token budget": self.tokens,
            **({"passes": self.passes} if self.passes > 1 else {}),
            **self.run_settings,
        }

    def trial(self) -> WindowObjective:
        """Return the objective to measure updates with: without a validation, and on a CPU of at most two batches."""
        made, few = copy(self), 2 * ON_CPU * self.store.texts // int(self.store.lengths.sum())
        if self.model.device.type == "cpu":
            made.batch_size = max(1, min(self.batch_size, few))
        made.validate, made.baseline = lambda: None, None
        return made

    def updates_per_epoch(self) -> int:
        """Return the number of updates per epoch; the last update of a pass may have fewer texts."""
        return self.passes * self._updates_per_pass()

    def updates(self, epoch: int, start: int) -> Iterator[Update[Batch]]:
        """Yield the updates of an epoch: one or more passes over the texts, which are shuffled for each pass."""
        done, first = divmod(start, self._updates_per_pass())
        for number in range(epoch * self.passes + done, (epoch + 1) * self.passes):
            order = np.random.default_rng([self.seed, number]).permutation(self.store.texts)
            for place in range(first, self._updates_per_pass()):
                yield Update(tuple(self._micro_batches(order[place * self.batch_size :][: self.batch_size])))
            first = 0

    def _updates_per_pass(self) -> int:
        return -(-self.store.texts // self.batch_size)

    def loss(self, payload: Batch) -> Tensor:
        """Return the sum of the losses of the micro-batch's units."""
        return self.targets.loss(self.model(payload.packed).float(), payload.windows)

    def _micro_batches(self, texts: NDArray[np.int64]) -> Iterator[MicroBatch[Batch]]:
        """Yield batches of windows within the token budget; windows of one input stay together if the loss is joint."""
        by_text = [self.store.windows_of([text]) for text in texts]
        units = by_text if self.targets.joint else [[window] for windows in by_text for window in windows]
        lengths = [int(self.store.lengths[windows].sum()) for windows in units]
        at_most = micro_batch_tokens(self.tokens, self.model.device)
        # Each process of a distributed run needs at least one micro-batch.
        at_most = min(at_most, max(-(-sum(lengths) // current_workers().count), *lengths))
        for batch in by_token_budget(lengths, at_most):
            chosen = [window for unit in batch for window in units[unit]]
            payload = Batch(self.store.pack(chosen).to(self.model.device), chosen)
            tokens = sum(lengths[unit] for unit in batch)
            yield MicroBatch(payload, float(self.targets.weights_W[chosen].sum()), tokens)


def announce_training(
    objective: WindowObjective,
    training: TrainingOptions,
    encoder: PretrainedEncoder,
    reads: Reads,
    fitting: Callable[[], float],
    teacher: HeadModel | None = None,
) -> Reads:
    """Show the estimated duration of a training (`announce`).

    ``fitting`` returns the seconds of fitting a linear model. A ``teacher`` may read the texts before.
    """
    store, tokens = objective.store, int(objective.store.lengths.sum())
    few = max(1, 2 * ON_CPU * store.texts // tokens)
    sample = store.take(np.random.default_rng(0).permutation(store.texts)[:few])

    def read(model: HeadModel) -> float:
        return second_time(lambda: window_scores(model, sample, objective.tokens)) / int(sample.lengths.sum())

    def measure() -> tuple[float, float]:
        taught = 0.0 if teacher is None else tokens * read(teacher)
        return read(objective.model), taught + (fitting() if reads.start else 0.0) * reads.starts

    in_update = tokens * objective.passes / objective.updates_per_epoch()
    return announce(objective, objective.trial(), in_update, training, encoder, reads, measure)


def window_scores(
    model: HeadModel, store: WindowStore, tokens: int, bar: Progress | None = None
) -> list[NDArray[np.float64]]:
    """Return the scores of each stored window: (C), or (n, C) for a head that reads each token."""
    per_token = model.per_token
    compute = counted(row_answers(model, per_token=per_token), bar)
    rows = Runner(compute, model.device, tokens).run(store.windows())
    return [each.astype(np.float64) for each in rows]
