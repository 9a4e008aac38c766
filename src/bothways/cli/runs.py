"""Where a training run lies on disk.

While it trains, everything is in a folder beside the output, ``<output>.checkpoints``: the newest checkpoint and the
log, ``training.jsonl``. When it is finished, the model appears as ``<output>``, whole, the log moves into it, and the
folder beside it goes. After Ctrl-C both are there: the best model so far, and what ``--resume`` continues from.

A run that is to take the place of an unfinished one sets it aside, in ``replaced`` in that folder, until it has a
checkpoint of its own or is finished: one that fails before, for a wrong path or a full memory, costs nothing.

A finished run replaces only the model that it found at its beginning, and was allowed to replace.
"""

import hashlib
import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bothways.errors import OutputExists
from bothways.storage import check_folder_free, check_folder_place, held

_LOG = "training.jsonl"
_LEFT = "left.sha256"  # of the model that an interruption left at the output, which the resumed run replaces
_FILES = (_LOG, _LEFT)
_CHECKPOINTS = "checkpoint-*"
_DESCRIPTION = "bothways.json"
_MODEL_FILES = ("config.json", _DESCRIPTION)


@dataclass(slots=True)
class RunFolders:
    """The output folder of a run, and what lies beside it while it is unfinished."""

    output: Path
    _found: str | None = field(default=None, init=False)  # of the model that was there at the beginning

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

    @property
    def replaceable(self) -> bool:
        """Whether at the output lies a model that was there at the beginning already, and may be replaced."""
        return self._found is not None and self._found == self._model()

    @property
    def beside(self) -> Path:
        """A free name for a model whose place was taken while it was trained."""
        names = (self.output.with_name(f"{self.output.name}-{number}") for number in itertools.count(2))
        return next(path for path in names if not path.exists())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no other process train into the same output, and leave nothing behind of a run that comes to nothing.

        Raises:
            InvalidInput: Another process does, or the output is a folder whose place no other can take, such as the
                current one.
            OSError: The folder cannot be written to.
        """
        check_folder_place(self.output)
        self.unfinished.mkdir(parents=True, exist_ok=True)
        refusal = (
            f"another process is training into {str(self.output)!r}. Wait until it is done, or choose another output."
        )
        with held(self.unfinished, refusal):
            try:
                yield
            finally:
                self.settle()

    def begin(self, *, resume: bool, overwrite: bool) -> None:
        """Check, before any work is done, that the run can write where it will have to; while the folder is `held`.

        Raises:
            OutputExists: Something is there that was not to be overwritten, or that is no trained model.
        """
        self._restore()  # what a killed run had set aside
        started = self.resumable
        if started and not (resume or overwrite):
            raise OutputExists(
                f"{str(self.unfinished)!r} holds an unfinished run. Continue it with --resume, or begin again with "
                "--overwrite."
            )
        self._found = self._model()
        # What an interruption left at the output is there to be replaced by the resumed run.
        replace = overwrite or (resume and started and self._found is not None and self._found == self._left())
        if not replace and self.output.is_dir() and any(self.output.iterdir()):
            unlike = ", and it is not what the unfinished run left there" if resume and started else ""
            raise OutputExists(
                f"the output folder {str(self.output)!r} already exists{unlike}. Choose another, or replace it with "
                "--overwrite."
            )
        check_folder_free(self.output, overwrite=replace)
        if self._found is None and self.output.is_dir() and any(self.output.iterdir()):
            # Replacing a folder deletes what is in it, which nobody means for a folder of other things.
            raise OutputExists(
                f"{str(self.output)!r} is not a trained model, so it is not replaced. Choose another folder."
            )
        if started and not resume:
            self._set_aside()

    def leave(self, saved: Path) -> None:
        """Remember the model that an interruption left; a resumed run replaces it if it still lies at the output."""
        model = self._model()
        if saved == self.output and model is not None:
            (self.unfinished / _LEFT).write_text(model, encoding="ascii")

    def finish(self, saved: Path) -> None:
        """Move the log into the saved model, and remove what was unfinished."""
        if self.log.is_file():
            self.log.replace(saved / _LOG)
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
        for name in _FILES:
            (self.unfinished / name).unlink(missing_ok=True)
        self.settle()

    @property
    def _aside(self) -> Path:
        return self.unfinished / "replaced"

    def _set_aside(self) -> None:
        # In this order a process killed in between leaves the newest checkpoint and its log together, here or there.
        self._aside.mkdir()
        for checkpoint in sorted(self.unfinished.glob(_CHECKPOINTS)):
            checkpoint.rename(self._aside / checkpoint.name)
        for name in _FILES:
            if (self.unfinished / name).is_file():
                (self.unfinished / name).rename(self._aside / name)

    def _restore(self) -> None:
        """Put back the run that was set aside, unless the one after it has a checkpoint: then it is forgotten."""
        if not self._aside.is_dir():
            return
        if not self.resumable:
            for name in _FILES:
                if (self._aside / name).is_file():
                    (self._aside / name).replace(self.unfinished / name)
            for checkpoint in sorted(self._aside.glob(_CHECKPOINTS), reverse=True):
                checkpoint.rename(self.unfinished / checkpoint.name)
        shutil.rmtree(self._aside)

    def _model(self) -> str | None:
        """A checksum of the trained model at the output; None where there is nothing, or something else."""
        if not all((self.output / name).is_file() for name in _MODEL_FILES):
            return None
        # It holds the checksums of the weights, and the card.
        return hashlib.sha256((self.output / _DESCRIPTION).read_bytes()).hexdigest()

    def _left(self) -> str | None:
        """That of the model that an interruption left at the output."""
        path = self.unfinished / _LEFT
        return path.read_text(encoding="ascii") if path.is_file() else None
