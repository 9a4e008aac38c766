"""The files of a training run.

While it trains, everything is in a folder beside the output, ``<output>.checkpoints``: the newest checkpoint and the
log, ``training.jsonl``. When it has finished, the model is written there too, with the log, moves to ``<output>`` in
one step, and the folder beside it is removed. After Ctrl-C both exist: the best model so far, and the checkpoint that
``--resume`` continues from. The process may be killed at any moment: the checksum of a model is recorded before the
model appears, so that ``--resume`` recognises the run's own model.

A run that starts in place of an unfinished one moves it to ``replaced`` in that folder until it has a checkpoint of its
own or has finished. If it fails before that, for a wrong path or lack of memory, nothing is lost.

A finished run replaces only the model that existed when it started, and that it was allowed to replace.
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

_LOG = "training.jsonl"
_LEFT = "left.sha256"  # checksums of models that the run put at the output, which a resumed run may replace
_ASIDE = "replaced"  # an unfinished run that another run is to replace
_MODEL = "model"  # the model while it is written
_FILES = (_LOG, _LEFT)
_CHECKPOINTS = "checkpoint-*"


@dataclass(slots=True)
class RunFolders:
    """The output folder of a run, and the folder beside it while it is unfinished."""

    output: Path
    _initial: str | None = field(default=None, init=False)  # checksum of the model that existed at the start
    _ended: bool = field(default=False, init=False)

    @property
    def unfinished(self) -> Path:
        """Folder of the log and the newest checkpoint."""
        return self.output.with_name(f"{self.output.name}.checkpoints")

    @property
    def log(self) -> Path:
        """The log, while the run is unfinished."""
        return self.unfinished / _LOG

    @property
    def resumable(self) -> bool:
        """True if there is a checkpoint to continue from."""
        return any(self.unfinished.glob(_CHECKPOINTS))

    @property
    def replaceable(self) -> bool:
        """True if the model at the output is the one that existed at the start."""
        return self._initial is not None and self._initial == self._model()

    @property
    def beside(self) -> Path:
        """A free path for a model whose output appeared while it was trained."""
        names = (self.output.with_name(f"{self.output.name}-{number}") for number in itertools.count(2))
        return next(path for path in names if not path.exists())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training into the same output, and clean up after a run that fails at once."""
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
        """Check before any work that the run can write its output; call it while the folder is `held`.

        Returns:
            False if a resumed run had finished, and was killed while it cleaned up; else True.
        """
        self._restore()  # the run that a killed run had set aside
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
            unlike = " and is not what the unfinished run left there" if resume and started else ""
            raise OutputExists(
                f"the output folder {str(self.output)!r} already exists{unlike}. Choose another, or replace it with "
                "--overwrite."
            )
        check_folder_free(self.output, overwrite=replace)
        if self._initial is None and self.output.is_dir() and any(self.output.iterdir()):
            # Replacing a folder deletes its content, which nobody wants for a folder of other things.
            raise OutputExists(
                f"{str(self.output)!r} is not a trained model, so it is not replaced. Choose another folder."
            )
        if started and not resume:
            self._set_aside()
        return True

    def save(self, write: Callable[[Path], None], *, finished: bool) -> Path:
        """Put a model at the output, or beside it if something appeared there during the training; return its path.

        Args:
            write: Writes the model into a new folder.
            finished: True if the run has finished; the log is then moved into the model.
        """
        write(self._written)
        if finished and self.log.is_file():
            with new_file(self._written / _LOG, binary=True) as stream:
                stream.write(self.log.read_bytes())
        # The model at the output stays there if the process is killed before the new one replaces it.
        own = [model for model in (self._model(),) if self._is_own(model)] + [self._model(self._written)]
        with new_file(self.unfinished / _LEFT) as left:
            left.write("\n".join(filter(None, own)))
        try:
            saved = self.output
            move_folder(self._written, saved, overwrite=self.replaceable)
        except OutputExists:
            saved = self.beside
            move_folder(self._written, saved, overwrite=False)
        shutil.rmtree(self._written, ignore_errors=True)  # the model that was replaced
        return saved

    def finish(self) -> None:
        """Remove the unfinished run: first what could be resumed, last the checksum of the finished model."""
        for folder in (self._aside, *self.unfinished.glob(_CHECKPOINTS)):
            if folder.is_dir():
                _remove_at_once(folder)
        self.log.unlink(missing_ok=True)
        _remove_at_once(self.unfinished)
        self._ended = True

    def settle(self) -> None:
        """Clean up after a run that failed before its first step, and restore the run before it."""
        if self._ended:  # a folder of that name is now another process's
            return
        self._restore()
        if self.unfinished.is_dir() and not any(self.unfinished.iterdir()):
            self.unfinished.rmdir()

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
        # In this order a process killed in between leaves the newest checkpoint and its log in one place.
        self._aside.mkdir()
        for checkpoint in sorted(self.unfinished.glob(_CHECKPOINTS)):
            checkpoint.rename(self._aside / checkpoint.name)
        for name in _FILES:
            if (self.unfinished / name).is_file():
                (self.unfinished / name).rename(self._aside / name)

    def _restore(self) -> None:
        """Restore the run that was set aside, or remove it if the run after it has a checkpoint."""
        if not self._aside.is_dir():
            return
        if not self.resumable:
            for name in _FILES:
                if (self._aside / name).is_file():
                    (self._aside / name).replace(self.unfinished / name)
            for checkpoint in sorted(self._aside.glob(_CHECKPOINTS), reverse=True):
                checkpoint.rename(self.unfinished / checkpoint.name)
        shutil.rmtree(self._aside)

    def _model(self, folder: Path | None = None) -> str | None:
        """Return a checksum of the trained model in a folder, by default the output; None without one."""
        folder = folder or self.output
        if not all((folder / name).is_file() for name in ("config.json", checkpoints.OURS)):
            return None
        # It has the checksums of the weights, and the card.
        return hashlib.sha256((folder / checkpoints.OURS).read_bytes()).hexdigest()

    def _is_own(self, model: str | None) -> bool:
        """Return True if the run put this model at the output."""
        path = self.unfinished / _LEFT
        return model is not None and path.is_file() and model in path.read_text(encoding="ascii").split()


def _remove_at_once(folder: Path) -> None:
    """Remove a folder so that a killed process leaves all of it or nothing, not a part that seems damaged."""
    with temporary_folder(folder) as unseen:
        folder.rename(unseen / folder.name)
