"""Checkpoints that the processes of a run write together, in the background.

Each process writes its part as safetensors (torch.distributed.checkpoint); any number of processes can read them::

    checkpoint-00000007/
        shard-00001-model-*.safetensors   "weights/<name>", "kept/<name>", "optimizer/<kind>/<name>", "carried/<name>":
                                          each is a part of a tensor, with its offsets in the header
        shard-00002-model-*.safetensors   the parts of the second process
        state.json, checksums.json        as in `bothways.training.checkpoints`
"""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from torch import distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save
from torch.distributed.checkpoint.storage import WriteResult

from bothways.storage import disk_errors
from bothways.training.checkpoints import CheckpointFolder, TrainingCheckpoint, describe, seal, tensors_of
from bothways.training.workers import PATIENCE, Workers, naming_losses


class SharedCheckpoints:
    """The folder of the newest checkpoint of a run of several processes.

    The first process cleans up the folder before the others read it. A checkpoint appears when all processes have
    written their parts; then the previous one is removed. Every method may raise `WorkerLost`.
    """

    def __init__(self, path: Path, *, resume: bool, workers: Workers) -> None:
        folder = CheckpointFolder(path, resume=resume) if workers.rank == 0 else None
        workers.gather(workers.rank)
        self._path = path
        self._workers = workers
        self._folder = folder or CheckpointFolder(path, resume=resume)
        # A separate process group, so that its messages do not mix with those of the training.
        self._group = distributed.new_group(backend="gloo", timeout=PATIENCE)
        self._opened = ExitStack()
        self._pending: Future[Any] | None = None

    def save(self, checkpoint: TrainingCheckpoint) -> None:
        """Copy a checkpoint in memory and write it in the background; all processes must call this together."""
        self.settle()
        self._opened = opened = ExitStack()
        with ExitStack() as failing:
            failing.push(opened)
            folder: Path | None = None
            if self._workers.rank == 0:
                folder = opened.enter_context(self._folder.next_one())
                describe(folder, checkpoint, in_parts=True)
            folder = next(each for each in self._workers.gather(folder) if each is not None)
            writer = _PartsWriter(folder, opened.close)
            with naming_losses():
                saving = async_save(tensors_of(checkpoint), storage_writer=writer, process_group=self._group)
            self._pending = saving.upload_completion if isinstance(saving, AsyncSaveResponse) else saving
            failing.pop_all()

    def load(self) -> TrainingCheckpoint | None:
        return self._folder.load()

    def settle(self) -> None:
        """Wait until the last checkpoint is written, and raise its error, if any."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        # The first process removes a failed checkpoint when it leaves the exit stack.
        with disk_errors(self._path, self._path), self._opened:
            try:
                with naming_losses():
                    pending.result()
            except CheckpointException as error:
                raise next(iter(error.failures.values()))[0] from error

    def close(self) -> None:
        """Wait for pending writes and ignore their errors, which `settle` has raised unless the run failed."""
        with suppress(Exception):
            self.settle()
        distributed.destroy_process_group(self._group)


class _PartsWriter(HuggingFaceStorageWriter):
    """Writes the parts of all processes to one folder, which the first process then renames."""

    def __init__(self, folder: Path, publish: Callable[[], None]) -> None:
        super().__init__(path=str(folder), save_distributed=True)
        self._folder, self._publish = folder, publish

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        seal(self._folder)
        self._publish()
