"""Where a training run lies on disk.

While it trains, everything is in a folder beside the output, ``<output>.checkpoints``: the newest checkpoint and the
log, ``training.jsonl``. When it is finished, the model appears as ``<output>``, whole, the log moves into it, and the
folder beside it goes. After Ctrl-C both are there: the best model so far, and what ``--resume`` continues from.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from bothways.errors import OutputExists
from bothways.storage import check_folder_free

_LOG = "training.jsonl"
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
        return any(self.unfinished.glob("checkpoint-*"))

    def begin(self, *, resume: bool, overwrite: bool) -> None:
        """Check, before any work is done, that the run can write where it will have to.

        Raises:
            OutputExists: Something is there that was not to be overwritten, or that is no trained model.
            OSError: The folder cannot be written to.
        """
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
        if overwrite and not resume:
            self.forget()
        self.unfinished.mkdir(parents=True, exist_ok=True)

    def finish(self) -> None:
        """Move the log into the saved model, and remove what was unfinished."""
        if self.log.is_file():
            self.log.replace(self.output / _LOG)
        self.forget()

    def discard_if_empty(self) -> None:
        """Leave nothing behind of a run that failed before its first step."""
        if self.unfinished.is_dir() and not any(self.unfinished.iterdir()):
            self.unfinished.rmdir()

    def forget(self) -> None:
        """Remove log and checkpoints."""
        for checkpoint in self.unfinished.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
        self.log.unlink(missing_ok=True)
        self.discard_if_empty()

    def _is_ours(self) -> bool:
        return all((self.output / name).is_file() for name in _MODEL_FILES)
