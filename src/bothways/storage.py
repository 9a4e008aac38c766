"""Output that appears whole or not at all.

Files and folders are written under a temporary name beside their target, flushed, and renamed. If anything goes wrong
in between, the temporary is removed and whatever was at the target before is still there. A target that is a symbolic
link stays one: what it points to is replaced. A device or a pipe cannot be replaced and is written to as it is.
"""

import ctypes
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Literal, overload

from bothways.errors import InvalidInput, OutOfDisk, OutputExists

# From linux/fcntl.h and linux/fs.h: paths count from the current folder, and the two names are exchanged.
_HERE, _EXCHANGE = -100, 2

# What a write that finds no room fails with (a full disk or quota, a file as large as it may be), and no reading does.
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# What a lock fails with on a file system that has none.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


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
    _check_file_free(named, overwrite=overwrite)
    mode, encoding, newline = ("wb", None, None) if binary else ("w", "utf-8", "")
    if is_stream(named):
        with _disk_errors(named, named), named.open(mode, encoding=encoding, newline=newline) as direct:
            yield direct
        return
    target = _resolved(named)
    with _disk_errors(named, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        temporary = Path(name)
        try:
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
        OutputExists: ``path`` is a file, or a folder with something in it and ``overwrite`` is false, also where it
            appeared while the block ran.
        InvalidInput: ``path`` is a folder that cannot be replaced, or may not be written to.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    named = Path(path)
    check_folder_free(named, overwrite=overwrite)
    target = _resolved(named)
    with _disk_errors(named, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            check_folder_free(named, overwrite=overwrite)  # filling it took its time
            _swap(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


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
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidInput(refusal) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        if not _is_still(descriptor, folder):
            raise InvalidInput(refusal)
        yield
    finally:
        os.close(descriptor)


def check_folder_free(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise now what `new_folder` would raise after an hour of work.

    Raises:
        OutputExists: ``path`` is a file, or a folder with something in it and ``overwrite`` is false.
        InvalidInput: As `check_folder_place`.
    """
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise OutputExists(_in_the_way(target, "file", "folder"))
    check_folder_place(target)
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise OutputExists(_already_there(target, "folder"))


def check_folder_place(path: str | os.PathLike[str]) -> None:
    """Refuse a folder whose place no other folder can take, whatever is in it.

    Raises:
        InvalidInput: It is the current folder or one above it, or a mount point.
    """
    named = Path(path)
    target = _resolved(named)
    if named.name in ("", "..") or _holds_current_folder(target):
        raise InvalidInput(
            f"the output must name a folder of its own, but {str(named)!r} is the current folder or one above it. "
            "Choose another path, such as a new folder in it."
        )
    if target.is_mount():
        raise InvalidInput(
            f"the output must name a folder of its own, but {str(named)!r} is a mount point, which cannot be replaced. "
            "Choose another path, such as a new folder in it."
        )


def check_file_writable(path: str | os.PathLike[str]) -> None:
    """Raise now what `new_file` would raise after an hour of work; a file that is there may be replaced.

    Raises:
        OutputExists: ``path`` is a folder.
        InvalidInput: A file is where its folder should be, the folder may not be written to, or ``path`` is a disk or a
            socket.
    """
    named = Path(path)
    _check_file_free(named, overwrite=True)
    if is_stream(named):
        if not os.access(named, os.W_OK):
            raise _not_permitted(named, os.strerror(errno.EACCES))
        return
    above = next(each for each in _resolved(named).parents if each.exists())
    if not above.is_dir():
        raise InvalidInput(
            f"the output {str(named)!r} cannot be written: {str(above)!r} is a file, where a folder was expected. "
            "Choose another path."
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise _not_permitted(named, os.strerror(errno.EACCES))


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a pipe or a device that takes bytes as they come, such as /dev/null or a terminal."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):  # it is not there, or no path can be so
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _is_still(descriptor: int, folder: str | os.PathLike[str]) -> bool:
    """Whether what was opened still has its name; a lock on a folder that another has removed keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(descriptor), Path(folder).stat())
    except FileNotFoundError:
        return False


def _check_file_free(target: Path, *, overwrite: bool) -> None:
    if target.is_dir():
        raise OutputExists(_in_the_way(target, "folder", "file"))
    if is_stream(target):
        return
    if target.exists() and not target.is_file():
        raise InvalidInput(
            f"the output {str(target)!r} is a disk or a socket: expected a file, a pipe or a device such as /dev/null. "
            "Choose another path."
        )
    if target.exists() and not overwrite:
        raise OutputExists(_already_there(target, "file"))


def _holds_current_folder(folder: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(folder)
    except FileNotFoundError:  # somebody removed the current folder
        return False


def _resolved(path: Path) -> Path:
    """Where ``path`` really lies, so that a link is not replaced by what was to be written behind it."""
    return Path(os.path.realpath(path))


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
    try:
        target.rename(aside / "old")
        temporary.rename(target)
    except BaseException:
        if (aside / "old").exists():
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
def _disk_errors(named: Path, target: Path) -> Iterator[None]:
    """Say what is wrong with ``target`` by the name that the caller gave it."""
    try:
        yield
    except OSError as error:
        # Busy is a target that the system holds in its place, such as a file or a folder mounted there.
        refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
        if refused and _is_beside(error.filename, target):
            raise _not_permitted(named, error.strerror) from error
        if error.errno in OUT_OF_ROOM:
            raise OutOfDisk(
                f"no space left for {named} ({error.strerror}): the unfinished output was removed. "
                "Free some space, raise the limit of the process or choose another output path."
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
