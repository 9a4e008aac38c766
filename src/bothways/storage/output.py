"""Files and folders that take their place in one step, when they are whole and on the disk."""

import ctypes
import errno
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Literal, overload

from bothways.errors import OutOfDisk
from bothways.storage.checks import check_file_free, check_folder_free, is_stream, not_permitted, resolved
from bothways.storage.temporary import OLD, remove_leftovers, temporary_file, temporary_folder

# From linux/fcntl.h and linux/fs.h: paths count from the current folder, and the two names are exchanged.
_HERE, _EXCHANGE = -100, 2

# What a write that finds no room fails with (a full disk or quota, a file as large as it may be), and no reading does.
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@overload
def new_file(
    path: str | os.PathLike[str], *, overwrite: bool = ..., binary: Literal[False] = ...
) -> AbstractContextManager[IO[str]]: ...


@overload
def new_file(
    path: str | os.PathLike[str], *, overwrite: bool = ..., binary: Literal[True]
) -> AbstractContextManager[IO[bytes]]: ...


@contextmanager
def new_file(path: str | os.PathLike[str], *, overwrite: bool = True, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a file for writing that replaces ``path`` only when the block ends well.

    Args:
        path: The target; missing parent folders are made. What is written to a device or a pipe leaves at once.
        overwrite: Whether an existing file may be replaced.
        binary: Bytes instead of UTF-8 text.

    Raises:
        OutputExists: ``path`` is a folder, or a file that exists and ``overwrite`` is false.
        InvalidInput: The folder may not be written to, or ``path`` is a disk or a socket.
        OutOfDisk: The disk is full, or the file as large as it may be; nothing was left behind.
    """
    named = Path(path)
    check_file_free(named, overwrite=overwrite)
    mode, encoding, newline = ("wb", None, None) if binary else ("w", "utf-8", "")
    if is_stream(named):
        with disk_errors(named, named), named.open(mode, encoding=encoding, newline=newline) as direct:
            yield direct
        return
    target = resolved(named)
    with _place_for(named, target), temporary_file(target) as (handle, temporary):
        stream: IO[Any] = os.fdopen(handle, mode, encoding=encoding, newline=newline)
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        give_usual_mode(temporary)
        temporary.replace(target)


@contextmanager
def new_folder(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Make a folder that takes the place of ``path`` only when the block ends well.

    The block fills the folder that it is given. An empty folder at ``path`` counts as absent.

    Raises:
        OutputExists: ``path`` is a file, or a folder with something in it and ``overwrite`` is false, also where it
            appeared while the block ran.
        InvalidInput: ``path`` is a folder that cannot be replaced, or may not be written to.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    named = Path(path)
    target = resolved(named)
    check_folder_free(named, overwrite=overwrite)
    with _place_for(named, target), temporary_folder(target) as temporary:
        yield temporary
        _flush(temporary)
        temporary.chmod(0o777 & ~_umask())
        check_folder_free(named, overwrite=overwrite)  # filling it took its time
        _swap(temporary, target)


def move_folder(folder: Path, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Put a folder that is whole in the place of ``path``, on the same disk.

    Raises:
        OutputExists: As `new_folder`.
        InvalidInput: As `new_folder`.
    """
    check_folder_free(path, overwrite=overwrite)
    _swap(folder, resolved(Path(path)))


def give_usual_mode(path: Path) -> None:
    """Give a file the permissions that any new file here gets, where something made it for its owner alone."""
    path.chmod(0o666 & ~_umask())


@contextmanager
def _place_for(named: Path, target: Path) -> Iterator[None]:
    """Make the folders above ``target`` and clear it of leftovers; if the block fails, the folders go again."""
    with disk_errors(named, target):
        missing = [folder for folder in target.parents if not folder.exists()]
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(target.parent, re.escape(target.name))
            yield
        except BaseException:
            for folder in missing:
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
            raise


def _flush(folder: Path) -> None:
    """Wait until all files of a folder are on the disk: some disks say only then that they are full."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("r+b") as stream:
                os.fsync(stream.fileno())


def _swap(temporary: Path, target: Path) -> None:
    """Put ``temporary`` in the place of ``target``, and what was there under the name of ``temporary``, if anywhere.

    Where the system can exchange two names, at no moment is there neither folder. Elsewhere the older one is moved
    aside first, and back if the second step fails.
    """
    if not target.exists():
        temporary.rename(target)
        return
    if _exchange(temporary, target):
        return
    with temporary_folder(target, "replaced") as aside:
        target.rename(aside / OLD)
        try:
            temporary.rename(target)
        except BaseException:
            (aside / OLD).rename(target)
            raise


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step, as Linux can; whether it was done."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    done: int = renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)
    return done == 0


@contextmanager
def disk_errors(named: Path, target: Path) -> Iterator[None]:
    """Say what is wrong with ``target`` by the name that the caller gave it.

    Raises:
        InvalidInput: The block failed as the target may not be written to.
        OutOfDisk: It failed as the disk is full, or the file as large as it may be.
    """
    try:
        yield
    except (OSError, OutOfDisk) as raised:
        # Of an output within this one, whose path would be a temporary one.
        error = raised.__cause__ if isinstance(raised, OutOfDisk) else raised
        if not isinstance(error, OSError):
            raise
        # Busy is a target that the system holds in its place, such as a file or a folder mounted there.
        refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
        if refused and _is_beside(error.filename, target):
            raise not_permitted(named, error.strerror) from error
        if error.errno in OUT_OF_ROOM:
            raise OutOfDisk(
                f"no space left for {named} ({error.strerror}): the unfinished output was removed. "
                "Free some space, raise the limit of the process or choose another output path."
            ) from error
        raise


def _is_beside(name: object, target: Path) -> bool:
    """Return whether a path that an operating system error names lies where the output goes."""
    return isinstance(name, str) and target.parent in (Path(name), *Path(name).parents)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
