"""Output that appears whole or not at all.

Files and folders are written under a temporary name beside their target, flushed, and renamed. If anything goes wrong
in between, the temporary is removed and whatever was at the target before is still there.
"""

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Literal, overload

from bothways.errors import InvalidInput, OutOfDisk, OutputExists

# From linux/fcntl.h and linux/fs.h: paths count from the current folder, and the two names are exchanged.
_HERE, _EXCHANGE = -100, 2


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
        path: The target; missing parent folders are made.
        overwrite: Whether an existing file may be replaced.
        binary: Bytes instead of UTF-8 text.

    Raises:
        OutputExists: ``path`` is a folder, or exists and ``overwrite`` is false.
        InvalidInput: The folder may not be written to.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    target = Path(path)
    _check_file_free(target, overwrite=overwrite)
    with _disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        temporary = Path(name)
        try:
            mode, encoding, newline = ("wb", None, None) if binary else ("w", "utf-8", "")
            stream: IO[Any] = os.fdopen(handle, mode, encoding=encoding, newline=newline)
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            give_usual_mode(temporary)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Make a folder that takes the place of ``path`` only when the block ends well.

    The block fills the folder that it is given. An empty folder at ``path`` counts as absent.

    Raises:
        OutputExists: ``path`` is a file, or a folder with something in it and ``overwrite`` is false.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    target = Path(path)
    check_folder_free(target, overwrite=overwrite)
    with _disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            _swap(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def check_folder_free(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise ``OutputExists`` now rather than after an hour of work.

    Raises:
        OutputExists: ``path`` is a file, or a folder with something in it and ``overwrite`` is false.
    """
    target = Path(path)
    if target.is_file():
        raise OutputExists(_in_the_way(target, "file", "folder"))
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise OutputExists(_already_there(target, "folder"))


def check_file_writable(path: str | os.PathLike[str]) -> None:
    """Raise now what `new_file` would raise after an hour of work; a file that is there may be replaced.

    Raises:
        OutputExists: ``path`` is a folder.
        InvalidInput: A file is where its folder should be, or the folder may not be written to.
    """
    target = Path(path)
    _check_file_free(target, overwrite=True)
    above = next(each for each in target.absolute().parents if each.exists())
    if not above.is_dir():
        raise InvalidInput(
            f"the output {str(target)!r} cannot be written: {str(above)!r} is a file, where a folder was expected. "
            "Choose another path."
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise _not_permitted(target, os.strerror(errno.EACCES))


def _check_file_free(target: Path, *, overwrite: bool) -> None:
    if target.is_dir():
        raise OutputExists(_in_the_way(target, "folder", "file"))
    if target.exists() and not overwrite:
        raise OutputExists(_already_there(target, "file"))


def give_usual_mode(path: Path) -> None:
    """Give a file the permissions that any new file here gets, where something made it for its owner alone."""
    path.chmod(0o666 & ~_umask())


def _swap(temporary: Path, target: Path) -> None:
    """Put ``temporary`` in the place of ``target``.

    Where the system can exchange two names, at no moment is there neither folder. Elsewhere the older one is moved
    aside first, and back if the second step fails.
    """
    if not target.exists():
        temporary.rename(target)
        return
    if _exchange(temporary, target):
        shutil.rmtree(temporary)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(aside / "old")
    try:
        temporary.rename(target)
    except BaseException:
        (aside / "old").rename(target)
        aside.rmdir()
        raise
    shutil.rmtree(aside)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step, as Linux can; whether it was done."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    done: int = renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)
    return done == 0


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and _is_beside(error.filename, target):
            raise _not_permitted(target, error.strerror) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfDisk(
                f"no space left on the disk of {target}: the unfinished output was removed. "
                "Free some space or choose another output path."
            ) from error
        raise


def _not_permitted(target: Path, reason: str | None) -> InvalidInput:
    return InvalidInput(
        f"the output {str(target)!r} cannot be written: {reason}. Choose another path or check the permissions of its "
        "folder."
    )


def _already_there(target: Path, kind: str) -> str:
    return f"the output {kind} {str(target)!r} already exists. Choose another path, or ask for it to be overwritten."


def _in_the_way(target: Path, found: str, wanted: str) -> str:
    return f"{str(target)!r} is a {found}, where a {wanted} is to be written; it is left as it is. Choose another path."


def _is_beside(name: object, target: Path) -> bool:
    """Whether a path that an operating system error names lies where the output goes."""
    return isinstance(name, str) and target.parent in (Path(name), *Path(name).parents)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
