"""Permutation language modelling (Yang et al. 2019, arXiv:1906.08237).

About one token in K is a target (partial prediction, section 2.3): spans of 1 to 5 tokens, each within a context. All
other tokens except [SEP] and [CLS] attend to one another and are visible to every token; the targets, [SEP] and [CLS]
follow in a random factorisation order. Targets are predicted from the query stream of an encoder; the content stream
reads the unmasked tokens. If a batch is read in lanes (`bothways.objectives.streams.Lanes`), each lane has a memory:
the hidden states of its last tokens, without a gradient (segment recurrence, section 2.4). Checkpoints store it.

Shapes: n tokens of a sequence or of a lane's memory, U words, T packed tokens, M targets, H hidden, V vocabulary, Z
tokens of memories, L layers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.devices import on_device
from bothways.encoder import Encoder, MaskedLMHead, Recorder
from bothways.encoder.streams import VISIBLE, Memory
from bothways.errors import InvalidInput
from bothways.objectives.masked_lm import predict_tokens
from bothways.objectives.masking import MaskedTokens, NGramMasking, PieceKinds
from bothways.objectives.pretraining import PREDICTED, PretrainingModel, UnitLosses
from bothways.objectives.sequences import Link, MaskedBatch
from bothways.text import TextTokenizer
from bothways.training.workers import current_workers


@dataclass(frozen=True, slots=True)
class Permutation:
    """One in `partial` (K) ordinary tokens is a target, in spans of up to `longest` tokens; P(length L) ~ 1 / L."""

    partial: int = 6
    longest: int = 5

    def __post_init__(self) -> None:
        if min(self.partial, self.longest) < 1:
            raise InvalidInput(f"`partial` and `longest` must be at least 1, got {self.partial} and {self.longest}.")


class Permuter:
    """Draws targets and factorisation orders for the sequences of one tokenizer."""

    def __init__(self, tokenizer: TextTokenizer, permutation: Permutation, seed: int) -> None:
        self.permutation = permutation
        self.seed = seed
        self._kinds = PieceKinds(tokenizer)
        self._framing = np.array([tokenizer.cls_id, tokenizer.sep_id], dtype=np.int32)

    @property
    def identity(self) -> Mapping[str, str | int | float | bool]:
        given = self.permutation
        return {"one target in tokens": given.partial, "longest span": given.longest, "order seed": self.seed}

    def training(self, ids_n: NDArray[np.int32], epoch: int, sequence: int) -> MaskedTokens:
        return self._permuted(ids_n, np.random.default_rng([self.seed, 0, epoch, sequence]))

    def validation(self, ids_n: NDArray[np.int32], sequence: int) -> MaskedTokens:
        return self._permuted(ids_n, np.random.default_rng([self.seed, 1, sequence]))

    def _permuted(self, ids_n: NDArray[np.int32], draw: np.random.Generator) -> MaskedTokens:
        places = self._kinds.ordinary_places(ids_n)
        # Rounded at random, so the share is correct on average; at least one.
        count = min(len(places), max(1, math.floor(len(places) / self.permutation.partial + draw.random())))
        chosen_M = places[self._targets(self._kinds.words(ids_n, places), count, draw)]
        ordered = np.isin(ids_n, self._framing)
        ordered[chosen_M] = True
        order_n = np.full(len(ids_n), VISIBLE, dtype=np.int64)
        order_n[ordered] = draw.permutation(int(ordered.sum()))
        uniform_M = draw.random(len(chosen_M), dtype=np.float32)
        return MaskedTokens(ids_n, chosen_M, ids_n[chosen_M], uniform_M, order_n)

    def _targets(self, starts_U: NDArray[np.int64], count: int, draw: np.random.Generator) -> NDArray[np.bool_]:
        """Choose targets among the ordinary tokens, as the published code does (zihangdai/xlnet, data_utils.py).

        The contexts of the spans follow one another. A span of L tokens has a random position in a context of K L
        tokens, and starts at a word. If this gives too few targets, single tokens are added. L counts tokens as in
        that code, although its comments speak of words.
        """
        total, taken = int(starts_U[-1]), np.zeros(starts_U[-1], dtype=bool)
        lengths = 1 + draw.choice(self.permutation.longest, count, p=NGramMasking(self.permutation.longest).chances())
        at, left = 0, count
        for length, share in zip(lengths.tolist(), draw.random(count).tolist(), strict=True):
            span = min(length, left)
            context = span * self.permutation.partial
            before = int(share * context)
            begin = int(starts_U[np.searchsorted(starts_U, min(at + before, total))])
            if not span or begin + span > total:
                break
            taken[begin : begin + span] = True
            at, left = begin + span + context - before, left - span
        taken[draw.permutation(np.flatnonzero(~taken))[:left]] = True
        return taken


class LaneMemories:
    """The memories of the lanes of this process, on the device.

    `held` maps a lane's number to the inputs of each layer at the lane's last tokens (L, n, H).
    """

    def __init__(self) -> None:
        self.held: dict[int, Tensor] = {}

    def take(self, links: Sequence[Link | None]) -> Memory | None:
        """Remove and return the memory that a batch reads; None if no sequence reads one."""
        lanes = [link.lane for link in links if link is not None and link.read]
        if not lanes:
            return None
        if missing := [lane for lane in lanes if lane not in self.held]:
            raise InvalidInput(
                f"lane {missing[0]} has no memory from the previous update: train on the updates in order, starting "
                "from the first one or from a checkpoint."
            )
        lengths = tuple(self.held[link.lane].shape[1] if link is not None and link.read else 0 for link in links)
        behind = tuple(link is not None and link.backward for link in links)
        states_LZH = torch.cat([self.held.pop(lane) for lane in lanes], dim=1)
        return Memory(lengths, tuple(states_LZH.unbind()), behind)

    @torch.no_grad()
    def keep(self, batch: MaskedBatch, memory: Memory | None, hidden_LTH: Sequence[Tensor]) -> None:
        """Store the last states of each lane of a batch, from the memory it read and each layer's inputs (T, H)."""
        rows = _kept_rows(batch, memory)
        rows_Z = on_device(np.concatenate(list(rows.values())), hidden_LTH[0].device)
        read = [()] * len(hidden_LTH) if memory is None else [(each_ZH,) for each_ZH in memory.states]
        sources = [torch.cat([*before, own_TH]) for before, own_TH in zip(read, hidden_LTH, strict=True)]
        states_LZH = torch.stack([each.index_select(0, rows_Z) for each in sources])
        # An update that is not finite may be skipped; its states must not spoil later updates.
        states_LZH.nan_to_num_(0.0, 0.0, 0.0)
        self.held |= dict(zip(rows, torch.split(states_LZH, [*map(len, rows.values())], dim=1), strict=True))


def _kept_rows(batch: MaskedBatch, memory: Memory | None) -> dict[int, NDArray[np.int64]]:
    """Return the rows that each lane keeps as its memory; rows count the memories first, then the sequences."""
    read_B = np.array([0] * batch.packed.count if memory is None else memory.lengths)
    memory_starts_B, starts_B = np.cumsum(read_B) - read_B, np.cumsum([read_B.sum(), *batch.packed.lengths[:-1]])
    found = {}
    for index, (link, text_n) in enumerate(zip(batch.links, batch.texts, strict=True)):
        if link is None or not link.kept:
            continue
        parts = [memory_starts_B[index] + np.arange(read_B[index]), starts_B[index] + text_n]
        found[link.lane] = (
            np.concatenate(parts[::-1])[: link.kept] if link.backward else np.concatenate(parts)[-link.kept :]
        )
    return found


class PermutationLM(PretrainingModel):
    """An encoder with a query stream and a head that predicts the targets."""

    def __init__(self, encoder: Encoder, head: MaskedLMHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self._memories = LaneMemories()

    @property
    def weights(self) -> Mapping[str, float]:
        return {PREDICTED: 1.0}

    def carried(self) -> Mapping[str, Tensor]:
        held = self._memories.held.items()
        return {f"lane {lane}": each.cpu().clone(memory_format=torch.contiguous_format) for lane, each in held}

    def carry(self, carried: Mapping[str, Tensor]) -> None:
        workers = current_workers()
        lanes = {int(name.removeprefix("lane ")): held_LnH.to(self.device) for name, held_LnH in carried.items()}
        self._memories.held = {lane: each for lane, each in lanes.items() if lane % workers.count == workers.rank}

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        return {PREDICTED: len(batch.rows_M)}

    def outputs(self, batch: MaskedBatch) -> Mapping[str, UnitLosses]:
        table = self.encoder.embedding.tokens.weight
        return {PREDICTED: predict_tokens(self.head, table, self.states(batch), batch.targets_M, batch.rows_M)}

    def forward(self, batch: MaskedBatch) -> Tensor:
        """Return the logits (M, V) of the targets."""
        logits_MV: Tensor = self.head(self.states(batch), self.encoder.embedding.tokens.weight)
        return logits_MV

    def states(self, batch: MaskedBatch) -> Tensor:
        """Return the last states (M, H) of the query stream, and update the memories of the lanes."""
        if batch.order_T is None:
            raise InvalidInput("expected a batch with factorisation orders, got none: draw them with a Permuter.")
        queries = self.encoder.queries(batch.rows_M, batch.counts, batch.order_T)
        memory = self._memories.take(batch.links)
        record = Recorder() if any(link is not None and link.kept for link in batch.links) else None
        states_MH: Tensor = self.encoder(batch.packed, queries=queries, memory=memory, record=record)
        if record is not None:  # the inputs of the layers: without the output of the last one
            self._memories.keep(batch, memory, record.hidden_states[:-1])
        return states_MH
