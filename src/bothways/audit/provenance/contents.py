"""The bytes of a file or of an entry of an archive, looked at for what they are and not for what they are called."""

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from bothways.audit.provenance.archives import bad_path, is_zip, scan_zip
from bothways.audit.provenance.pickles import Check, is_pickle, looks_like_pickle, scan_pickles
from bothways.audit.provenance.rules import Fault
from bothways.audit.provenance.settings import scan_json, scan_template
from bothways.audit.provenance.streams import FilePart
from bothways.audit.provenance.tensors import scan_safetensors

PICKLES = frozenset({".pkl", ".pickle", ".bin", ".pt", ".pth", ".ckpt", ".p", ".joblib", ".dill", ".pt2", ".pk"})
# Names of files that are data and no pickles; a pickle in one of them hides.
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
_OPENED: dict[bytes, Callable[[Any], Any]] = {
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
_MOST_UNPACKED = 64 * 2**20
_MOST_RATIO = 100
_MOST_DEPTH = 4
_LAMBDA = re.compile(rb"\"class_name\":\s*\"(Lambda|__lambda__)\"")
# An entry "location" of the external data of an ONNX tensor (onnx.proto, StringStringEntryProto), and its value.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])", re.DOTALL)


def suffix_of(place: str) -> str:
    """Return the ending of the file or entry at a place, in lower case."""
    name = place.split(", ")[0].rpartition("/")[2].rpartition("!")[2]
    return "." + name.rpartition(".")[2].lower() if "." in name else ""


def inspect(window: FilePart, place: str, check: Check, depth: int = 0) -> Iterator[Fault]:
    """Yield the faults of some bytes, by everything that they can be taken for."""
    check()
    if depth > _MOST_DEPTH:
        yield Fault("zip-bomb", "files in files, deeper than anybody saves", place, value=depth)
        return
    suffix, head = suffix_of(place), window.at(0, 16)
    yield from _executable(window, head, suffix, place)
    archive = is_zip(window)
    tar = window.at(257, 5) == b"ustar"
    wrapped = next((magic for magic in (*_OPENED, *_UNOPENED) if head.startswith(magic)), None)
    if archive:
        yield from scan_zip(window, place, check, depth)
    if _pickled(window, suffix, other=archive or tar or wrapped is not None, check=check):
        if suffix in _PLAIN:
            yield Fault("pickle-hidden", f"a pickle that calls itself {suffix}", place)
        yield from scan_pickles(window, place, check, depth)
    if tar:
        yield from _tar(window, place, check, depth)
    if wrapped is not None:
        yield from _wrapped(window, wrapped, place, check, depth)
    if head.startswith(b"\x93NUMPY"):
        yield from _numpy(window, place, check, depth)
    yield from _by_suffix(window, suffix, head, place)


def _by_suffix(window: FilePart, suffix: str, head: bytes, place: str) -> Iterator[Fault]:
    if suffix == ".safetensors":
        yield from scan_safetensors(window, place)
    elif suffix == ".json":
        yield from scan_json(window, place)
    elif suffix in (".jinja", ".jinja2", ".j2"):
        yield from scan_template(window.at(0, 2**22).decode("utf-8", "replace"), place)
    elif head.startswith(b"GGUF"):
        yield from _gguf(window, place)
    elif suffix in (".yaml", ".yml") and any(b"!!python/" in piece for piece in window.chunks(16)):
        yield Fault("yaml-code", "a YAML file that makes Python objects", place)
    elif suffix == ".onnx":
        yield from _onnx(window, place)
    elif head.startswith(b"\x89HDF\r\n\x1a\n") and any(_LAMBDA.search(piece) for piece in window.chunks(64)):
        yield Fault("keras-code", "a Lambda layer of Keras, which holds code", place)


def _pickled(window: FilePart, suffix: str, *, other: bool, check: Check) -> bool:
    """Return whether a file is a pickle, by its name or by what is in it.

    Numbers may begin as a pickle does, and so may the header of a safetensors file; they do not go on as one.
    """
    if suffix in PICKLES and suffix != ".bin" and not other:
        return window.size > 0
    if looks_like_pickle(window):
        return suffix == ".bin" or is_pickle(window, check, calls=0)
    return is_pickle(window, check, calls=0 if suffix == ".bin" else 1)


def _executable(window: FilePart, head: bytes, suffix: str, place: str) -> Iterator[Fault]:
    kind = next((kind for magic, kind in _EXECUTABLES.items() if head.startswith(magic)), None)
    if head.startswith(b"MZ"):
        offset = int.from_bytes(window.at(60, 4), "little")
        kind = "a program of Windows (PE)" if window.at(offset, 4) == b"PE\0\0" or suffix == ".exe" else kind
    if kind is None and suffix in _SCRIPTS:
        kind = f"a program or script by its name ({suffix})"
    if kind is not None:
        yield Fault("executable", kind, place, {"begin": head.hex()})


def _tar(window: FilePart, place: str, check: Check, depth: int) -> Iterator[Fault]:
    """Look into a tar archive, which torch.save once wrote."""
    offset = 0
    while offset + 512 <= window.size:
        check()
        block = window.at(offset, 512)
        if block == bytes(512):
            return
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            yield Fault("zip-broken", f"a tar archive that breaks at byte {offset}: {error}", place)
            return
        if bad_path(entry.name) or entry.issym() or entry.islnk() or entry.isdev():
            yield Fault("zip-traversal", f"a tar archive with {entry.name[:200]!r}, which leads out of it", place)
        yield from inspect(window.within(offset + 512, entry.size), f"{place}!{entry.name}", check, depth + 1)
        offset += 512 + -(-max(entry.size, 0) // 512) * 512


def _wrapped(window: FilePart, magic: bytes, place: str, check: Check, depth: int) -> Iterator[Fault]:
    """Unpack a compressed file within bounds, and look into it."""
    if magic in _UNOPENED:
        yield Fault("archive-unread", f"an archive ({_UNOPENED[magic]}) that is no format of a model", place)
        return
    content = bytearray()
    try:
        with _OPENED[magic](io.BufferedReader(_Raw(window))) as stream:
            while len(content) <= _MOST_UNPACKED and (piece := stream.read(2**20)):
                check()
                content += piece
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        yield Fault("zip-broken", f"a compressed file that breaks: {error}", place)
    if len(content) > max(_MOST_RATIO * window.size, _MOST_UNPACKED // 2):
        yield Fault(
            "zip-bomb", "a compressed file that grows a hundredfold", place, {}, len(content) / window.size, 100
        )
    yield from inspect(FilePart.of(bytes(content)), f"{place}!unpacked.pkl", check, depth + 1)


def _numpy(window: FilePart, place: str, check: Check, depth: int) -> Iterator[Fault]:
    """Arrays of objects are pickles behind a header (CVE-2019-6446)."""
    width = 2 if window.at(6, 1) == b"\x01" else 4
    size = int.from_bytes(window.at(8, width), "little")
    header = window.at(8 + width, min(size, 2**16))
    if re.search(rb"\|O|'O'|object", header):
        begin = 8 + width + size
        yield from scan_pickles(window.within(begin, window.size), f"{place}, objects", check, depth + 1)


def _gguf(window: FilePart, place: str) -> Iterator[Fault]:
    """Look into the templates among the settings of a GGUF file: a key, the type 8, a length, and the text."""
    head = window.at(0, _MOST_UNPACKED)
    for found in re.finditer(rb"tokenizer\.chat_template[\w.]*\x08\0\0\0", head):
        size = int.from_bytes(head[found.end() : found.end() + 8], "little")
        text = head[found.end() + 8 : found.end() + 8 + min(size, 2**22)].decode("utf-8", "replace")
        yield from scan_template(text, f"{place}, chat_template")


def _onnx(window: FilePart, place: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for piece in window.chunks(256):
        for found in _LOCATION.finditer(piece):
            path = piece[found.end() : found.end() + found[1][0]].decode("utf-8", "replace")
            if path not in seen and bad_path(path):
                yield Fault("path-traversal", f"an ONNX graph that reads {path[:200]!r}, out of its folder", place)
            seen.add(path)


class _Raw(io.RawIOBase):
    """A window as compressed streams want it."""

    def __init__(self, window: FilePart) -> None:
        self._window, self._place = window, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = max(offset + (0, self._place, self._window.size)[whence], 0)
        return self._place

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 (a writable buffer)
        content = self._window.at(self._place, len(buffer))
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)
