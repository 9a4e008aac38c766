"""Temporary files and folders beside a target, and the locks that tell those of a living process from leftovers.

A temporary is locked while its process works on it, and the system lets go of a lock when the process ends, however it
does: what nobody holds was left by a process that was killed. A process id would not tell, for it is used again, and a
container counts its own. Where there are no such locks (Windows, some network file systems), nothing is removed.
"""

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from bothways.errors import InvalidInput

# What a lock fails with on a file system that has none; NFS has them, but not on folders.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)

# Endings of temporary names, and the name of a folder that was moved into one that is ``replaced``.
_UNFINISHED, _REPLACED, OLD = "unfinished", "replaced", "old"


@contextmanager
def held(folder: str | os.PathLike[str], refusal: str) -> Iterator[None]:
    """Hold a folder that is there; another process that wants to hold it too is refused.

    The system lets go of it when the process ends, however it does. Where there are no such locks (Windows, some file
    systems), nothing is held.

    Args:
        folder: What to hold.
        refusal: What to say when another process has it.

    Raises:
        InvalidInput: Another process holds the folder, or has just removed it.
    """
    with _locked(Path(folder)) as ours:
        if ours is False:
            raise InvalidInput(refusal)
        yield


@contextmanager
def temporary_file(target: Path) -> Iterator[tuple[int, Path]]:
    """Make a file beside ``target``; if it still has its name when the block ends, it is removed.

    Yields:
        A descriptor, which the block closes, and the path.
    """
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=f".{_UNFINISHED}", dir=target.parent)
        with _locked(Path(name)) as ours:
            if ours is False:  # another process has taken it for a leftover
                os.close(handle)
                continue
            try:
                yield handle, Path(name)
            finally:
                Path(name).unlink(missing_ok=True)
            return


@contextmanager
def temporary_folder(target: Path, kind: Literal["unfinished", "replaced"] = "unfinished") -> Iterator[Path]:
    """Make a folder beside ``target``; whatever has its name when the block ends is removed."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=f".{kind}", dir=target.parent))
        with _locked(folder) as ours:
            if ours is False:
                continue
            try:
                yield folder
            finally:
                # What cannot be removed, such as a file that is still mapped on Windows, is left for the next output.
                shutil.rmtree(folder, ignore_errors=True)
            return


def remove_leftovers(folder: Path, targets: str) -> None:
    """Remove what processes of this user that were killed have left of outputs in a folder, if it is there.

    Where one was killed between moving a folder aside and putting a new one in its place, the older is put back.

    Args:
        folder: Where the targets lie.
        targets: A regular expression for their names.
    """
    name = re.compile(rf"\.(?P<target>{targets})\.[a-z0-9_]{{8}}\.({_UNFINISHED}|{_REPLACED})")
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = name.fullmatch(path.name)
        if found is None or not _is_own(path):
            continue
        with _locked(path) as ours:
            if ours:
                _remove(path, folder / found["target"])


def _remove(path: Path, target: Path) -> None:
    if (path / OLD).exists() and not target.exists():
        (path / OLD).rename(target)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)  # the process that has replaced a folder may be removing it too
    else:
        path.unlink(missing_ok=True)


def _is_own(path: Path) -> bool:
    """Return whether it is a file or folder of this user."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)) and found.st_uid == os.geteuid()


@contextmanager
def _locked(path: Path) -> Iterator[bool | None]:
    """Lock a file or folder; False where another process has it or has removed it, None where there are no locks."""
    try:
        import fcntl
    except ImportError:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        ours = _lock(descriptor)
        # A lock on what another process has removed keeps nobody out.
        yield ours if ours is None else ours and _is_still(descriptor, path)
        if ours:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child has the descriptor too
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
