"""The manifest of a folder of token shards: its contents and tokenizer, with checksums.

Each shard is three arrays in NumPy's format, named by its number: ``00000.tokens.npy`` (ids of its documents end to
end), ``00000.sentences.npy`` (the end of each sentence in them) and ``00000.documents.npy`` (the number of sentences up
to the end of each document).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InvalidInput
from bothways.storage import new_file

MANIFEST = "manifest.json"
PARTS = ("tokens", "sentences", "documents")
FORMAT = 1


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: the beginning of its files' names, its sizes, and the checksum of each file, by part."""

    name: str
    tokens: int
    sentences: int
    documents: int
    sha256: Mapping[str, str]

    def path(self, folder: Path, part: str) -> Path:
        return folder / f"{self.name}.{part}.npy"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of documents in tokens: the longest, and how many have 1, 2 to 3, 4 to 7, ... tokens."""

    longest: int = 0
    up_to: tuple[int, ...] = ()

    def with_documents(self, lengths: NDArray[np.int64]) -> "Lengths":
        """Add documents that are not empty."""
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
        vocabulary: Ids are below this.
        dtype: Type of the ids: uint16 or uint32.
        duplicates: Documents that were left out, as the same text came before.
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
            raise InvalidInput(f"{str(path)!r} is of another format than {FORMAT}: write the shards again.")
        try:
            return cls.of(content)
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"{str(path)!r} is damaged ({error}): write the shards again.") from error

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Manifest":
        """Parse JSON values."""
        entries: Sequence[Mapping[str, Any]] = content["shards"]
        return cls(
            content["tokenizer"],
            content["vocabulary"],
            content["dtype"],
            tuple(ShardEntry(**entry) for entry in entries),
            content["duplicates"],
            Lengths(content["lengths"]["longest"], tuple(content["lengths"]["up_to"])),
        )
