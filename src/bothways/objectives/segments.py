"""Pairs of segments from a token corpus: for next sentence prediction, sentence order prediction, or XLNet.

Shapes: P pieces, S pieces that have two segments, n tokens.
"""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bothways.data.shards import TokenCorpus
from bothways.errors import InvalidInput
from bothways.objectives.corpus import FramedCorpus, PieceSource, framed_sequence
from bothways.objectives.sequences import TrainingSequence
from bothways.text import Frame, TextTokenizer


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
    """The pairs of next sentence prediction without a prediction (Yang et al. 2019, section 2.5).

    With a single document, all second segments follow the first.
    """

    head: ClassVar = None


SegmentRelation = NextSentence | SentenceOrder | EitherDocument


class SegmentPairs(PieceSource):
    """Sequences of two segments of whole sentences from a token corpus.

    An item is a group of pieces, as in `CorpusPieces`; each piece becomes a sequence of its own. It is cut at a random
    end of a sentence, a piece of one sentence in its middle; a piece of a single token has no second segment and no
    relation. Of two neighbours, one keeps its segments (class 0) and the other does not (class 1), so the classes are
    equally frequent in an epoch, to within one. All draws depend on seed, epoch and piece alone.

    For next sentence prediction, the second segment of class 1 is that of a random piece of another document, cut in
    the same way and shortened by whole sentences until it fits; the piece's own one is left out in that epoch. BERT's
    data differ in the draw alone: first a document, and then a sentence within it.

    Read backward, the first segment is the later one of a piece, and it comes last in the sequence, next to a memory of
    the following text.

    Raises:
        InvalidInput: Next sentence prediction has only one document to draw from.
    """

    def __init__(self, framed: FramedCorpus, single: Frame, relation: SegmentRelation, seed: int) -> None:
        super().__init__(framed)
        self.single = single
        self.relation = relation
        self.seed = seed
        pieces = framed.pieces
        # Rank among the pieces with two segments.
        self._rank_P = np.cumsum(pieces.length_P > 1) - 1
        self._single_document = bool(pieces.document_P[0] == pieces.document_P[-1])
        if isinstance(relation, NextSentence) and self._single_document:
            raise InvalidInput(
                "next sentence prediction needs at least 2 documents, since second segments are drawn from other "
                "documents, got 1. Give more documents (in .txt, an empty line ends one), or predict the order of "
                "sentences, as ALBERT does."
            )

    @classmethod
    def of(
        cls, corpus: TokenCorpus, tokenizer: TextTokenizer, max_length: int, relation: SegmentRelation, seed: int
    ) -> "SegmentPairs":
        """Cut a corpus; see `FramedCorpus.cut`."""
        framed = FramedCorpus.cut(corpus, tokenizer, Frame.of_pair(tokenizer), max_length)
        return cls(framed, Frame.of_text(tokenizer), relation, seed)

    def hold_out(self, fraction: float, seed: int) -> tuple["SegmentPairs", "SegmentPairs"]:
        training, validation = self.framed.hold_out(fraction, seed)
        shared = self.single, self.relation, self.seed
        return SegmentPairs(training, *shared), SegmentPairs(validation, *shared)

    @property
    def digest(self) -> str:
        parts = (self.framed.digest, self.single.identity, str(self.relation.head), str(self.seed))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def _sequence(self, number: int, epoch: int, *, backward: bool) -> TrainingSequence:
        ids_n = self.framed.tokens(number)
        if len(ids_n) < 2:
            return framed_sequence(self.single, [ids_n], number, backward=backward)
        draw = np.random.default_rng([self.seed, _PAIRS, epoch, number])
        cut = _cut(self.framed.sentence_ends(number), draw)
        texts = (ids_n[cut:], ids_n[:cut]) if backward else (ids_n[:cut], ids_n[cut:])
        label = self._label(number, epoch)
        if label:
            texts = self._changed(number, *texts, draw)
        own = 1 if label and not isinstance(self.relation, SentenceOrder) else 2
        known = -1 if self.relation.head is None else label
        return framed_sequence(self.framed.frame, texts, number, backward=backward, own=own, relation=known)

    def _label(self, number: int, epoch: int) -> int:
        """Return the class of a piece; among pieces 2k and 2k + 1 with two segments, one has 0 and the other 1."""
        if self._single_document and isinstance(self.relation, EitherDocument):
            return 0
        pair, place = divmod(int(self._rank_P[number]), 2)
        turned = int(np.random.default_rng([self.seed, _LABELS, epoch, pair]).integers(2))
        return place ^ turned

    def _changed(
        self, number: int, first_n: NDArray[np.int32], second_n: NDArray[np.int32], draw: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        match self.relation:
            case SentenceOrder():
                return second_n, first_n
            case NextSentence() | EitherDocument():
                return first_n, self._from_elsewhere(number, self.framed.pieces.longest - len(first_n), draw)

    def _from_elsewhere(self, number: int, room: int, draw: np.random.Generator) -> NDArray[np.int32]:
        document_P = self.framed.pieces.document_P
        begin, end = np.searchsorted(document_P, [document_P[number], document_P[number] + 1])
        other = int(draw.integers(len(document_P) - (end - begin)))
        other += int(end - begin) if other >= begin else 0
        ids_n, ends = self.framed.tokens(other), self.framed.sentence_ends(other)
        cut = _cut(ends, draw) if len(ids_n) > 1 else 0
        whole = ends[(ends > cut) & (ends <= cut + room)]
        return ids_n[cut : whole[-1] if len(whole) else cut + room]


def _cut(ends: NDArray[np.int64], draw: np.random.Generator) -> int:
    """Choose the cut of a piece of at least two tokens: a random end of a sentence, or its middle."""
    return int(draw.choice(ends[:-1])) if len(ends) > 1 else int(ends[-1]) // 2


# Second words of the seeds; masks have 0 or 1 there.
_PAIRS, _LABELS = 2, 3
