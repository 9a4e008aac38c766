"""Where a training run lies on disk.

While it trains, everything is in a folder beside the output, ``<output>.checkpoints``: the newest checkpoint and the
log, ``training.jsonl``. When it is finished, the model appears as ``<output>``, whole, the log moves into it, and the
folder beside it goes. After Ctrl-C both are there: the best model so far, and what ``--resume`` continues from.

A run that is to take the place of an unfinished one sets it aside, in ``replaced`` in that folder, until it has a
checkpoint of its own or is finished: one that fails before, for a wrong path or a full memory, costs nothing.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from bothways.errors import OutputExists
from bothways.storage import check_folder_free, check_folder_place

_LOG = "training.jsonl"
_CHECKPOINTS = "checkpoint-*"
_MODEL_FILES = ("config.json", "bothways.json")


@dataclass(frozen=True, slots=True)
class RunFolders:
    """The output folder of a run, and what lies beside it while it is unfinished."""

    output: Path

    @property
    def unfinished(self) -> Path:
        """Holds the log and the newest checkpoint."""
        return self.output.with_name(f"{self.output.name}.checkpoints")

    @property
    def log(self) -> Path:
        """The log, while the run is unfinished."""
        return self.unfinished / _LOG

    @property
    def resumable(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return any(self.unfinished.glob(_CHECKPOINTS))

    def begin(self, *, resume: bool, overwrite: bool) -> None:
        """Check, before any work is done, that the run can write where it will have to.

        Raises:
            OutputExists: Something is there that was not to be overwritten, or that is no trained model.
            InvalidInput: The output is a folder whose place no other can take, such as the current one.
            OSError: The folder cannot be written to.
        """
        check_folder_place(self.output)
        self._restore()  # what a killed run had set aside
        started = self.resumable
        if started and not (resume or overwrite):
            raise OutputExists(
                f"{str(self.unfinished)!r} holds an unfinished run. Continue it with --resume, or begin again with "
                "--overwrite."
            )
        # What a resumed run finds at its output is the model that its interruption left there.
        replace = overwrite or (resume and started)
        if not replace and self.output.is_dir() and any(self.output.iterdir()):
            raise OutputExists(
                f"the output folder {str(self.output)!r} already exists. Choose another, or replace it with "
                "--overwrite."
            )
        check_folder_free(self.output, overwrite=replace)
        if self.output.is_dir() and any(self.output.iterdir()) and not self._is_ours():
            # Replacing a folder deletes what is in it, which nobody means for a folder of other things.
            raise OutputExists(
                f"{str(self.output)!r} is not a trained model, so it is not replaced. Choose another folder."
            )
        self.unfinished.mkdir(parents=True, exist_ok=True)
        if started and not resume:
            self._set_aside()

    def finish(self) -> None:
        """Move the log into the saved model, and remove what was unfinished."""
        if self.log.is_file():
            self.log.replace(self.output / _LOG)
        if self._aside.is_dir():
            shutil.rmtree(self._aside)
        self.forget()

    def settle(self) -> None:
        """Leave nothing behind of a run that failed before its first step, and the run before it as it was."""
        self._restore()
        if self.unfinished.is_dir() and not any(self.unfinished.iterdir()):
            self.unfinished.rmdir()

    def forget(self) -> None:
        """Remove log and checkpoints, but not of a run that was set aside."""
        for checkpoint in self.unfinished.glob(_CHECKPOINTS):
            shutil.rmtree(checkpoint)
        self.log.unlink(missing_ok=True)
        self.settle()

    @property
    def _aside(self) -> Path:
        return self.unfinished / "replaced"

    def _set_aside(self) -> None:
        # In this order a process killed in between leaves the newest checkpoint and its log together, here or there.
        self._aside.mkdir()
        for checkpoint in sorted(self.unfinished.glob(_CHECKPOINTS)):
            checkpoint.rename(self._aside / checkpoint.name)
        if self.log.is_file():
            self.log.rename(self._aside / _LOG)

    def _restore(self) -> None:
        """Put back the run that was set aside, unless the one after it has a checkpoint: then it is forgotten."""
        if not self._aside.is_dir():
            return
        if not self.resumable:
            if (self._aside / _LOG).is_file():
                (self._aside / _LOG).replace(self.log)
            for checkpoint in sorted(self._aside.glob(_CHECKPOINTS), reverse=True):
                checkpoint.rename(self.unfinished / checkpoint.name)
        shutil.rmtree(self._aside)

    def _is_ours(self) -> bool:
        return all((self.output / name).is_file() for name in _MODEL_FILES)
