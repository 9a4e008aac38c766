"""A search index as a folder: written whole or not at all, verified before it is used.

The folder holds ``vectors.npy`` (float32, memory-mapped when read), ``records.jsonl`` (one object with ``id`` and
``text`` a row) and ``index.json`` (format version, sizes, the encoder, SHA-256 of both files and of itself).

Letters in names: N rows, D dimensions.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from bothways.errors import CorruptCheckpoint, OutputExists, UnknownModel
from bothways.storage import check_folder_free, new_folder

FORMAT = "bothways search index"
FORMAT_VERSION = 1
METRIC = "cosine"

HEADER = "index.json"
VECTORS = "vectors.npy"
RECORDS = "records.jsonl"


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """What the vectors of an index were made with.

    Attributes:
        name: What the user calls the model; a label only.
        fingerprint: SHA-256 of the model's weights.
        pooling: How token vectors became one vector, in words: ``mean``.
        dimensions: The width of the vectors.
    """

    name: str
    fingerprint: str
    pooling: str
    dimensions: int


@dataclass(frozen=True, slots=True)
class IndexContents:
    """All that an index holds: unit-length vectors, an id and a text for each, and their encoder."""

    vectors_ND: npt.NDArray[np.float32]
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    encoder: EncoderIdentity


class _Header(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: str
    format_version: int
    metric: str
    count: int
    dimensions: int
    encoder: EncoderIdentity
    files: dict[str, str]


def write_index(folder: Path, contents: IndexContents, *, overwrite: bool) -> None:
    """Write the index folder; an index that was there stays until the new one is complete.

    Raises:
        OutputExists: The folder is there and ``overwrite`` is false, or it holds something else than an index.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    check_folder_free(folder, overwrite=overwrite)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / HEADER).is_file():
        # Replacing a folder deletes what is in it, which nobody means for a folder of other things.
        raise OutputExists(f"{str(folder)!r} is not a search index, so it is not replaced. Choose another folder.")
    with new_folder(folder, overwrite=overwrite) as unfinished:
        np.save(unfinished / VECTORS, contents.vectors_ND, allow_pickle=False)
        _write_records(unfinished / RECORDS, contents)
        header: dict[str, object] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "metric": METRIC,
            "count": len(contents.ids),
            "dimensions": contents.vectors_ND.shape[1],
            "encoder": dataclasses.asdict(contents.encoder),
            "files": {name: _sha256(unfinished / name) for name in (VECTORS, RECORDS)},
        }
        text = json.dumps({**header, "checksum": _header_checksum(header)}, ensure_ascii=False, indent=2)
        (unfinished / HEADER).write_bytes(text.encode() + b"\n")


def read_index(folder: Path) -> IndexContents:
    """Read an index folder, after checking every byte of it against its checksums.

    Raises:
        UnknownModel: There is no such folder, or it is no search index.
        CorruptCheckpoint: A file is missing, altered or truncated, or of a format version that is not known.
    """
    header = _read_header(folder)
    for name in (VECTORS, RECORDS):
        if not (folder / name).is_file():
            raise CorruptCheckpoint(f"the search index {str(folder)!r} lacks its file {name!r}. Build it again.")
        if _sha256(folder / name) != header.files.get(name):
            raise _corrupt(folder / name, "its SHA-256 is not the one that was written")
    vectors_ND = _read_vectors(folder / VECTORS, (header.count, header.dimensions))
    ids, texts = _read_records(folder / RECORDS, header.count)
    return IndexContents(vectors_ND, ids, texts, header.encoder)


def _write_records(path: Path, contents: IndexContents) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        for id_, text in zip(contents.ids, contents.texts, strict=True):
            stream.write(json.dumps({"id": id_, "text": text}, ensure_ascii=False) + "\n")


def _read_header(folder: Path) -> _Header:
    path = folder / HEADER
    if not folder.is_dir():
        raise UnknownModel(f"there is no search index folder {str(folder)!r}. Check the path, or build the index.")
    if not path.is_file():
        raise UnknownModel(f"{str(folder)!r} is not a search index: it has no {HEADER!r}. Name an index folder.")
    try:
        fields = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, "it is not valid JSON") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise _corrupt(path, f"it does not say that it is a {FORMAT!r}")
    if fields.get("format_version") != FORMAT_VERSION:
        raise CorruptCheckpoint(
            f"{str(path)!r} has format version {fields.get('format_version')!r}; this release reads version "
            f"{FORMAT_VERSION}. Build the index again, or use the release that wrote it."
        )
    checksum = fields.pop("checksum", None)
    if checksum != _header_checksum(fields):
        raise _corrupt(path, "its checksum is not the one that was written")
    try:
        header = _Header.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise _corrupt(path, f"its fields are not those of format version {FORMAT_VERSION}") from error
    if header.metric != METRIC or header.encoder.dimensions != header.dimensions:
        raise _corrupt(path, "its fields contradict one another")
    return header


def _read_vectors(path: Path, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    try:
        vectors_ND = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _corrupt(path, "it is not an array file") from error
    if vectors_ND.shape != shape or vectors_ND.dtype != np.float32:
        raise _corrupt(path, f"expected float32 of shape {shape}, got {vectors_ND.dtype} of shape {vectors_ND.shape}")
    checked: npt.NDArray[np.float32] = vectors_ND
    return checked


def _read_records(path: Path, count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ids: list[str] = []
    texts: list[str] = []
    with path.open("rb") as stream:
        for line in stream:
            try:
                record = json.loads(line)
                ids.append(record["id"])
                texts.append(record["text"])
            except (ValueError, KeyError, TypeError) as error:
                raise _corrupt(path, f"line {len(texts) + 1} is not a record with an id and a text") from error
    if len(ids) != count or len(set(ids)) != count or not all(isinstance(value, str) for value in ids + texts):
        raise _corrupt(path, f"expected {count} records with ids of their own, got {len(set(ids))}")
    return tuple(ids), tuple(texts)


def _header_checksum(fields: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _corrupt(path: Path, problem: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"{str(path)!r} is damaged: {problem}. Build the index again, or fetch it again.")
