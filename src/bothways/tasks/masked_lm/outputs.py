"""Outputs of a masked language model: words for masks, and losses at chosen places of raw texts.

Shape letters: N texts, R fillings of a text.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from bothways.confidence.confidence import Confidence
from bothways.errors import InvalidInput
from bothways.evaluation.inputs import FloatArray
from bothways.evaluation.outcomes import Outcomes, TokenLosses, token_outcomes
from bothways.inference.queries import Search
from bothways.tasks.masked_lm.masked_text import MaskedText, MaskReader
from bothways.tasks.masked_lm.predictions import FilledMask, FilledText, Filling
from bothways.tasks.masked_lm.search import FoundFills, Pieces, ScoredFill, WordChoice, search
from bothways.tasks.masked_lm.spec import FillOptions
from bothways.tasks.scores import Scores, TokensRead, texts_read

NamedT = TypeVar("NamedT")

# Combinations of numbers of pieces that are searched, each with beams of its own.
MOST_COMBINATIONS = 64


@dataclass(frozen=True, slots=True)
class MaskedLMOutputs:
    """Outputs of a masked language modelling head. Nothing is fitted on held-out texts.

    Attributes:
        reader: Reads texts with masks, and splits words into pieces.
    """

    reader: MaskReader

    labels: ClassVar[tuple[str, ...]] = ()
    confidence: ClassVar[Confidence] = Confidence()

    def search(self, text: str, index: int, options: FillOptions) -> Search[Scores[FoundFills]]:
        """Search the fillings of a text; their log-probabilities are its scores (R, 1).

        Args:
            text: The text.
            index: Number of the text, for messages.
            options: Allowed words, and options of the search.

        Raises:
            InvalidInput: The text has no mask or too many, a word cannot be spelt there, or there are too many ways to
                share pieces out among the masks.
            TextTooLong: The text is too long and the policy is ``"error"``, or its masks are too far apart.
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
            if many:  # a word may be cut into pieces in several ways
                fillings = _first_of_each(fillings, lambda filling: filling.text)
                words = [_first_of_each(best, lambda one: (one.word, self._continues(one.pieces[0]))) for best in words]
            texts.append(FilledText(tuple(fillings), tuple(map(tuple, words)), each.read.dropped_tokens))
        return texts

    def outcomes(
        self, scores: Sequence[Scores[None]], truth: FloatArray, *, calibrated: bool | None = None
    ) -> Outcomes:
        """Return the outcomes of raw texts at chosen places.

        Args:
            scores: For each text the sum of the log-probabilities of the chosen tokens, and how many of them were the
                most probable (1, 2).
            truth: Number of chosen tokens (N).
            calibrated: Ignored, since nothing is calibrated.
        """
        del calibrated
        sums_N2 = np.concatenate([each.logits_RC for each in scores])
        outcomes = token_outcomes(TokenLosses(-sums_N2[:, 0], sums_N2[:, 1], truth))
        return replace(outcomes, tokens_read=texts_read(each.read for each in scores))

    def _spelt(self, words: Sequence[str], read: MaskedText, slot: int) -> dict[Pieces, str]:
        """Return the words by their pieces; among words with the same pieces, the first."""
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
            f"text {index + 1} has {masks} masks, whose words may share out pieces in {combinations} ways, but at "
            f"most {MOST_COMBINATIONS} are searched. Allow fewer pieces, or fill some of the masks in."
        )


def _first_of_each(listed: Iterable[NamedT], name: Callable[[NamedT], object]) -> list[NamedT]:
    """Return the first, and so the most probable, item of each name."""
    named: dict[object, NamedT] = {}
    for each in listed:
        named.setdefault(name(each), each)
    return list(named.values())
