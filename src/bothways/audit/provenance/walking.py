"""The files of a folder: regular ones to look into, and faults for links, pipes and whatever else is there."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bothways.audit.provenance.pickles import Check
from bothways.audit.provenance.rules import Fault

_MOST_FILES, _MOST_DEPTH = 20_000, 30
# The folder of version control, whose hooks and objects no loader reads and no clone brings.
_LEFT_OUT = frozenset({".git"})


@dataclass(frozen=True, slots=True)
class File:
    """A regular file of a model.

    Attributes:
        path: Where it is.
        name: Its path from the folder on, with ``/``.
        size: Its bytes.
    """

    path: Path
    name: str
    size: int


def walk(folder: Path, check: Check) -> Iterator[File | Fault]:
    """Yield the files of a folder in the order of their names, and the faults of its links and special files."""
    allowed = _allowed(folder)
    left, seen = [(folder, 0)], 0
    while left:
        here, depth = left.pop()
        check()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            yield Fault("unreadable", f"a folder that cannot be read: {error.strerror}", _name(here, folder))
            continue
        for entry in entries:
            seen += 1
            if seen > _MOST_FILES or depth > _MOST_DEPTH:
                yield Fault(
                    "too-many-files", "more files or folders than a model has", value=seen, threshold=_MOST_FILES
                )
                return
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _LEFT_OUT:
                    left.append((path, depth + 1))
            else:
                yield _entry(path, _name(path, folder), allowed)


def _entry(path: Path, name: str, allowed: tuple[Path, ...]) -> File | Fault:
    try:
        if path.is_symlink():
            target = path.resolve(strict=True)
            if not any(target.is_relative_to(each) for each in allowed):
                return Fault("symlink-escape", "a link that leads out of the folder", name, {"target": str(target)})
            if target.is_dir():
                return Fault(
                    "symlink-escape", "a link to a folder, which no model needs", name, {"target": str(target)}
                )
        status = path.stat()
    except (OSError, RuntimeError, ValueError) as error:
        return Fault("unreadable", f"a link or file that leads nowhere: {error}", name)
    if not stat.S_ISREG(status.st_mode):
        return Fault("special-file", "a pipe, a socket or a device", name)
    if not os.access(path, os.R_OK):
        return Fault("unreadable", "a file that this user may not read", name)
    return File(path, name, status.st_size)


def _allowed(folder: Path) -> tuple[Path, ...]:
    """Return where links may lead: into the folder, and for a snapshot of the hub's cache to its blobs."""
    real = folder.resolve()
    if real.parent.name == "snapshots" and real.parent.parent.name.startswith("models--"):
        return (real, real.parent.parent / "blobs")
    return (real,)


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
