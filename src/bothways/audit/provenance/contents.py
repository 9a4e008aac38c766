"""Inspection of the content of a file or archive entry as every format that it may have, whatever its name.

Loaders skip checks that scanners make (torch reads zip entries with a wrong checksum or an encrypted flag), and both
look entries up by name, though an archive can contain a name twice. So every zip entry is read here from its own
header, without these checks, and compared with the archive's central directory; differences are faults.
"""

import bz2
import gzip
import io
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bothways.audit.finding import Finding
from bothways.audit.provenance.files import CHUNK, Check, FilePart, RawFilePart, bad_path
from bothways.audit.provenance.pickles import is_pickle, looks_like_pickle, scan_pickles
from bothways.audit.provenance.rules import fault
from bothways.audit.provenance.settings import scan_json, scan_template
from bothways.audit.provenance.weights import scan_safetensors

_PICKLES = frozenset({".pkl", ".pickle", ".bin", ".pt", ".pth", ".ckpt", ".p", ".joblib", ".dill", ".pt2", ".pk"})
# Suffixes of data files that are not pickles; a pickle with one of them is disguised.
_PLAIN = frozenset(
    {".safetensors", ".json", ".txt", ".md", ".h5", ".onnx", ".model", ".msgpack", ".gguf", ".yaml", ".yml", ".csv"}
    | {".png", ".jpg", ".jsonl", ".toml", ".cfg", ".jinja", ".vocab", ".tflite"}
)
_EXECUTABLES = {
    b"\x7fELF": "a program or library of Linux (ELF)",
    b"\xfe\xed\xfa\xce": "a program of macOS (Mach-O)",
    b"\xfe\xed\xfa\xcf": "a program of macOS (Mach-O)",
    b"\xce\xfa\xed\xfe": "a program of macOS (Mach-O)",
    b"\xcf\xfa\xed\xfe": "a program of macOS (Mach-O)",
    b"\xca\xfe\xba\xbe": "a program of macOS or Java",
    b"\x00asm": "a program in WebAssembly",
    b"#!": "a script",
}
_SCRIPTS = frozenset({".sh", ".bat", ".cmd", ".ps1", ".exe", ".dll", ".so", ".dylib", ".pyc", ".pyd", ".vbs", ".jar"})
_OPENED: dict[bytes, Callable[[io.BufferedReader], io.BufferedIOBase]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_UNOPENED = {
    b"7z\xbc\xaf'\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"MSCF": "cabinet",
}
# Compressed weights have a ratio of 1.1; zeros reach 1,000, but no model has that many zeros.
_MAX_RATIO, _MAX_UNPACKED = 100, 64 * 2**20
_MAX_DEPTH, _MAX_ZIP_DEPTH = 4, 3
_MAX_ENTRIES = 100_000
_LAMBDA = re.compile(rb"\"class_name\":\s*\"(Lambda|__lambda__)\"")
# An entry "location" of the external data of an ONNX tensor (onnx.proto, StringStringEntryProto), and its value.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])", re.DOTALL)
# Zip flags: encrypted, patched data, strong encryption, encrypted central directory.
_HIDDEN_FLAGS = 0x1 | 0x20 | 0x40 | 0x2000
_DATA_DESCRIPTOR = 24
_LOCAL, _END = b"PK\x03\x04", b"PK\x05\x06"
_END_SIZE = 22
_NESTED = "files nested deeper than any program saves them"


@dataclass(frozen=True, slots=True)
class _Item:
    part: FilePart
    place: str
    check: Check
    depth: int = 0

    @property
    def suffix(self) -> str:
        return suffix_of(self.place)

    def inner(self, part: FilePart, place: str) -> "_Item":
        return _Item(part, place, self.check, self.depth + 1)


def suffix_of(place: str) -> str:
    """Return the suffix of a file or entry in lower case, given its place (as in `fault`)."""
    name = place.split(", ")[0].rpartition("/")[2].rpartition("!")[2]
    return "." + name.rpartition(".")[2].lower() if "." in name else ""


def inspect(part: FilePart, place: str, check: Check) -> Iterator[Finding]:
    """Yield the findings in the content of a file."""
    yield from _inspect(_Item(part, place, check))


def _inspect(item: _Item) -> Iterator[Finding]:
    part, place, suffix = item.part, item.place, item.suffix
    item.check()
    if item.depth > _MAX_DEPTH:
        yield fault("zip-bomb", place, _NESTED, value=item.depth)
        return
    head = part.at(0, 16)
    yield from _executable(item, head)
    archive = head[:4] in (_LOCAL, _END) or _END in _zip_end(part)
    tar = part.at(257, 5) == b"ustar"
    wrapped = next((magic for magic in (*_OPENED, *_UNOPENED) if head.startswith(magic)), None)
    if archive:
        yield from _zip(item)
    if _pickled(item, other=archive or tar or wrapped is not None):
        if suffix in _PLAIN:
            yield fault("pickle-hidden", place, suffix)
        yield from _pickles(item)
    if tar:
        yield from _tar(item)
    if wrapped is not None:
        yield from _compressed(item, wrapped)
    if head.startswith(b"\x93NUMPY"):
        yield from _numpy(item)
    if suffix == ".safetensors":
        yield from scan_safetensors(part, place)
    elif suffix == ".json":
        yield from scan_json(part, place)
    elif suffix in (".jinja", ".jinja2", ".j2"):
        yield from scan_template(part.at(0, 2**22).decode("utf-8", "replace"), place)
    elif head.startswith(b"GGUF"):
        yield from _gguf(item)
    elif suffix in (".yaml", ".yml") and any(b"!!python/" in piece for piece in part.chunks(16)):
        yield fault("yaml-code", place)
    elif suffix == ".onnx":
        yield from _onnx(item)
    elif head.startswith(b"\x89HDF\r\n\x1a\n") and any(_LAMBDA.search(piece) for piece in part.chunks(64)):
        yield fault("keras-code", place, "a Lambda layer of Keras, which holds code")


def _executable(item: _Item, head: bytes) -> Iterator[Finding]:
    kind = next((kind for magic, kind in _EXECUTABLES.items() if head.startswith(magic)), None)
    if head.startswith(b"MZ"):
        offset = int.from_bytes(item.part.at(60, 4), "little")
        portable = item.part.at(offset, 4) == b"PE\0\0" or item.suffix == ".exe"
        kind = "a program of Windows (PE)" if portable else kind
    if kind is None and item.suffix in _SCRIPTS:
        kind = f"a program or script by its name ({item.suffix})"
    if kind is not None:
        yield fault("executable", item.place, kind, details={"begin": head.hex()})


# --- pickles ---


def _pickled(item: _Item, *, other: bool) -> bool:
    """Return True if a file is a pickle, by its name or by its content.

    Numbers and headers of safetensors files can start like a pickle, but do not continue like one.
    """
    if item.suffix in _PICKLES and item.suffix != ".bin" and not other:
        return item.part.size > 0
    if looks_like_pickle(item.part):
        return item.suffix == ".bin" or is_pickle(item.part, item.check, calls=0)
    return is_pickle(item.part, item.check, calls=0 if item.suffix == ".bin" else 1)


def _pickles(item: _Item) -> Iterator[Finding]:
    def inside(part: FilePart, place: str, depth: int) -> Iterator[Finding]:
        return _inspect(_Item(part, place, item.check, depth))

    yield from scan_pickles(item.part, item.place, item.check, inside, item.depth)


def _numpy(item: _Item) -> Iterator[Finding]:
    """Inspect arrays of objects, which are pickles behind a header (CVE-2019-6446)."""
    part = item.part
    width = 2 if part.at(6, 1) == b"\x01" else 4
    size = int.from_bytes(part.at(8, width), "little")
    if re.search(rb"\|O|'O'|object", part.at(8 + width, min(size, 2**16))):
        yield from _pickles(item.inner(part.within(8 + width + size, part.size), f"{item.place}, objects"))


# --- archives and compressed files ---


def _tar(item: _Item) -> Iterator[Finding]:
    """Inspect a tar archive, the format of old versions of torch.save."""
    part, place, offset = item.part, item.place, 0
    while offset + 512 <= part.size:
        item.check()
        block = part.at(offset, 512)
        if block == bytes(512):
            return
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            yield fault("zip-broken", place, f"a tar archive that breaks at byte {offset}: {error}")
            return
        if bad_path(entry.name) or entry.issym() or entry.islnk() or entry.isdev():
            yield fault("zip-traversal", place, f"a tar archive with {entry.name[:200]!r}, which leads out of it")
        yield from _inspect(item.inner(part.within(offset + 512, entry.size), f"{place}!{entry.name}"))
        offset += 512 + -(-max(entry.size, 0) // 512) * 512


def _compressed(item: _Item, magic: bytes) -> Iterator[Finding]:
    """Unpack a compressed file up to a size limit, and inspect it."""
    part, place = item.part, item.place
    if magic in _UNOPENED:
        yield fault("archive-unread", place, f"an archive in a format that no model uses ({_UNOPENED[magic]})")
        return
    content = bytearray()
    try:
        with _OPENED[magic](io.BufferedReader(RawFilePart(part))) as stream:
            while len(content) <= _MAX_UNPACKED and (piece := stream.read(2**20)):
                item.check()
                content += piece
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        yield fault("zip-broken", place, f"a compressed file that breaks: {error}")
    if len(content) > max(_MAX_RATIO * part.size, _MAX_UNPACKED // 2):
        what, ratio = "a compressed file that unpacks to over a hundred times its size", len(content) / part.size
        yield fault("zip-bomb", place, what, value=ratio, threshold=_MAX_RATIO)
    yield from _inspect(item.inner(FilePart.of(bytes(content)), f"{place}!unpacked.pkl"))


def _zip_end(part: FilePart) -> bytes:
    """Return the bytes that can hold the end of a zip archive, with the longest comment."""
    return part.at(max(part.size - 2**16 - _END_SIZE, 0), 2**16 + _END_SIZE)


def _zip(item: _Item) -> Iterator[Finding]:
    part, place = item.part, item.place
    if item.depth > _MAX_ZIP_DEPTH:
        yield fault("zip-bomb", place, "archives nested deeper than any program saves them", value=item.depth)
        return
    try:
        with zipfile.ZipFile(io.BufferedReader(RawFilePart(part))) as archive:
            entries, directory = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error, UnicodeDecodeError) as error:
        if part.at(0, 4) == _LOCAL:
            yield fault("zip-broken", place, f"an archive whose list of contents cannot be read: {error}")
            yield from _first_entry(item)
        return
    if len(entries) > _MAX_ENTRIES:
        yield fault("zip-bomb", place, f"an archive of {len(entries):,} entries", value=len(entries))
        return
    yield from _zip_contents(item, entries)
    spans: list[tuple[int, int]] = []
    for entry in entries:
        item.check()
        yield from _zip_entry(item, entry, spans)
    yield from _zip_gaps(item, spans, directory)
    names = {entry.filename for entry in entries}
    code = [name for name in names if "/code/" in f"/{name}" and name.endswith(".py")]
    if code or any(name.endswith("/constants.pkl") for name in names):
        yield fault("torchscript", place, details={"code": sorted(code)[:20]})


def _zip_contents(item: _Item, entries: Sequence[zipfile.ZipInfo]) -> Iterator[Finding]:
    part, place = item.part, item.place
    twice = [name for name, count in Counter(entry.filename for entry in entries).items() if count > 1]
    if twice:
        yield fault("zip-duplicate-entry", place, repr(twice[0]), details={"names": twice[:20]})
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > max(_MAX_RATIO * part.size, _MAX_UNPACKED):
        yield fault(
            "zip-bomb",
            place,
            f"an archive of {part.size:,} bytes that unpacks to {unpacked:,}",
            statistic="bytes unpacked for each byte",
            value=unpacked / max(part.size, 1),
            threshold=_MAX_RATIO,
            null="weights, which compress by a tenth",
            n=len(entries),
        )
    end = _zip_end(part)
    if end.count(_END) > 1:
        yield fault("zip-hidden-bytes", place, "an archive with two end records; programs may read different ones")
    after = len(end) - end.rfind(_END) - _END_SIZE
    if after > 0:
        yield fault("zip-hidden-bytes", place, f"{after} bytes after the end of an archive", value=after, threshold=0)


def _zip_entry(item: _Item, entry: zipfile.ZipInfo, spans: list[tuple[int, int]]) -> Iterator[Finding]:
    """Read an entry from its own header, record its span, and inspect it."""
    part, place = item.part, f"{item.place}!{entry.filename}"
    if bad_path(entry.filename) or bad_path(entry.orig_filename):
        what = "an entry whose path leads out of the folder"
        yield fault("zip-traversal", place, what, details={"path": entry.orig_filename})
    if stat.S_ISLNK(entry.external_attr >> 16):
        yield fault("zip-traversal", place, "an entry that is a symbolic link")
    header = part.at(entry.header_offset, 30)
    if len(header) < 30 or header[:4] != _LOCAL:
        yield fault("zip-broken", place, "an entry without its header", details={"byte": entry.header_offset})
        return
    flags, method = struct.unpack_from("<HH", header, 6)
    name_size, extra_size = struct.unpack_from("<HH", header, 26)
    name = part.at(entry.header_offset + 30, name_size)
    encoding = "utf-8" if entry.flag_bits & 0x800 else "cp437"
    if name != entry.orig_filename.encode(encoding, "replace"):
        yield fault("zip-names-differ", place, details={"header": name.decode(encoding, "replace")})
    if hidden := (flags | entry.flag_bits) & _HIDDEN_FLAGS:
        yield fault("zip-hidden-flags", place, details={"flags": hidden})
    begin = entry.header_offset + 30 + name_size + extra_size
    spans.append((entry.header_offset, begin + entry.compress_size))
    if method != entry.compress_type or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        yield fault("archive-unread", place, f"an entry compressed in an unusual way ({method})")
        return
    if method == zipfile.ZIP_STORED and entry.file_size != entry.compress_size:
        yield fault("zip-broken", place, "an uncompressed entry whose stored and unpacked sizes differ")
    yield from _zip_content(item.inner(part.within(begin, entry.compress_size), place), entry)


def _zip_content(stored: _Item, entry: zipfile.ZipInfo) -> Iterator[Finding]:
    """Unpack an entry up to a size limit, check its size and checksum, and inspect it."""
    part, place, deflated = stored.part, stored.place, entry.compress_type == zipfile.ZIP_DEFLATED
    checksum, size, head = 0, 0, bytearray()
    try:
        for piece in _inflated(part) if deflated else part.chunks():
            stored.check()
            checksum, size = zlib.crc32(piece, checksum), size + len(piece)
            if deflated and len(head) < _MAX_UNPACKED:
                head += piece
            if deflated and size > max(_MAX_RATIO * max(part.size, 1), _MAX_UNPACKED, entry.file_size):
                what = "an entry that unpacks to more than its stated size"
                yield fault("zip-bomb", place, what, value=size, threshold=entry.file_size)
                break
    except zlib.error as error:
        yield fault("zip-broken", place, f"an entry that cannot be unpacked: {error}")
    else:
        if size == entry.file_size and checksum != entry.CRC:
            yield fault("zip-wrong-checksum", place)
        elif size != entry.file_size and size <= _MAX_UNPACKED:
            what = "an entry that does not unpack to its stated size"
            yield fault("zip-broken", place, what, value=size, threshold=entry.file_size)
    unpacked = FilePart.of(bytes(head)) if deflated else part
    yield from _inspect(_Item(unpacked, place, stored.check, stored.depth))


def _inflated(stored: FilePart) -> Iterator[bytes]:
    unpack = zlib.decompressobj(-15)
    for piece in stored.chunks():
        while piece and not unpack.eof:
            yield unpack.decompress(piece, CHUNK)
            piece = unpack.unconsumed_tail
    while not unpack.eof and (rest := unpack.flush(CHUNK)):
        yield rest


def _zip_gaps(item: _Item, spans: list[tuple[int, int]], directory: int) -> Iterator[Finding]:
    """Check that entries fill the archive from its first byte to its central directory without overlap."""
    part, place, end = item.part, item.place, 0
    for first, last in [*sorted(spans), (directory, directory)]:
        if first < end:
            what = "an archive whose entries overlap"
            yield fault("zip-bomb", place, what, details={"byte": first}, n=len(spans))
            return
        if first > end + _DATA_DESCRIPTOR or (end == 0 and first > 0):
            yield fault(
                "zip-hidden-bytes",
                place,
                f"{first - end:,} bytes of an archive that belong to no entry",
                details={"byte": end, "begin": part.at(end, 16).hex()},
                value=first - end,
                threshold=_DATA_DESCRIPTOR,
                null="intact archives, which have no gaps",
                n=len(spans),
            )
            return
        end = max(end, last)


def _first_entry(item: _Item) -> Iterator[Finding]:
    """Inspect the first entry of a broken archive, which a loader may still read."""
    header = item.part.at(0, 30)
    if len(header) == 30:
        method, packed = struct.unpack_from("<H", header, 8)[0], struct.unpack_from("<I", header, 18)[0]
        begin = 30 + sum(struct.unpack_from("<HH", header, 26))
        if method == zipfile.ZIP_STORED:
            inner = item.part.within(begin, packed or item.part.size)
            yield from _inspect(item.inner(inner, f"{item.place}!first entry"))


# --- other formats ---


def _gguf(item: _Item) -> Iterator[Finding]:
    """Inspect the templates in a GGUF file; each is stored as a key, the type 8, a length and the text."""
    head = item.part.at(0, _MAX_UNPACKED)
    for match in re.finditer(rb"tokenizer\.chat_template[\w.]*\x08\0\0\0", head):
        size = int.from_bytes(head[match.end() : match.end() + 8], "little")
        text = head[match.end() + 8 : match.end() + 8 + min(size, 2**22)].decode("utf-8", "replace")
        yield from scan_template(text, f"{item.place}, chat_template")


def _onnx(item: _Item) -> Iterator[Finding]:
    seen: set[str] = set()
    for piece in item.part.chunks(256):
        for match in _LOCATION.finditer(piece):
            path = piece[match.end() : match.end() + match[1][0]].decode("utf-8", "replace")
            if path not in seen and bad_path(path):
                what = f"an ONNX graph that reads {path[:200]!r}, outside its folder"
                yield fault("path-traversal", item.place, what)
            seen.add(path)
