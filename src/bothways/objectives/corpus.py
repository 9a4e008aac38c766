"""Training sequences of one or two segments, made from a token corpus and read from its memory map on demand.

Pairs of segments are for next sentence prediction, sentence order prediction, or XLNet.

Shapes: P pieces, n tokens of a sequence.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bothways.data.shards import Pieces, TokenCorpus
from bothways.errors import InvalidInput
from bothways.objectives.sequences import TrainingSequence
from bothways.text import Frame, TextTokenizer


@dataclass(frozen=True)
class FramedCorpus:
    """A corpus, or a part of it, divided into pieces; each piece with special tokens (the frame) is a sequence."""

    corpus: TokenCorpus
    pieces: Pieces
    frame: Frame

    @classmethod
    def cut(cls, corpus: TokenCorpus, tokenizer: TextTokenizer, frame: Frame, max_length: int) -> "FramedCorpus":
        """Divide a whole corpus into sequences of at most ``max_length`` tokens, special ones included."""
        corpus.check_tokenizer(tokenizer)
        minimum = frame.special + len(frame.text_types)
        if max_length < minimum:
            raise InvalidInput(
                f"max_length must be at least {minimum} ({frame.special} special tokens, and a token per segment), got "
                f"{max_length}."
            )
        return cls(corpus, corpus.pieces(max_length - frame.special), frame)

    @cached_property
    def digest(self) -> str:
        """A checksum of the corpus's tokens, the bounds of the pieces, and the special tokens."""
        parts = (self.corpus.digest, self.pieces.digest(), self.frame.identity, str(self.pieces.longest))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def tokens(self, piece: int) -> NDArray[np.int32]:
        return self.corpus.tokens(*self._location(piece))

    def sentence_ends(self, piece: int) -> NDArray[np.int64]:
        """Return the ends of a piece's sentences; the last one is the end of the piece."""
        return self.corpus.sentence_ends(*self._location(piece))

    def _location(self, piece: int) -> tuple[int, int, int]:
        pieces = self.pieces
        return int(pieces.shard_P[piece]), int(pieces.begin_P[piece]), int(pieces.length_P[piece])


class PieceSource(ABC):
    """Sequences of a token corpus: an item is a group of adjacent pieces, and each piece becomes a sequence."""

    def __init__(self, framed: FramedCorpus) -> None:
        self.framed = framed

    def __len__(self) -> int:
        """Return the number of groups."""
        return self.framed.pieces.group_count

    def read(self, places: Sequence[int] | NDArray[np.int64], epoch: int) -> list[TrainingSequence]:
        numbers = self.framed.pieces.of_groups(np.asarray(places, dtype=np.int64))
        return [self._sequence(number, epoch, backward=False) for number in numbers.tolist()]

    def hold_out(self, fraction: float, seed: int) -> tuple[Self, Self]:
        """Split into a training and a validation source that share no document, see `Pieces.hold_out`."""
        training, validation = self.framed.pieces.hold_out(fraction, seed)
        return self._over(replace(self.framed, pieces=training)), self._over(replace(self.framed, pieces=validation))

    def read_group(self, place: int, epoch: int, *, backward: bool) -> list[TrainingSequence]:
        """Return the sequences of a group in order, or from the last piece to the first if ``backward``."""
        numbers = range(*self.framed.pieces.groups[place : place + 2].tolist())
        return [self._sequence(number, epoch, backward=backward) for number in numbers[:: -1 if backward else 1]]

    @property
    @abstractmethod
    def digest(self) -> str: ...

    @abstractmethod
    def _over(self, framed: FramedCorpus) -> Self: ...

    @abstractmethod
    def _sequence(self, number: int, epoch: int, *, backward: bool) -> TrainingSequence: ...


class CorpusPieces(PieceSource):
    """Sequences of one segment from a token corpus.

    An item is a group of adjacent pieces that together have at most the tokens of a sequence, as in published recipes
    (FULL-SENTENCES of Liu et al. 2019, arXiv:1907.11692, section 4.2). Here each piece becomes its own sequence, so
    attention does not cross documents. An epoch reads every token of the corpus once.

    With ``sentences``, seven of eight pieces are split into sentences, each a sequence of its own. Embedders are used
    for both sentences and passages, and training on only one of them harms the other. A sentence has a fifth of a
    passage's tokens, but also trains one vector.
    """

    def __init__(self, framed: FramedCorpus, *, sentences: bool = False) -> None:
        super().__init__(framed)
        self.sentences = sentences

    @classmethod
    def of(
        cls, corpus: TokenCorpus, tokenizer: TextTokenizer, max_length: int, *, sentences: bool = False
    ) -> "CorpusPieces":
        """Divide a corpus into sequences, see `FramedCorpus.cut`."""
        framed = FramedCorpus.cut(corpus, tokenizer, Frame.of_text(tokenizer), max_length)
        return cls(framed, sentences=sentences)

    def _over(self, framed: FramedCorpus) -> Self:
        return type(self)(framed, sentences=self.sentences)

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
    """Add special tokens to texts, given in reading order.

    If ``backward``, the texts and special tokens are in reverse order, but the tokens within each text are not: the
    first text comes last, and XLNet's [CLS] comes first. The first ``own`` texts (by default all) belong to the
    piece's own document, the other texts to another document.
    """
    step = -1 if backward else 1
    ids_n, types_n = frame.around([text[::step] for text in texts])
    text_n = frame.places([len(text) for text in texts][:own])
    if backward:
        text_n = len(ids_n) - 1 - text_n[::-1]
    return TrainingSequence(ids_n[::step], types_n[::step], number, relation=relation, text=text_n)


# One piece in eight is not split into sentences.
_SENTENCES = 8


@dataclass(frozen=True, slots=True)
class NextSentence:
    """Class 0: the second segment follows the first; class 1: it is from another document (Devlin et al. 2018, A.2)."""

    head: ClassVar = "next_sentence"


@dataclass(frozen=True, slots=True)
class SentenceOrder:
    """Class 0: the segments are in order; class 1: they are swapped (Lan et al. 2019, arXiv:1909.11942, 3.1)."""

    head: ClassVar = "sentence_order"


@dataclass(frozen=True, slots=True)
class EitherDocument:
    """The segment pairs of next sentence prediction, without its loss (Yang et al. 2019, section 2.5).

    With a single document, the second segment always follows the first.
    """

    head: ClassVar = None


SegmentRelation = NextSentence | SentenceOrder | EitherDocument


class SegmentPairs(PieceSource):
    """Sequences of two segments of whole sentences from a token corpus.

    An item is a group of pieces, as in `CorpusPieces`; each piece becomes a sequence of its own. It is split at a
    random end of a sentence, or in the middle if it is one sentence; a piece of one token has no second segment and no
    relation. Of two adjacent pieces, one keeps its segments (class 0) and the other does not (class 1), so the class
    counts of an epoch differ by at most one. All random choices depend on seed, epoch and piece alone.

    For next sentence prediction, the second segment of class 1 is taken from a random piece of another document, split
    in the same way and shortened by whole sentences until it fits; the piece's own second segment is not used in that
    epoch. BERT's data differ in one point: a document is drawn first, then a sentence within it.

    If documents are read backward (XLNet), the first segment is the later one of a piece. It comes last in the
    sequence, next to the memory of the text that follows.
    """

    def __init__(self, framed: FramedCorpus, single: Frame, relation: SegmentRelation, seed: int) -> None:
        super().__init__(framed)
        self.single = single
        self.relation = relation
        self.seed = seed
        pieces = framed.pieces
        # Rank of each piece among those with two segments.
        self._rank_P = np.cumsum(pieces.length_P > 1) - 1
        self._single_document = bool(pieces.document_P[0] == pieces.document_P[-1])
        if isinstance(relation, NextSentence) and self._single_document:
            raise InvalidInput(
                "next sentence prediction needs at least 2 documents, got 1: second segments are drawn from other "
                "documents. Give more documents (in a .txt file, an empty line ends a document), or use sentence order "
                "prediction, as ALBERT does."
            )

    @classmethod
    def of(
        cls, corpus: TokenCorpus, tokenizer: TextTokenizer, max_length: int, relation: SegmentRelation, seed: int
    ) -> "SegmentPairs":
        """Divide a corpus into sequences, see `FramedCorpus.cut`."""
        framed = FramedCorpus.cut(corpus, tokenizer, Frame.of_pair(tokenizer), max_length)
        return cls(framed, Frame.of_text(tokenizer), relation, seed)

    def _over(self, framed: FramedCorpus) -> Self:
        return type(self)(framed, self.single, self.relation, self.seed)

    @property
    def digest(self) -> str:
        parts = (self.framed.digest, self.single.identity, str(self.relation.head), str(self.seed))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def _sequence(self, number: int, epoch: int, *, backward: bool) -> TrainingSequence:
        ids_n = self.framed.tokens(number)
        if len(ids_n) < 2:
            return framed_sequence(self.single, [ids_n], number, backward=backward)
        draw = np.random.default_rng([self.seed, _PAIRS, epoch, number])
        split = _split_point(self.framed.sentence_ends(number), draw)
        texts = (ids_n[split:], ids_n[:split]) if backward else (ids_n[:split], ids_n[split:])
        label = self._label(number, epoch)
        if label:
            texts = self._changed(number, *texts, draw)
        own = 1 if label and not isinstance(self.relation, SentenceOrder) else 2
        known = -1 if self.relation.head is None else label
        return framed_sequence(self.framed.frame, texts, number, backward=backward, own=own, relation=known)

    def _label(self, number: int, epoch: int) -> int:
        """Return the class of a piece: among the pieces with two segments, one of 2k and 2k + 1 has 0, the other 1."""
        if self._single_document and isinstance(self.relation, EitherDocument):
            return 0
        pair, position = divmod(int(self._rank_P[number]), 2)
        swapped = int(np.random.default_rng([self.seed, _LABELS, epoch, pair]).integers(2))
        return position ^ swapped

    def _changed(
        self, number: int, first_n: NDArray[np.int32], second_n: NDArray[np.int32], draw: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        match self.relation:
            case SentenceOrder():
                return second_n, first_n
            case NextSentence() | EitherDocument():
                return first_n, self._from_another_document(number, self.framed.pieces.longest - len(first_n), draw)

    def _from_another_document(self, number: int, limit: int, draw: np.random.Generator) -> NDArray[np.int32]:
        document_P = self.framed.pieces.document_P
        begin, end = np.searchsorted(document_P, [document_P[number], document_P[number] + 1])
        other = int(draw.integers(len(document_P) - (end - begin)))
        other += int(end - begin) if other >= begin else 0
        ids_n, ends = self.framed.tokens(other), self.framed.sentence_ends(other)
        start = _split_point(ends, draw) if len(ids_n) > 1 else 0
        whole = ends[(ends > start) & (ends <= start + limit)]
        return ids_n[start : whole[-1] if len(whole) else start + limit]


def _split_point(ends: NDArray[np.int64], draw: np.random.Generator) -> int:
    """Choose where to split a piece of at least two tokens: at a random end of a sentence, or in its middle."""
    return int(draw.choice(ends[:-1])) if len(ends) > 1 else int(ends[-1]) // 2


# Second element of the random seeds; `Masker` uses 0 and 1.
_PAIRS, _LABELS = 2, 3
