"""A zip archive read as its bytes have it, beside what its list of contents says: where the two differ is a fault.

Loaders skip checks that scanners make (torch reads entries with a wrong checksum or an encrypted flag), and both go by
names that an archive has twice. So every entry is read here from its own header, without those checks.
"""

import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath, PureWindowsPath

from bothways.audit.provenance.pickles import Check
from bothways.audit.provenance.rules import Fault
from bothways.audit.provenance.streams import CHUNK, FilePart

_MOST_ENTRIES = 100_000
_MOST_DEPTH = 3
# Compressed weights have a ratio of 1.1; zeros have 1,000, but no model has so many of them.
_MOST_RATIO, _MOST_UNPACKED = 100, 64 * 2**20
# Flags: encrypted, patched data, strong encryption, encrypted list of contents.
_HIDDEN_FLAGS = 0x1 | 0x20 | 0x40 | 0x2000
_DATA_DESCRIPTOR = 24
_LOCAL, _END = b"PK\x03\x04", b"PK\x05\x06"
_READ = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def is_zip(window: FilePart) -> bool:
    """Return whether a file begins as a zip archive, or ends as one."""
    return window.at(0, 4) in (_LOCAL, _END) or _END in window.at(max(window.size - 2**16 - 22, 0), 2**16 + 22)


def scan_zip(window: FilePart, place: str, check: Check, depth: int) -> Iterator[Fault]:
    """Yield the faults of an archive and of what is in it."""
    if depth > _MOST_DEPTH:
        yield Fault("zip-bomb", "archives in archives, deeper than anybody saves", place, value=depth)
        return
    try:
        with zipfile.ZipFile(_Seekable(window)) as archive:
            entries, begin = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error, UnicodeDecodeError) as error:
        if window.at(0, 4) == _LOCAL:
            yield Fault("zip-broken", f"an archive whose list of contents cannot be read: {error}", place)
            yield from _scan_blindly(window, place, check, depth)
        return
    if len(entries) > _MOST_ENTRIES:
        yield Fault("zip-bomb", f"an archive of {len(entries):,} entries", place, value=len(entries))
        return
    yield from _list_of_contents(window, entries, place)
    spans: list[tuple[int, int]] = []
    for entry in entries:
        check()
        yield from _entry(window, entry, f"{place}!{entry.filename}", check, depth, spans)
    yield from _layout(spans, begin, window, place)
    yield from _meaning({entry.filename for entry in entries}, place)


def bad_path(name: str) -> bool:
    """Return whether a relative path leads out of its folder on any system."""
    parts = {*PurePosixPath(name).parts, *PureWindowsPath(name).parts}
    absolute = name.startswith(("/", "\\")) or PureWindowsPath(name).drive != ""
    return absolute or ".." in parts or "\0" in name


def _list_of_contents(window: FilePart, entries: Sequence[zipfile.ZipInfo], place: str) -> Iterator[Fault]:
    twice = [name for name, count in Counter(entry.filename for entry in entries).items() if count > 1]
    if twice:
        yield Fault("zip-duplicate-entry", f"an archive with {twice[0]!r} in it twice", place, {"names": twice[:20]})
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > max(_MOST_RATIO * window.size, _MOST_UNPACKED):
        yield Fault(
            "zip-bomb",
            f"an archive of {window.size:,} bytes that unpacks to {unpacked:,}",
            place,
            {"statistic": "bytes unpacked for each byte"},
            unpacked / max(window.size, 1),
            _MOST_RATIO,
            "weights, which compress by a tenth",
            len(entries),
        )
    tail = window.at(max(window.size - 2**16 - 22, 0), 2**16 + 22)
    if tail.count(_END) > 1:
        yield Fault("zip-hidden-bytes", "an archive with two ends, so that programs may read different ones", place)
    after = len(tail) - tail.rfind(_END) - 22
    if after > 0:
        yield Fault("zip-hidden-bytes", f"{after} bytes behind the end of an archive", place, value=after, threshold=0)


def _entry(
    window: FilePart, entry: zipfile.ZipInfo, place: str, check: Check, depth: int, spans: list[tuple[int, int]]
) -> Iterator[Fault]:
    if bad_path(entry.filename) or bad_path(entry.orig_filename):
        yield Fault(
            "zip-traversal", "an entry whose path leads out of the folder", place, {"path": entry.orig_filename}
        )
    if stat.S_ISLNK(entry.external_attr >> 16):
        yield Fault("zip-traversal", "an entry that is a symbolic link", place)
    header = window.at(entry.header_offset, 30)
    if len(header) < 30 or header[:4] != _LOCAL:
        yield Fault("zip-broken", "an entry without its header", place, {"byte": entry.header_offset})
        return
    flags, method = struct.unpack_from("<HH", header, 6)
    name_size, extra_size = struct.unpack_from("<HH", header, 26)
    name = window.at(entry.header_offset + 30, name_size)
    encoding = "utf-8" if entry.flag_bits & 0x800 else "cp437"
    if name != entry.orig_filename.encode(encoding, "replace"):
        yield Fault(
            "zip-names-differ",
            "an entry with another name in its header than in the list of contents",
            place,
            {"header": name.decode(encoding, "replace")},
        )
    if (flags | entry.flag_bits) & _HIDDEN_FLAGS:
        flag = (flags | entry.flag_bits) & _HIDDEN_FLAGS
        yield Fault("zip-hidden-flags", "an entry flagged as encrypted, though loaders read it", place, {"flags": flag})
    begin = entry.header_offset + 30 + name_size + extra_size
    spans.append((entry.header_offset, begin + entry.compress_size))
    stored = window.within(begin, entry.compress_size)
    if method != entry.compress_type or method not in _READ:
        yield Fault("archive-unread", f"an entry compressed in an unusual way ({method})", place)
        return
    if method == zipfile.ZIP_STORED and entry.file_size != entry.compress_size:
        yield Fault("zip-broken", "an entry that is stored as it is, in another size than its own", place)
    yield from _content(stored, entry, place, check, depth)


def _content(stored: FilePart, entry: zipfile.ZipInfo, place: str, check: Check, depth: int) -> Iterator[Fault]:
    from bothways.audit.provenance.contents import inspect

    checksum, size, head = 0, 0, bytearray()
    deflated = entry.compress_type == zipfile.ZIP_DEFLATED
    try:
        for piece in _inflated(stored) if deflated else stored.chunks():
            check()
            checksum, size = zlib.crc32(piece, checksum), size + len(piece)
            if deflated and len(head) < _MOST_UNPACKED:
                head += piece
            if deflated and size > max(_MOST_RATIO * max(stored.size, 1), _MOST_UNPACKED, entry.file_size):
                yield Fault("zip-bomb", "an entry that unpacks to more than it says", place, {}, size, entry.file_size)
                break
    except zlib.error as error:
        yield Fault("zip-broken", f"an entry that cannot be unpacked: {error}", place)
    else:
        if size == entry.file_size and checksum != entry.CRC:
            yield Fault("zip-wrong-checksum", "an entry with a wrong checksum, which loaders do not look at", place)
        elif size != entry.file_size and size <= _MOST_UNPACKED:
            yield Fault("zip-broken", "an entry of another size than its own", place, {}, size, entry.file_size)
    inner = FilePart.of(bytes(head)) if deflated else stored
    yield from inspect(inner, place, check, depth + 1)


def _inflated(stored: FilePart) -> Iterator[bytes]:
    unpack = zlib.decompressobj(-15)
    for piece in stored.chunks():
        while piece and not unpack.eof:
            yield unpack.decompress(piece, CHUNK)
            piece = unpack.unconsumed_tail
    while not unpack.eof and (rest := unpack.flush(CHUNK)):
        yield rest


def _layout(spans: list[tuple[int, int]], begin: int, window: FilePart, place: str) -> Iterator[Fault]:
    """Entries fill an archive from its first byte to its list of contents, one behind the other."""
    end = 0
    for first, last in [*sorted(spans), (begin, begin)]:
        if first < end:
            yield Fault("zip-bomb", "an archive whose entries overlap", place, {"byte": first}, n=len(spans))
            return
        if first > end + _DATA_DESCRIPTOR or (end == 0 and first > 0):
            yield Fault(
                "zip-hidden-bytes",
                f"{first - end:,} bytes of an archive that no entry has",
                place,
                {"byte": end, "begin": window.at(end, 16).hex()},
                first - end,
                _DATA_DESCRIPTOR,
                "archives as they are written, without a gap",
                len(spans),
            )
            return
        end = max(end, last)


def _meaning(names: set[str], place: str) -> Iterator[Fault]:
    """TorchScript archives carry the code that they run."""
    code = [name for name in names if "/code/" in f"/{name}" and name.endswith(".py")]
    if code or any(name.endswith("/constants.pkl") for name in names):
        yield Fault("torchscript", "a TorchScript archive, which is a program", place, {"code": sorted(code)[:20]})


def _scan_blindly(window: FilePart, place: str, check: Check, depth: int) -> Iterator[Fault]:
    """Look into the stored entry at the beginning, which a loader may still read."""
    from bothways.audit.provenance.contents import inspect

    header = window.at(0, 30)
    if len(header) == 30:
        method, packed = struct.unpack_from("<H", header, 8)[0], struct.unpack_from("<I", header, 18)[0]
        begin = 30 + sum(struct.unpack_from("<HH", header, 26))
        if method == zipfile.ZIP_STORED:
            yield from inspect(window.within(begin, packed or window.size), f"{place}!first entry", check, depth + 1)


class _Seekable:
    """A window as zipfile wants it."""

    def __init__(self, window: FilePart) -> None:
        self._window, self._place = window, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = max(offset + (0, self._place, self._window.size)[whence], 0)
        return self._place

    def read(self, count: int = -1) -> bytes:
        content = self._window.at(self._place, self._window.size if count is None or count < 0 else count)
        self._place += len(content)
        return content

    def close(self) -> None:
        """Leave the file open: others read from it."""
