"""Workers on a Ray cluster: a pool of actors, each with one model, that Ray Data feeds with blocks.

Only the descriptions of blocks and their records go through Ray: an actor reads its block and writes its output itself.
Blocks are sent in groups, so that a job of a million has thousands of objects in Ray. An actor notes each finished
block beside the output until the manifest has it: when an actor, a machine or the process that began the job dies, the
blocks of its groups that were finished are not computed again.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import ModuleType

from bothways.errors import BothwaysError, MissingDependency, WorkerLost
from bothways.jobs import files
from bothways.jobs.blocks import Block, InputFile
from bothways.jobs.files import joined
from bothways.jobs.manifest import BlockRecord
from bothways.jobs.ray_actor import RUNNING, Actor, actor_signs, forget, groups_as_bytes, known_records, records_of
from bothways.jobs.worker import Failed, WorkerTask
from bothways.ray_cluster import be_quiet, check_address, connected, reason

# Cores that an actor asks Ray for with one thread: with a whole one each, as many actors as cores would leave none for
# the tasks of Ray Data, and the job would wait for ever.
_CORES = 0.5
# Objects of blocks that a job has in Ray at most.
_GROUPS = 10_000
# Seconds without a sign of any actor after which a job is given up, and between two looks for one.
_PATIENCE, _LOOK = 1800.0, 20.0
_AGAIN = "The same command goes on after the blocks that are done."


@dataclass(frozen=True, slots=True)
class RayPool:
    """Computes the blocks of a job on Ray; an executor for `bothways.jobs.run`.

    Attributes:
        address: ``local`` starts Ray on this machine, ``auto`` takes the cluster that this machine belongs to, and
            ``ray://host:port`` one that it does not belong to.
        workers: The fewest and the most actors; None for as many as the cluster has GPUs or cores.
        threads: Compute threads of each.
        gpus: GPUs of each actor; None for one if the cluster has any, and the work is not for a CPU.
        patience: Seconds without a sign of any actor after which the job is given up.
    """

    address: str = "auto"
    workers: tuple[int, int] | None = None
    threads: int = 1
    gpus: float | None = None
    patience: float = _PATIENCE

    def __post_init__(self) -> None:
        check_address(self.address)

    def __call__(self, task: WorkerTask, blocks: Iterator[Block]) -> Iterator[list[BlockRecord]]:
        """Yield the records of blocks in the order in which they are finished.

        Raises:
            MissingDependency: Ray is not installed.
            InvalidInput: There is no cluster at the address.
            WorkerLost: Ray gave a block up, or no actor gives a sign. Also raises the errors of `finish_block`.
        """
        be_quiet()
        try:
            import ray
        except ImportError as error:
            raise MissingDependency.of("ray", extra="ray", purpose="running a job on Ray") from error
        task, todo = _placed(task), list(blocks)
        if found := known_records(task, todo):
            yield list(found.values())
            todo = [block for block in todo if block.number not in found]
        _clear(task.folder)
        if todo:
            with connected(ray, self.address, self.threads):
                through_client = ray.util.client.ray.is_connected()
                computed = self._through_client(ray, task, todo) if through_client else self.computed(task, todo)
                for records in computed:
                    yield records
                    for each in records:
                        forget(task.folder, each)
        _clear(task.folder)

    def _through_client(self, ray: ModuleType, task: WorkerTask, blocks: list[Block]) -> Iterator[list[BlockRecord]]:
        """Yield the records of each group of blocks, in which Ray Data runs in the cluster: its client has none."""
        try:
            driver = ray.remote(num_cpus=0)(_Driver).remote(self, task, blocks)
            while (found := ray.get(driver.take.remote())) is not None:
                if isinstance(found, Failed):
                    raise found.error
                yield found
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise WorkerLost(f"Ray gave the job up: {reason(error)} {_AGAIN}") from error

    def computed(self, task: WorkerTask, blocks: list[Block]) -> Iterator[list[BlockRecord]]:
        """Yield the records of each group of blocks, in a process that is connected to Ray."""
        import ray
        from ray import data

        resources: Mapping[str, float] = ray.cluster_resources()
        gpus = self._gpus(resources, task)
        groups = _grouped(blocks)
        most = max(1, int(resources.get("GPU", gpus) / gpus if gpus else resources.get("CPU", 1) / self.threads))
        least, most = (min(each, len(groups)) for each in self.workers or (most, most))
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_no_progress_timeout_s = -1  # a block may take hours: `_watched` looks for signs instead
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        rows = data.from_items(
            [{"group": each} for each in groups_as_bytes(groups)], override_num_blocks=len(groups)
        ).map_batches(
            Actor,
            batch_size=1,
            fn_constructor_args=(task,),
            compute=data.ActorPoolStrategy(min_size=least, max_size=most, max_tasks_in_flight_per_actor=2),
            num_cpus=1 if gpus else _CORES * self.threads,
            num_gpus=gpus,
        )
        for row in self._watched(rows.iter_rows(), task.folder):
            yield from records_of(row["records"])

    def _watched(self, rows: Iterable[Mapping[str, bytes]], folder: str) -> Iterator[Mapping[str, bytes]]:
        """Yield rows as they come; Ray may wait for ever for an actor that is gone.

        Raises:
            WorkerLost: Ray gave up, or neither a row came nor an actor gave a sign for so many seconds.
        """
        found: queue.Queue[Mapping[str, bytes] | Exception | None] = queue.Queue()
        ended = threading.Event()
        threading.Thread(target=_take, args=(rows, found, ended), daemon=True).start()
        last, signs = time.monotonic(), actor_signs(folder)
        try:
            while True:
                try:
                    row = found.get(timeout=min(_LOOK, self.patience))
                except queue.Empty:
                    now = actor_signs(folder)
                    if now == signs and time.monotonic() - last > self.patience:
                        raise WorkerLost(
                            f"no worker on Ray gave a sign for {self.patience:,.0f} seconds. Look at 'ray status' for "
                            f"machines that are gone or full, and end what hangs. {_AGAIN}"
                        ) from None
                    last, signs = last if now == signs else time.monotonic(), now
                    continue
                if row is None:
                    return
                if isinstance(row, Exception):
                    raise WorkerLost(f"Ray gave the job up: {reason(row)} {_AGAIN}") from row
                last = time.monotonic()
                yield row
        finally:
            ended.set()

    def _gpus(self, resources: Mapping[str, float], task: WorkerTask) -> float:
        if self.gpus is not None:
            return self.gpus
        return float(resources.get("GPU", 0) > 0 and task.work.opening.get("device") != "cpu")


class _Driver:
    """A process of the cluster that runs Ray Data for a process outside."""

    def __init__(self, pool: RayPool, task: WorkerTask, blocks: list[Block]) -> None:
        self._records = pool.computed(task, blocks)

    def take(self) -> list[BlockRecord] | Failed | None:
        """Return the next records, or None at the end."""
        try:
            return next(self._records, None)
        except BothwaysError as error:
            return Failed(error)


def _placed(task: WorkerTask) -> WorkerTask:
    """Return a task with absolute paths: actors of a cluster work in another folder."""
    folder = task.folder if files.is_remote(task.folder) else str(Path(task.folder).absolute())
    model = Path(task.work.model)
    work = replace(task.work, model=str(model.absolute())) if model.exists() else task.work
    return replace(task, folder=folder, work=work)


def _clear(folder: str) -> None:
    """Remove all notes; actors of a process that was killed may write some more for a moment."""
    with suppress(OSError):
        files.remove(joined(folder, RUNNING))


def _grouped(blocks: list[Block]) -> list[list[Block]]:
    """Return blocks in groups of one, or of more if there are very many; blocks of a file share its description."""
    size = -(-len(blocks) // _GROUPS)
    known: dict[str, InputFile] = {}
    shared = (
        Block(each.number, known.setdefault(each.file.state.url, each.file), each.start, each.end) for each in blocks
    )
    groups = []
    while group := list(islice(shared, size)):
        groups.append(group)
    return groups


def _take(
    rows: Iterable[Mapping[str, bytes]],
    found: "queue.Queue[Mapping[str, bytes] | Exception | None]",
    ended: threading.Event,
) -> None:
    try:
        for row in rows:
            found.put(row)
            if ended.is_set():
                return
        found.put(None)
    except Exception as error:
        found.put(error)
