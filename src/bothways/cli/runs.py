"""Places of a training run on disk.

While it trains, everything is in a folder beside the output, ``<output>.checkpoints``: the newest checkpoint and the
log, ``training.jsonl``. When it is finished, the model is written there too, with the log, appears as ``<output>`` in
one step, and the folder beside it goes. After Ctrl-C both are there: the best model so far, and what ``--resume``
continues from. A process may be killed at any moment: the checksum of a model is on record before the model appears, so
that ``--resume`` knows it for the run's own.

A run that is to take the place of an unfinished one sets it aside, in ``replaced`` in that folder, until it has a
checkpoint of its own or is finished: one that fails before, for a wrong path or a full memory, costs nothing.

A finished run replaces only the model that it found at its beginning, and was allowed to replace.
"""

import hashlib
import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

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
_LEFT = "left.sha256"  # of models that the run has put at the output, which it may replace when it is resumed
_ASIDE = "replaced"  # an unfinished run whose place another is to take
_MODEL = "model"  # one that is written, until it appears at the output
_FILES = (_LOG, _LEFT)
_CHECKPOINTS = "checkpoint-*"
_DESCRIPTION = "bothways.json"
_MODEL_FILES = ("config.json", _DESCRIPTION)


@dataclass(slots=True)
class RunFolders:
    """The output folder of a run, and what lies beside it while it is unfinished."""

    output: Path
    _found: str | None = field(default=None, init=False)  # of the model that was there at the beginning
    _ended: bool = field(default=False, init=False)

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
        """True if there is a checkpoint to continue from."""
        return any(self.unfinished.glob(_CHECKPOINTS))

    @property
    def replaceable(self) -> bool:
        """True if at the output lies a model that was there at the beginning already, and may be replaced."""
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
        """Check, before any work is done, that the run can write where it will have to; while the folder is `held`.

        Returns:
            Whether there is anything to do: not where a run that is resumed had ended, and was killed as it cleaned up.

        Raises:
            OutputExists: Something is there that was not to be overwritten, or that is no trained model.
        """
        self._restore()  # what a killed run had set aside
        started = self.resumable
        if resume and not started and self._is_own(self._model()):
            self.finish()
            return False
        if started and not (resume or overwrite):
            raise OutputExists(
                f"{str(self.unfinished)!r} holds an unfinished run. Continue it with --resume, or begin again with "
                "--overwrite."
            )
        self._found = self._model()
        # What an interruption left at the output is there to be replaced by the resumed run.
        replace = overwrite or (resume and started and self._is_own(self._found))
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
        return True

    def save(self, write: Callable[[Path], None], *, finished: bool) -> Path:
        """Put a model at the output, or beside it where something appeared there during the training; return where.

        Args:
            write: Writes the model into a folder that is not there.
            finished: Whether the run is at its end; the log then lies in the model.

        Raises:
            OutOfDisk: The disk is full; the run can be resumed.
        """
        write(self._written)
        if finished and self.log.is_file():
            with new_file(self._written / _LOG, binary=True) as stream:
                stream.write(self.log.read_bytes())
        # What is at the output may stay there, if the process is killed before the new model takes its place.
        own = [model for model in (self._model(),) if self._is_own(model)] + [self._model(self._written)]
        with new_file(self.unfinished / _LEFT) as left:
            left.write("\n".join(filter(None, own)))
        try:
            saved = self.output
            move_folder(self._written, saved, overwrite=self.replaceable)
        except OutputExists:
            saved = self.beside
            move_folder(self._written, saved, overwrite=False)
        shutil.rmtree(self._written, ignore_errors=True)  # the model that was there before
        return saved

    def finish(self) -> None:
        """Remove what was unfinished: first what could be resumed, last of all the checksum of the finished model."""
        for folder in (self._aside, *self.unfinished.glob(_CHECKPOINTS)):
            if folder.is_dir():
                _remove_at_once(folder)
        self.log.unlink(missing_ok=True)
        _remove_at_once(self.unfinished)
        self._ended = True

    def settle(self) -> None:
        """Leave nothing behind of a run that failed before its first step, and the run before it as it was."""
        if self._ended:  # whatever has that name now is another process's
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

    def _model(self, folder: Path | None = None) -> str | None:
        """Return a checksum of the trained model in a folder, by default the output; None where there is none."""
        folder = folder or self.output
        if not all((folder / name).is_file() for name in _MODEL_FILES):
            return None
        # It holds the checksums of the weights, and the card.
        return hashlib.sha256((folder / _DESCRIPTION).read_bytes()).hexdigest()

    def _is_own(self, model: str | None) -> bool:
        """Return whether the run has put this model at the output."""
        path = self.unfinished / _LEFT
        return model is not None and path.is_file() and model in path.read_text(encoding="ascii").split()


def _remove_at_once(folder: Path) -> None:
    """Remove a folder so that a process killed meanwhile leaves it whole or gone, and not a part that seems damaged."""
    with temporary_folder(folder) as unseen:
        folder.rename(unseen / folder.name)
