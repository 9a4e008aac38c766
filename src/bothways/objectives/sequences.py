"""Token sequences for pre-training, and the batches made from them.

Shapes: n tokens of a sequence, B sequences of a batch, P of them with two segments, T packed tokens, M chosen
positions, W windows.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.windows import WindowStore
from bothways.devices import on_device
from bothways.encoder.streams import VISIBLE
from bothways.errors import InvalidInput
from bothways.inference.texts import by_token_budget
from bothways.objectives.masking import MaskedTokens, Masker
from bothways.packing import Packed


@dataclass(frozen=True, slots=True)
class Link:
    """Position of a sequence in a lane, a stream of text that one row of the batch reads across updates.

    `read` is the maximum number of memory tokens that the sequence reads, `kept` the maximum number of tokens that it
    leaves for the next one; 0 if the document begins or ends here. A backward lane reads documents from their ends, and
    its memories come after its sequences.
    """

    lane: int
    read: int
    kept: int
    backward: bool


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One sequence, special tokens included.

    `number` is its position in the source, part of the seed of its masks; `relation` is the class of its two segments,
    -1 if there is none to predict. `text` has the positions of the tokens of its own document, which a memory may keep.
    """

    ids: NDArray[np.int32]
    types: NDArray[np.uint8]
    number: int
    relation: int = -1
    text: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class EpochSequences:
    """Sequences of one update from one pass over a source; `epoch`, from 0, also determines masks and pairs."""

    epoch: int
    sequences: list[TrainingSequence]


class SequenceSource(Protocol):
    """A source of items, each one or more training sequences; ``digest`` is a checksum of its contents."""

    @property
    def digest(self) -> str: ...

    def __len__(self) -> int:
        """Return the number of items."""

    def read(self, places: Sequence[int] | NDArray[np.int64], epoch: int) -> list[TrainingSequence]:
        """Return the sequences of the items at the given positions, from 0; random pairs depend on the epoch."""


class TextWindows:
    """The windows of raw texts that have a token to mask; ``what`` names the texts in error messages."""

    def __init__(self, store: WindowStore, masker: Masker, what: str) -> None:
        self.store = store
        self.windows_W: NDArray[np.int64] = np.flatnonzero(masker.ordinary_tokens(store))
        if not len(self.windows_W):
            raise InvalidInput(
                f"there is nothing to mask in the {what} texts: all of their tokens are special, such as the unknown "
                "token. Check that the model's tokenizer covers the language of the texts."
            )

    @property
    def digest(self) -> str:
        return self.store.digest

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.windows_W)

    def read(self, places: Sequence[int] | NDArray[np.int64], epoch: int) -> list[TrainingSequence]:
        del epoch
        stored = self.store.windows(self.windows_W[places].tolist())
        return [TrainingSequence(each.ids, each.types, each.number) for each in stored]


@dataclass(frozen=True, slots=True)
class MaskedBatch:
    """Masked sequences and the targets of the heads.

    `rows_M` and `targets_M` are the rows and original ids of the chosen positions, `counts` their number in each
    sequence (B), on the host; see `MaskedTokens` for `uniform_M` and `order_T`. `pairs_P` are the indices of sequences
    with a segment relation, `relations_P` its class. `links` are the sequences' positions in lanes, and `texts` the
    positions of the tokens that a memory may keep (B).
    """

    packed: Packed
    rows_M: Tensor
    targets_M: Tensor
    uniform_M: Tensor
    pairs_P: Tensor
    relations_P: Tensor
    _: KW_ONLY
    counts: tuple[int, ...]
    order_T: Tensor | None = None
    links: tuple[Link | None, ...] = ()
    texts: tuple[NDArray[np.int64], ...] = ()

    @classmethod
    def of(cls, packed: Packed, sequences: Sequence[TrainingSequence], masked: Sequence[MaskedTokens]) -> "MaskedBatch":
        """Mask a packed batch on its device; filler sequences of one token may follow the real ones."""
        starts = np.cumsum([0, *packed.lengths[:-1]])[: len(masked)]
        relations_B = np.array([each.relation for each in sequences], dtype=np.int64)
        pairs_P = np.flatnonzero(relations_B >= 0)
        values: tuple[NDArray[np.generic], ...] = (
            np.concatenate([one.ids_n for one in masked]).astype(np.int64),
            np.concatenate([start + one.places_M for start, one in zip(starts, masked, strict=True)]),
            np.concatenate([one.targets_M for one in masked]).astype(np.int64),
            np.concatenate([one.uniform_M for one in masked]),
            pairs_P,
            relations_B[pairs_P],
        )
        ids_T, *others = (on_device(each, packed.ids_T.device) for each in values)
        return cls(
            replace(packed, ids_T=torch.cat([ids_T, packed.ids_T[len(ids_T) :]])),
            *others,
            counts=tuple(len(one.places_M) for one in masked) + (0,) * (packed.count - len(masked)),
            order_T=_orders(packed, masked),
            links=tuple(each.link for each in sequences),
            texts=tuple(each.text for each in sequences),
        )

    def to(self, device: torch.device | str) -> "MaskedBatch":
        values = (self.rows_M, self.targets_M, self.uniform_M, self.pairs_P, self.relations_P)
        return MaskedBatch(
            self.packed.to(device),
            *(on_device(each, device) for each in values),
            counts=self.counts,
            order_T=None if self.order_T is None else on_device(self.order_T, device),
            links=self.links,
            texts=self.texts,
        )


def _orders(packed: Packed, masked: Sequence[MaskedTokens]) -> Tensor | None:
    """Return the factorisation orders of a batch (T); filler tokens are visible to all."""
    orders = [one.order_n for one in masked if one.order_n is not None]
    if not orders:
        return None
    rest = np.full(len(packed.ids_T) - sum(map(len, orders)), VISIBLE, dtype=np.int64)
    return on_device(np.concatenate([*orders, rest]), packed.ids_T.device)


def micro_batches(sequences: Sequence[TrainingSequence], tokens: int, processes: int) -> list[list[int]]:
    """Divide an update into micro-batches of indices of sequences; each of n processes takes every n-th micro-batch.

    Sequences that read or write a memory share a micro-batch with the rest of their lane, and always go to the process
    that has the memory. A memory counts towards the token budget with its maximum size.
    """
    lengths = [len(each.ids) + (0 if each.link is None else each.link.read) for each in sequences]
    if all(each.link is None for each in sequences):
        # A smaller budget, so that each process gets a part.
        budget = min(tokens, -(-sum(lengths) // processes))
        return list(by_token_budget(lengths, max(budget, *lengths)))
    shares = [_units(sequences, rank, processes) for rank in range(processes)]
    if not all(shares):
        lanes = len({each.link.lane for each in sequences if each.link is not None})
        raise InvalidInput(
            f"expected a batch of at least one sequence for each process, got {lanes} sequences for {processes} "
            "processes: use a larger batch, or fewer processes."
        )
    batched = []
    for units in shares:
        sizes = [sum(lengths[place] for place in unit) for unit in units]
        batched.append([[units[number] for number in batch] for batch in by_token_budget(sizes, max(tokens, *sizes))])
    count = min(max(map(len, batched)), *map(len, shares))
    even = [_divided(batches, count) for batches in batched]
    return [
        [place for unit in even[rank][number] for place in unit] for number in range(count) for rank in range(processes)
    ]


def _units(sequences: Sequence[TrainingSequence], rank: int, processes: int) -> list[list[int]]:
    """Return the indices of a process's sequences in groups; a lane that reads or writes a memory is one group."""
    found: dict[tuple[int, int], list[int]] = {}
    for place, each in enumerate(sequences):
        if each.link is not None and each.link.lane % processes == rank:
            has_memory = each.link.read or each.link.kept
            found.setdefault((each.link.lane, -1 if has_memory else place), []).append(place)
    return list(found.values())


def _divided(batches: list[list[list[int]]], count: int) -> list[list[list[int]]]:
    """Split or merge a process's batches into ``count``, so that all processes have the same number."""
    while len(batches) < count:
        at = max(range(len(batches)), key=lambda number: len(batches[number]))
        half = len(batches[at]) // 2
        batches[at : at + 1] = [batches[at][:half], batches[at][half:]]
    while len(batches) > count:
        batches[-2:] = [batches[-2] + batches[-1]]
    return batches
