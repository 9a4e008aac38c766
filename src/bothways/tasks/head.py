"""Tasks that a head above the encoder answers: how one is read, run over windows and saved.

What the head's outputs mean is the business of its `HeadOutputs`: labels of a text, tags of its words, spans of a
context, choices. A long text is read in several windows, and none of it is cut off.

Shapes: N inputs, W windows, B windows of a batch, T tokens of a batch, C outputs, K numbers that a module gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.save import head_tensors, write_model
from bothways.data import Example, Source
from bothways.data.windows import WindowStore
from bothways.inference import TextRows, TokenOutputs
from bothways.inference.texts import TextEngine
from bothways.tasks.card import data_part
from bothways.tasks.columns import stored_columns
from bothways.tasks.outputs import HeadOutputs, Rows
from bothways.tasks.scores import Scores
from bothways.tasks.spec import TaskSpec
from bothways.text.texts import Text

if TYPE_CHECKING:
    from torch import Tensor

    from bothways.encoder import ScoreHead
    from bothways.tasks.findings import Mistake
    from bothways.tasks.objective import HeadModel, Scoring
    from bothways.tasks.opening import OpenedModel

_MERGED = np.empty(0)


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The training data of a head.

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
    def of(cls, opened: OpenedModel, outputs: HeadOutputs[Any, Any], examples: Sequence[Example[Any]]) -> StoredInputs:
        """Tokenise labelled inputs.

        Raises:
            InvalidInput: A label was not there in training.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        stored = cls.unlabelled(opened, outputs, [each.text for each in examples])
        return replace(stored, truth=outputs.encode(examples))

    @classmethod
    def unlabelled(cls, opened: OpenedModel, outputs: HeadOutputs[Any, Any], given: Sequence[Any]) -> StoredInputs:
        """Tokenise inputs whose truth is not known.

        Raises:
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        texts = [outputs.texts(value) for value in given]
        store = opened.stored([text for each in texts for text in each], offsets=outputs.per_token)
        inputs = given if outputs.keeps_inputs else ()
        if all(len(each) == 1 for each in texts):
            return cls(store, None, inputs)
        counts = [len(each) for each in texts]
        input_of_text, place = np.repeat(np.arange(len(texts)), counts), np.concatenate(list(map(np.arange, counts)))
        dropped = np.bincount(input_of_text, store.dropped_tokens, len(texts)).astype(np.int64)
        grouped = replace(store, text_of_window=input_of_text[store.text_of_window], dropped_tokens=dropped)
        return cls(grouped, None, inputs, place[store.text_of_window])

    @property
    def digest(self) -> str:
        """A checksum of the tokens."""
        return self.store.digest

    def part(self, outputs: HeadOutputs[Any, Any]) -> dict[str, object]:
        """Return what a card says of the inputs: how many, and checksums."""
        return {**data_part(self.store.texts, self.store), **outputs.part(self)}

    def take(self, numbers_N: NDArray[np.int64]) -> StoredInputs:
        """Return some of the inputs, for heads that read whole texts."""
        return StoredInputs(self.store.take(numbers_N), self.truth[numbers_N])

    def scores(self, outputs: HeadOutputs[Any, Any], module: Scoring, tokens: int) -> list[Scores[Any]]:
        """Return the scores of all inputs by a module, in batches of so many tokens."""
        from bothways.tasks.objective import window_scores

        return self.merged(outputs, window_scores(module, self.store, tokens))

    def merged(self, outputs: HeadOutputs[Any, Any], rows: list[NDArray[np.float64]]) -> list[Scores[Any]]:
        """Return the scores of all inputs, given the rows of their windows, which are let go of."""
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
            return TokenOutputs(tuple(own), tuple(self.store.places(window) for window in windows), dropped)
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
    ) -> TrainedHead:
        """Put a head above the encoder, where the encoder is."""
        from bothways.tasks.objective import HeadModel

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
        run = run_of(engine, outputs.per_token, description, total, show_progress)
        for value, rows in rows_of_inputs(outputs, inputs, run):
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


def run_of(
    engine: TextEngine, per_token: bool, description: str, total: int | None, show_progress: bool | None
) -> Callable[[Iterator[Text]], Iterator[Rows]]:
    """Return what runs texts: rows for each window, or for each token."""
    run = engine.run_tokens if per_token else engine.run
    return partial(run, description=description, total=total, show_progress=show_progress)


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
