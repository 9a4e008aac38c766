"""Workers of this machine: processes that compute blocks, replaced when they die."""

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from bothways.errors import WorkerLost
from bothways.jobs.blocks import Block
from bothways.jobs.manifest import BlockRecord
from bothways.jobs.worker import Failed, Ready, WorkerTask

AnswerT = TypeVar("AnswerT", Ready, BlockRecord)

# A block whose worker died so often is given up: it is the block that kills them.
_DEATHS = 3
# Seconds in which a worker removes what is unfinished.
_PATIENCE = 3.0


class _Worker:
    """A process with its model open."""

    def __init__(self, task: WorkerTask, environment: Mapping[str, str]) -> None:
        # The worker imports from the same places, and not from the current folder.
        places = {"PYTHONPATH": os.pathsep.join(each or str(Path.cwd()) for each in sys.path), "PYTHONSAFEPATH": "1"}
        self._task, self._environment = task, {**os.environ, **places, **environment}
        self._lock, self._over = threading.Lock(), False
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Ready:
        """Start the process, and wait until its model is open.

        Raises:
            WorkerLost: The process died, or the work is over.
        """
        command = [sys.executable, "-m", "bothways.jobs"]
        with self._lock:
            if self._over:
                raise WorkerLost("the work is over.")
            # In a group of its own: a terminal sends Ctrl-C to that of the process that began the job.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment, process_group=0
            )
        return self._ask(self._task, Ready)

    def compute(self, block: Block) -> BlockRecord:
        """Return the record of a block; start the process if it is not there.

        Raises:
            WorkerLost: The process died.
        """
        if self._process is None:
            self.start()
        return self._ask(block, BlockRecord)

    @property
    def is_over(self) -> bool:
        """True if the worker was ended for good."""
        return self._over

    def _ask(self, message: object, kind: type[AnswerT]) -> AnswerT:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise WorkerLost("the work is over.")
        try:
            pickle.dump(message, process.stdin)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
            code = self.end()
            raise WorkerLost(f"a worker died ({_cause(code)}).") from error
        if isinstance(answer, Failed):
            raise answer.error
        assert isinstance(answer, kind)
        return answer

    def end(self, *, over: bool = False) -> int:
        """End the process, and return its exit code; it is not started again if the work is ``over``."""
        with self._lock:
            self._over = self._over or over
            process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
        code = process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        return code


def _cause(code: int) -> str:
    if code == -9:
        return "killed, as the system does when memory runs out"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def computed_here(
    task: WorkerTask, blocks: Iterator[Block], workers: int | None, threads: int, cores: int
) -> Iterator[list[BlockRecord]]:
    """Yield the records of blocks in the order in which they are finished, together those that are there.

    The first worker opens its model alone: what it measures once for a machine is there for the others.

    Args:
        task: The work.
        blocks: The blocks.
        workers: Number of processes; None for one for each GPU, or for each core if the model is on a CPU.
        threads: Compute threads of each.
        cores: Cores that this process may use.

    Raises:
        WorkerLost: Workers died of the same block again and again. Also raises the errors of `finish_block`.
    """
    environment = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")}
    first = _Worker(task, environment)
    try:
        ready = first.start()
    except BaseException:
        first.end(over=True)
        raise
    gpus = _gpus() if ready.on_gpu else 0
    count = workers or gpus or max(1, cores // threads)
    team = [first, *(_Worker(task, environment | _gpu_of(number, gpus)) for number in range(1, count))]
    todo, results = _Shared(blocks), queue.Queue[_Result]()
    events = [threading.Event() for _ in team]
    feeders = [
        threading.Thread(target=_feed, args=(*pair, todo, results), daemon=True)
        for pair in zip(team, events, strict=True)
    ]
    for thread in feeders:
        thread.start()
    running = count
    try:
        while running:
            found = [results.get()]
            with suppress(queue.Empty):
                while True:
                    found.append(results.get_nowait())
            if records := [each.answer for each in found if isinstance(each.answer, BlockRecord)]:
                yield records
            for each in found:
                each.entered.set()
                running -= each.answer is None
                if isinstance(each.answer, BaseException):
                    raise each.answer
    finally:
        todo.close()
        for event in events:
            event.set()
        for worker in team:
            worker.end(over=True)
        for thread in feeders:
            thread.join(10)


class _Result(NamedTuple):
    """The record of a block, an error, or None from a worker that has no more blocks; and what says it is entered."""

    answer: BlockRecord | BaseException | None
    entered: threading.Event


class _Shared:
    """An iterator that several threads take from."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks, self._lock, self._closed = blocks, threading.Lock(), False

    def take(self) -> Block | None:
        with self._lock:
            return None if self._closed else next(self._blocks, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True


def _feed(worker: _Worker, entered: threading.Event, todo: _Shared, results: queue.Queue[_Result]) -> None:
    """Let a worker compute blocks until there are none, each after the one before was entered."""
    try:
        while (block := todo.take()) is not None:
            results.put(_Result(_persistently(worker, block), entered))
            entered.wait()
            entered.clear()
        results.put(_Result(None, entered))
    except BaseException as error:
        results.put(_Result(error, entered))
    finally:
        worker.end()


def _persistently(worker: _Worker, block: Block) -> BlockRecord:
    for death in range(1, _DEATHS + 1):
        try:
            return worker.compute(block)
        except WorkerLost as error:
            if worker.is_over:
                raise
            if death == _DEATHS:
                place = f"block {block.number} ({block.file.state.url!r}, from {block.start:,} to {block.end:,})"
                raise WorkerLost(
                    f"{_DEATHS} workers died of {place}; the last one: {error} If memory ran out, use fewer --workers. "
                    "The same command goes on after the blocks that are done."
                ) from error
    raise AssertionError("unreachable")


def _gpus() -> int:
    """Return the number of GPUs that CUDA shows to this process, without loading torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([each for each in chosen.split(",") if each])
    return sum(each.name.removeprefix("nvidia").isdecimal() for each in Path("/dev").iterdir())


def _gpu_of(number: int, gpus: int) -> dict[str, str]:
    """Return the environment of a worker that has one of several GPUs."""
    if gpus < 2:
        return {}
    known = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
    return {"CUDA_VISIBLE_DEVICES": known[number % gpus]}
