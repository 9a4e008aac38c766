"""Permutation language modelling: targets are predicted from the tokens before them in a random factorisation order.

Yang et al. 2019, arXiv:1906.08237. Targets are predicted from the query stream of an encoder; the content stream reads
the unmasked tokens. In lanes (`bothways.objectives.lanes`) each lane remembers the hidden states of its last tokens,
without a gradient (segment recurrence, section 2.4): they come from the weights of earlier updates, and belong to the
state of a run.

Shapes: T packed tokens, M targets, H hidden, V vocabulary, Z tokens of memories, L layers, n tokens of a lane's memory.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.devices import on_device
from bothways.encoder import Encoder, MaskedLMHead, Recorder
from bothways.encoder.memory import Memory
from bothways.errors import InvalidInput
from bothways.objectives.pretraining import PREDICTED, PartOutput, PretrainingModel
from bothways.objectives.sequences import Link, MaskedBatch
from bothways.objectives.vocabulary import predict_tokens
from bothways.training.workers import current_workers


class LaneMemories:
    """The memories of the lanes of a process, each once, on the device.

    Attributes:
        held: Inputs of each layer at the last tokens of a lane (L, n, H), by the lane's number.
    """

    def __init__(self) -> None:
        self.held: dict[int, Tensor] = {}

    def take(self, links: Sequence[Link | None]) -> Memory | None:
        """Remove and return the memory of a batch; None if no sequence has one.

        Raises:
            InvalidInput: A lane has no memory of the update before.
        """
        lanes = [link.lane for link in links if link is not None and link.read]
        if not lanes:
            return None
        if missing := [lane for lane in lanes if lane not in self.held]:
            raise InvalidInput(
                f"lane {missing[0]} has no memory of the update before: train on updates in their order, from the "
                "first one or from a checkpoint on."
            )
        lengths = tuple(self.held[link.lane].shape[1] if link is not None and link.read else 0 for link in links)
        behind = tuple(link is not None and link.backward for link in links)
        states_LZH = torch.cat([self.held.pop(lane) for lane in lanes], dim=1)
        return Memory(lengths, tuple(states_LZH.unbind()), behind)

    @torch.no_grad()
    def keep(self, batch: MaskedBatch, memory: Memory | None, hidden_LTH: Sequence[Tensor]) -> None:
        """Remember the last tokens of the lanes of a batch.

        Args:
            batch: The batch.
            memory: The memory that the batch has read.
            hidden_LTH: Inputs of each layer at its tokens.
        """
        rows = _kept_rows(batch, memory)
        rows_Z = on_device(np.concatenate(list(rows.values())), hidden_LTH[0].device)
        read = [()] * len(hidden_LTH) if memory is None else [(each_ZH,) for each_ZH in memory.states]
        sources = [torch.cat([*before, own_TH]) for before, own_TH in zip(read, hidden_LTH, strict=True)]
        states_LZH = torch.stack([each.index_select(0, rows_Z) for each in sources])
        # An update that is not finite is skipped; its states must not spoil the ones after it.
        states_LZH.nan_to_num_(0.0, 0.0, 0.0)
        self.held |= dict(zip(rows, torch.split(states_LZH, [*map(len, rows.values())], dim=1), strict=True))


def _kept_rows(batch: MaskedBatch, memory: Memory | None) -> dict[int, NDArray[np.int64]]:
    """Return the rows, of memories and then of sequences, that each lane is to remember."""
    read_B = np.array([0] * batch.packed.count if memory is None else memory.lengths)
    memory_starts_B, starts_B = np.cumsum(read_B) - read_B, np.cumsum([read_B.sum(), *batch.packed.lengths[:-1]])
    found = {}
    for place, (link, text_n) in enumerate(zip(batch.links, batch.texts, strict=True)):
        if link is None or not link.kept:
            continue
        parts = [memory_starts_B[place] + np.arange(read_B[place]), starts_B[place] + text_n]
        found[link.lane] = (
            np.concatenate(parts[::-1])[: link.kept] if link.backward else np.concatenate(parts)[-link.kept :]
        )
    return found


class PermutationLM(PretrainingModel):
    """An encoder with a query stream and its head; only targets are predicted.

    Args:
        encoder: The encoder.
        head: Its head.
    """

    def __init__(self, encoder: Encoder, head: MaskedLMHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self._memories = LaneMemories()

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of the only head's loss."""
        return {PREDICTED: 1.0}

    def carried(self) -> Mapping[str, Tensor]:
        """Return the memory of each lane (L, n, H)."""
        held = self._memories.held.items()
        return {f"lane {lane}": each.cpu().clone(memory_format=torch.contiguous_format) for lane, each in held}

    def carry(self, carried: Mapping[str, Tensor]) -> None:
        """Restore the memories of the lanes that this process reads."""
        workers = current_workers()
        lanes = {int(name.removeprefix("lane ")): held_LnH.to(self.device) for name, held_LnH in carried.items()}
        self._memories.held = {lane: each for lane, each in lanes.items() if lane % workers.count == workers.rank}

    def units(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return the number of targets."""
        return {PREDICTED: len(batch.rows_M)}

    def outputs(self, batch: MaskedBatch) -> Mapping[str, PartOutput]:
        """Return the predictions of the targets.

        Raises:
            InvalidInput: The batch has no factorisation orders.
        """
        table = self.encoder.embedding.tokens.weight
        return {PREDICTED: predict_tokens(self.head, table, self.states(batch), batch.targets_M, batch.rows_M)}

    def forward(self, batch: MaskedBatch) -> Tensor:
        """Return the logits (M, V) of the targets."""
        logits_MV: Tensor = self.head(self.states(batch), self.encoder.embedding.tokens.weight)
        return logits_MV

    def states(self, batch: MaskedBatch) -> Tensor:
        """Return the last states (M, H) of the query stream, and update the memories of the lanes.

        Raises:
            InvalidInput: The batch has no factorisation orders.
        """
        if batch.order_T is None:
            raise InvalidInput("permutation language modelling needs factorisation orders: draw them with a Permuter.")
        queries = self.encoder.queries(batch.rows_M, batch.counts, batch.order_T)
        memory = self._memories.take(batch.links)
        record = Recorder() if any(link is not None and link.kept for link in batch.links) else None
        hidden_TH = self.encoder.embed(batch.packed)
        states_MH: Tensor = self.encoder.layers(hidden_TH, batch.packed, queries=queries, memory=memory, record=record)
        if record is not None:  # without the output of the last layer
            self._memories.keep(batch, memory, record.hidden_states[:-1])
        return states_MH
