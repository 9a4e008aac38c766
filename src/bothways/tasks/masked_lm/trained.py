"""A trained masked language model as a value, and how it learns raw texts and is measured on them."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from bothways.data import Example, Source, as_batch, read_rows
from bothways.data.tables import is_column
from bothways.data.windows import WindowStore
from bothways.encoder import MaskedLMHead
from bothways.errors import InvalidInput
from bothways.evaluation import Report, token_outcomes
from bothways.evaluation.report import flat_estimates
from bothways.families import HeadName
from bothways.inference.masked_lm import MaskedLMScorer, Search, run_search, together
from bothways.objectives import MaskedLM, Masker, Masking, PretrainingObjective, TextWindows, masked_losses
from bothways.progress import phase, progress
from bothways.tasks.card import LIKE_THESE, CardMetrics, DataUsed, data_part, optimistic, written_card
from bothways.tasks.head import TrainingData
from bothways.tasks.learning import Preparation
from bothways.tasks.masked_lm.masked_text import MaskReader
from bothways.tasks.masked_lm.outputs import MaskedLMOutputs
from bothways.tasks.masked_lm.search import FoundFills
from bothways.tasks.masked_lm.spec import FillOptions, MaskedTextColumns
from bothways.tasks.opening import OpenedModel
from bothways.tasks.predictor import ScoredRows
from bothways.tasks.scores import Scores, TokensRead
from bothways.tasks.splits import hold_out
from bothways.training.options import TrainingOptions
from bothways.training.record import TrainingRecord
from bothways.training.seeding import seeded

HEAD: HeadName = "masked_lm"

ResultT = TypeVar("ResultT")

# Texts whose searches run together.
BLOCK = 128

# What a reader of the card has to know.
LIMITS = (
    optimistic("texts", "the epoch to keep"),
    LIKE_THESE,
    "How well masked tokens are predicted says little of how good a model is that is fine-tuned from this one.",
)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedMaskedLM:
    """An encoder and its masked language modelling head: an immutable value, for any number of threads.

    Attributes:
        opened: The encoder, and how it reads texts.
        model: Encoder and head.
        scorer: Answers queries about single places; it works out once which words the vocabulary spells.
        outputs: What the head's outputs mean.
        columns: Where texts stood in training.
        card: What the model says of its making, with what `fit` measured before and after.
    """

    opened: OpenedModel
    model: MaskedLM
    scorer: MaskedLMScorer
    outputs: MaskedLMOutputs
    columns: MaskedTextColumns
    card: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, opened: OpenedModel, head: MaskedLMHead, columns: MaskedTextColumns, card: Mapping[str, Any]
    ) -> "TrainedMaskedLM":
        """Put a head above the encoder, where the encoder is."""
        encoder, tokenizer, reading = opened.model.encoder, opened.model.tokenizer, opened.reading
        model = MaskedLM(encoder, head.to(opened.model.device, opened.head_dtype)).eval()
        outputs = MaskedLMOutputs(MaskReader(tokenizer, reading.max_length, reading.on_overflow))
        return cls(opened, model, MaskedLMScorer(encoder, model.head, tokenizer), outputs, columns, card)

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
        store = _stored(self.opened, raw_texts(data, columns))
        losses = masked_losses(self.model, store, masker, self.opened.batch_tokens)
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

    def write(self, folder: Path, task: str) -> None:
        """Write encoder and head in the ecosystem's layout into an existing folder.

        It opens as a masked language model in transformers, and here as any encoder, to be fine-tuned for a task.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """
        with_head = replace(self.opened.model, heads={HEAD: self.model.head})
        with_head.write(folder, {"task": task, **self.opened.stored_reading(), "card": dict(self.card)})


def prepare_masked_lm(
    opened: OpenedModel,
    before: TrainedMaskedLM | None,
    data: TrainingData,
    columns: MaskedTextColumns,
    masking: Masking | None,
    training: TrainingOptions,
) -> Preparation[PretrainingObjective, TrainedMaskedLM]:
    """Read raw texts, draw a head on the model's own token table if there is none, and lay out the training.

    Raises:
        InvalidInput: The data are not usable; the message names the row.
        TextTooLong: A text is too long and the policy is ``"error"``.
    """
    examples = raw_texts(data.train, columns)
    if data.validation is None:
        examples, held_out = hold_out(examples, 0.1, training.seed, lambda _: (), group=lambda each: each.text)
    else:
        held_out = raw_texts(data.validation, columns)
    stored, held = _stored(opened, examples), _stored(opened, held_out)
    masker = Masker(opened.model.tokenizer, masking or Masking(), training.seed)
    if before is None:
        with seeded(training.seed):
            head = opened.checkpoint.new_masked_lm_head()
    else:
        head = deepcopy(before.model.head)
    begun = TrainedMaskedLM.of(opened, head, columns, {})
    sources = TextWindows(stored, masker, "training"), TextWindows(held, masker, "validation")
    objective = PretrainingObjective.in_epochs(
        begun.model, *sources, masker, batch_size=training.rows_in_update(), tokens=training.max_tokens
    )

    def predicted() -> Report:
        """Return how well the validation texts are predicted, at the places that are theirs for the whole training."""
        losses = masked_losses(begun.model, held, masker, training.max_tokens)
        return token_outcomes(losses).report(seed=masker.seed)

    first = predicted()

    def finish(record: TrainingRecord) -> TrainedMaskedLM:
        phase("evaluating on the held-out texts")
        parts = data_part(len(examples), stored), data_part(len(held_out), held)
        used = DataUsed(columns, *parts, split=data.validation is None)
        card = written_card(opened.model, record, used, CardMetrics(predicted(), LIMITS))
        own = {"new_head": before is None, "before": flat_estimates(first.estimates)}
        return replace(begun, card={**card, "masking": masker.masking.to_card(), **own})

    return Preparation(objective, finish)


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


def _stored(opened: OpenedModel, examples: Sequence[Example[None]]) -> WindowStore:
    # Windows that overlap would have some tokens learnt twice.
    reading = replace(opened.reading, stride=opened.reading.stride or 0)
    return replace(opened, reading=reading).stored([example.text for example in examples])
