"""Inputs of tasks with the score to explain, which is the score of the model's own prediction or of a chosen one.

A score is computed in two steps. `ExplainTarget.rows` selects the outputs of a head that the score depends on;
`ExplainTarget.score` computes one number from them. Both use torch operations, so they have gradients.

Scores are uncalibrated. For labels they are the log odds of one label against all others. Unlike a single logit, log
odds do not change if a constant is added to all logits.

Shapes: R rows of an input (1 for a text, its words, its choices, both vectors of a pair), C outputs, n tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.choices import LabelValue
from bothways.text import Places, word_spans
from bothways.text.windows import Text

# The word index of a token that belongs to no word.
NO_WORD = -1


@dataclass(frozen=True, slots=True)
class Label:
    """The log odds of a label."""

    name: LabelValue


@dataclass(frozen=True, slots=True)
class WordTag:
    """The log odds of a tag of one word; words are counted from 0. Default tag: the predicted one."""

    word: int
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """The log odds of the answer ``context[start:end]`` against no answer."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ContextChoice:
    """The log odds of one of the choices for a context; choices are counted from 0."""

    index: int


Target = Label | WordTag | AnswerSpan | ContextChoice


@dataclass(frozen=True, slots=True)
class Word:
    """A word of an input with its position: ``parts[part][start:end] == text``, see `ExplainTarget.parts`."""

    text: str
    part: int
    start: int
    end: int


@dataclass(frozen=True)
class ExplainTarget(ABC):
    """An input with the score to explain."""

    parts: tuple[str, ...]  # the texts of the input, as the tokenizer reads them

    @property
    @abstractmethod
    def score_name(self) -> str:
        """Name of the score, in words."""

    @property
    def label(self) -> LabelValue | None:
        """The label that the score is for, in its type; None for another score."""
        return None

    @property
    @abstractmethod
    def value(self) -> object:
        """The input, in the form that the task takes."""

    @property
    def texts(self) -> tuple[Text, ...]:
        """The texts or pairs that are given to the model, each in one window. Default: the parts."""
        return self.parts

    @property
    def shown(self) -> Text:
        """The text whose attention is shown."""
        return self.texts[0]

    def part_of(self, text: int, sequence: int) -> int:
        """Return the index in `parts` of sequence 0 or 1 of a text or pair, given by its index in `texts`."""
        del text
        return sequence

    @abstractmethod
    def rows(self, given: Sequence[Tensor], places: Sequence[Places]) -> Tensor:
        """Return the outputs (R, C) that the score depends on.

        Args:
            given: Outputs of the module for each text: (K,), or (n, K) if the head has an output per token.
            places: Character positions of the tokens of each text.
        """

    @abstractmethod
    def score(self, rows_RC: Tensor) -> Tensor:
        """Compute the score from the outputs of `rows`."""

    def without(self, words: Collection[int]) -> "ExplainTarget":
        """Return the target for the input without the words at these indices."""
        return self._with_parts(self.remaining(words))

    def _with_parts(self, remaining: "Sequence[Remaining]") -> "ExplainTarget":
        return replace(self, parts=tuple(each.text for each in remaining))

    def remaining(self, words: Collection[int]) -> list["Remaining"]:
        """Return each part without the words at these indices."""
        spans: list[list[tuple[int, int]]] = [[] for _ in self.parts]
        for number in words:
            word = self.words[number]
            spans[word.part].append((word.start, word.end))
        return [Remaining.of(part, cut) for part, cut in zip(self.parts, spans, strict=True)]

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """The words of all parts, in order."""
        return tuple(
            Word(text[begin:end], part, begin, end)
            for part, text in enumerate(self.parts)
            for begin, end in self.spans(part)
        )

    def spans(self, part: int) -> list[tuple[int, int]]:
        """Return the start and end of each word of a part."""
        return word_spans(self.parts[part])

    @cached_property
    def kept(self) -> frozenset[int]:
        """Indices of words that cannot be left out: those that the score is for, and the only word of a part."""
        counts = np.bincount([word.part for word in self.words], minlength=len(self.parts))
        return frozenset(number for number, word in enumerate(self.words) if counts[word.part] == 1)

    def words_of_tokens(self, text: int, places: Places) -> NDArray[np.int64]:
        """Return the word index of each token of a text (n); -1 for a token outside of words."""
        words_n = np.full(len(places.begins_n), NO_WORD)
        for sequence in np.unique(places.sequences_n[places.sequences_n >= 0]).tolist():
            part = self.part_of(text, sequence)
            own = np.array([number for number, word in enumerate(self.words) if word.part == part])
            if len(own):
                found_n = overlapping(
                    [(self.words[each].start, self.words[each].end) for each in own], places, sequence
                )
                words_n[found_n != NO_WORD] = own[found_n[found_n != NO_WORD]]
        return words_n


@dataclass(frozen=True, slots=True)
class Remaining:
    """The rest of a text after words are removed, and the positions of the remaining characters."""

    text: str  # the remaining text
    kept: NDArray[np.bool_]  # True for each character of the original that remains

    @classmethod
    def of(cls, text: str, cut: Sequence[tuple[int, int]]) -> "Remaining":
        """Remove spans from a text, and the white space after a span if white space or nothing comes before it."""
        kept = np.ones(len(text), dtype=bool)
        for begin, end in cut:
            kept[begin:end] = False
        blank = True
        for at, character in enumerate(text) if cut else ():
            if not kept[at]:
                continue
            # Only a space after a removed span is dropped.
            if character.isspace() and blank and at and not kept[at - 1]:
                kept[at] = False
                continue
            blank = character.isspace()
        return cls("".join(np.array(list(text))[kept]) if cut else text, kept)

    def place(self, character: int) -> int:
        """Return the index in the remaining text of a character of the original text."""
        return int(self.kept[:character].sum())


def overlapping(spans: Sequence[tuple[int, int]], places: Places, sequence: int = 0) -> NDArray[np.int64]:
    """Return the index of the first span that shares a character with each token (n); -1 for none.

    Spans are the starts and ends of words of one sequence, in order.
    """
    starts, ends = np.array(spans).T
    found_n = np.minimum(np.searchsorted(ends, places.begins_n, side="right"), len(ends) - 1)
    inside_n = (starts[found_n] < places.ends_n) & (ends[found_n] > places.begins_n) & (places.sequences_n == sequence)
    return np.where(inside_n, found_n, NO_WORD)


def log_odds(logits_C: Tensor, number: int) -> Tensor:
    """Return the log odds of one output of a softmax against all others; its logit if there is no other."""
    if len(logits_C) == 1:
        return logits_C[number]
    others_C = torch.cat([logits_C[:number], logits_C[number + 1 :]])
    return logits_C[number] - torch.logsumexp(others_C, dim=0)
