"""The manifest of a job: what is computed, from which files, and the blocks that are done.

``job.json`` has the work and the output, ``inputs.jsonl`` the files with their cuts, and ``manifest/`` the records of
finished blocks in segments of up to 1,000: a job of a million blocks has a thousand of them. A segment is replaced
whole, so that a process that is killed at any moment leaves a manifest that can be read.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import starmap
from typing import NamedTuple

from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.jobs import files
from bothways.jobs.blocks import InputFile, count_of
from bothways.jobs.files import FileState, joined
from bothways.lazy import uncollected

FORMAT, FORMAT_VERSION = "bothways job", 1
HEADER, INPUTS, SEGMENTS, PARTS = "job.json", "inputs.jsonl", "manifest", "parts"
# The ids of the rows of an array lie beside it.
IDS = ".ids.jsonl"
# Blocks of a segment, and its bytes if many rows are rejected.
_SEGMENT, _SEGMENT_SIZE = 1_000, 2**20


class BlockRecord(NamedTuple):
    """A finished block.

    Attributes:
        number: Its number.
        rows: Rows of its output.
        size: Bytes of its output file; 0 if there is none, since no row was left.
        sha256: Checksum of that file.
        seconds: Seconds of its computation.
        ended: Time when it was entered, in seconds of the epoch.
        rejected: Lines (in the block) and reasons of the rows that were rejected.
        ids: Bytes of the file of the rows' ids; 0 if there is none.
    """

    number: int
    rows: int
    size: int
    sha256: str
    seconds: float
    ended: float
    rejected: Sequence[tuple[int | None, str]]
    ids: int = 0


@dataclass(frozen=True, slots=True)
class JobHeader:
    """The work and the output of a job as JSON values, and its input in short."""

    work: Mapping[str, object]
    output: Mapping[str, object]
    input_files: int
    blocks: int
    inputs_sha256: str

    @property
    def digest(self) -> str:
        """A digest that no other job has."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def check_same(self, asked: "JobHeader", folder: str, inputs: Sequence[InputFile]) -> None:
        """Raise InvalidInput unless ``asked`` is the same work on the same data, ``inputs``."""
        differences = [
            f"{name} was {_short(before)} and is now {_short(now)}"
            for kind in ("work", "output")
            for name, before, now in _different(getattr(self, kind), getattr(asked, kind))
        ]
        if self.inputs_sha256 != asked.inputs_sha256:
            before, now = (f"{each.input_files:,} files in {each.blocks:,} blocks" for each in (self, asked))
            known = {file.state for file in read_inputs(folder, self)}
            changed = [file.state.url for file in inputs if file.state not in known]
            if changed or self.input_files != asked.input_files or not differences:
                counts = f" ({before} before, {now} now)" if before != now else ""
                differences.append(f"the data{f' {changed[0]!r}' if changed else ''} has changed{counts}")
        if differences:
            raise InvalidInput(
                f"{folder!r} holds another job: {'; '.join(differences)}. Give the arguments of that job to go on with "
                "it, or another output folder."
            )


def _different(ours: Mapping[str, object], theirs: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    for name in dict.fromkeys((*ours, *theirs)):
        if ours.get(name) != theirs.get(name):
            yield name, ours.get(name), theirs.get(name)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 60 else f"{text[:57]}..."


def header_of(work: Mapping[str, object], output: Mapping[str, object], inputs: Sequence[InputFile]) -> JobHeader:
    """Return the header of a job; values become what JSON makes of them."""
    digest = hashlib.sha256(_lines_of(inputs)).hexdigest()
    plain_work, plain_output = json.loads(json.dumps([work, output]))
    return JobHeader(plain_work, plain_output, len(inputs), count_of(inputs), digest)


class JobManifest:
    """The records of a job's finished blocks, in memory and in its output folder.

    Attributes:
        records: The records by the numbers of their blocks.
        rejected: Number of rejected rows.
    """

    def __init__(
        self,
        folder: str,
        header: JobHeader,
        inputs: Sequence[InputFile],
        records: Sequence[BlockRecord],
        segments: int = 0,
    ) -> None:
        self.folder = folder
        self.header = header
        self.inputs = inputs
        self.records = {record.number: record for record in records}
        self.rejected = sum(len(each.rejected) for each in self.records.values() if each.rejected)
        self._segments, self._lines, self._size = segments, list[str](), 0

    @classmethod
    def create(cls, folder: str, header: JobHeader, inputs: Sequence[InputFile]) -> "JobManifest":
        """Begin a manifest; the header comes last, so that a folder with one is complete."""
        files.write(joined(folder, INPUTS), _lines_of(inputs))
        known = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(header), "begun": time.time()}
        files.write(joined(folder, HEADER), json.dumps(known, indent=2).encode() + b"\n")
        return cls(folder, header, inputs, [])

    @classmethod
    def open(cls, folder: str) -> "JobManifest":
        """Read the manifest of a job.

        Raises:
            InvalidInput: The folder holds no job.
            CorruptCheckpoint: A file of it is damaged, or of another version.
        """
        header = read_header(folder)
        if header is None:
            raise InvalidInput(f"{folder!r} holds no job: it has no {HEADER}. Name the --output-dir of one.")
        inputs = read_inputs(folder, header)
        segments = files.read_all(joined(folder, SEGMENTS), ".jsonl")
        with _damage(folder, SEGMENTS), uncollected():
            # One array of all lines, which JSON reads at once.
            lines = b",".join(each.rstrip().replace(b"\n", b",") for each in segments.values() if each)
            records = [*starmap(BlockRecord, json.loads(b"[" + lines + b"]"))]
            numbers = {each.number for each in records}
            if numbers and not 0 <= min(numbers) <= max(numbers) < header.blocks:
                raise _damaged(folder, SEGMENTS)
            number = 1 + max((int(name.partition(".")[0]) for name in segments), default=-1)
        return cls(folder, header, inputs, records, number)

    def enter(self, records: Sequence[BlockRecord]) -> None:
        """Enter finished blocks, and write the segments that they are in."""
        for record in records:
            self.records[record.number] = record
            self.rejected += len(record.rejected)
            self._lines.append(json.dumps(record) + "\n")
            self._size += len(self._lines[-1])
            if len(self._lines) == _SEGMENT or self._size > _SEGMENT_SIZE:
                self._write()
                self._segments, self._lines, self._size = self._segments + 1, [], 0
        if self._lines:
            self._write()

    def _write(self) -> None:
        url = joined(self.folder, SEGMENTS, f"{self._segments:06d}.jsonl")
        files.write(url, "".join(self._lines).encode())

    def without_lost(self, suffix: str) -> "JobManifest":
        """Return the manifest without blocks whose output file is not there any more, or has another size."""
        sizes = files.sizes(joined(self.folder, PARTS))
        lost = {
            number
            for number, record in self.records.items()
            if record.size
            and (sizes.get(part_name(number, suffix)), sizes.get(part_name(number, suffix) + IDS, 0))
            != (record.size, record.ids)
        }
        if not lost:
            return self
        kept = [record for number, record in self.records.items() if number not in lost]
        fresh = JobManifest(self.folder, self.header, self.inputs, [], self._segments)
        fresh.enter(kept)
        # The old ones go last: a process that is killed here finds the lost blocks again.
        for number in range(self._segments):
            files.remove(joined(self.folder, SEGMENTS, f"{number:06d}.jsonl"))
        return fresh

    @property
    def in_order(self) -> list[BlockRecord]:
        """The records in the order of the blocks."""
        return [self.records[number] for number in sorted(self.records)]

    def checksum(self) -> str:
        """Return the SHA-256 over the checksums of all output files in order."""
        return hashlib.sha256("\n".join(each.sha256 for each in self.in_order).encode()).hexdigest()


def part_name(number: int, suffix: str) -> str:
    """Return the name of the output file of a block.

    >>> part_name(12, ".npy")
    'part-0000012.npy'
    """
    return f"part-{number:07d}{suffix}"


def read_header(folder: str) -> JobHeader | None:
    """Return the header of the job in a folder, or None if there is none."""
    content = files.read(joined(folder, HEADER))
    if content is None:
        return None
    with _damage(folder, HEADER):
        known = json.loads(content)
        kind, version = known.pop("format", None), known.pop("format_version", None)
        known.pop("begun", None)
        if (kind, version) == (FORMAT, FORMAT_VERSION):
            return JobHeader(**known)
    raise CorruptCheckpoint(
        f"{joined(folder, HEADER)!r} is of format {kind!r}, version {version!r}; this release reads {FORMAT!r}, "
        f"version {FORMAT_VERSION}. Choose another output folder."
    )


def read_inputs(folder: str, header: JobHeader) -> list[InputFile]:
    """Return the files of a job with their cuts.

    Raises:
        CorruptCheckpoint: The list of files is damaged.
    """
    content = files.read(joined(folder, INPUTS)) or b""
    with _damage(folder, INPUTS):
        inputs = [_input_file(line) for line in content.splitlines()]
    if hashlib.sha256(content).hexdigest() != header.inputs_sha256:
        raise _damaged(folder, INPUTS)
    return inputs


def _lines_of(inputs: Sequence[InputFile]) -> bytes:
    return "".join(
        json.dumps(asdict(file) | {"header": file.header.decode("latin-1")}) + "\n" for file in inputs
    ).encode()


def _input_file(line: bytes) -> InputFile:
    known = json.loads(line)
    state, cuts, header = FileState(**known.pop("state")), tuple(known.pop("cuts")), known.pop("header")
    return InputFile(state=state, cuts=cuts, header=header.encode("latin-1"), **known)


@contextmanager
def _damage(folder: str, name: str) -> Iterator[None]:
    """Turn errors of reading a file into CorruptCheckpoint."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise _damaged(folder, name) from error


def _damaged(folder: str, name: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"{joined(folder, name)!r} is damaged. Restore it, or begin again in another output folder."
    )
