"""Files of a model: bounded parts of them, the files of a folder, and faults for links, pipes and the like."""

import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from bothways.audit.finding import Finding
from bothways.audit.provenance.rules import fault

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Check: TypeAlias = Callable[[], None]
"""Raises when the time limit is reached."""

Inspect: TypeAlias = "Callable[[FilePart, str, int], Iterator[Finding]]"
"""Inspects bytes inside a file; takes them, their place (as in `fault`) and their nesting depth."""

CHUNK = 2**20
_MAX_FILES, _MAX_DEPTH = 20_000, 30
# The folder of version control: no loader reads it, and its hooks do not come with a clone.
_LEFT_OUT = frozenset({".git"})


class FilePart:
    """A part of a file that is read like a file; ``place`` is the offset of the next byte in the part."""

    def __init__(self, stream: BinaryIO, start: int, size: int) -> None:
        self._stream, self._start, self.size, self.place = stream, start, size, 0

    @classmethod
    def of(cls, content: bytes) -> "FilePart":
        """Wrap bytes in memory."""
        return cls(io.BytesIO(content), 0, len(content))

    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes, or fewer at the end."""
        content = self.at(self.place, count)
        self.place += len(content)
        return content

    def exactly(self, count: int) -> bytes:
        """Return the next ``count`` bytes; raise ValueError if fewer are left."""
        content = self.read(count)
        if len(content) < count:
            raise ValueError(f"expected {count} bytes, found {len(content)}")
        return content

    def line(self, limit: int) -> bytes:
        """Return the bytes before the next line feed; raise ValueError if none comes within ``limit`` bytes."""
        self._stream.seek(self._start + self.place)
        content = self._stream.readline(min(limit, self.size - self.place))
        if not content.endswith(b"\n"):
            raise ValueError("a line without its line feed")
        self.place += len(content)
        return content[:-1]

    def skip(self, count: int) -> None:
        """Skip the next ``count`` bytes; raise ValueError if fewer are left."""
        if count > self.size - self.place:
            raise ValueError(f"expected {count} bytes, found {self.size - self.place}")
        self.place += count

    def at(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes from an offset on, or fewer at the end."""
        if offset < 0 or offset >= self.size:
            return b""
        self._stream.seek(self._start + offset)
        return self._stream.read(min(count, self.size - offset))

    def within(self, offset: int, size: int) -> "FilePart":
        """Return the part of this part from an offset on, of at most ``size`` bytes."""
        offset = min(max(offset, 0), self.size)
        return FilePart(self._stream, self._start + offset, max(min(size, self.size - offset), 0))

    def chunks(self, overlap: int = 0) -> Iterator[bytes]:
        """Yield all bytes in pieces; each starts with the last ``overlap`` bytes of the one before."""
        kept = b""
        for offset in range(0, self.size, CHUNK):
            piece = self.at(offset, CHUNK)
            yield kept + piece
            kept = piece[len(piece) - overlap :] if overlap else b""


class RawFilePart(io.RawIOBase):
    """A file part as a raw stream, for zip archives and compressed files."""

    def __init__(self, part: FilePart) -> None:
        self._part, self._place = part, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = max(offset + (0, self._place, self._part.size)[whence], 0)
        return self._place

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer)
        content = self._part.at(self._place, len(view))
        view[: len(content)] = content
        self._place += len(content)
        return len(content)


def sha256(path: Path, check: Check) -> str:
    """Return the SHA-256 of a file; ``check`` raises at the time limit."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(8 * CHUNK):
            check()
            digest.update(piece)
    return digest.hexdigest()


def bad_path(name: str) -> bool:
    """Return True if a relative path leads out of its folder on any system."""
    parts = {*PurePosixPath(name).parts, *PureWindowsPath(name).parts}
    absolute = name.startswith(("/", "\\")) or PureWindowsPath(name).drive != ""
    return absolute or ".." in parts or "\0" in name


@dataclass(frozen=True, slots=True)
class File:
    """A regular file of a model."""

    path: Path
    name: str
    size: int


def walk(folder: Path, check: Check) -> Iterator[File | Finding]:
    """Yield the files of a folder, sorted by name, and the faults of its links and special files."""
    # The allowed targets of links: the folder, and the blobs of a snapshot in the hub's cache.
    allowed = [folder.resolve()]
    if allowed[0].parent.name == "snapshots" and allowed[0].parent.parent.name.startswith("models--"):
        allowed.append(allowed[0].parent.parent / "blobs")
    left, seen = [(folder, 0)], 0
    while left:
        here, depth = left.pop()
        check()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            name = here.relative_to(folder).as_posix()
            yield fault("unreadable", name, f"a folder that cannot be read: {error.strerror}")
            continue
        for entry in entries:
            seen += 1
            if seen > _MAX_FILES or depth > _MAX_DEPTH:
                yield fault("too-many-files", "", value=seen, threshold=_MAX_FILES)
                return
            path = Path(entry.path)
            if not entry.is_dir(follow_symlinks=False):
                yield _entry(path, path.relative_to(folder).as_posix(), allowed)
            elif entry.name not in _LEFT_OUT:
                left.append((path, depth + 1))


def _entry(path: Path, name: str, allowed: Sequence[Path]) -> File | Finding:
    try:
        if path.is_symlink():
            target = path.resolve(strict=True)
            leads_out = not any(target.is_relative_to(each) for each in allowed)
            if leads_out or target.is_dir():
                what = "that leads out of the folder" if leads_out else "to a folder, which no model needs"
                return fault("symlink-escape", name, f"a link {what}", details={"target": str(target)})
        status = path.stat()
    except (OSError, RuntimeError, ValueError) as error:
        return fault("unreadable", name, f"a broken link or an inaccessible file: {error}")
    if not stat.S_ISREG(status.st_mode):
        return fault("special-file", name)
    if not os.access(path, os.R_OK):
        return fault("unreadable", name, "a file that this user may not read")
    return File(path, name, status.st_size)
