"""The outputs of a masked language model: words for masks, and losses of raw texts. Loads no torch.

Shapes: N texts, R fillings of a text, M masked positions, V vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from typing_extensions import override

from bothways.confidence.confidence import Confidence
from bothways.data import Example, Source, as_batch, read_rows
from bothways.data.known_rows import TrainingRows
from bothways.data.tables import is_column
from bothways.data.windows import WindowStore
from bothways.errors import InvalidInput
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.outcomes import Outcomes, TokenLosses, token_outcomes
from bothways.families import HeadName
from bothways.inference.graph import GraphScorer
from bothways.inference.queries import Named, Query, Scorer, Search, run_search, together
from bothways.inference.texts import blocks
from bothways.progress import progress
from bothways.tasks.backend import Backend, stored_windows
from bothways.tasks.columns import Card
from bothways.tasks.masked_lm.masked_text import MaskedText, MaskReader
from bothways.tasks.masked_lm.search import FoundFills, Pieces, ScoredFill, WordChoice, search
from bothways.tasks.masked_lm.spec import FillOptions, MaskedTextColumns
from bothways.tasks.onnx_backend import OnnxBackend
from bothways.tasks.opening import with_weights
from bothways.tasks.scores import (
    BaselineScores,
    Count,
    Probability,
    ScoredRows,
    Scores,
    TaskPrediction,
    TokensRead,
    texts_read,
)
from bothways.tasks.spec import options_of
from bothways.text.characters import VISIBLE
from bothways.text.windows import Text

if TYPE_CHECKING:
    from bothways.objectives.masking import Masker

HEAD: HeadName = "masked_lm"

ResultT = TypeVar("ResultT")

# Number of texts whose searches share batches.
BLOCK = 128

NamedT = TypeVar("NamedT")

# Maximum combinations of piece counts (one count per mask) to search; each combination has its own beams.
MOST_COMBINATIONS = 64


@dataclass(frozen=True, slots=True)
class FilledMask(TaskPrediction):
    """A word for one mask, with all other masks left as they are.

    Attributes:
        word: The word, or a fragment of one.
        pieces: The vocabulary tokens that spell the word.
        probability: Product of the probabilities of the word's pieces, given their number; for one piece, the softmax
            probability over the vocabulary.
        log_probability: Natural logarithm of the probability; words are ranked by it.
    """

    word: str
    pieces: tuple[str, ...]
    probability: Probability
    log_probability: float


@dataclass(frozen=True, slots=True)
class Filling(TaskPrediction):
    """A word for every mask, chosen together.

    Attributes:
        text: The text with the words filled in.
        words: A word for each mask.
        probability: exp(log_probability).
        log_probability: Sum of the log-probabilities of all pieces, each given the pieces filled in before it; the mean
            over several orders of filling the masks. Fillings are ranked by it.
    """

    text: str
    words: tuple[str, ...]
    probability: Probability
    log_probability: float


@dataclass(frozen=True, slots=True)
class FilledText(TaskPrediction):
    """The best fillings of a text.

    Attributes:
        fillings: The ``top`` fillings of all masks together, best first.
        masks: The ``top`` words for each mask, with all other masks left as they are.
        dropped_tokens: Number of tokens outside the window around the masks, which were not read.
    """

    fillings: tuple[Filling, ...]
    masks: tuple[tuple[FilledMask, ...], ...]
    dropped_tokens: Count


@dataclass(frozen=True, slots=True)
class MaskedLMOutputs:
    """The outputs of a masked language modelling head, without any calibration."""

    reader: MaskReader

    labels: ClassVar[tuple[str, ...]] = ()
    confidence: ClassVar[Confidence] = Confidence()

    def read(
        self, data: Source | Iterable[object], columns: MaskedTextColumns, options: object = None
    ) -> list[Example[None]]:
        """Return the texts of a source, see `raw_texts`."""
        del options
        return raw_texts(data, columns)

    def search(self, text: str, index: int, options: FillOptions) -> Search[Scores[FoundFills]]:
        """Search for the fillings of a text; the scores are their log-probabilities (R, 1).

        Messages give the number of the text, ``index`` + 1. Raises the errors of `MaskReader`, and `InvalidInput` for
        too many combinations of piece counts.
        """
        read = self.reader.read(text, index=index, pieces=options.max_pieces)
        choice = WordChoice(options.max_pieces)
        if options.words is not None:
            words = tuple(self._spelt(options.words, read, slot) for slot in range(len(read.slots)))
            longest = max(len(pieces) for known in words for pieces in known)
            if longest > 1:
                read = self.reader.read(text, index=index, pieces=longest)
            choice = WordChoice(words=words)
        _check_combinations(choice, len(read.slots), index)
        found = yield from search(read, choice, self.reader.tokenizer.mask_id, top=options.top, beam=options.beam)
        logs_R1 = np.array([[each.log_probability] for each in found.together]).reshape(-1, 1)
        return Scores(logs_R1, found, TokensRead(1, read.dropped_tokens))

    def decide(self, scores: Sequence[Scores[FoundFills]], options: object = None) -> list[FilledText]:
        """Return the fillings of each text."""
        del options
        texts = []
        for each in scores:
            found, many = each.places, each.places.choice.most_pieces > 1
            fillings = [self._filling(found, one) for one in found.together]
            words = [[self._word(found, slot, one) for one in best] for slot, best in enumerate(found.of_mask)]
            if many:  # the same word may come from several sequences of pieces
                fillings = _first_of_each(fillings, lambda filling: filling.text)
                words = [_first_of_each(best, lambda one: (one.word, self._continues(one.pieces[0]))) for best in words]
            texts.append(FilledText(tuple(fillings), tuple(map(tuple, words)), each.read.dropped_tokens))
        return texts

    def outcomes(
        self, scores: Sequence[Scores[None]], truth: FloatArray, *, calibrated: bool | None = None
    ) -> Outcomes:
        """Return the outcomes of raw texts at their masked positions; ``calibrated`` has no effect.

        The scores of a text (1, 2) are the sum of the log-probabilities of its masked tokens, and the number of them
        predicted correctly. ``truth`` has the number of masked tokens of each text (N).
        """
        del calibrated
        sums_N2 = np.concatenate([each.logits_RC for each in scores])
        outcomes = token_outcomes(TokenLosses(-sums_N2[:, 0], sums_N2[:, 1], truth))
        return replace(outcomes, tokens_read=texts_read(each.read for each in scores))

    def _spelt(self, words: Sequence[str], read: MaskedText, slot: int) -> dict[Pieces, str]:
        """Map pieces to words; of several words with the same pieces, keep the first."""
        spelt: dict[Pieces, str] = {}
        for word in words:
            spelt.setdefault(self.reader.spelt(word, read.slots[slot]), word.strip())
        return spelt

    def _filling(self, found: FoundFills, scored: ScoredFill) -> Filling:
        words = tuple(self._name(found, slot, pieces) for slot, pieces in enumerate(scored.fill))
        first = self.reader.tokenizer.tokens([pieces[0] for pieces in scored.fill])
        joined = [found.choice.words is None and self._continues(token) for token in first]
        text = found.text.filled(words, joined)
        return Filling(text, words, math.exp(scored.log_probability), scored.log_probability)

    def _word(self, found: FoundFills, slot: int, scored: ScoredFill) -> FilledMask:
        (pieces,) = scored.fill
        tokens = tuple(self.reader.tokenizer.tokens(pieces))
        log_probability = scored.log_probability
        return FilledMask(self._name(found, slot, pieces), tokens, math.exp(log_probability), log_probability)

    def _name(self, found: FoundFills, slot: int, pieces: Pieces) -> str:
        given: Mapping[Pieces, str] = {} if found.choice.words is None else found.choice.words[slot]
        return given[pieces] if given else self.reader.tokenizer.spellings([pieces])[0]

    def _continues(self, token: str) -> bool:
        return self.reader.tokenizer.word_marks.continues(token)


def _check_combinations(choice: WordChoice, masks: int, index: int) -> None:
    combinations = math.prod(len(choice.lengths(slot)) for slot in range(masks))
    if masks > 1 and combinations > MOST_COMBINATIONS:
        raise InvalidInput(
            f"text {index + 1} has {masks} masks, with {combinations} combinations of word lengths in pieces, but at "
            f"most {MOST_COMBINATIONS} can be searched. Allow fewer pieces per word, or fill in some of the masks."
        )


def _first_of_each(listed: Iterable[NamedT], name: Callable[[NamedT], object]) -> list[NamedT]:
    """Return the first item of each name; items are sorted by probability, so it is the most probable one."""
    named: dict[object, NamedT] = {}
    for each in listed:
        named.setdefault(name(each), each)
    return list(named.values())


class FittedMaskedLM(ABC):
    """A masked language model for prediction: an immutable value that several threads can share.

    ``scorer`` answers queries about single positions of a sequence. ``card`` has the metrics before and after `fit`.
    """

    __slots__ = ()

    backend: Backend
    scorer: Scorer
    outputs: MaskedLMOutputs
    columns: MaskedTextColumns
    card: Card
    golden_inputs: tuple[object, ...]
    known: TrainingRows

    @abstractmethod
    def token_losses(self, store: WindowStore, masker: Masker) -> TokenLosses:
        """Return the losses of tokenised texts at the positions that the masker masks; refuse texts without any."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write encoder and head in the layout of transformers into an existing folder.

        The folder opens as a masked language model in transformers, and here as an encoder for any task.
        """

    def read_texts(self, value: object) -> tuple[tuple[Backend, Sequence[Text]], ...]:
        """Return the backend with the text that it reads."""
        return ((self.backend, (str(value),)),)

    def score_baseline(self, rows: ScoredRows, show_progress: bool | None = None) -> dict[str, BaselineScores]:
        """Return an empty mapping: masked language models have no baseline."""
        del rows, show_progress
        return {}

    def score_blocks(self, inputs: Iterable[str], options: object = None) -> Iterator[list[Scores[FoundFills]]]:
        """Yield the scores of texts with masks, in blocks; the searches of a block share batches."""
        given = options_of(FillOptions, options)
        for block in blocks(enumerate(inputs), BLOCK):
            yield run_search(together([self.outputs.search(text, index, given) for index, text in block]), self.scorer)

    def run(
        self, searches: Iterator[Search[ResultT]], description: str, *, total: int | None, show_progress: bool | None
    ) -> Iterator[ResultT]:
        """Yield the results of searches, in order and in constant memory."""
        with progress(description, total, show=show_progress) as bar:
            for block in blocks(searches, BLOCK):
                yield from run_search(together(block), self.scorer)
                bar.advance(len(block))

    def losses(self, examples: Sequence[Example[None]], masker: Masker) -> ScoredRows:
        """Return the scores of raw texts at their masked positions; see `MaskedLMOutputs.outcomes`."""
        store = stored_texts(self.backend, examples)
        losses = self.token_losses(store, masker)
        windows = np.bincount(store.text_of_window).tolist()
        read = map(TokensRead, windows, store.dropped_tokens.tolist())
        sums_N12 = np.stack([-losses.losses_N, losses.right_N], axis=1)[:, None]
        scores = tuple(Scores(sums_12, None, each) for sums_12, each in zip(sums_N12, read, strict=True))
        return ScoredRows(scores, losses.tokens_N)

    def facts(self) -> dict[str, object]:
        """Return the metrics on the validation texts before and after `fit`, as JSON values; {} without them."""
        if not self.card.keys() >= {"new_head", "before", "metrics"}:
            return {}
        moments = {"before": self.card["before"], "after": self.card["metrics"]}
        names = ("loss", "perplexity", "accuracy")
        moved = {when: {name: numbers[name] for name in names} for when, numbers in moments.items()}
        return {"new_head": self.card["new_head"], **moved}


@dataclass(frozen=True, slots=True, eq=False)
class ExportedMaskedLM(FittedMaskedLM):
    """An exported masked language model, run by its ONNX graph."""

    backend: OnnxBackend
    scorer: GraphScorer
    outputs: MaskedLMOutputs
    columns: MaskedTextColumns
    card: Card = field(default_factory=dict)
    golden_inputs: tuple[object, ...] = ()
    known: TrainingRows = TrainingRows()  # noqa: RUF009 (frozen)

    @classmethod
    def of(cls, backend: OnnxBackend, columns: MaskedTextColumns, card: Card) -> ExportedMaskedLM:
        """Build the model from an opened export."""
        tokenizer, reading = backend.tokenizer, backend.reading
        outputs = MaskedLMOutputs(MaskReader(tokenizer, reading.max_length, reading.on_overflow))
        scorer = GraphScorer(backend.graph, tokenizer, backend.config.vocabulary, backend.budget)
        return cls(backend, scorer, outputs, columns, card)

    @override
    def write(self, folder: Path) -> None:
        del folder  # an export has no weights
        with_weights(self.backend, "save")

    def token_losses(self, store: WindowStore, masker: Masker) -> TokenLosses:
        """Return the losses of tokenised texts at their masked positions, one query per position, which is slow."""
        windows = np.flatnonzero(masker.ordinary_tokens(store))
        if not len(windows):
            raise InvalidInput("the texts have nothing to mask: all their tokens are special. Give other texts.")
        sums_N3 = np.zeros((store.texts, 3))
        for window in store.windows(windows):
            masked = masker.validation(window.ids, window.number)
            places, targets = masked.places_M.tolist(), masked.targets_M.tolist()
            queries = [Query(masked.ids_n, window.types, place, Named(())) for place in places]
            for number, logs_V in self.scorer.logs(queries):
                right = float(logs_V.argmax() == targets[number])
                sums_N3[store.text_of_window[window.number]] += -float(logs_V[targets[number]]), right, 1.0
        return TokenLosses(losses_N=sums_N3[:, 0], right_N=sums_N3[:, 1], tokens_N=sums_N3[:, 2])


def raw_texts(source: Source | Iterable[object], columns: MaskedTextColumns) -> list[Example[None]]:
    """Return the texts of a source, skipping rows without text, such as the empty lines of a text file."""
    rows: Any = source
    listed = isinstance(rows, Sequence) and not isinstance(rows, str)
    if is_column(rows) or (listed and all(isinstance(one, str) for one in rows)):
        rows = columns.rows_of(cast("list[str]", as_batch(rows)[0]))
    examples: list[Example[None]] = []
    for row in read_rows(rows):
        values = [row.values.get(name) for name in columns.text]
        if not all(isinstance(value, str) and not VISIBLE.search(value) for value in values):
            examples.append(Example(columns.read(row), None, row.number, row.where))
    if not examples:
        raise InvalidInput("there is no text in the given data: every row is empty. Check the column name.")
    return examples


def stored_texts(backend: Backend, examples: Sequence[Example[None]]) -> WindowStore:
    """Tokenise raw texts; their windows do not overlap unless a stride was given."""
    # A token in two windows would count twice in the training.
    reading = replace(backend.reading, stride=backend.reading.stride or 0)
    return stored_windows(replace(backend, reading=reading), [example.text for example in examples])
