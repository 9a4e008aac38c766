"""A search index as a folder: replaced whole or not at all, verified before it is used.

::

    index.json                format version, sizes, the encoder, the name of the data folder, SHA-256 of its files
    data-3/vectors.npy        float32, memory-mapped when read
    data-3/records.jsonl      one object with ``id``, ``text`` and ``fields`` a row
    data-3/lexical/           BM25 over the texts, as bm25s writes it

An update writes a new data folder beside the old one and then replaces ``index.json``, in one step on every system, so
that a process killed at any moment leaves the index from before or the one from after. What an update that was killed
has left behind, the next one removes.

Letters in names: N rows, D dimensions.
"""

import json
import math
import os
import re
import shutil
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bothways.checkpoints.files import sha256_of
from bothways.errors import CorruptCheckpoint, OutputExists
from bothways.retrieval.filters import Scalar
from bothways.retrieval.index_header import (
    FORMAT,
    FORMAT_VERSION,
    HEADER,
    METRIC,
    EncoderIdentity,
    Header,
    corrupt,
    header_text,
    read_header,
)
from bothways.retrieval.lexical import DEFAULT_LANGUAGE, FILES, LexicalIndex, written_whole
from bothways.storage import check_folder_free, held, new_file, new_folder, remove_leftovers

VECTORS = "vectors.npy"
RECORDS = "records.jsonl"
LEXICAL = "lexical"

# What numpy lets through where the header of an array is no Python expression.
_NO_HEADER = (SyntaxError, tokenize.TokenError)

# Vectors that are looked at at a time.
_BLOCK = 4096

# A data folder, and what a killed update of an earlier version has left of one, or of a header.
_DATA = re.compile(r"data-(\d+)|\.data-(\d+)\.[a-z0-9_]{8}")
_UNFINISHED_HEADER = re.compile(rf"\.{re.escape(HEADER)}\.[a-z0-9_]{{8}}")


@dataclass(frozen=True, slots=True)
class IndexContents:
    """All that an index holds.

    Attributes:
        vectors_ND: Of unit length, ``(N, D)``.
        ids: Of each row, all different.
        texts: Of each row.
        encoder: What made the vectors.
        columns: Values kept with the texts, by the name of the field, N of each.
        language: Of the stemmer of lexical search.
        lexical: The texts prepared for it; None where that is still to be done.
    """

    vectors_ND: npt.NDArray[np.float32]
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    encoder: EncoderIdentity
    columns: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    language: str | None = DEFAULT_LANGUAGE
    lexical: LexicalIndex | None = None


def write_index(folder: Path, contents: IndexContents, *, overwrite: bool) -> None:
    """Write the index folder; an index that was there stays until the new one is complete.

    Raises:
        OutputExists: The folder is there and ``overwrite`` is false, or it holds something else than an index.
        InvalidInput: It is no index yet and cannot be replaced, as `check_index_free`.
        OutOfDisk: The disk is full; nothing was left behind.
        MissingDependency: bm25s or PyStemmer is not installed.
    """
    check_index_free(folder, overwrite=overwrite)
    if not (folder / HEADER).is_file():
        with new_folder(folder) as unfinished:
            _write_header(unfinished, header_text(_write_data(unfinished, "data-1", contents)))
        return
    remove_leftovers(folder, r"data-\d+")
    numbers = [int(found[1] or found[2]) for path in folder.iterdir() if (found := _DATA.fullmatch(path.name))]
    data, beside = f"data-{max(numbers, default=0) + 1}", _files_beside_header(folder)
    header = header_text(_write_data(folder, data, contents))
    try:
        _write_header(folder, header)
    except BaseException:
        if (folder / HEADER).read_bytes() != header.encode():
            shutil.rmtree(folder / data)
        raise
    _sweep(folder, data, beside)


def check_index_free(folder: Path, *, overwrite: bool) -> None:
    """Raise now what `write_index` would raise after all texts are read.

    Raises:
        OutputExists: The folder is there and ``overwrite`` is false, or it holds something else than an index.
        InvalidInput: It is no index, and the current folder, one above it or a mount point.
    """
    if (folder / HEADER).is_file():
        # Its files are replaced one by one, so it may lie where no folder can be.
        if not overwrite:
            raise OutputExists(
                f"the search index {str(folder)!r} already exists. "
                "Choose another path, or ask for it to be overwritten."
            )
        return
    check_folder_free(folder, overwrite=overwrite)
    if folder.is_dir() and any(folder.iterdir()):
        # Replacing a folder deletes what is in it, which nobody means for a folder of other things.
        raise OutputExists(f"{str(folder)!r} is not a search index, so it is not replaced. Choose another folder.")


def read_index(folder: Path) -> IndexContents:
    """Read an index folder, after checking every byte of it against its checksums.

    Raises:
        UnknownModel: There is no such folder, or it is no search index.
        CorruptCheckpoint: A file is missing, altered or truncated, or of a format version that is not known.
        MissingDependency: bm25s or PyStemmer is not installed.
    """
    while True:
        header = read_header(folder)
        try:
            return _read_contents(folder, header)
        except (CorruptCheckpoint, FileNotFoundError):
            # Another process may have replaced the index between two of these files: then there is a new header.
            if read_header(folder) == header:
                raise


@contextmanager
def updating(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Let no other process update the index from reading it to saving it; one that tries is refused.

    Without this, of two updates at the same time the later one would undo the earlier.

    Raises:
        InvalidInput: Another process is updating the index.
        UnknownModel: There is no index.
    """
    read_header(Path(folder))
    with locked(folder):
        yield


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Let no other process update the index in this folder, nor replace it.

    Raises:
        InvalidInput: Another process is updating the index.
    """
    with held(folder, f"another process is updating the index {str(folder)!r}. Wait until it is done."):
        yield


def _write_data(folder: Path, data: str, contents: IndexContents) -> Header:
    """Write the data folder, and return the header that makes it the index's."""
    with new_folder(folder / data) as unfinished:
        np.save(unfinished / VECTORS, written_whole(contents.vectors_ND), allow_pickle=False)
        _write_records(unfinished / RECORDS, contents)
        lexical = contents.lexical or LexicalIndex.build(contents.texts, contents.language)
        lexical.save(unfinished / LEXICAL)
        files = {
            path.relative_to(unfinished).as_posix(): sha256_of(path)
            for path in sorted(unfinished.rglob("*"))
            if path.is_file()
        }
    return Header(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        metric=METRIC,
        count=len(contents.ids),
        dimensions=contents.vectors_ND.shape[1],
        encoder=contents.encoder,
        fields=tuple(contents.columns),
        language=contents.language,
        data=data,
        files=files,
    )


def _write_header(folder: Path, header: str) -> None:
    with new_file(folder / HEADER) as stream:
        stream.write(header)


def _files_beside_header(folder: Path) -> list[Path]:
    """Those of an index of format version 1, which has no data folder."""
    try:
        header = read_header(folder)
    except CorruptCheckpoint:
        return []  # whose it is, nobody can say
    return [folder / name for name in header.files] if header.data == "." else []


def _is_data(path: Path) -> bool:
    """Return whether this is a data folder, or an unfinished one, and not somebody's own that has such a name."""
    ours = {VECTORS, RECORDS, LEXICAL}
    return bool(_DATA.fullmatch(path.name)) and path.is_dir() and {each.name for each in path.iterdir()} <= ours


def _sweep(folder: Path, keep: str, beside: list[Path]) -> None:
    """Remove what the index no longer consists of, and nothing else that lies in its folder."""
    for path in folder.iterdir():
        if path.name != keep and _is_data(path):
            # Windows keeps files that are still mapped: those go with the next update.
            shutil.rmtree(path, ignore_errors=True)
        elif path in beside or _UNFINISHED_HEADER.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _read_contents(folder: Path, header: Header) -> IndexContents:
    data = folder / header.data
    lexical_files = [f"{LEXICAL}/{name}" for name in FILES] if header.format_version > 1 else []
    if not {VECTORS, RECORDS, *lexical_files} <= header.files.keys():
        raise corrupt(folder / HEADER, "it does not list the files of an index with their SHA-256")
    for name, sha256 in header.files.items():
        if not (data / name).is_file():
            raise CorruptCheckpoint(f"the search index {str(folder)!r} lacks its file {name!r}. Build it again.")
        if sha256_of(data / name) != sha256:
            raise corrupt(data / name, "its SHA-256 is not the one that was written")
    vectors_ND = _read_vectors(data / VECTORS, (header.count, header.dimensions))
    ids, texts, columns = _read_records(data / RECORDS, header)
    lexical = _read_lexical(data / LEXICAL, header) if _has_our_terms(header, texts) else None
    return IndexContents(vectors_ND, ids, texts, header.encoder, columns, header.language, lexical)


def _write_records(path: Path, contents: IndexContents) -> None:
    rows = zip(*contents.columns.values(), strict=True) if contents.columns else ((),) * len(contents.ids)
    with path.open("w", encoding="utf-8", newline="") as stream:
        for id_, text, values in zip(contents.ids, contents.texts, rows, strict=True):
            record = {"id": id_, "text": text, "fields": dict(zip(contents.columns, values, strict=True))}
            stream.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")


def _read_vectors(path: Path, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    try:
        vectors_ND = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OverflowError, *_NO_HEADER) as error:
        raise corrupt(path, "it is not an array file") from error
    if vectors_ND.shape != shape or vectors_ND.dtype != np.float32:
        raise corrupt(path, f"expected float32 of shape {shape}, got {vectors_ND.dtype} of shape {vectors_ND.shape}")
    checked: npt.NDArray[np.float32] = vectors_ND
    for start in range(0, len(checked), _BLOCK):
        if not np.isfinite(checked[start : start + _BLOCK]).all():
            raise corrupt(path, "a vector has numbers that are infinite or NaN")
    return checked


def _read_records(
    path: Path, header: Header
) -> tuple[tuple[str, ...], tuple[str, ...], Mapping[str, tuple[Scalar, ...]]]:
    ids: list[str] = []
    texts: list[str] = []
    columns: dict[str, list[Scalar]] = {name: [] for name in header.fields}
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                record = json.loads(line)
                ids.append(record["id"])
                texts.append(record["text"])
                for name, column in columns.items():
                    column.append(_scalar(record["fields"][name]))
                if not (isinstance(record["id"], str) and isinstance(record["text"], str)):
                    raise TypeError("no strings")
                if b"\\u" in line:
                    f"{ids[-1]}{texts[-1]}".encode()  # an escape may stand for half of a surrogate pair
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise corrupt(path, f"line {number} is not a record with an id, a text and fields") from error
    count = header.count
    if len(ids) != count or len(set(ids)) != count:
        raise corrupt(path, f"expected {count} records with ids of their own, got {len(set(ids))}")
    return tuple(ids), tuple(texts), {name: tuple(column) for name, column in columns.items()}


def _scalar(value: object) -> Scalar:
    """Return a value that a field can have and that is written as JSON again.

    Raises:
        ValueError: It is another.
    """
    if isinstance(value, str | bool | None):
        return value
    if isinstance(value, int | float) and abs(value) < math.inf and abs(value) < 10**300:
        return value
    raise ValueError("no value of a field")


def _has_our_terms(header: Header, texts: tuple[str, ...]) -> bool:
    """Return whether what was prepared for lexical search has the terms that queries have.

    Otherwise it is made anew.
    """
    if header.format_version > 3:
        return True
    # Of ASCII the terms were the same before.
    return header.format_version > 1 and all(map(str.isascii, texts))


def _read_lexical(folder: Path, header: Header) -> LexicalIndex:
    try:
        lexical = LexicalIndex.load(folder, header.language)
    except (
        *(ValueError, EOFError, KeyError, TypeError, AttributeError, RecursionError, FileNotFoundError),
        *_NO_HEADER,
    ) as error:
        raise corrupt(folder, f"this release of bm25s does not read it ({error})") from error
    if len(lexical) != header.count:
        raise corrupt(folder, f"expected {header.count} rows, got {len(lexical)}")
    return lexical
