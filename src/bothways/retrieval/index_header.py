"""``index.json``: what a search index is, which model made it, and which files it consists of."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bothways.errors import CorruptCheckpoint, UnknownModel
from bothways.reading import did_you_mean_path, parse_json, read_bytes
from bothways.retrieval.lexical import DEFAULT_LANGUAGE
from bothways.text import Overflow

FORMAT = "bothways search index"
FORMAT_VERSION = 5
METRIC = "cosine"
HEADER = "index.json"

# Version 1 had the files beside the header, no fields, and nothing for lexical search; version 2 did not know the
# encoder's vocabulary, nor how texts were read; version 3 cut words at their marks and at unseen characters;
# version 4 did not know the precision.
_SINCE_VERSION_1: dict[str, object] = {"fields": [], "language": DEFAULT_LANGUAGE, "data": "."}


@dataclass(frozen=True, slots=True)
class IndexTextOptions:
    """Options that texts were read with when they were embedded.

    Attributes:
        max_length: Most tokens in a window, special ones included.
        on_overflow: What became of longer texts.
        stride: Tokens that neighbouring windows shared; a quarter of a window's room when None.
    """

    max_length: int
    on_overflow: Overflow
    stride: int | None


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """The identity of the encoder that made an index's vectors.

    Attributes:
        name: What the user calls the model; a label only.
        fingerprint: SHA-256 of the model's weights.
        pooling: How token vectors became one vector, in words: ``mean``.
        dimensions: The width of the vectors.
        vocabulary: SHA-256 of its tokens in the order of their ids; None where the index does not know it.
        reading: How texts are read unless something else is said; None where the index does not know it.
        precision: Of the encoder's products, such as ``float32`` or ``int8``; None where the index does not know it.
    """

    name: str
    fingerprint: str
    pooling: str
    dimensions: int
    vocabulary: str | None = None
    reading: IndexTextOptions | None = None
    precision: str | None = None


class Header(BaseModel):
    """The fields of ``index.json``, but for the checksum over all of them."""

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


def header_text(header: Header) -> str:
    """Return the header as it is written, with its checksum."""
    fields = header.model_dump(mode="json")
    return json.dumps({**fields, "checksum": header_checksum(fields)}, ensure_ascii=False, indent=2) + "\n"


def read_header(folder: Path) -> Header:
    """Read and check ``index.json`` of this folder.

    Raises:
        UnknownModel: There is no such folder, or it is no search index.
        CorruptCheckpoint: It is damaged, or of a format version that is not known.
    """
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
        raise corrupt(path, "it is not valid JSON") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise corrupt(path, f"it does not say that it is a {FORMAT!r}")
    version = fields.get("format_version")
    if version not in range(1, FORMAT_VERSION + 1):
        raise CorruptCheckpoint(
            f"{str(path)!r} has format version {version!r}; this release reads versions 1 to {FORMAT_VERSION}. Build "
            "the index again, or use the release that wrote it."
        )
    checksum = fields.pop("checksum", None)
    if checksum != header_checksum(fields):
        raise corrupt(path, "its checksum is not the one that was written")
    return _checked(path, {**_SINCE_VERSION_1, **fields} if version == 1 else fields)


def _checked(path: Path, fields: dict[str, object]) -> Header:
    try:
        header = Header.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise corrupt(path, f"its fields are not those of format version {fields['format_version']}") from error
    if len(set(header.fields)) < len(header.fields):
        raise corrupt(path, "it names a field twice")
    if header.metric != METRIC or header.encoder.dimensions != header.dimensions:
        raise corrupt(path, "its fields contradict one another")
    inside = [header.data, *header.files]
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in inside):
        raise corrupt(path, "it names files outside of the index")
    return header


def header_checksum(fields: dict[str, object]) -> str:
    """SHA-256 over the fields, in an order and a form that do not depend on the file's layout."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def corrupt(path: Path, problem: str) -> CorruptCheckpoint:
    """Return the error for a file of an index that is not what it should be."""
    return CorruptCheckpoint(f"{str(path)!r} is damaged: {problem}. Build the index again, or fetch it again.")
