"""A masked language model that answers, with weights or exported, and its reading of raw texts. Loads no torch.

Shapes: N texts, M chosen places, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from bothways.data import Example, Source, as_batch, read_rows
from bothways.data.tables import is_column
from bothways.data.windows import WindowStore
from bothways.errors import InvalidInput
from bothways.evaluation.outcomes import TokenLosses
from bothways.families import HeadName
from bothways.inference.graph import GraphScorer
from bothways.inference.queries import Named, Query, Scorer, Search, run_search, together
from bothways.inference.texts import blocks
from bothways.progress import progress
from bothways.tasks.backend import Backend
from bothways.tasks.columns import Card
from bothways.tasks.masked_lm.masked_text import MaskReader
from bothways.tasks.masked_lm.outputs import MaskedLMOutputs
from bothways.tasks.masked_lm.search import FoundFills
from bothways.tasks.masked_lm.spec import FillOptions, MaskedTextColumns
from bothways.tasks.onnx_backend import OnnxBackend
from bothways.tasks.opening import with_weights
from bothways.tasks.scores import ScoredRows, Scores, TokensRead
from bothways.tasks.spec import options_of

if TYPE_CHECKING:
    from bothways.objectives.masking import Masker

HEAD: HeadName = "masked_lm"

ResultT = TypeVar("ResultT")

# Texts whose searches run together.
BLOCK = 128


class FittedMaskedLM(ABC):
    """A masked language model ready to answer: an immutable value, for any number of threads.

    Attributes:
        backend: The model and its text options.
        scorer: Answers queries about single places; it computes once which words the vocabulary can spell.
        outputs: The meaning of the head's outputs.
        columns: Columns of the texts in training.
        card: The model's record of its training, with the metrics before and after `fit`.
    """

    __slots__ = ()

    backend: Backend
    scorer: Scorer
    outputs: MaskedLMOutputs
    columns: MaskedTextColumns
    card: Card

    @abstractmethod
    def token_losses(self, store: WindowStore, masker: Masker) -> TokenLosses:
        """Return the losses of stored texts at the masker's places.

        Raises:
            InvalidInput: The texts have no token to mask.
        """

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write encoder and head in the ecosystem's layout into an existing folder.

        It opens as a masked language model in transformers, and here as any encoder, to be fine-tuned for a task.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """

    def score_blocks(self, inputs: Iterable[str], options: object = None) -> Iterator[list[Scores[FoundFills]]]:
        """Yield the scores of texts with masks, in blocks whose searches run together."""
        given = options_of(FillOptions, options)
        for block in blocks(enumerate(inputs), BLOCK):
            yield run_search(together([self.outputs.search(text, index, given) for index, text in block]), self.scorer)

    def run(
        self, searches: Iterator[Search[ResultT]], description: str, *, total: int | None, show_progress: bool | None
    ) -> Iterator[ResultT]:
        """Yield the results of searches, in order and in flat memory."""
        with progress(description, total, show=show_progress) as bar:
            for block in blocks(searches, BLOCK):
                yield from run_search(together(block), self.scorer)
                bar.advance(len(block))

    def losses(self, data: Source | Iterable[str], columns: MaskedTextColumns, masker: Masker) -> ScoredRows:
        """Return the scores of raw texts at the masker's places, see `MaskedLMOutputs.outcomes`."""
        store = stored_texts(self.backend, raw_texts(data, columns))
        losses = self.token_losses(store, masker)
        windows = np.bincount(store.text_of_window).tolist()
        read = map(TokensRead, windows, store.dropped_tokens.tolist())
        sums_N12 = np.stack([-losses.losses_N, losses.right_N], axis=1)[:, None]
        scores = tuple(Scores(sums_12, None, each) for sums_12, each in zip(sums_N12, read, strict=True))
        return ScoredRows(scores, losses.tokens_N)

    def facts(self) -> dict[str, object]:
        """Return the metrics of the validation texts before and after `fit`, as JSON values."""
        if not self.card.keys() >= {"new_head", "before", "metrics"}:
            return {}
        moments = {"before": self.card["before"], "after": self.card["metrics"]}
        names = ("loss", "perplexity", "accuracy")
        moved = {when: {name: numbers[name] for name in names} for when, numbers in moments.items()}
        return {"new_head": self.card["new_head"], **moved}


@dataclass(frozen=True, slots=True, eq=False)
class ExportedMaskedLM(FittedMaskedLM):
    """An exported masked language model, whose graph answers.

    Attributes:
        backend: The export and its text options.
        scorer: Answers queries about single places.
        outputs: The meaning of the head's outputs.
        columns: Columns of the texts in training.
        card: The model's record of its training.
    """

    backend: OnnxBackend
    scorer: GraphScorer
    outputs: MaskedLMOutputs
    columns: MaskedTextColumns
    card: Card = field(default_factory=dict)

    @classmethod
    def of(cls, backend: OnnxBackend, columns: MaskedTextColumns, card: Card) -> ExportedMaskedLM:
        """Return the model in an export."""
        tokenizer, reading = backend.tokenizer, backend.reading
        outputs = MaskedLMOutputs(MaskReader(tokenizer, reading.max_length, reading.on_overflow))
        scorer = GraphScorer(backend.graph, tokenizer, backend.config.vocabulary, backend.budget)
        return cls(backend, scorer, outputs, columns, card)

    def write(self, folder: Path) -> None:
        """Refuse: an export has no weights."""
        del folder
        with_weights(self.backend, "save")

    def token_losses(self, store: WindowStore, masker: Masker) -> TokenLosses:
        """Return the losses of stored texts at the masker's places; each is read separately, which is slow.

        Raises:
            InvalidInput: The texts have no token to mask.
        """
        windows = np.flatnonzero(masker.ordinary_tokens(store))
        if not len(windows):
            raise InvalidInput("there is nothing to mask in the given texts: all of their tokens are special ones.")
        sums_N3 = np.zeros((store.texts, 3))
        for window in store.windows(windows):
            masked = masker.validation(window.ids, window.number)
            places, targets = masked.places_M.tolist(), masked.targets_M.tolist()
            queries = [Query(masked.ids_n, window.types, place, Named(())) for place in places]
            for number, logs_V in self.scorer.logs(queries):
                right = float(logs_V.argmax() == targets[number])
                sums_N3[store.text_of_window[window.number]] += -float(logs_V[targets[number]]), right, 1.0
        return TokenLosses(losses_N=sums_N3[:, 0], right_N=sums_N3[:, 1], tokens_N=sums_N3[:, 2])


def raw_texts(source: Source | Iterable[str], columns: MaskedTextColumns) -> list[Example[None]]:
    """Return the texts of a source, skipping rows without text, such as the empty lines of a text file.

    Args:
        source: A file, rows, or texts: a list, an array, a Series.
        columns: Columns of the text in a row.

    Raises:
        InvalidInput: The source cannot be read, a row holds no string, or there is no text at all.
    """
    rows: Any = source
    listed = isinstance(rows, Sequence) and not isinstance(rows, str)
    if is_column(rows) or (listed and all(isinstance(one, str) for one in rows)):
        rows = columns.rows_of(cast("list[str]", as_batch(rows)[0]))
    examples: list[Example[None]] = []
    for row in read_rows(rows):
        values = [row.values.get(name) for name in columns.text]
        if not all(isinstance(value, str) and not value.strip() for value in values):
            examples.append(Example(columns.read(row), None, row.number, row.where))
    if not examples:
        raise InvalidInput("there is no text in the given data: every row is empty.")
    return examples


def stored_texts(backend: Backend, examples: Sequence[Example[None]]) -> WindowStore:
    """Return raw texts, tokenised; their windows share no tokens unless a stride was given."""
    # Tokens in two windows would be learnt twice.
    reading = replace(backend.reading, stride=backend.reading.stride or 0)
    return replace(backend, reading=reading).stored([example.text for example in examples])
