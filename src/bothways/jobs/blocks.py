"""Blocks of the input of a job: the unit of retry and of output.

A file of lines is cut after so many bytes: a block has the lines that begin in its range. A file of records with
quotes (.csv, .tsv) is read once and cut between two records, a Parquet file after so many rows. Other files, and
compressed ones, are one block each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Literal

from bothways.choices import Format
from bothways.data.columns import Row
from bothways.data.formats import (
    FileSettings,
    guess_format,
    row_group_sizes,
    texts_not_words,
)
from bothways.data.lines import GZIP_MAGIC
from bothways.errors import InvalidInput
from bothways.jobs.cutting import header_of, is_like_ascii, lines_of, records, text_of
from bothways.jobs.files import FileState, opened

Unit = Literal["lines", "records", "rows", "whole"]

# Sizes of blocks where none is given: enough blocks for workers to share, and none so small that it costs.
LEAST_BYTES, BLOCK_BYTES = 2**16, 2**20
LEAST_ROWS, BLOCK_ROWS = 500, 10_000
_BLOCKS = 256
# Encodings whose line ends are those of ASCII.
LINES: dict[Format, Unit] = {"jsonl": "lines", "txt": "lines", "csv": "records", "tsv": "records"}


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the input: how it is read, and where it is cut.

    Attributes:
        state: The file as it was when the job began.
        format: Its format.
        encoding: The encoding of a file of text; None for UTF-8.
        unit: What its blocks consist of.
        cuts: The begin of each block and the end of the last one, in bytes or rows.
        header: The lines above the records, as they are put before those of each block.
    """

    state: FileState
    format: Format
    encoding: str | None
    unit: Unit
    cuts: tuple[int, ...]
    header: bytes = b""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a file: lines that begin from byte ``start`` to ``end``, records between them, or rows."""

    number: int
    file: InputFile
    start: int
    end: int


def plan(states: Sequence[FileState], settings: FileSettings, block_bytes: int | None = None) -> Iterator[InputFile]:
    """Yield the files of the input with their cuts; by default in blocks whose size follows from that of all files.

    Raises:
        InvalidInput: The format of a file cannot be told by its name, or a file cannot be read.
    """
    if block_bytes is None:
        block_bytes = min(BLOCK_BYTES, max(LEAST_BYTES, sum(state.size for state in states) // _BLOCKS))
    for state in states:
        format_ = format_of(state, settings)
        whole = InputFile(state, format_, settings["encoding"], "whole", (0, max(state.size, 1)))
        unit = LINES.get(format_)
        if format_ == "parquet":
            yield _of_rows(whole)
        elif unit is None or not _is_plain(whole):
            yield whole
        elif unit == "lines":
            if format_ == "txt" and settings["format"] is None:
                _check_texts(state.url)
            yield replace(whole, unit=unit, cuts=(*range(0, state.size, block_bytes), max(state.size, 1)))
        else:
            yield _of_records(whole, block_bytes)


def format_of(state: FileState, settings: FileSettings) -> Format:
    """Return the format of a file: the given one, or that of its name."""
    return settings["format"] or guess_format(state.url.rpartition("/")[2])


def _check_texts(url: str) -> None:
    """Raise InvalidInput for a .txt file of words and tags, as `read_rows` does."""
    with opened(url) as stream:
        head = [text_of(line).rstrip("\r\n") for line in islice(lines_of(stream), 20)]
    rows = (Row(number, {"text": line}, "a line") for number, line in enumerate(head, start=1))
    next(texts_not_words(rows, repr(url)), None)


def blocks_of(files: Iterable[InputFile]) -> Iterator[Block]:
    """Yield the blocks of files, numbered from 0."""
    number = 0
    for file in files:
        uncut = replace(file, cuts=())
        for start, end in zip(file.cuts, file.cuts[1:], strict=False):
            yield Block(number, uncut, start, end)
            number += 1


def count_of(files: Iterable[InputFile]) -> int:
    """Return the number of blocks of files."""
    return sum(max(0, len(file.cuts) - 1) for file in files)


def _is_plain(file: InputFile) -> bool:
    """Return True for a file that can be cut at its bytes: not compressed, with the line ends of ASCII."""
    if not is_like_ascii(file.encoding):
        return False
    with opened(file.state.url) as stream:
        return stream.read(2) != GZIP_MAGIC


def _of_rows(file: InputFile) -> InputFile:
    """Cut a Parquet file; one that is damaged is a block whose rows are rejected when it is read."""
    try:
        with opened(file.state.url) as stream:
            groups = row_group_sizes(stream, repr(file.state.url))
    except InvalidInput:
        return file
    cuts, total = [0], sum(groups)
    most = min(BLOCK_ROWS, max(LEAST_ROWS, total // _BLOCKS))
    for end in accumulate(groups):
        # Small groups are read together, large ones in parts.
        while end - cuts[-1] > most:
            cuts.append(cuts[-1] + most)
    cuts += [total] if cuts[-1] < total or total == 0 else []
    return replace(file, unit="rows", cuts=tuple(cuts))


def _of_records(file: InputFile, block_bytes: int) -> InputFile:
    with opened(file.state.url) as stream:
        found = header_of(stream, file.format)
        if found is None:
            return file
        cuts = [place := stream.tell()]
        for _ in records(lines_of(stream), found.separator):
            place = stream.tell()
            if place - cuts[-1] >= block_bytes:
                cuts.append(place)
    cuts += [place] if place > cuts[-1] else []
    return replace(file, unit="records", cuts=tuple(cuts), header=found.above_records(file.format))
