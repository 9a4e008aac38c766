"""The files of a training run.

During training, a folder beside the output, ``<output>.checkpoints``, has the newest checkpoint, the results of
finished stages (``checkpoint-stages``) and the log, ``training.jsonl``. The finished model is written there too, with
the log, and is moved to ``<output>`` in one step; then the folder beside it is removed. After Ctrl-C both folders
exist: the output has the model kept so far, the other the checkpoint for ``--resume``. The process may be killed at any
moment: the checksum of a model is recorded before the model appears at the output, and identifies it for ``--resume``.

A run that replaces an unfinished run first moves the old files to ``replaced`` in the folder beside the output. They
are deleted when the new run has a checkpoint, and restored if it fails earlier (wrong path, lack of memory).

A finished run replaces a model at the output only if it existed, and was allowed to be replaced, at the start.
"""

import hashlib
import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bothways import checkpoints
from bothways.errors import OutputExists
from bothways.storage import (
    check_folder_free,
    check_folder_place,
    held,
    move_folder,
    new_file,
    remove_leftovers,
    temporary_folder,
)
from bothways.training.options import STAGES

_LOG = "training.jsonl"
_LEFT = "left.sha256"  # checksums of models that the run put at the output, which a resumed run may replace
_ASIDE = "replaced"  # subfolder with the files of an unfinished run that a new run replaces
_MODEL = "model"  # subfolder where the model is written before it is moved to the output
_FILES = (_LOG, _LEFT)
_CHECKPOINTS = "checkpoint-[0-9]*"


@dataclass(slots=True)
class RunFolders:
    """The output folder of a run, and the folder beside it that exists while the run is unfinished."""

    output: Path
    _initial: str | None = field(default=None, init=False)  # checksum of the model that existed at the start
    _ended: bool = field(default=False, init=False)

    @property
    def unfinished(self) -> Path:
        """Folder beside the output with the log and the newest checkpoint."""
        return self.output.with_name(f"{self.output.name}.checkpoints")

    @property
    def log(self) -> Path:
        """Path of the log while the run is unfinished."""
        return self.unfinished / _LOG

    @property
    def resumable(self) -> bool:
        """True if there is a checkpoint to continue from."""
        return any(self.unfinished.glob(_CHECKPOINTS))

    @property
    def stages(self) -> Path:
        """Folder of the results of finished stages; a new run without ``resume`` removes it."""
        return self.unfinished / STAGES

    @property
    def replaceable(self) -> bool:
        """True if the model at the output is the one that existed at the start."""
        return self._initial is not None and self._initial == self._model()

    @property
    def beside(self) -> Path:
        """A free path for the model, in case another model appeared at the output during the training."""
        names = (self.output.with_name(f"{self.output.name}-{number}") for number in itertools.count(2))
        return next(path for path in names if not path.exists())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the output against other processes, and clean up after a run that fails early."""
        check_folder_place(self.output)
        self.unfinished.mkdir(parents=True, exist_ok=True)
        refusal = f"another process is training into {str(self.output)!r}. Wait for it, or choose another output."
        with held(self.unfinished, refusal):
            remove_leftovers(
                self.output.parent, "|".join(re.escape(path.name) for path in (self.output, self.unfinished))
            )
            remove_leftovers(self.unfinished, "|".join((r"checkpoint-\d+", _ASIDE, _MODEL, re.escape(_LEFT))))
            shutil.rmtree(self._written, ignore_errors=True)
            try:
                yield
            finally:
                self.settle()

    def begin(self, *, resume: bool, overwrite: bool) -> bool:
        """Check that the run can write its output; call this first, while the output is `held`.

        Returns:
            False if the run to resume had finished and was killed during its cleanup; else True.
        """
        self._restore()  # an unfinished run that a killed process had moved to ``replaced``
        started = self.resumable
        if resume and not started and self._is_own(self._model()):
            self.finish()
            return False
        if started and not (resume or overwrite):
            raise OutputExists(
                f"{str(self.unfinished)!r} holds an unfinished run. Continue it with --resume, or start again with "
                "--overwrite."
            )
        self._initial = self._model()
        # A resumed run replaces the model that its interruption left at the output.
        replace = overwrite or (resume and started and self._is_own(self._initial))
        if not replace and self.output.is_dir() and any(self.output.iterdir()):
            unlike = " and was not written by the unfinished run" if resume and started else ""
            raise OutputExists(
                f"the output folder {str(self.output)!r} already exists{unlike}. Choose another, or replace it with "
                "--overwrite."
            )
        check_folder_free(self.output, overwrite=replace)
        if self._initial is None and self.output.is_dir() and any(self.output.iterdir()):
            # Replacing a folder deletes its content: do not delete other files.
            raise OutputExists(
                f"{str(self.output)!r} is not a trained model, so it is not replaced. Choose another folder."
            )
        if started and not resume:
            self._set_aside()
        return True

    def save(self, write: Callable[[Path], None], *, finished: bool) -> Path:
        """Save a model at the output, or beside it if other files appeared there during the training; return its path.

        Args:
            write: Writes the model into a new folder.
            finished: True if the run has finished; the log is then moved into the model.
        """
        write(self._written)
        if finished and self.log.is_file():
            with new_file(self._written / _LOG, binary=True) as stream:
                stream.write(self.log.read_bytes())
        # Record the model at the output too: it stays there if the process is killed before the new one replaces it.
        own = [model for model in (self._model(),) if self._is_own(model)] + [self._model(self._written)]
        with new_file(self.unfinished / _LEFT) as left:
            left.write("\n".join(filter(None, own)))
        try:
            saved = self.output
            move_folder(self._written, saved, overwrite=self.replaceable)
        except OutputExists:
            saved = self.beside
            move_folder(self._written, saved, overwrite=False)
        shutil.rmtree(self._written, ignore_errors=True)  # the replaced model
        return saved

    def finish(self) -> None:
        """Remove the files of the run: the checkpoints first, and the checksum of the finished model last."""
        for folder in (self._aside, *self.unfinished.glob(_CHECKPOINTS), self.stages):
            if folder.is_dir():
                _remove_at_once(folder)
        self.log.unlink(missing_ok=True)
        _remove_at_once(self.unfinished)
        self._ended = True

    def settle(self) -> None:
        """Clean up unless the run finished: restore or delete the files in ``replaced``, and remove an empty folder."""
        if self._ended:  # another process may have a folder of this name by now
            return
        self._restore()
        if self.unfinished.is_dir() and not any(self.unfinished.iterdir()):
            self.unfinished.rmdir()

    def forget_stages(self) -> None:
        """Remove the finished stages of a run that failed without a checkpoint."""
        if not self.resumable:
            shutil.rmtree(self.stages, ignore_errors=True)

    def forget(self) -> None:
        """Remove the log of a run without a checkpoint."""
        for name in _FILES:
            (self.unfinished / name).unlink(missing_ok=True)
        self.settle()

    @property
    def _aside(self) -> Path:
        return self.unfinished / _ASIDE

    @property
    def _written(self) -> Path:
        return self.unfinished / _MODEL

    def _set_aside(self) -> None:
        # This order keeps the newest checkpoint and its log together if the process is killed in between.
        self._aside.mkdir()
        for folder in (*sorted(self.unfinished.glob(_CHECKPOINTS)), self.stages):
            if folder.is_dir():
                folder.rename(self._aside / folder.name)
        for name in _FILES:
            if (self.unfinished / name).is_file():
                (self.unfinished / name).rename(self._aside / name)

    def _restore(self) -> None:
        """Move the files in ``replaced`` back, or delete them if the new run has a checkpoint."""
        if not self._aside.is_dir():
            return
        if not self.resumable:
            for name in _FILES:
                if (self._aside / name).is_file():
                    (self._aside / name).replace(self.unfinished / name)
            if (self._aside / STAGES).is_dir():
                shutil.rmtree(self.stages, ignore_errors=True)
                (self._aside / STAGES).rename(self.stages)
            for checkpoint in sorted(self._aside.glob(_CHECKPOINTS), reverse=True):
                checkpoint.rename(self.unfinished / checkpoint.name)
        shutil.rmtree(self._aside)

    def _model(self, folder: Path | None = None) -> str | None:
        """Return a checksum of the trained model in a folder (default: the output); None if there is no model."""
        folder = folder or self.output
        if not all((folder / name).is_file() for name in ("config.json", checkpoints.OURS)):
            return None
        # This file contains the checksums of the weights, and the card.
        return hashlib.sha256((folder / checkpoints.OURS).read_bytes()).hexdigest()

    def _is_own(self, model: str | None) -> bool:
        """Return True if the run put this model at the output."""
        path = self.unfinished / _LEFT
        return model is not None and path.is_file() and model in path.read_text(encoding="ascii").split()


def _remove_at_once(folder: Path) -> None:
    """Remove a folder in one step: a killed process leaves the whole folder or nothing."""
    with temporary_folder(folder) as unseen:
        folder.rename(unseen / folder.name)
