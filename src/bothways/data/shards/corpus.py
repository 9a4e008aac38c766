"""Token shards, mapped into memory, and their documents cut into pieces of whole sentences.

Shapes: T tokens, S sentences, D documents of a shard; P pieces of all shards; G groups of pieces; n tokens of a piece.
"""

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bothways.data.shards.manifest import MANIFEST, PARTS, Manifest, ShardEntry, checksum
from bothways.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class _Shard:
    """The arrays of one shard, mapped.

    Attributes:
        tokens_T: Ids of its documents, end to end.
        sentences_S: Where sentences end in them, ascending.
        documents_D: How many sentences there are up to the end of each document.
    """

    tokens_T: NDArray[np.unsignedinteger]
    sentences_S: NDArray[np.int64]
    documents_D: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Runs of tokens of one document each, in the order of the corpus.

    Attributes:
        shard_P: Number of the shard of each.
        begin_P: Where each begins in its shard.
        length_P: Tokens of each.
        groups: Where each group of pieces begins among them, and at last P (G + 1).
    """

    shard_P: NDArray[np.int32]
    begin_P: NDArray[np.int64]
    length_P: NDArray[np.int32]
    groups: NDArray[np.int64]


class TokenCorpus:
    """The documents of a folder of shards.

    Args:
        folder: The folder.
        manifest: Its manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._shards = [_mapped(folder, entry) for entry in manifest.shards]

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> "TokenCorpus":
        """Open a folder of shards.

        Args:
            folder: The folder.
            verify: Compare the checksums of all files, which reads them once.

        Raises:
            InvalidInput: It holds no shards, or one is missing or damaged; the message names it.
        """
        path = Path(folder)
        manifest = Manifest.read(path)
        for entry in manifest.shards:
            for part in PARTS:
                _check(path, entry, part, verify=verify)
        return cls(path, manifest)

    def check_tokenizer(self, tokenizer_json: str) -> None:
        """Check that the shards were written with a tokenizer.

        Raises:
            InvalidInput: They were written with another.
        """
        if hashlib.sha256(tokenizer_json.encode()).hexdigest() != self.manifest.tokenizer:
            raise InvalidInput(
                f"the shards in {str(self.folder)!r} were written with another tokenizer: take the one that they were "
                "written with, or write them again with this one."
            )

    @property
    def digest(self) -> str:
        """A checksum of all tokens and bounds."""
        sums = "".join(entry.sha256[part] for entry in self.manifest.shards for part in PARTS)
        return hashlib.sha256(sums.encode()).hexdigest()

    def tokens(self, shard: int, begin: int, length: int) -> NDArray[np.int32]:
        """Return a run of tokens (n)."""
        return self._shards[shard].tokens_T[begin : begin + length].astype(np.int32)

    def sentence_ends(self, shard: int, begin: int, length: int) -> NDArray[np.int64]:
        """Return where sentences end in a run of tokens, counted from its begin; the last one may go on behind it."""
        sentences_S = self._shards[shard].sentences_S
        first, last = np.searchsorted(sentences_S, [begin, begin + length], side="right")
        ends = sentences_S[first:last] - begin
        return ends if len(ends) and ends[-1] == length else np.append(ends, length)

    def pieces(self, longest: int) -> Pieces:
        """Cut all documents into pieces of whole sentences, and group neighbours up to as many tokens.

        A sentence that is longer is cut. The pieces of a group make up one sequence of the published recipes; as packed
        sequences of their own, tokens of different documents do not see each other.

        Args:
            longest: Most tokens of a piece, and of a group.
        """
        shards, begins, lengths = [], [], []
        for number, shard in enumerate(self._shards):
            begin_P, length_P = _cut(shard, longest)
            shards.append(np.full(len(begin_P), number, dtype=np.int32))
            begins.append(begin_P)
            lengths.append(length_P)
        length_P = np.concatenate(lengths)
        groups = _runs(np.cumsum(length_P), longest)
        return Pieces(np.concatenate(shards), np.concatenate(begins), length_P, groups)


def _cut(shard: _Shard, longest: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return begins and lengths of the pieces of a shard."""
    ends: list[int] = []
    begin = sentence = 0
    sentences = np.asarray(shard.sentences_S).tolist()
    for last in np.asarray(shard.documents_D).tolist():
        document_end = sentences[last - 1]
        while begin < document_end:
            sentence = bisect_right(sentences, begin + longest, sentence, last)
            whole = sentences[sentence - 1] if sentence else 0
            begin = whole if whole > begin else min(begin + longest, document_end)
            ends.append(begin)
    ends_P = np.array(ends, dtype=np.int64)
    begins_P = np.concatenate([[0], ends_P[:-1]])
    return begins_P, (ends_P - begins_P).astype(np.int32)


def _runs(totals_P: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the starts of runs of pieces with at most so many tokens, and at last P."""
    starts, totals = [0], totals_P.tolist()
    while starts[-1] < len(totals):
        before = totals[starts[-1] - 1] if starts[-1] else 0
        starts.append(max(starts[-1] + 1, bisect_right(totals, before + most, starts[-1])))
    return np.array(starts, dtype=np.int64)


def _mapped(folder: Path, entry: ShardEntry) -> _Shard:
    tokens_T, sentences_S, documents_D = (np.load(entry.path(folder, part), mmap_mode="r") for part in PARTS)
    return _Shard(tokens_T, sentences_S, documents_D)


def _check(folder: Path, entry: ShardEntry, part: str, *, verify: bool) -> None:
    path = entry.path(folder, part)
    if not path.is_file():
        raise InvalidInput(
            f"shard {entry.name!r} of {str(folder)!r} lacks {path.name!r}, which {MANIFEST} names: write them again."
        )
    if verify and checksum(path) != entry.sha256[part]:
        raise InvalidInput(
            f"{str(path)!r} is damaged: its checksum is not that of {MANIFEST}. Write the shards again; nothing of "
            "them was trained on."
        )
