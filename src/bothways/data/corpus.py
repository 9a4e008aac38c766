"""Raw text for pre-training: documents from files and folders, as a stream.

Each row of a table or of JSON Lines is a document. In plain text an empty line ends a document, and the other lines are
its paragraphs; in a file without empty lines, each line is a document.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from bothways.choices import Format
from bothways.data.columns import Row, text_at
from bothways.data.formats import guess_format, has_format
from bothways.data.sources import read_rows
from bothways.errors import EmptyInput, InvalidInput
from bothways.text.characters import VISIBLE

# If there is no empty line among the first lines, up to this number, each line is a document.
_MAX_LINES = 10_000


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus: its text, one paragraph per line, and the line or row where it begins, for messages."""

    text: str
    where: str


def corpus_files(paths: Sequence[str | Path]) -> Iterator[Path]:
    """Yield the files of a corpus in a fixed order: paths as given, files in folders (at any depth) sorted by name.

    In folders, files whose name begins with a dot and files of unknown formats are skipped.

    Raises:
        InvalidInput: A path does not exist, or there is no file at all.
    """
    found = False
    for path in map(Path, paths):
        if not path.exists():
            raise InvalidInput(f"expected a file or a folder of texts, but there is none at {str(path)!r}.")
        for file in _files(path) if path.is_dir() else (path,):
            found = True
            yield file
    if not found:
        raise InvalidInput(
            f"there is no file of text in {', '.join(map(repr, map(str, paths)))}: expected names that end in .txt, "
            ".jsonl, .json, .csv, .tsv, .conll (also followed by .gz), .parquet or .xlsx."
        )


def read_documents(
    path: Path,
    *,
    text: str | tuple[str, ...] = "text",
    format: Format | None = None,  # noqa: A002 (the option's name)
    encoding: str | None = None,
) -> Iterator[Document]:
    """Yield the documents of a file, skipping empty ones; several columns of ``text`` are joined by a space.

    Raises:
        InvalidInput: The file cannot be read, or a row has no usable text; the message says where.
        MissingDependency: The file is in the Parquet format, and pyarrow is not installed.
    """
    chosen = format or guess_format(path.name)
    if path.stat().st_size == 0:
        return
    columns = (text,) if isinstance(text, str) else text
    rows = read_rows(path, format=format, encoding=encoding, columns=columns)
    if chosen == "txt":
        yield from _documents_of_lines(rows)
        return
    for row in rows:
        try:
            yield Document(text_at(row, text), row.where)
        except EmptyInput:
            continue


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, then those of its subfolders."""
    with os.scandir(folder) as entries:
        named = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    for name, is_folder in named:
        if not is_folder and has_format(name):
            yield folder / name
    for name, is_folder in named:
        if is_folder:
            yield from _files(folder / name)


def _documents_of_lines(rows: Iterator[Row]) -> Iterator[Document]:
    first = list(islice(rows, _MAX_LINES))
    parted = any(not str(row.values["text"]).strip() for row in first)
    paragraphs: list[str] = []
    begin = ""
    for row in chain(first, rows):
        line = str(row.values["text"]).strip()
        if VISIBLE.search(line):
            begin = begin if paragraphs else row.where
            paragraphs.append(line)
        if paragraphs and not (line and parted):
            yield Document("\n".join(paragraphs), begin)
            paragraphs = []
    if paragraphs:
        yield Document("\n".join(paragraphs), begin)
