"""Tokenised inputs for a training, and a model's scores for them.

Shapes: N inputs, W windows, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.data import Example
from bothways.data.windows import WindowStore
from bothways.inference import Rows, TextRows, TokenOutputs
from bothways.tasks.backend import Backend
from bothways.tasks.outputs import AnyOutputs, PlacedOutputs
from bothways.tasks.scores import Scores

if TYPE_CHECKING:
    from bothways.tasks.torch_backend import HeadModel

PlacesT = TypeVar("PlacesT")

_RELEASED = np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class StoredInputs:
    """Tokenised inputs and their truth.

    Attributes:
        store: The windows of the inputs; a "text" of the store is an input.
        truth: The truth, as returned by `Outputs.encode`.
        inputs: The inputs themselves, if the scores read them.
        text_of_window: The number of each window's text within its input (W); None if every input has one text.
    """

    store: WindowStore
    truth: Any
    inputs: Sequence[Any] = ()
    text_of_window: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, backend: Backend, outputs: AnyOutputs, examples: Sequence[Example[object]]) -> StoredInputs:
        """Tokenise labelled inputs.

        Raises:
            InvalidInput: A label did not occur in training.
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        stored = cls.unlabelled(backend, outputs, [each.text for each in examples])
        return replace(stored, truth=outputs.encode(examples))

    @classmethod
    def unlabelled(cls, backend: Backend, outputs: AnyOutputs, given: Sequence[Any]) -> StoredInputs:
        """Tokenise inputs without labels.

        Raises:
            TextTooLong: A text is too long and the policy is ``"error"``.
        """
        texts = [outputs.texts(value) for value in given]
        store = backend.stored([text for each in texts for text in each], offsets=outputs.per_token)
        inputs = given if outputs.keeps_inputs else ()
        if all(len(each) == 1 for each in texts):
            return cls(store, None, inputs)
        counts = [len(each) for each in texts]
        input_of_text, place = np.repeat(np.arange(len(texts)), counts), np.concatenate(list(map(np.arange, counts)))
        dropped = np.bincount(input_of_text, store.dropped_tokens, len(texts)).astype(np.int64)
        grouped = replace(store, text_of_window=input_of_text[store.text_of_window], dropped_tokens=dropped)
        return cls(grouped, None, inputs, place[store.text_of_window])

    def take(self, numbers_N: NDArray[np.int64]) -> StoredInputs:
        """Return some of the inputs, for heads that read whole texts."""
        return StoredInputs(self.store.take(numbers_N), self.truth[numbers_N])

    def scores(self, outputs: PlacedOutputs[PlacesT], model: HeadModel, tokens: int) -> list[Scores[PlacesT]]:
        """Return a model's scores for all inputs, computed in batches of ``tokens`` tokens."""
        from bothways.tasks.heads.objective import window_scores

        return self.merged(outputs, window_scores(model, self.store, tokens))

    def merged(self, outputs: PlacedOutputs[PlacesT], rows: list[NDArray[np.float64]]) -> list[Scores[PlacesT]]:
        """Return the scores of all inputs, given the rows of their windows, which are released one by one."""
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
            rows[start:end] = [_RELEASED] * (end - start)  # with thousands of labels they are as large as the scores
        return found

    def _rows(
        self,
        rows: Sequence[NDArray[np.float64]],
        windows: Sequence[int],
        lengths: Sequence[int],
        dropped: int,
        outputs: AnyOutputs,
    ) -> Rows:
        own: list[Any] = [rows[window] for window in windows]  # float64, where texts have float32
        if outputs.per_token:
            return TokenOutputs(tuple(own), tuple(self.store.places(window) for window in windows), dropped)
        return TextRows(np.stack(own), tuple(lengths[window] for window in windows), dropped)
