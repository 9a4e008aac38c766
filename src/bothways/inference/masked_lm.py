"""Masked language modelling inference at single positions of many sequences, in packed batches.

Shapes: M queried positions, H hidden, V vocabulary, K tokens in an answer.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from bothways.devices import on_device
from bothways.encoder import Encoder, MaskedLMHead
from bothways.inference.queries import MOST_LOGITS, Among, Best, Named, Query, RankedTokens, refused_tokens
from bothways.inference.runner import Runner
from bothways.packing import Packed, SelectedRows
from bothways.text import TextTokenizer


class MaskedLMScorer:
    """Answers `Query` objects with an encoder and its masked language modelling head; several threads may call it."""

    def __init__(self, encoder: Encoder, head: MaskedLMHead, tokenizer: TextTokenizer) -> None:
        self._encoder = encoder
        self.head = head
        self._device = encoder.embedding.tokens.weight.device
        self._runner = Runner(self._computed, self._device)
        self._tokenizer = tokenizer
        self._refused: dict[Among, Tensor] = {}

    def answers(self, queries: Sequence[Query]) -> list[RankedTokens]:
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
            self._refused[among] = torch.from_numpy(refused_V).to(self._device)
        return self._refused[among]


def _named(logs_MV: Tensor, asked: Sequence[tuple[int, Named]]) -> Iterator[tuple[int, RankedTokens]]:
    rows = [row for row, named in asked for _ in named.ids]
    ids = [number for _, named in asked for number in named.ids]
    logs = logs_MV[rows, ids].tolist()
    start = 0
    for row, named in asked:
        yield row, RankedTokens(named.ids, tuple(logs[start : start + len(named.ids)]))
        start += len(named.ids)
