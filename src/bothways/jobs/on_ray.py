"""Workers on a Ray cluster: a pool of actors, each with one model, that Ray Data feeds with blocks.

Only the numbers of blocks and their records go through Ray: an actor reads its block and writes its output itself.
"""

import logging
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

from bothways.errors import BothwaysError, InvalidInput, MissingDependency, WorkerLost
from bothways.jobs.blocks import Block, InputFile
from bothways.jobs.manifest import BlockRecord
from bothways.jobs.worker import Failed, WorkerTask, finish_block

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Batch = Mapping[str, NDArray[np.generic]]

# Cores that an actor asks Ray for on a machine without a GPU: with one each, as many actors as cores would leave none
# for the tasks that feed them, and the job would wait for ever.
_CORES = 0.5


@dataclass(frozen=True, slots=True)
class RayPool:
    """Computes the blocks of a job on Ray; an executor for `bothways.jobs.run`.

    Attributes:
        address: ``local`` starts Ray on this machine, ``auto`` takes the cluster that this machine belongs to, and
            ``ray://host:port`` is that of another.
        workers: The fewest and the most actors; None for as many as the cluster has GPUs or cores.
        threads: Compute threads of each.
        gpus: GPUs of each actor; None for one if the cluster has any, and the work is not for a CPU.
    """

    address: str = "auto"
    workers: tuple[int, int] | None = None
    threads: int = 1
    gpus: float | None = None

    def __call__(self, task: WorkerTask, blocks: Iterator[Block]) -> Iterator[list[BlockRecord]]:
        """Yield the records of blocks in the order in which they are finished.

        Raises:
            MissingDependency: Ray is not installed.
            InvalidInput: There is no cluster at the address.
            WorkerLost: Ray gave a block up. Also raises the errors of `finish_block`.
        """
        try:
            import ray
            from ray import data
        except ImportError as error:
            raise MissingDependency.of("ray", extra="ray", purpose="running a job on Ray") from error
        parts, known = _numbered(blocks)
        with self._connected(ray):
            resources: Mapping[str, float] = ray.cluster_resources()
            gpus = self._gpus(resources, task)
            least, most = self.workers or (1, max(1, int(self._most(resources, gpus))))
            context = data.DataContext.get_current()
            context.enable_progress_bars = False
            rows = data.from_items([{"part": part} for part in parts], override_num_blocks=len(parts)).map_batches(
                _Actor,
                batch_size=1,
                fn_constructor_args=(ray.put(pickle.dumps((task, known))),),
                compute=data.ActorPoolStrategy(min_size=least, max_size=most, max_tasks_in_flight_per_actor=2),
                num_cpus=_CORES if not gpus else 1,
                num_gpus=gpus,
                max_restarts=-1,
            )
            try:
                for row in rows.iter_rows():
                    yield [_record(row["record"])]
            except ray.exceptions.RayError as error:
                raise WorkerLost(
                    f"Ray gave the job up: {str(error).splitlines()[0]} The same command goes on after the blocks that "
                    "are done."
                ) from error

    @contextmanager
    def _connected(self, ray: ModuleType) -> Iterator[None]:
        """Connect to the cluster, unless the caller has; what was started here ends here."""
        if ray.is_initialized():
            yield
            return
        variables = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")}
        given: dict[str, object] = {"runtime_env": {"env_vars": variables}, "log_to_driver": False}
        given |= {"include_dashboard": False} if self.address == "local" else {"address": self.address}
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            ray.init(**given, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InvalidInput(
                f"there is no Ray cluster at {self.address!r}: {error}. Start one (ray start --head), or give "
                "ray://HOST:PORT or local."
            ) from error
        try:
            yield
        finally:
            ray.shutdown()

    def _gpus(self, resources: Mapping[str, float], task: WorkerTask) -> float:
        if self.gpus is not None:
            return self.gpus
        return float(resources.get("GPU", 0) > 0 and task.work.opening.get("device") != "cpu")

    def _most(self, resources: Mapping[str, float], gpus: float) -> float:
        return resources["GPU"] / gpus if gpus else resources.get("CPU", 1) / self.threads


def _numbered(blocks: Iterator[Block]) -> tuple[list[list[int]], list[InputFile]]:
    """Return blocks as a few numbers each, and their files."""
    places: dict[str, int] = {}
    known: list[InputFile] = []
    parts = []
    for block in blocks:
        place = places.setdefault(block.file.state.url, len(known))
        if place == len(known):
            known.append(replace(block.file, cuts=()))
        parts.append([block.number, place, block.start, block.end])
    return parts, known


class _Actor:
    """A process of Ray with the model open."""

    def __init__(self, content: bytes) -> None:
        self._task: WorkerTask
        self._files: Sequence[InputFile]
        self._task, self._files = pickle.loads(content)
        self._failed: Failed | None = None
        try:
            self._opened = self._task.work.open()
        except BothwaysError as error:  # else Ray would start the actor again and again
            self._failed = Failed(error)

    def __call__(self, batch: "Batch") -> dict[str, list[bytes]]:
        number, place, start, end = (int(each) for each in batch["part"][0])
        return {"record": [pickle.dumps(self._failed or self._answer(Block(number, self._files[place], start, end)))]}

    def _answer(self, block: Block) -> BlockRecord | Failed:
        try:
            return finish_block(self._task, self._opened, block)
        except BothwaysError as error:
            return Failed(error)


def _record(content: bytes) -> BlockRecord:
    answer = pickle.loads(content)
    if isinstance(answer, Failed):
        raise answer.error
    assert isinstance(answer, BlockRecord)
    return answer
