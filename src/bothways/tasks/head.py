"""Tasks that a head above the encoder answers: how one is read, run over windows, trained and saved.

What the head's outputs mean is the business of its `HeadOutputs`: labels of a text, tags of its words, spans of a
context, choices. A long text is read in several windows, and none of it is cut off.

Shapes: N inputs, W windows, B windows of a batch, T tokens of a batch, C outputs, K numbers that a module gives.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bothways.checkpoints.save import head_tensors, write_model
from bothways.data import Example, Source
from bothways.data.windows import WindowStore
from bothways.encoder import ScoreHead
from bothways.inference import TextRows, TokenRows
from bothways.progress import phase, reporting
from bothways.tasks.card import DataUsed, Worth, data_part, written_card
from bothways.tasks.columns import PairColumns, stored_columns
from bothways.tasks.findings import Mistake, notes_on_training
from bothways.tasks.learning import Preparation
from bothways.tasks.linear_start import LinearStart, start_head
from bothways.tasks.objective import Answers, HeadModel, Scoring, WindowObjective, passes_in_epoch, window_scores
from bothways.tasks.opening import OpenedModel
from bothways.tasks.outputs import HeadOutputs, Rows
from bothways.tasks.scores import Scores
from bothways.tasks.spec import TaskSpec
from bothways.text.texts import Text
from bothways.training.objective import Baseline, Validation
from bothways.training.options import TrainingOptions
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

_MERGED = np.empty(0)

# What a model is before the first update.
LINEAR, CONTINUED = "linear model of frozen hidden states", "model before the training"
APART = "linear model of frozen hidden states, the texts of a pair also read apart"


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What to learn from.

    Attributes:
        train: A file, or rows.
        validation: Held-out data; a tenth of the training data, drawn with the seed, when None.
    """

    train: Source
    validation: Source | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StoredInputs:
    """Tokenised inputs and their truth.

    Attributes:
        store: Their windows; a "text" of the store is an input.
        truth: What is right, as `HeadOutputs.encode` gives it.
        inputs: The inputs, where scores read them.
        text_of_window: Which of its input's texts each window is of (W); None where every input has one.
    """

    store: WindowStore
    truth: Any
    inputs: Sequence[Any] = ()
    text_of_window: NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls, opened: OpenedModel, outputs: HeadOutputs[Any, Any], examples: Sequence[Example[Any]]
    ) -> "StoredInputs":
        """Tokenise labelled inputs.

        Raises:
            InvalidInput: A label was not there in training.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        texts = [outputs.texts(example.text) for example in examples]
        store = opened.stored([text for each in texts for text in each], offsets=outputs.per_token)
        inputs = [example.text for example in examples] if outputs.keeps_inputs else ()
        truth = outputs.encode(examples)
        if all(len(each) == 1 for each in texts):
            return cls(store, truth, inputs)
        counts = [len(each) for each in texts]
        input_of_text, place = np.repeat(np.arange(len(texts)), counts), np.concatenate(list(map(np.arange, counts)))
        dropped = np.bincount(input_of_text, store.dropped_tokens, len(texts)).astype(np.int64)
        grouped = replace(store, text_of_window=input_of_text[store.text_of_window], dropped_tokens=dropped)
        return cls(grouped, truth, inputs, place[store.text_of_window])

    @property
    def digest(self) -> str:
        """A checksum of the tokens."""
        return self.store.digest

    def part(self, outputs: HeadOutputs[Any, Any]) -> dict[str, object]:
        """Return what a card says of the inputs: how many, and checksums."""
        return {**data_part(self.store.texts, self.store), **outputs.part(self)}

    def take(self, numbers_N: NDArray[np.int64]) -> "StoredInputs":
        """Return some of the inputs, for heads that read whole texts."""
        return StoredInputs(self.store.take(numbers_N), self.truth[numbers_N])

    def scores(self, outputs: HeadOutputs[Any, Any], module: Scoring, tokens: int) -> list[Scores[Any]]:
        """Return the scores of all inputs by a module, in batches of so many tokens."""
        rows = window_scores(module, self.store, tokens)
        lengths = self.store.lengths.tolist()
        ends = np.cumsum(np.bincount(self.store.text_of_window, minlength=self.store.texts)).tolist()
        dropped = self.store.dropped_tokens.tolist()
        found = []
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            texts: list[list[int]] = [list(range(start, end))]
            if self.text_of_window is not None:
                places_W = self.text_of_window[start:end]
                texts = [(start + np.flatnonzero(places_W == place)).tolist() for place in range(places_W[-1] + 1)]
            values = [self._rows(rows, each, lengths, dropped[number], outputs) for each in texts]
            found.append(outputs.scores(self.inputs[number] if self.inputs else None, values))
            rows[start:end] = [_MERGED] * (end - start)  # of thousands of labels they are as large as all that is found
        return found

    def _rows(
        self,
        rows: Sequence[NDArray[np.float64]],
        windows: Sequence[int],
        lengths: Sequence[int],
        dropped: int,
        outputs: HeadOutputs[Any, Any],
    ) -> Rows:
        own: list[Any] = [rows[window] for window in windows]
        if outputs.per_token:
            return TokenRows(tuple(own), tuple(self.store.places(window) for window in windows), dropped)
        return TextRows(np.stack(own), tuple(lengths[window] for window in windows), dropped)


@dataclass(frozen=True, eq=False)
class TrainedHead:
    """A trained head above an encoder, and all that is known of its answers: an immutable value.

    Attributes:
        spec: What its task declares.
        opened: The encoder, and how it reads texts.
        model: Encoder and head.
        outputs: What the head's outputs mean.
        columns: Where the parts of a row stand.
        card: What the model says of its making.
        mistakes: The most confident answers that held-out rows contradict; not saved, for they quote the data.
    """

    spec: TaskSpec
    opened: OpenedModel
    model: HeadModel
    outputs: Any  # HeadOutputs of the task
    columns: Any
    card: Mapping[str, Any] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()

    @classmethod
    def of(
        cls, spec: TaskSpec, opened: OpenedModel, head: ScoreHead, outputs: HeadOutputs[Any, Any], columns: object
    ) -> "TrainedHead":
        """Put a head above the encoder, where the encoder is."""
        model = opened.model
        head = head.to(model.device, opened.head_dtype)
        return cls(spec, opened, HeadModel(model.encoder, head).eval(), outputs, columns)

    @property
    def name(self) -> str:
        """The model's."""
        return self.opened.model.name

    def scores(
        self,
        inputs: Iterable[Any],
        options: object = None,
        *,
        description: str = "predicting",
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Scores[Any]]:
        """Yield the scores of inputs, in order and in flat memory."""
        outputs: HeadOutputs[Any, Any] = self.outputs
        engine = self.opened.engine(self.module)
        run = partial(engine.run_tokens if outputs.per_token else engine.run, total=total, description=description)
        for value, rows in rows_of_inputs(outputs, inputs, partial(run, show_progress=show_progress)):
            yield outputs.scores(value, rows, options)

    @cached_property
    def module(self) -> Scoring:
        """The module to run: encoder and head, with what an out-of-domain detector or window attention reads."""
        module: Scoring = self.outputs.forward(self.model)
        return module

    def tensors(self) -> dict[str, Tensor]:
        """Return the head's weights under the family's names."""
        model = self.opened.model
        return head_tensors(model.family.head(self.outputs.head, model.settings).rows, model.config, self.model.head)

    def facts(self) -> dict[str, object]:
        """Return what a user wants to know of the model, as JSON values."""
        facts: dict[str, object] = self.outputs.facts()
        return facts

    def write(self, folder: Path, task: str) -> None:
        """Write the model in the ecosystem's layout into an existing folder.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """
        model, outputs = self.opened.model, self.outputs
        own = outputs.settings()
        stored = {**model.settings, "architectures": [model.family.architecture([outputs.head], model.settings)], **own}
        stored = {name: value for name, value in stored.items() if name not in own or value is not None}
        tensors = model.encoder_tensors((outputs.head,)) | self.tensors()
        extras = {"task": task, **outputs.write(folder), "card": dict(self.card), **self.opened.stored_reading()}
        write_model(folder, stored, tensors, extras)
        model.tokenizer.save(folder, types=model.config.reads_types)


def rows_of_inputs(
    outputs: HeadOutputs[Any, Any], inputs: Iterable[Any], run: Callable[[Iterator[Text]], Iterator[Rows]]
) -> Iterator[tuple[Any, list[Rows]]]:
    """Yield inputs, each with the rows of all of its texts, in order and in flat memory.

    Args:
        outputs: Say which texts an input has.
        inputs: The inputs.
        run: From texts to what a module gives for each.
    """
    waiting: deque[tuple[Any, int]] = deque()

    def texts() -> Iterator[Text]:
        for value in inputs:
            parts = outputs.texts(value)
            waiting.append((value, len(parts)))
            yield from parts

    rows: list[Rows] = []
    for each in run(texts()):
        rows.append(each)
        if len(rows) == waiting[0][1]:
            yield waiting.popleft()[0], rows
            rows = []


def opened_head(
    spec: TaskSpec, opened: OpenedModel, outputs: HeadOutputs[Any, Any], card: Mapping[str, Any], head: ScoreHead
) -> TrainedHead:
    """Return a trained head with what was saved beside it."""
    return replace(TrainedHead.of(spec, opened, head, outputs, stored_columns(card, spec.columns)), card=card)


def prepare_head(
    spec: TaskSpec,
    kind: type[HeadOutputs[Any, Any]],
    opened: OpenedModel,
    before: TrainedHead | None,
    data: TrainingData,
    columns: object,
    options: object,
    training: TrainingOptions,
) -> Preparation[WindowObjective, TrainedHead]:
    """Read the data, begin a head or go on with the one there was, and lay out the training.

    Args:
        spec: What the task declares.
        kind: What the head's outputs mean.
        opened: The encoder, which is trained in place.
        before: The head that it had; it is trained further where its outputs mean the same.
        data: What to learn from.
        columns: Where the parts of a row stand.
        options: The task's options of `fit`.
        training: Options of the training.

    Raises:
        InvalidInput: The data are not usable, and the message names the row; or an option does not go with them.
    """
    known = None if before is None else before.outputs
    outputs, examples, held_out = kind.begin(opened, data, columns, options, training.seed, known)
    stored, held = (StoredInputs.of(opened, outputs, part) for part in (examples, held_out))
    if left_out := outputs.check_data(stored, held):
        kept = [example for number, example in enumerate(examples) if number not in left_out]
        stored = StoredInputs.of(opened, outputs, kept)
    answers, held_answers = outputs.answers(stored), outputs.answers(held)
    continued = before if before is not None and outputs.continues(before.outputs) else None
    if continued:
        head = deepcopy(continued.model.head)
        outputs.standardize(head)
    else:
        head = _started(opened, outputs, stored.store, answers, training)
    begun = TrainedHead.of(spec, opened, head, outputs, columns)
    model, apart = begun.model, None
    if not continued and isinstance(columns, PairColumns) and opened.reads_mean:
        reading = opened.above_embedder(pairs=True)
        head = _started(reading, outputs, stored.store, answers, training)
        apart = TrainedHead.of(spec, reading, head, outputs, columns)

    def validated(model: HeadModel) -> Validation:
        return outputs.validate(held.scores(outputs, model, training.max_tokens), held.truth)

    def baseline() -> Baseline | None:
        if continued:
            return Baseline(CONTINUED)
        if apart:
            return Baseline(APART, 1.0, partial(validated, apart.model))
        return None if outputs.start_strength is None else Baseline(LINEAR)

    def finish(record: TrainingRecord) -> TrainedHead:
        # The encoder is again what it was before the first update, where the baseline is kept.
        begun_with = apart if apart and record.kept_epoch == 0 else begun
        model = begun_with.model
        learnt, scores = outputs.unstandardize(model.head).learn(
            model, stored, held, training.seed, opened.batch_tokens
        )
        phase("evaluating on the held-out rows")
        metrics = learnt.outcomes(scores, held.truth).report(seed=training.seed)
        used = DataUsed(columns, stored.part(outputs), held.part(outputs), split=data.validation is None)
        card = written_card(opened.model, record, used, Worth(metrics, learnt.limits))
        said, mistakes = learnt.findings(scores, held.truth, examples, held_out)
        notes = [*notes_on_training(record, len(held_out)), *said]
        return replace(begun_with, outputs=learnt, card={**card, **learnt.card(), "notes": notes}, mistakes=mistakes)

    texts = stored.store.texts
    size = training.rows_in_update(texts)
    objective = WindowObjective(
        model,
        stored.store,
        answers,
        partial(validated, model),
        batch_size=size,
        tokens=training.max_tokens,
        seed=training.seed,
        identity={"validation data": f"{held.digest} {held_answers.digest}", **outputs.identity},
        passes=passes_in_epoch(texts, size) if training.epochs is None else 1,
        baseline=baseline(),
    )
    return Preparation(objective, finish, outputs.unit(stored.truth))


def _started(
    opened: OpenedModel, outputs: HeadOutputs[Any, Any], store: WindowStore, answers: Answers, options: TrainingOptions
) -> ScoreHead:
    """Return a new head, begun at a linear model of the frozen encoder's hidden states where the outputs want that."""
    with seeded(options.seed):
        head = opened.checkpoint.new_score_head(outputs.head, outputs.size)
    if outputs.start_strength is None:
        return head
    encoder = opened.model.encoder
    head = head.to(opened.model.device, opened.head_dtype)
    with reporting(options.show_progress):
        phase("fitting a linear model to the frozen encoder's hidden states")
    start = LinearStart(outputs.start_strength, options.seed, options.max_tokens)
    start_head(HeadModel(encoder, head), store, answers, start)
    return head
