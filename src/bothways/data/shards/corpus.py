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
from bothways.data.shards.pieces import Pieces, group
from bothways.errors import InvalidInput
from bothways.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class _Shard:
    """The mapped arrays of one shard: ids, ends of sentences, and number of sentences up to each document's end."""

    tokens_T: NDArray[np.unsignedinteger]
    sentences_S: NDArray[np.int64]
    documents_D: NDArray[np.int64]


class TokenCorpus:
    """The documents of a folder of shards."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        paths = ([entry.path(folder, part) for part in PARTS] for entry in manifest.shards)
        self._shards = [_Shard(*(np.load(path, mmap_mode="r") for path in each)) for each in paths]

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> "TokenCorpus":
        """Open a folder of shards; with ``verify``, compare the checksums of all files, which reads them once.

        Raises:
            InvalidInput: It holds no shards, or one is missing or damaged; the message names it.
        """
        path = Path(folder)
        manifest = Manifest.read(path)
        for entry in manifest.shards:
            for part in PARTS:
                _check(path, entry, part, verify=verify)
        return cls(path, manifest)

    def check_tokenizer(self, tokenizer: TextTokenizer) -> None:
        """Raise InvalidInput if the shards were written with another tokenizer."""
        if tokenizer.encoding_digest != self.manifest.tokenizer:
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
        """Return the ends of sentences in a run of tokens, counted from its begin; the last may continue behind it."""
        sentences_S = self._shards[shard].sentences_S
        first, last = np.searchsorted(sentences_S, [begin, begin + length], side="right")
        ends = sentences_S[first:last] - begin
        return ends if len(ends) and ends[-1] == length else np.append(ends, length)

    def pieces(self, longest: int) -> Pieces:
        """Cut all documents into pieces of whole sentences, and group neighbours up to ``longest`` tokens.

        A longer sentence is cut. The pieces of a group make up one sequence of the published recipes; as packed
        sequences of their own, tokens of different documents do not see each other.

        Raises:
            InvalidInput: There are no tokens.
        """
        if not self.manifest.tokens:
            raise InvalidInput(f"the shards in {str(self.folder)!r} hold no tokens: write them again from some text.")
        shards, begins, lengths, documents, before = [], [], [], [], 0
        for number, shard in enumerate(self._shards):
            begin_P, length_P = _cut(shard, longest)
            shards.append(np.full(len(begin_P), number, dtype=np.int32))
            begins.append(begin_P)
            lengths.append(length_P)
            document_ends_D = shard.sentences_S[np.asarray(shard.documents_D) - 1]
            documents.append(before + np.searchsorted(document_ends_D, begin_P, side="right"))
            before += len(shard.documents_D)
        length_P = np.concatenate(lengths)
        shard_P, document_P = np.concatenate(shards), np.concatenate(documents)
        groups = group(length_P, longest)
        return Pieces(shard_P, np.concatenate(begins), length_P, document_P, groups, longest)


def _cut(shard: _Shard, longest: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
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


def _check(folder: Path, entry: ShardEntry, part: str, *, verify: bool) -> None:
    path = entry.path(folder, part)
    if not path.is_file():
        raise InvalidInput(
            f"shard {entry.name!r} of {str(folder)!r} lacks {path.name!r}, which {MANIFEST} names: write them again."
        )
    if verify and checksum(path) != entry.sha256[part]:
        raise InvalidInput(f"{str(path)!r} is damaged: its checksum is not that of {MANIFEST}. Write the shards again.")
