"""An actor of Ray: a process with one model, which computes groups of blocks.

In the folder ``running`` beside the output it notes each finished block until the manifest has it, and gives a sign
each minute while it computes.
"""

import json
import pickle
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from bothways.errors import BothwaysError, WorkerLost
from bothways.jobs import files
from bothways.jobs.blocks import Block
from bothways.jobs.files import joined
from bothways.jobs.locking import repeatedly
from bothways.jobs.manifest import PARTS, BlockRecord, part_name
from bothways.jobs.outputs import SUFFIXES
from bothways.jobs.worker import Failed, WorkerTask, finished_or_failed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Batch = Mapping[str, NDArray[np.generic]]

RUNNING = "running"
_NOTE, _BEGUN, _SIGN = ".json", ".begun", ".sign"
# A block whose worker died so often is given up; machines on the spot market go as well.
_DEATHS = 5
_SECONDS = 60.0


class Actor:
    """A process of Ray with the model open, as Ray Data calls it."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._failed: Failed | None = None
        self._sign = joined(task.folder, RUNNING, f"{uuid.uuid4().hex}{_SIGN}")
        try:
            with _signing(self._sign):
                self._opened = task.work.open()
        except BothwaysError as error:  # else Ray would start the actor again and again
            self._failed = Failed(error)

    def __call__(self, batch: "Batch") -> dict[str, list[bytes]]:
        """Return the records of a group of blocks, up to one that cannot be finished."""
        answers: list[BlockRecord | Failed] = [self._failed] if self._failed else []
        if not answers:
            blocks: list[Block] = pickle.loads(bytes(batch["group"][0]))
            with _signing(self._sign):
                for block in blocks:
                    answers.append(self._answer(block))
                    if isinstance(answers[-1], Failed):
                        break
        return {"records": [pickle.dumps(answers)]}

    def _answer(self, block: Block) -> BlockRecord | Failed:
        note = joined(self._task.folder, RUNNING, f"{block.number:07d}{_NOTE}")
        try:
            if done := _noted(self._task, files.read(note)):  # by an actor that died with the rest of the group
                return done
            self._begin(block)
            answer = finished_or_failed(self._task, self._opened, block)
            if isinstance(answer, BlockRecord):
                files.write(note, json.dumps([self._task.job, answer], ensure_ascii=False).encode())
            return answer
        except BothwaysError as error:
            return Failed(error)

    def _begin(self, block: Block) -> None:
        """Count the actors that began a block; Ray itself would let one after the other die of it."""
        url = joined(self._task.folder, RUNNING, f"{block.number:07d}{_BEGUN}")
        deaths = int(files.read(url) or b"0")
        if deaths >= _DEATHS:
            raise WorkerLost(
                f"{deaths} workers on Ray died of block {block.number} ({block.file.state.url!r}, from {block.start:,} "
                f"to {block.end:,}). If memory ran out, use fewer --workers. The same command goes on after the "
                "blocks that are done."
            )
        files.write(url, str(deaths + 1).encode())


def _signing(url: str) -> AbstractContextManager[None]:
    """Write another time to a file every minute until the block ends."""
    return repeatedly(lambda: files.write(url, str(time.time()).encode()), _SECONDS)


def actor_signs(folder: str) -> Mapping[str, int | bytes]:
    """Return the sizes of the notes, and the signs: they change while any actor computes."""
    running = joined(folder, RUNNING)
    return {**files.sizes(running), **files.read_all(running, _SIGN)}


def forget(folder: str, record: BlockRecord) -> None:
    """Remove the notes on a block that the manifest has."""
    for suffix in (_NOTE, _BEGUN):
        files.remove(joined(folder, RUNNING, f"{record.number:07d}{suffix}"))


def known_records(task: WorkerTask, blocks: Sequence[Block]) -> dict[int, BlockRecord]:
    """Return the records that actors noted in an interrupted run, of blocks whose output file is there."""
    noted = files.read_all(joined(task.folder, RUNNING), _NOTE)
    sizes = files.sizes(joined(task.folder, PARTS)) if noted else {}
    found = {}
    for block in blocks:
        record = _noted(task, noted.get(f"{block.number:07d}{_NOTE}"))
        if record and record.size in (0, sizes.get(part_name(block.number, SUFFIXES[task.format]))):
            found[block.number] = record
    return found


def _noted(task: WorkerTask, content: bytes | None) -> BlockRecord | None:
    """Return the record of a note, unless there is none, or it is of another job."""
    known = json.loads(content) if content else []
    return BlockRecord(*known[1]) if known[:1] == [task.job] else None


def groups_as_bytes(groups: Iterable[Sequence[Block]]) -> Iterator[bytes]:
    """Yield groups of blocks as Ray transports them."""
    return map(pickle.dumps, groups)


def records_of(content: bytes) -> Iterator[list[BlockRecord]]:
    """Yield the records of a group, and raise the error that ended it, if any."""
    answers: list[BlockRecord | Failed] = pickle.loads(content)
    if records := [each for each in answers if isinstance(each, BlockRecord)]:
        yield records
    for each in answers:
        if isinstance(each, Failed):
            raise each.error
