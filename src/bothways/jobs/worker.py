"""A worker: one process with one model, which reads blocks and writes their output files.

``python -m bothways.jobs`` takes pickled messages on standard input, a `WorkerTask` and then blocks, and answers
each on standard output. Nothing large goes through these pipes.
"""

import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO

from bothways.checkpoints.files import sha256_of
from bothways.data.columns import Row
from bothways.errors import BothwaysError, InvalidInput, OutOfDisk
from bothways.jobs import files
from bothways.jobs.blocks import Block
from bothways.jobs.files import TRIES, joined
from bothways.jobs.manifest import IDS, PARTS, BlockRecord, part_name
from bothways.jobs.outputs import SUFFIXES, JobFormat, PartWriter, check_writable, part_writer
from bothways.jobs.reading import Chunk, Rejected, chunks, reason_of
from bothways.jobs.work import OpenedWork, OutputRow, Work
from bothways.lazy import uncollected


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """A job as its workers see it."""

    work: Work
    folder: str
    format: JobFormat
    job: str = ""  # the digest of the work and the data


@dataclass(frozen=True, slots=True)
class Ready:
    """The answer to a task: the model is open, on a GPU or not."""

    on_gpu: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer if a model cannot be opened, or a block cannot be finished whatever row is left out."""

    error: BothwaysError


def finish_block(task: WorkerTask, opened: OpenedWork, block: Block) -> BlockRecord:
    """Compute a block and write its output file; errors of stores are tried again.

    Raises:
        InvalidInput: The file has changed since the job began, or the output cannot be written.
        OutOfDisk: The disk is full.
    """
    with uncollected():
        for number in range(1, TRIES):
            with suppress(ConnectionError):
                return _finished(task, opened, block)
            time.sleep(2**number / 4)
        return _finished(task, opened, block)


def _finished(task: WorkerTask, opened: OpenedWork, block: Block) -> BlockRecord:
    begun, count = time.monotonic(), 0
    rejected: list[Rejected] = []
    url = joined(task.folder, PARTS, part_name(block.number, SUFFIXES[task.format]))
    # The ids come first: an array without them would be taken for finished.
    with ExitStack() as parts:
        path = parts.enter_context(files.written(url, lambda: count))
        ids = path
        if task.format == "npy":
            ids = parts.enter_context(files.written(f"{url}{IDS}", lambda: ids.exists() and ids.stat().st_size))
        with part_writer(task.format, path, ids, opened) as writer:
            for chunk in chunks(block, opened.columns):
                count += _write_chunk(writer, opened, block, chunk)
                rejected += chunk.rejected
        listed = ids.stat().st_size if ids != path and ids.exists() else 0
        size, digest = (path.stat().st_size, sha256_of(path)) if count else (0, "")
    lines = [(each.line, each.reason) for each in sorted(rejected, key=lambda each: each.line or 0)]
    seconds = round(time.monotonic() - begun, 4)
    return BlockRecord(block.number, count, size, digest, seconds, time.time(), lines, listed)


def _write_chunk(writer: PartWriter, opened: OpenedWork, block: Block, chunk: Chunk) -> int:
    found: list[OutputRow] = []
    _compute_halves(opened, block, _readable(opened, block, chunk), found, chunk.rejected)
    writer.write(found)
    return len(found)


def _readable(opened: OpenedWork, block: Block, chunk: Chunk) -> list[Row]:
    """Return the rows that can be computed, as far as reading them shows, and reject the others."""
    good: list[Row] = []
    for row in chunk.rows:
        try:
            opened.read(row)
            good.append(row)
        except InvalidInput as error:
            chunk.rejected.append(Rejected(block.file.state.url, row.number, reason_of(error, block)))
    return good


def _compute_halves(
    opened: OpenedWork, block: Block, rows: Sequence[Row], found: list[OutputRow], rejected: list[Rejected]
) -> None:
    """Compute rows all at once or, if that fails, each half; a single row that fails is rejected."""
    if not rows:
        return
    try:
        computed = opened.compute(rows)
        check_writable(computed)
        found += computed
    except OutOfDisk:
        raise
    except (BothwaysError, MemoryError, ValueError, ArithmeticError) as error:
        if len(rows) == 1:
            rejected.append(Rejected(block.file.state.url, rows[0].number, reason_of(error, block)))
            return
        half = len(rows) // 2
        _compute_halves(opened, block, rows[:half], found, rejected)
        _compute_halves(opened, block, rows[half:], found, rejected)


def main() -> None:
    """Answer messages until standard input ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is unfinished is removed
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no answer
    messages = sys.stdin.buffer
    warnings.simplefilter("ignore")
    # The process that began the job may end at any moment.
    with suppress(EOFError, BrokenPipeError):
        task: WorkerTask = pickle.load(messages)
        try:
            opened = task.work.open()
            _answer(answers, Ready(_uses_cuda()))
        except BothwaysError as error:
            _answer(answers, Failed(error))
            return
        except TypeError as error:  # an option that there is not
            _answer(answers, Failed(InvalidInput(str(error))))
            return
        while True:
            block: Block = pickle.load(messages)
            _answer(answers, finished_or_failed(task, opened, block))


def finished_or_failed(task: WorkerTask, opened: OpenedWork, block: Block) -> BlockRecord | Failed:
    """Return the record of a block, see `finish_block`, or the error that ends the job."""
    try:
        return finish_block(task, opened, block)
    except BothwaysError as error:
        return Failed(error)
    except OSError as error:
        advice = "Check the disk or the network; the same command goes on after the blocks that are done."
        return Failed(InvalidInput(f"block {block.number} could not be computed: {error}. {advice}"))


def _uses_cuda() -> bool:
    torch = sys.modules.get("torch")  # exported models do without
    return torch is not None and bool(torch.cuda.is_initialized())


def _answer(stream: IO[bytes], answer: object) -> None:
    pickle.dump(answer, stream)
    stream.flush()
