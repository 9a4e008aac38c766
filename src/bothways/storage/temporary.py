"""Temporary files and folders beside a target, and the locks that distinguish them from leftovers.

A temporary file or folder is locked while its process works on it, and the system releases the lock when the process
ends, however it ends: so an unlocked one is a leftover of a killed process. Process ids would not work, since they are
reused, and each container has its own. Without such locks (Windows, some network file systems), nothing is removed.
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

# Errors of a lock on a file system without locks; NFS has none on folders.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)

# Endings of temporary names, and the name of a folder that was moved aside.
_UNFINISHED, _REPLACED, OLD = "unfinished", "replaced", "old"


@contextmanager
def held(folder: str | os.PathLike[str], refusal: str) -> Iterator[None]:
    """Lock an existing folder during the block; on systems without locks (see above), do nothing.

    Raises:
        InvalidInput: Another process holds the folder, or has just removed it; ``refusal`` is the message.
    """
    with _locked(Path(folder)) as ours:
        if ours is False:
            raise InvalidInput(refusal)
        yield


@contextmanager
def temporary_file(target: Path) -> Iterator[tuple[int, Path]]:
    """Create a file beside ``target``; yield its descriptor, which the block closes, and its path; then remove it."""
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
    """Create a folder beside ``target``; after the block, remove it unless it was renamed."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=f".{kind}", dir=target.parent))
        with _locked(folder) as ours:
            if ours is False:
                continue
            try:
                yield folder
            finally:
                # A file that cannot be removed (mapped on Windows) is left for the next output.
                shutil.rmtree(folder, ignore_errors=True)
            return


def remove_leftovers(folder: Path, targets: str) -> None:
    """Remove leftovers of this user's killed processes from a folder; ``targets`` is a regular expression for names.

    If a process was killed between moving a folder aside and replacing it, the old folder is restored.
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
        shutil.rmtree(path, ignore_errors=True)  # another process may be removing it too
    else:
        path.unlink(missing_ok=True)


def _is_own(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)) and found.st_uid == os.geteuid()


@contextmanager
def _locked(path: Path) -> Iterator[bool | None]:
    """Lock a file or folder; yield True, False if another process has locked or removed it, or None without locks."""
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
        # A lock on a removed file or folder is useless.
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
