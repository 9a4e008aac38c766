"""Masked language modelling inference at single places of many sequences, in packed batches.

Shapes: M places asked about, H hidden, V vocabulary, K tokens in an answer.
"""

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from bothways.devices import on_device
from bothways.encoder import Encoder, MaskedLMHead
from bothways.encoder.rows import SelectedRows
from bothways.inference.runner import Runner
from bothways.packing import Packed
from bothways.text import TextTokenizer
from bothways.text.characters import within_word

ResultT = TypeVar("ResultT")

Among = Literal["any", "begins", "continues"]

# Most logits at once: 128 MiB in float32, beside which a batch of a small model is little.
MOST_LOGITS = 2**25


@dataclass(frozen=True, slots=True)
class Best:
    """Asks for the likeliest tokens.

    Attributes:
        count: How many.
        among: Of all ordinary tokens, of those that begin a word, or of those that go on with one, see
            `refused_tokens`. Special tokens are never among them.
    """

    count: int
    among: Among = "any"


@dataclass(frozen=True, slots=True)
class Named:
    """Asks for these tokens."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """A query for the token at one place of a sequence.

    Attributes:
        ids: The sequence, special tokens included.
        types: Its segment ids.
        place: Index of the token that is asked about; usually there is a mask.
        wanted: Which tokens the answer is about.
    """

    ids: Sequence[int]
    types: Sequence[int]
    place: int
    wanted: Best | Named


@dataclass(frozen=True, slots=True)
class RankedTokens:
    """Tokens, and the natural logarithms of their probabilities among the whole vocabulary.

    Attributes:
        ids: Of `Best` the likeliest first, of `Named` in its order.
        log_probabilities: One for each.
    """

    ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]


Search: TypeAlias = Generator[list[Query], list[RankedTokens], ResultT]
"""A generator that yields queries and is sent their answers."""


class MaskedLMScorer:
    """Answers queries with an encoder and its masked language modelling head; any number of threads may ask at once.

    Args:
        encoder: The encoder.
        head: Its head.
        tokenizer: Says which tokens are special, and which begin a word.
        tokens: Token budget of a batch; what suits the device when None.

    Attributes:
        head: The head.
    """

    def __init__(
        self, encoder: Encoder, head: MaskedLMHead, tokenizer: TextTokenizer, *, tokens: int | None = None
    ) -> None:
        self._encoder = encoder
        self.head = head
        self._device = encoder.embedding.tokens.weight.device
        self._runner = Runner(self._computed, self._device, tokens)
        self._tokenizer = tokenizer
        self._refused: dict[Among, Tensor] = {}

    def answers(self, queries: Sequence[Query]) -> list[RankedTokens]:
        """One answer for each query, in order.

        Raises:
            OutOfMemory: A single sequence does not fit into memory.
        """
        return self._runner.run(queries)

    def _computed(self, packed: Packed, queries: Sequence[Query]) -> list[RankedTokens]:
        places_M = on_device(np.array([query.place for query in queries]), self._device)
        rows_M = packed.first_tokens_B[: len(queries)] + places_M
        hidden_MH = self._encoder(packed, rows=SelectedRows(rows_M))
        size = max(1, MOST_LOGITS // self._encoder.config.vocabulary)
        answers: list[RankedTokens] = []
        for start in range(0, len(queries), size):
            logits_MV = self.head(hidden_MH[start : start + size], self._encoder.embedding.tokens.weight)
            wanted = [query.wanted for query in queries[start : start + size]]
            answers += self._read(logits_MV.float().log_softmax(-1), wanted)
        return answers

    def _read(self, logs_MV: Tensor, wanted: Sequence[Best | Named]) -> list[RankedTokens]:
        rows_of: dict[Best, list[int]] = {}
        named: list[tuple[int, Named]] = []
        for row, one in enumerate(wanted):
            match one:
                case Best():
                    rows_of.setdefault(one, []).append(row)
                case Named():
                    named.append((row, one))
        answers = dict(_named(logs_MV, named))
        for best, rows in rows_of.items():
            refused_V = self._refused_among(best.among)
            allowed_MV = logs_MV[rows].masked_fill(refused_V, float("-inf"))
            count = min(best.count, int((~refused_V).sum()))
            logs_MK, ids_MK = (part.tolist() for part in allowed_MV.topk(count))
            for row, ids, logs in zip(rows, ids_MK, logs_MK, strict=True):
                answers[row] = RankedTokens(tuple(ids), tuple(logs))
        return [answers[row] for row in range(len(wanted))]

    def _refused_among(self, among: Among) -> Tensor:
        if among not in self._refused:
            refused_V = refused_tokens(self._tokenizer, self._encoder.config.vocabulary, among)
            self._refused[among] = refused_V.to(self._device)
        return self._refused[among]


def together(searches: Sequence[Search[ResultT]]) -> Search[list[ResultT]]:
    """Run several searches as one, whose queries are those of all that are still at work."""
    results: dict[int, ResultT] = {}
    asked: dict[int, list[Query]] = {}

    def advance(index: int, answers: list[RankedTokens] | None) -> None:
        try:
            asked[index] = next(searches[index]) if answers is None else searches[index].send(answers)
        except StopIteration as end:
            asked.pop(index, None)
            results[index] = end.value

    for index in range(len(searches)):
        advance(index, None)
    while asked:
        waiting = list(asked.items())
        answers = iter((yield [query for _, queries in waiting for query in queries]))
        for index, queries in waiting:
            advance(index, list(itertools.islice(answers, len(queries))))
    return [results[index] for index in range(len(searches))]


def run_search(searching: Search[ResultT], scorer: MaskedLMScorer) -> ResultT:
    """Let a model answer a search's queries until it is done."""
    try:
        queries = next(searching)
        while True:
            queries = searching.send(scorer.answers(queries))
    except StopIteration as end:
        result: ResultT = end.value
        return result


def refused_tokens(tokenizer: TextTokenizer, vocabulary: int, among: Among) -> Tensor:
    """Return which entries of the vocabulary (V) an answer of a kind may not hold.

    What begins a word spells something, and what goes on with one has neither punctuation nor white space: where
    vocabularies mark beginnings, commas and line breaks go on with words as letters do. Rows of the table that no token
    has are refused too: some tables are filled up to a round number.
    """
    refused_V = torch.ones(vocabulary, dtype=torch.bool)
    marks = tokenizer.word_marks
    special = tokenizer.special_ids
    ordinary = {number: token for number, token in tokenizer.vocabulary().items() if number not in special}
    if among == "any":
        allowed = list(ordinary)
    else:
        inner = among == "continues"
        placed = [number for number, token in ordinary.items() if marks.continues(token) == inner]
        spelt = zip(placed, tokenizer.spellings([[number] for number in placed]), strict=True)
        allowed = [number for number, text in spelt if (within_word(text) if inner else text)]
    refused_V[allowed] = False
    return refused_V


def _named(logs_MV: Tensor, asked: Sequence[tuple[int, Named]]) -> Iterator[tuple[int, RankedTokens]]:
    rows = [row for row, named in asked for _ in named.ids]
    ids = [number for _, named in asked for number in named.ids]
    logs = logs_MV[rows, ids].tolist()
    start = 0
    for row, named in asked:
        yield row, RankedTokens(named.ids, tuple(logs[start : start + len(named.ids)]))
        start += len(named.ids)
