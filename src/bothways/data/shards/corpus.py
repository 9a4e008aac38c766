"""A memory-mapped folder of token shards, and its documents split into pieces of whole sentences.

Each shard is three arrays in NumPy's format, named by its number: ``00000.tokens.npy`` (the ids of all its documents),
``00000.sentences.npy`` (the end of each sentence in them) and ``00000.documents.npy`` (the number of sentences up to
the end of each document). A manifest has the digest of the tokenizer, the sizes and the checksums.

Shapes: T tokens, S sentences, D documents of a shard; P pieces of all shards; G groups of pieces; n tokens of a piece.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.data.windows import digest_of
from bothways.errors import InvalidInput
from bothways.storage import new_file
from bothways.text import TextTokenizer

MANIFEST = "manifest.json"
PARTS = ("tokens", "sentences", "documents")
FORMAT = 1


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: the common prefix of its file names, its sizes, and the checksum of the file of each of `PARTS`."""

    name: str
    tokens: int
    sentences: int
    documents: int
    sha256: Mapping[str, str]

    def path(self, folder: Path, part: str) -> Path:
        """Return the file of one part."""
        return folder / f"{self.name}.{part}.npy"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of documents in tokens: the longest, and how many documents have 1, 2 to 3, 4 to 7, ... tokens."""

    longest: int = 0
    up_to: tuple[int, ...] = ()

    def with_documents(self, lengths: NDArray[np.int64]) -> "Lengths":
        """Return this summary extended by the lengths of further documents, each at least 1."""
        if not len(lengths):
            return self
        powers = np.bincount(np.floor(np.log2(lengths)).astype(np.int64), minlength=len(self.up_to))
        powers[: len(self.up_to)] += np.array(self.up_to, dtype=np.int64)
        return Lengths(max(self.longest, int(lengths.max())), tuple(powers.tolist()))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a folder of token shards.

    Attributes:
        tokenizer: `TextTokenizer.encoding_digest` of the tokenizer that wrote them.
        vocabulary: Upper bound of the ids (exclusive).
        dtype: Type of the ids: uint16 or uint32.
        duplicates: Number of documents left out because their text occurred before.
    """

    tokenizer: str
    vocabulary: int
    dtype: str
    shards: tuple[ShardEntry, ...] = ()
    duplicates: int = 0
    lengths: Lengths = field(default_factory=Lengths)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def sentences(self) -> int:
        """Number of sentences."""
        return sum(shard.sentences for shard in self.shards)

    @property
    def documents(self) -> int:
        """Number of documents in all shards."""
        return sum(shard.documents for shard in self.shards)

    def to_dict(self) -> dict[str, object]:
        totals = {"tokens": self.tokens, "sentences": self.sentences, "documents": self.documents}
        return {"format": FORMAT, **totals, **asdict(self)}

    def write(self, path: Path) -> None:
        """Write a file atomically."""
        with new_file(path) as stream:
            json.dump(self.to_dict(), stream, indent=2)

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a folder of shards, or raise InvalidInput."""
        path = folder / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidInput(
                f"expected a folder of token shards, but {str(folder)!r} has no {MANIFEST}: write shards first."
            ) from None
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{str(path)!r} cannot be read: {error}. Write the shards again.") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InvalidInput(f"{str(path)!r} does not have the format {FORMAT}: write the shards again.")
        try:
            return cls.of(content)
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"{str(path)!r} is damaged ({error}): write the shards again.") from error

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Manifest":
        """Create a manifest from JSON values."""
        entries: Sequence[Mapping[str, Any]] = content["shards"]
        return cls(
            content["tokenizer"],
            content["vocabulary"],
            content["dtype"],
            tuple(ShardEntry(**entry) for entry in entries),
            content["duplicates"],
            Lengths(content["lengths"]["longest"], tuple(content["lengths"]["up_to"])),
        )


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of documents in the order of the corpus, each a run of tokens of one document; neighbours form groups.

    Attributes:
        shard_P: Index of each piece's shard.
        begin_P: Start of each piece in its shard.
        length_P: Number of tokens of each piece.
        document_P: Index of each piece's document, ascending.
        groups: Index of each group's first piece, then P (G + 1).
        longest: Maximum number of tokens of a piece, and of a group.
    """

    shard_P: NDArray[np.int32]
    begin_P: NDArray[np.int64]
    length_P: NDArray[np.int32]
    document_P: NDArray[np.int64]
    groups: NDArray[np.int64]
    longest: int

    @property
    def count(self) -> int:
        return len(self.length_P)

    @property
    def group_count(self) -> int:
        """Number of groups."""
        return len(self.groups) - 1

    def digest(self) -> str:
        return digest_of(self.shard_P, self.begin_P, self.length_P, self.document_P, self.groups)

    def of_groups(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the pieces in the given groups, group by group."""
        return runs(self.groups[places], self.groups[places + 1] - self.groups[places])

    def continued(self) -> NDArray[np.bool_]:
        """Return a mask (G) of the groups that begin with the last document of the group before."""
        first_G = self.groups[:-1]
        found_G: NDArray[np.bool_] = (self.document_P[first_G] == self.document_P[first_G - 1]) & (first_G > 0)
        return found_G

    def hold_out(self, fraction: float, seed: int) -> tuple["Pieces", "Pieces"]:
        """Split the documents at random into training and validation pieces, and group the pieces of both again.

        The validation documents have at most ``fraction`` of the tokens, but there is at least one, or two if there are
        four or more documents, since pairs of segments need two.

        Raises:
            InvalidInput: The fraction is out of range, or there is only one document.
        """
        if not 0 < fraction < 1:
            raise InvalidInput(f"the fraction to hold out must be above 0 and below 1, got {fraction}.")
        _, document_P = np.unique(self.document_P, return_inverse=True)
        tokens_D = np.bincount(document_P, weights=self.length_P)
        if len(tokens_D) < 2:
            raise InvalidInput("expected at least 2 documents to hold some out, got 1: train without validation.")
        order_D = np.random.default_rng([seed, len(tokens_D)]).permutation(len(tokens_D))
        taken = np.searchsorted(np.cumsum(tokens_D[order_D]), fraction * tokens_D.sum(), side="right")
        is_held_D = np.zeros(len(tokens_D), dtype=bool)
        is_held_D[order_D[: max(2 if len(tokens_D) > 3 else 1, taken)]] = True
        is_held_P = is_held_D[document_P]
        return self._select(~is_held_P), self._select(is_held_P)

    def _select(self, kept_P: NDArray[np.bool_]) -> "Pieces":
        length_P, groups = self.length_P[kept_P], group(self.length_P[kept_P], self.longest)
        document_P = self.document_P[kept_P]
        return Pieces(self.shard_P[kept_P], self.begin_P[kept_P], length_P, document_P, groups, self.longest)


def runs(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate ranges of consecutive integers, each given by its first integer and its size.

    >>> runs(np.array([7, 2]), np.array([2, 3])).tolist()
    [7, 8, 2, 3, 4]
    """
    return np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


def group(length_P: NDArray[np.int32], longest: int) -> NDArray[np.int64]:
    """Group adjacent pieces up to ``longest`` tokens; return the index of each group's first piece, then P (G + 1)."""
    starts, totals = [0], np.cumsum(length_P, dtype=np.int64).tolist()
    while starts[-1] < len(totals):
        before = totals[starts[-1] - 1] if starts[-1] else 0
        starts.append(max(starts[-1] + 1, bisect_right(totals, before + longest, starts[-1])))
    return np.array(starts, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Shard:
    """The memory-mapped arrays of one shard: ids, sentence ends, and number of sentences up to each document's end."""

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
            InvalidInput: The folder has no shards, or a file is missing or damaged; the message names it.
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
                f"the shards in {str(self.folder)!r} were written with another tokenizer: use the one that they were "
                "written with, or write them again with this one."
            )

    @property
    def digest(self) -> str:
        """A checksum of all tokens, sentence ends and document ends."""
        sums = "".join(entry.sha256[part] for entry in self.manifest.shards for part in PARTS)
        return hashlib.sha256(sums.encode()).hexdigest()

    def tokens(self, shard: int, begin: int, length: int) -> NDArray[np.int32]:
        """Return a run of tokens (n)."""
        return self._shards[shard].tokens_T[begin : begin + length].astype(np.int32)

    def sentence_ends(self, shard: int, begin: int, length: int) -> NDArray[np.int64]:
        """Return the sentence ends in a run of tokens, counted from its start; the last is the end of the run."""
        sentences_S = self._shards[shard].sentences_S
        first, last = np.searchsorted(sentences_S, [begin, begin + length], side="right")
        ends = sentences_S[first:last] - begin
        return ends if len(ends) and ends[-1] == length else np.append(ends, length)

    def pieces(self, longest: int) -> Pieces:
        """Split all documents into pieces of whole sentences, and group adjacent pieces up to ``longest`` tokens.

        A longer sentence is split too. A group has as many tokens as one sequence in the published recipes, but each
        piece is a packed sequence of its own, so tokens of different documents do not attend to each other.

        Raises:
            InvalidInput: There are no tokens.
        """
        if not self.manifest.tokens:
            raise InvalidInput(f"the shards in {str(self.folder)!r} hold no tokens: write them again from some text.")
        shards, begins, lengths, documents, before = [], [], [], [], 0
        for number, shard in enumerate(self._shards):
            begin_P, length_P = _split(shard, longest)
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


def _split(shard: _Shard, longest: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
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
        raise InvalidInput(f"{str(folder)!r} lacks {path.name!r}, which {MANIFEST} lists. Write the shards again.")
    if verify and checksum(path) != entry.sha256[part]:
        raise InvalidInput(f"{str(path)!r} is damaged: its checksum differs from {MANIFEST}. Write the shards again.")
