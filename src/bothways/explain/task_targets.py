"""Explanation targets of each task; see `bothways.explain.targets`.

Shapes: R rows of an input, C outputs, W words, K choices or dimensions of a vector, n tokens.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.choices import LabelValue, SimilarityName
from bothways.errors import InvalidInput
from bothways.explain.targets import AnswerSpan, ExplainTarget, Remaining, log_odds
from bothways.tasks.embedding.settings import EmbeddingSettings, with_prompt
from bothways.text import Places, ReadWords, Words, blanked_in_front
from bothways.text.windows import NO_TEXT, Text

# Index of the context in the pair of question and context.
CONTEXT = 1


@dataclass(frozen=True)
class LabelTarget(ExplainTarget):
    """A text or a pair; the score is the log odds of a label, or the predicted number of a regression."""

    name: LabelValue | None  # the label; None for a number
    number: int  # index of the output
    outputs: int  # number of outputs
    exclusive: bool  # True if an input has exactly one label

    @property
    def score_name(self) -> str:
        return "the predicted number" if self.name is None else f"log odds of {self.name!r}"

    @property
    def label(self) -> LabelValue | None:
        return self.name

    @property
    def value(self) -> Text:
        return self.parts[0] if len(self.parts) == 1 else (self.parts[0], self.parts[1])

    @property
    def texts(self) -> tuple[Text, ...]:
        return (self.value,)

    def rows(self, given: Sequence[Tensor], places: Sequence[Places]) -> Tensor:
        """Return the logits (1, C)."""
        del places
        return given[0][None, : self.outputs]

    def score(self, rows_RC: Tensor) -> Tensor:
        return log_odds(rows_RC[0], self.number) if self.exclusive else rows_RC[0, self.number]


@dataclass(frozen=True)
class TagTarget(ExplainTarget):
    """A list of words; the score is the mean log odds of the tags of some of them."""

    listed: tuple[str, ...]  # the words
    tags: tuple[tuple[int, int], ...]  # pairs of a word index and a tag index
    names: tuple[str, ...]  # the names of these tags

    @classmethod
    def of(cls, words: Sequence[str], tags: tuple[tuple[int, int], ...], names: tuple[str, ...]) -> "TagTarget":
        """Return the target for these words, which are joined into the text that the tokenizer reads."""
        return cls((ReadWords.of(Words.of_list(words)).text,), tuple(words), tags, names)

    @property
    def score_name(self) -> str:
        if len(self.tags) == 1:
            return f"log odds of {self.names[0]!r} for {self.listed[self.tags[0][0]]!r}"
        return f"mean log odds of the predicted tags of {len(self.tags)} words"

    @property
    def value(self) -> Words:
        return Words.of_list(self.listed)

    def part_of(self, text: int, sequence: int) -> int:
        del text, sequence
        return 0

    def spans(self, part: int) -> list[tuple[int, int]]:
        del part
        read = ReadWords.of(self.value)
        return list(zip(read.begins_W.tolist(), read.ends_W.tolist(), strict=True))

    @cached_property
    def kept(self) -> frozenset[int]:
        return frozenset(word for word, _ in self.tags) | super().kept

    def without(self, words: Collection[int]) -> "TagTarget":
        """Return the target for the input without the words at these indices; the remaining words keep their tags."""
        stay = [number for number in range(len(self.listed)) if number not in words]
        place = {number: at for at, number in enumerate(stay)}
        tags = tuple((place[word], tag) for word, tag in self.tags)
        return self.of([self.listed[number] for number in stay], tags, self.names)

    def rows(self, given: Sequence[Tensor], places: Sequence[Places]) -> Tensor:
        """Return the logits (W, C) of the first token of each word; zeros for a word without a token."""
        tokens = ReadWords.of(self.value).first_tokens(places)
        rows_WC = given[0].new_zeros((len(self.listed), given[0].shape[1]))
        at = torch.from_numpy(tokens.words_M).to(given[0].device)
        return rows_WC.index_copy(0, at, given[0][torch.from_numpy(tokens.rows_M).to(given[0].device)])

    def score(self, rows_RC: Tensor) -> Tensor:
        return torch.stack([log_odds(rows_RC[word], tag) for word, tag in self.tags]).mean()


@dataclass(frozen=True)
class ChoiceTarget(ExplainTarget):
    """A context with choices; the score is the log odds of one choice."""

    index: int  # index of the choice

    @property
    def score_name(self) -> str:
        return f"log odds of choice {self.index}, {self.parts[1 + self.index]!r}"

    @property
    def value(self) -> tuple[str, tuple[str, ...]]:
        return self.parts[0], self.parts[1:]

    @property
    def texts(self) -> tuple[Text, ...]:
        return tuple((self.parts[0], choice) for choice in self.parts[1:])

    @property
    def shown(self) -> Text:
        return self.texts[self.index]

    def part_of(self, text: int, sequence: int) -> int:
        return 0 if sequence == 0 else 1 + text

    def rows(self, given: Sequence[Tensor], places: Sequence[Places]) -> Tensor:
        """Return the logits of the choices (1, K)."""
        del places
        return torch.stack([each[0] for each in given])[None]

    def score(self, rows_RC: Tensor) -> Tensor:
        return log_odds(rows_RC[0], self.index)


_SIMILARITIES: dict[SimilarityName, str] = {
    "cosine": "cosine",
    "dot": "inner product",
    "euclidean": "negative distance",
    "manhattan": "negative Manhattan distance",
}


@dataclass(frozen=True)
class SimilarityTarget(ExplainTarget):
    """Two texts; the score is the similarity of their vectors."""

    settings: EmbeddingSettings  # those of the embedder

    @property
    def score_name(self) -> str:
        return f"{_SIMILARITIES[self.settings.similarity]} of the two texts"

    @property
    def value(self) -> tuple[str, ...]:
        return self.parts

    @property
    def texts(self) -> tuple[Text, ...]:
        return tuple(with_prompt(part, self.settings.prompt_of()) for part in self.parts)

    def words_of_tokens(self, text: int, places: Places) -> NDArray[np.int64]:
        """Return the word index of each token of a text (n); -1 for tokens outside of words, and of a prompt."""
        before = len(self.settings.prompt_of())
        inside_n = (places.sequences_n >= 0) & (places.ends_n > before)
        behind = replace(
            places,
            begins_n=np.where(inside_n, np.maximum(places.begins_n - before, 0), 0),
            ends_n=np.where(inside_n, places.ends_n - before, 0),
            sequences_n=np.where(inside_n, places.sequences_n, NO_TEXT),
        )
        return super().words_of_tokens(text, behind)

    def part_of(self, text: int, sequence: int) -> int:
        del sequence
        return text

    def rows(self, given: Sequence[Tensor], places: Sequence[Places]) -> Tensor:
        """Return the vectors (2, K)."""
        del places
        vectors_2K, settings = torch.stack(list(given))[:, : self.settings.dimensions], self.settings
        vectors_2K = torch.nn.functional.normalize(vectors_2K, dim=1) if settings.unit_length else vectors_2K
        return vectors_2K[:, : settings.truncate_dim]

    def score(self, rows_RC: Tensor) -> Tensor:
        first_K, second_K = rows_RC[0], rows_RC[1]
        match self.settings.similarity:
            case "cosine":
                return torch.nn.functional.cosine_similarity(first_K, second_K, dim=0)
            case "dot":
                return (first_K * second_K).sum()
            case "euclidean":
                return -torch.nn.functional.pairwise_distance(first_K, second_K)
            case "manhattan":
                return (first_K - second_K).abs().sum().neg()


@dataclass(frozen=True)
class SpanTarget(ExplainTarget):
    """A question with its context; the score is the log odds of an answer span against no answer."""

    span: AnswerSpan  # the span, in characters of the context
    no_answer: int  # index of the token in a window whose scores are those of no answer

    @property
    def score_name(self) -> str:
        return f"log odds of the answer {self.parts[1][self.span.start : self.span.end]!r} against none"

    @property
    def value(self) -> tuple[str, str]:
        return self.parts[0], self.parts[1]

    @property
    def texts(self) -> tuple[Text, ...]:
        return ((self.parts[0], blanked_in_front(self.parts[1])),)

    @cached_property
    def kept(self) -> frozenset[int]:
        inside = (
            number
            for number, word in enumerate(self.words)
            if word.part == CONTEXT and word.start < self.span.end and word.end > self.span.start
        )
        return frozenset(inside) | super().kept

    def _with_parts(self, remaining: Sequence[Remaining]) -> "SpanTarget":
        question, context = remaining
        moved = AnswerSpan(context.place(self.span.start), context.place(self.span.end))
        return replace(self, parts=(question.text, context.text), span=moved)

    def rows(self, given: Sequence[Tensor], places: Sequence[Places]) -> Tensor:
        """Return the scores (1, 3) of start, end and no answer in the window where the span scores best."""
        found = [self._row(row, place) for row, place in zip(given, places, strict=True) if self._ends(place)]
        if not found:
            raise InvalidInput(
                f"the answer (characters {self.span.start} to {self.span.end} of the context) does not fit into one "
                "window: choose a shorter span with visible characters, or raise max_length."
            )
        return max(found, key=lambda row_13: float(row_13.detach() @ row_13.new_tensor([1.0, 1.0, -1.0])))[None]

    def _row(self, row: Tensor, place: Places) -> Tensor:
        start, end = self._ends(place)
        return torch.stack([row[start, 0], row[end, 1], row[self.no_answer].sum()])

    def _ends(self, places: Places) -> tuple[int, ...]:
        """Return the first and last token of the span in a window; empty unless the window contains the whole span."""
        context = places.sequences_n == CONTEXT
        inside = context & (places.ends_n > self.span.start) & (places.begins_n < self.span.end)
        at = np.flatnonzero(inside)
        if not len(at):
            return ()
        text = self.parts[1]
        before, behind = text[self.span.start : places.begins_n[at[0]]], text[places.ends_n[at[-1]] : self.span.end]
        return () if before.strip() or behind.strip() else (int(at[0]), int(at[-1]))

    def score(self, rows_RC: Tensor) -> Tensor:
        return rows_RC[0, 0] + rows_RC[0, 1] - rows_RC[0, 2]
