"""Windows on files: bytes read at a place and within bounds, however large the file says that it is."""

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK = 2**20


class FilePart:
    """A part of a file, read like a file of its own.

    Attributes:
        size: Bytes of the part.
        place: Byte that is read next, from 0.
    """

    def __init__(self, stream: BinaryIO, start: int, size: int) -> None:
        self._stream, self._start, self.size, self.place = stream, start, size, 0

    @classmethod
    def of(cls, content: bytes) -> "FilePart":
        """Return a window on bytes in memory."""
        return cls(io.BytesIO(content), 0, len(content))

    def read(self, count: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        content = self.at(self.place, count)
        self.place += len(content)
        return content

    def line(self, most: int) -> bytes:
        """Return the bytes up to the next line feed, without it.

        Raises:
            ValueError: There is none within ``most`` bytes.
        """
        self._stream.seek(self._start + self.place)
        content = self._stream.readline(min(most, self.size - self.place))
        if not content.endswith(b"\n"):
            raise ValueError("a line without an end")
        self.place += len(content)
        return content[:-1]

    def skip(self, count: int) -> None:
        """Go on behind the next bytes.

        Raises:
            ValueError: There are fewer.
        """
        if count > self.size - self.place:
            raise ValueError(f"{count} bytes are announced, and {self.size - self.place} are there")
        self.place += count

    def at(self, offset: int, count: int) -> bytes:
        """Return bytes at a place, fewer at the end."""
        if offset < 0 or offset >= self.size:
            return b""
        self._stream.seek(self._start + offset)
        return self._stream.read(min(count, self.size - offset))

    def within(self, offset: int, size: int) -> "FilePart":
        """Return a window on a part of this one."""
        offset = min(max(offset, 0), self.size)
        return FilePart(self._stream, self._start + offset, max(min(size, self.size - offset), 0))

    def chunks(self, overlap: int = 0) -> Iterator[bytes]:
        """Yield all bytes in pieces; each begins with the last ``overlap`` bytes of the one before."""
        kept = b""
        for offset in range(0, self.size, CHUNK):
            piece = self.at(offset, CHUNK)
            yield kept + piece
            kept = piece[len(piece) - overlap :] if overlap else b""


def sha256(path: Path, check: Callable[[], None]) -> str:
    """Return the SHA-256 of a file, stopping at the time limit."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(8 * CHUNK):
            check()
            digest.update(piece)
    return digest.hexdigest()
