"""A search index as a folder: replaced whole or not at all, verified before it is used.

::

    index.json                format version, sizes, the encoder with its prompts, the data folder, SHA-256 of its files
    data-3/vectors.npy        float32, memory-mapped when read
    data-3/records.jsonl      one object with ``id``, ``text`` and ``fields`` per row
    data-3/lexical/           BM25 over the texts, as bm25s writes it

An update writes a new data folder beside the old one and then replaces ``index.json``, in one step on every system, so
that a process killed at any moment leaves the old index or the new one. The next update removes any leftovers.

Letters in names: N rows, D dimensions.
"""

import hashlib
import json
import math
import os
import re
import shutil
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bothways.checkpoints.files import sha256_of
from bothways.errors import CorruptCheckpoint, UnknownModel
from bothways.reading import did_you_mean_path, parse_json, read_bytes
from bothways.retrieval.contents import INDEXED, EncoderIdentity, IndexContents, SourceColumns
from bothways.retrieval.lexical import FILES, LexicalIndex, written_whole
from bothways.retrieval.ranking import Scalar
from bothways.storage import FolderKind, already_there, check_folder_free, held, new_file, new_folder, remove_leftovers
from bothways.tasks.embedding.representation import DenseVectors

FORMAT = "bothways search index"
FORMAT_VERSION = 6
# Version 5 recorded neither prompts nor a similarity: it had no prompts and always the cosine.
READ_VERSIONS = (5, FORMAT_VERSION)
HEADER = "index.json"
VECTORS = "vectors.npy"
RECORDS = "records.jsonl"
LEXICAL = "lexical"

# NumPy raises these errors if the header of an array file is not a Python expression.
_NO_HEADER = (SyntaxError, tokenize.TokenError)

_VECTORS_AT_ONCE = 4096
_DATA = re.compile(r"data-(\d+)")


class Header(BaseModel):
    """The fields of ``index.json`` except the checksum over all of them."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: str
    format_version: int
    metric: str
    count: int = Field(ge=1)
    dimensions: int = Field(ge=1)
    encoder: EncoderIdentity
    fields: tuple[str, ...]
    language: str | None
    data: str
    files: dict[str, str]
    notes: tuple[str, ...] = ()  # for people who read the file; they follow from the other fields
    source: SourceColumns | None = None


def write_index(folder: Path, contents: IndexContents[DenseVectors], *, overwrite: bool) -> None:
    """Write the index folder; an existing index stays until the new one is complete."""
    check_index_free(folder, overwrite=overwrite)
    if not (folder / HEADER).is_file():
        with new_folder(folder) as unfinished:
            _write_header(unfinished, _header_text(_write_data(unfinished, "data-1", contents)))
        return
    remove_leftovers(folder, r"data-\d+")
    numbers = [int(found[1]) for path in folder.iterdir() if (found := _DATA.fullmatch(path.name))]
    data = f"data-{max(numbers, default=0) + 1}"
    header = _header_text(_write_data(folder, data, contents))
    try:
        _write_header(folder, header)
    except BaseException:
        if (folder / HEADER).read_bytes() != header.encode():
            shutil.rmtree(folder / data)
        raise
    for path in folder.iterdir():
        if path.name != data and _is_data(path):
            # Windows keeps files that are still mapped; the next update removes them.
            shutil.rmtree(path, ignore_errors=True)


def check_index_free(folder: Path, *, overwrite: bool) -> None:
    """Raise the errors that `write_index` would raise for an output folder, before any text is read.

    Raises:
        OutputExists: The folder exists and ``overwrite`` is false, or it holds something other than an index.
        InvalidInput: The folder holds no index, and is a mount point, the current folder or a parent of it.
    """
    if (folder / HEADER).is_file():
        # An index is updated in place, so its folder may be one that cannot be replaced, such as a mount point.
        if not overwrite:
            raise already_there(folder, "the search index")
        return
    check_folder_free(folder, overwrite=overwrite, kind=FolderKind("a search index", frozenset({HEADER})))


def read_index(folder: Path) -> IndexContents[DenseVectors]:
    """Read an index folder, after verifying the checksums of all its files."""
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
    """Lock an index against other processes while this one reads, changes and saves it.

    Without the lock, the later of two concurrent updates would undo the earlier one.

    Raises:
        InvalidInput: Another process is updating the index.
        UnknownModel: The folder does not exist, or is not a search index.
    """
    read_header(Path(folder))
    with locked(folder):
        yield


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Lock an index against updates and replacement by other processes.

    Raises:
        InvalidInput: Another process is updating the index.
    """
    with held(folder, f"another process is updating the index {str(folder)!r}. Wait until it is done."):
        yield


def read_header(folder: Path) -> Header:
    """Read and check ``index.json`` of this folder."""
    path = folder / HEADER
    if not folder.is_dir():
        near = did_you_mean_path(folder)
        raise UnknownModel(
            f"there is no search index folder {str(folder)!r}.{near} Check the path, or build the index."
        )
    if not path.is_file():
        raise UnknownModel(f"{str(folder)!r} is not a search index: it has no {HEADER!r}. Name an index folder.")
    try:
        fields = parse_json(read_bytes(path))
    except ValueError as error:
        raise _corrupt(path, "it is not valid JSON") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise _corrupt(path, f"its format is not {FORMAT!r}")
    version = fields.get("format_version")
    if version not in READ_VERSIONS:
        raise CorruptCheckpoint(
            f"{str(path)!r} has format version {version!r}; this release reads the versions "
            f"{' and '.join(map(str, READ_VERSIONS))}. Build the index again."
        )
    if fields.pop("checksum", None) != header_checksum(fields):
        raise _corrupt(path, "its checksum does not match its fields")
    try:
        header = Header.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise _corrupt(path, f"its fields are not those of format version {version}") from error
    if len(set(header.fields)) < len(header.fields):
        raise _corrupt(path, "it names a field twice")
    encoder = header.encoder
    if header.metric not in INDEXED or (header.metric, header.dimensions) != (encoder.similarity, encoder.dimensions):
        raise _corrupt(
            path, f"its metric is not {' or '.join(INDEXED)}, or metric and dimensions are not the encoder's"
        )
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in (header.data, *header.files)):
        raise _corrupt(path, "it names files outside of the index")
    return header


def header_checksum(fields: Mapping[str, object]) -> str:
    """Return the SHA-256 of the fields, which does not depend on the file's layout."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _header_text(header: Header) -> str:
    # Earlier versions, which refuse unknown fields, read an index without these.
    fields = header.model_dump(mode="json")
    if header.source is None:
        del fields["source"]
    elif not header.source.files:
        del fields["source"]["files"]
    return json.dumps({**fields, "checksum": header_checksum(fields)}, ensure_ascii=False, indent=2) + "\n"


def _write_header(folder: Path, header: str) -> None:
    with new_file(folder / HEADER) as stream:
        stream.write(header)


def _write_data(folder: Path, data: str, contents: IndexContents[DenseVectors]) -> Header:
    """Write the data folder, and return the header that makes it part of the index."""
    with new_folder(folder / data) as unfinished:
        np.save(unfinished / VECTORS, written_whole(contents.documents.vectors_ND), allow_pickle=False)
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
        metric=contents.encoder.similarity,
        count=len(contents.ids),
        dimensions=contents.documents.dimensions,
        encoder=contents.encoder,
        fields=tuple(contents.columns),
        language=contents.language,
        data=data,
        files=files,
        notes=contents.encoder.notes(),
        source=contents.source,
    )


def _is_data(path: Path) -> bool:
    """Return True for a data folder of an index, False for another folder with such a name."""
    ours = {VECTORS, RECORDS, LEXICAL}
    return bool(_DATA.fullmatch(path.name)) and path.is_dir() and {each.name for each in path.iterdir()} <= ours


def _read_contents(folder: Path, header: Header) -> IndexContents[DenseVectors]:
    data = folder / header.data
    if not {VECTORS, RECORDS, *(f"{LEXICAL}/{name}" for name in FILES)} <= header.files.keys():
        raise _corrupt(folder / HEADER, "it does not list the files of an index with their SHA-256")
    for name, sha256 in header.files.items():
        if not (data / name).is_file():
            raise CorruptCheckpoint(f"the search index {str(folder)!r} lacks its file {name!r}. Build it again.")
        if sha256_of(data / name) != sha256:
            raise _corrupt(data / name, f"its SHA-256 is not the one in {HEADER}")
    documents = _read_vectors(data / VECTORS, (header.count, header.dimensions))
    ids, texts, columns = _read_records(data / RECORDS, header)
    lexical = _read_lexical(data / LEXICAL, header)
    return IndexContents(documents, ids, texts, header.encoder, columns, header.language, lexical, header.source)


def _write_records(path: Path, contents: IndexContents[DenseVectors]) -> None:
    rows = zip(*contents.columns.values(), strict=True) if contents.columns else ((),) * len(contents.ids)
    with path.open("w", encoding="utf-8", newline="") as stream:
        for id_, text, values in zip(contents.ids, contents.texts, rows, strict=True):
            record = {"id": id_, "text": text, "fields": dict(zip(contents.columns, values, strict=True))}
            stream.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")


def _read_vectors(path: Path, shape: tuple[int, int]) -> DenseVectors:
    try:
        vectors_ND = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OverflowError, *_NO_HEADER) as error:
        raise _corrupt(path, "it is not an array file") from error
    if vectors_ND.shape != shape or vectors_ND.dtype != np.float32:
        raise _corrupt(path, f"expected float32 of shape {shape}, got {vectors_ND.dtype} of shape {vectors_ND.shape}")
    for start in range(0, len(vectors_ND), _VECTORS_AT_ONCE):
        if not np.isfinite(vectors_ND[start : start + _VECTORS_AT_ONCE]).all():
            raise _corrupt(path, "a vector has numbers that are infinite or NaN")
    return DenseVectors(vectors_ND)


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
                raise _corrupt(path, f"line {number} is not a record with an id, a text and fields") from error
    count = header.count
    if len(ids) != count or len(set(ids)) != count:
        raise _corrupt(path, f"expected {count} records with different ids, got {len(set(ids))}")
    return tuple(ids), tuple(texts), {name: tuple(column) for name, column in columns.items()}


def _scalar(value: object) -> Scalar:
    """Return ``value`` if a field can have it and it can be written as JSON; else raise ValueError."""
    if isinstance(value, str | bool | None):
        return value
    if isinstance(value, int | float) and abs(value) < math.inf and abs(value) < 10**300:
        return value
    raise ValueError("no value of a field")


def _read_lexical(folder: Path, header: Header) -> LexicalIndex:
    try:
        lexical = LexicalIndex.load(folder, header.language)
    except (
        *(ValueError, EOFError, KeyError, TypeError, AttributeError, RecursionError, FileNotFoundError),
        *_NO_HEADER,
    ) as error:
        raise _corrupt(folder, f"this release of bm25s does not read it ({error})") from error
    if len(lexical) != header.count:
        raise _corrupt(folder, f"expected {header.count} rows, got {len(lexical)}")
    return lexical


def _corrupt(path: Path, problem: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"{str(path)!r} is damaged: {problem}. Build the index again, or fetch it again.")
