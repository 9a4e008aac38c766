"""Pieces of a token corpus as training sequences of one segment, read from the memory map on demand.

Shapes: P pieces, n tokens of a sequence.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bothways.data.shards import Pieces, TokenCorpus
from bothways.errors import InvalidInput
from bothways.objectives.sequences import TrainingSequence
from bothways.text import Frame, TextTokenizer


@dataclass(frozen=True)
class FramedCorpus:
    """A corpus, or a part of it, cut into pieces that fit into sequences with special tokens (the frame)."""

    corpus: TokenCorpus
    pieces: Pieces
    frame: Frame

    @classmethod
    def cut(cls, corpus: TokenCorpus, tokenizer: TextTokenizer, frame: Frame, max_length: int) -> "FramedCorpus":
        """Cut a whole corpus into sequences of at most ``max_length`` tokens, special ones included.

        Raises:
            InvalidInput: The corpus is empty or of another tokenizer, or a sequence has no room for a token of each
                segment.
        """
        corpus.check_tokenizer(tokenizer)
        least = frame.special + len(frame.text_types)
        if max_length < least:
            raise InvalidInput(
                f"expected a max_length of at least {least}, as a sequence has {frame.special} special tokens and at "
                f"least one of each segment, got {max_length}."
            )
        return cls(corpus, corpus.pieces(max_length - frame.special), frame)

    def hold_out(self, fraction: float, seed: int) -> tuple["FramedCorpus", "FramedCorpus"]:
        training, validation = self.pieces.hold_out(fraction, seed)
        return replace(self, pieces=training), replace(self, pieces=validation)

    @cached_property
    def digest(self) -> str:
        """A checksum of the tokens, the cuts and the special tokens."""
        parts = (self.corpus.digest, self.pieces.digest(), self.frame.identity, str(self.pieces.longest))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def tokens(self, piece: int) -> NDArray[np.int32]:
        return self.corpus.tokens(*self._place(piece))

    def sentence_ends(self, piece: int) -> NDArray[np.int64]:
        """Return the ends of a piece's sentences, the last of which is the end of the piece."""
        return self.corpus.sentence_ends(*self._place(piece))

    def _place(self, piece: int) -> tuple[int, int, int]:
        pieces = self.pieces
        return int(pieces.shard_P[piece]), int(pieces.begin_P[piece]), int(pieces.length_P[piece])


class PieceSource(ABC):
    """Sequences of a token corpus: an item is a group of neighbouring pieces, and each piece is a sequence."""

    def __init__(self, framed: FramedCorpus) -> None:
        self.framed = framed

    def __len__(self) -> int:
        """Return the number of groups."""
        return self.framed.pieces.group_count

    def read(self, places: Sequence[int] | NDArray[np.int64], epoch: int) -> list[TrainingSequence]:
        numbers = self.framed.pieces.of_groups(np.asarray(places, dtype=np.int64))
        return [self._sequence(number, epoch, backward=False) for number in numbers.tolist()]

    def read_group(self, place: int, epoch: int, *, backward: bool) -> list[TrainingSequence]:
        """Return the pieces of a group in the order of reading, from the last to the first if backward."""
        numbers = range(*self.framed.pieces.groups[place : place + 2].tolist())
        return [self._sequence(number, epoch, backward=backward) for number in numbers[:: -1 if backward else 1]]

    @abstractmethod
    def _sequence(self, number: int, epoch: int, *, backward: bool) -> TrainingSequence: ...


class CorpusPieces(PieceSource):
    """Sequences of one segment from a token corpus.

    An item is a group of neighbouring pieces, as many tokens as one sequence of the published recipes
    (FULL-SENTENCES of Liu et al. 2019, arXiv:1907.11692, section 4.2). Each piece becomes a sequence of its own, so
    attention does not cross documents. An epoch reads every token of the corpus once.

    With ``sentences``, seven pieces of eight are read sentence by sentence. Embedders read both sentences and passages,
    and training on pieces of one length harms the other. A sentence gets a vector like a passage, at a fifth of the
    tokens.
    """

    def __init__(self, framed: FramedCorpus, *, sentences: bool = False) -> None:
        super().__init__(framed)
        self.sentences = sentences

    @classmethod
    def of(
        cls, corpus: TokenCorpus, tokenizer: TextTokenizer, max_length: int, *, sentences: bool = False
    ) -> "CorpusPieces":
        """Cut a corpus; see `FramedCorpus.cut`."""
        framed = FramedCorpus.cut(corpus, tokenizer, Frame.of_text(tokenizer), max_length)
        return cls(framed, sentences=sentences)

    def hold_out(self, fraction: float, seed: int) -> tuple["CorpusPieces", "CorpusPieces"]:
        first, second = self.framed.hold_out(fraction, seed)
        return CorpusPieces(first, sentences=self.sentences), CorpusPieces(second, sentences=self.sentences)

    @property
    def digest(self) -> str:
        whole = self.framed.digest
        return hashlib.sha256(f"sentences {_SENTENCES} {whole}".encode()).hexdigest() if self.sentences else whole

    def read(self, places: Sequence[int] | NDArray[np.int64], epoch: int) -> list[TrainingSequence]:
        pieces = super().read(places, epoch)
        return [part for piece in pieces for part in self._parts(piece)] if self.sentences else pieces

    def _parts(self, piece: TrainingSequence) -> list[TrainingSequence]:
        if piece.number % _SENTENCES == 0:
            return [piece]
        frame, ids_n = self.framed.frame, self.framed.tokens(piece.number)
        sentences = np.split(ids_n, self.framed.sentence_ends(piece.number)[:-1])
        return [TrainingSequence(*frame.around([sentence]), piece.number) for sentence in sentences if len(sentence)]

    def _sequence(self, number: int, epoch: int, *, backward: bool) -> TrainingSequence:
        del epoch  # pieces never change
        return framed_sequence(self.framed.frame, [self.framed.tokens(number)], number, backward=backward)


def framed_sequence(
    frame: Frame,
    texts: Sequence[NDArray[np.int32]],
    number: int,
    *,
    backward: bool,
    own: int | None = None,
    relation: int = -1,
) -> TrainingSequence:
    """Add special tokens to texts, which are given in the order of reading.

    Backward, the sequence is the mirror image of the forward one, except for the tokens within each text: the first
    text comes last, and XLNet's [CLS] comes first. The first ``own`` texts (by default all) are of the document that is
    read.
    """
    step = -1 if backward else 1
    ids_n, types_n = frame.around([text[::step] for text in texts])
    text_n = frame.places([len(text) for text in texts][:own])
    if backward:
        text_n = len(ids_n) - 1 - text_n[::-1]
    return TrainingSequence(ids_n[::step], types_n[::step], number, relation=relation, text=text_n)


# One piece in eight stays whole.
_SENTENCES = 8
