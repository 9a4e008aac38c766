"""A masked language model that answers, with weights or exported, and how it reads raw texts. Loads no torch.

Shapes: N texts, M chosen places, V vocabulary.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import numpy as np

from bothways.data import Example, Source, as_batch, read_rows
from bothways.data.tables import is_column
from bothways.data.windows import WindowStore
from bothways.errors import InvalidInput
from bothways.evaluation.metrics.masked_lm import TokenLosses
from bothways.families import HeadName
from bothways.inference.graph import GraphScorer
from bothways.inference.queries import Named, Query, Scorer, Search, run_search, together
from bothways.progress import progress
from bothways.tasks.masked_lm.masked_text import MaskReader
from bothways.tasks.masked_lm.outputs import MaskedLMOutputs
from bothways.tasks.masked_lm.search import FoundFills
from bothways.tasks.masked_lm.spec import FillOptions, MaskedTextColumns
from bothways.tasks.opened import Opened, OpenedExport
from bothways.tasks.predictor import ScoredRows
from bothways.tasks.reading import stored_texts as stored
from bothways.tasks.scores import Scores, TokensRead

if TYPE_CHECKING:
    from bothways.objectives.masking import Masker

HEAD: HeadName = "masked_lm"

ResultT = TypeVar("ResultT")

# Texts whose searches run together.
BLOCK = 128


class FittedMaskedLM(ABC):
    """A masked language model that answers: an immutable value, for any number of threads.

    Attributes:
        opened: The model, and how it reads texts.
        scorer: Answers queries about single places; it works out once which words the vocabulary spells.
        outputs: What the head's outputs mean.
        columns: Where texts stood in training.
        card: What the model says of its making, with what `fit` measured before and after.
    """

    __slots__ = ()

    opened: Opened
    scorer: Scorer
    outputs: MaskedLMOutputs
    columns: MaskedTextColumns
    card: Mapping[str, Any]

    @abstractmethod
    def token_losses(self, store: WindowStore, masker: Masker) -> TokenLosses:
        """Return the losses of stored texts at the masker's places.

        Raises:
            InvalidInput: The texts have no token to mask.
        """

    @abstractmethod
    def write(self, folder: Path, task: str) -> None:
        """Write the model into an existing folder."""

    def scores(
        self,
        inputs: Iterable[str],
        options: FillOptions | None = None,
        *,
        description: str = "filling masks",
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[Scores[FoundFills]]:
        """Yield the scores of texts with masks, in order and in flat memory."""
        wanted = options or FillOptions()
        searches = (self.outputs.search(text, index, wanted) for index, text in enumerate(inputs))
        return self.run(searches, description, total=total, show_progress=show_progress)

    def run(
        self, searches: Iterator[Search[ResultT]], description: str, *, total: int | None, show_progress: bool | None
    ) -> Iterator[ResultT]:
        """Yield the results of searches, in order and in flat memory."""
        with progress(description, total, show=show_progress) as bar:
            while block := list(itertools.islice(searches, BLOCK)):
                yield from run_search(together(block), self.scorer)
                bar.advance(len(block))

    def losses(self, data: Source | Iterable[str], columns: MaskedTextColumns, masker: Masker) -> ScoredRows:
        """Return the scores of raw texts at the masker's places, see `MaskedLMOutputs.outcomes`."""
        store = stored_texts(self.opened, raw_texts(data, columns))
        losses = self.token_losses(store, masker)
        windows = np.bincount(store.text_of_window).tolist()
        read = map(TokensRead, windows, store.dropped_tokens.tolist())
        sums_N12 = np.stack([-losses.losses_N, losses.right_N], axis=1)[:, None]
        scores = tuple(Scores(sums_12, None, each) for sums_12, each in zip(sums_N12, read, strict=True))
        return ScoredRows(scores, losses.tokens_N)

    def facts(self) -> dict[str, object]:
        """Return how well the validation texts of `fit` were predicted before and after it, as JSON values."""
        if not self.card.keys() >= {"new_head", "before", "metrics"}:
            return {}
        moments = {"before": self.card["before"], "after": self.card["metrics"]}
        names = ("loss", "perplexity", "accuracy")
        moved = {when: {name: numbers[name] for name in names} for when, numbers in moments.items()}
        return {"new_head": self.card["new_head"], **moved}


@dataclass(frozen=True, slots=True, eq=False)
class ExportedMaskedLM(FittedMaskedLM):
    """A masked language model that was exported: its graph answers.

    Attributes:
        opened: The export, and how it reads texts.
        scorer: Answers queries about single places.
        outputs: What the head's outputs mean.
        columns: Where texts stood in training.
        card: What the model says of its making.
    """

    opened: OpenedExport
    scorer: GraphScorer
    outputs: MaskedLMOutputs
    columns: MaskedTextColumns
    card: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, opened: OpenedExport, columns: MaskedTextColumns, card: Mapping[str, Any]) -> ExportedMaskedLM:
        """Return the model of an export."""
        tokenizer, reading = opened.tokenizer, opened.reading
        outputs = MaskedLMOutputs(MaskReader(tokenizer, reading.max_length, reading.on_overflow))
        scorer = GraphScorer(opened.graph, tokenizer, opened.config.vocabulary, opened.budget)
        return cls(opened, scorer, outputs, columns, card)

    def token_losses(self, store: WindowStore, masker: Masker) -> TokenLosses:
        """Return the losses of stored texts at the masker's places; each is read by itself, so it takes its time.

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

    def write(self, folder: Path, task: str) -> NoReturn:
        """Refuse: there are no weights to write.

        Raises:
            InvalidInput: Always.
        """
        del folder, task
        raise self.opened.exported.no_weights("save")


def raw_texts(source: Source | Iterable[str], columns: MaskedTextColumns) -> list[Example[None]]:
    """Return the texts of a source; rows without text, such as the empty lines of a text file, are passed over.

    Args:
        source: A file, rows, or texts: a list, an array, a Series.
        columns: Where a text stands in a row.

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


def stored_texts(opened: Opened, examples: Sequence[Example[None]]) -> WindowStore:
    """Return raw texts, tokenised; their windows share no tokens unless a stride was asked for."""
    # Windows that overlap would have some tokens learnt twice.
    reading = replace(opened.reading, stride=opened.reading.stride or 0)
    return stored(opened.tokenizer, [example.text for example in examples], reading)
