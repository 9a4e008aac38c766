"""Output files and folders that appear complete or not at all.

Files and folders are written under a temporary name beside their target, flushed to disk, and renamed. On an error, the
temporary output is removed and the target is unchanged. Leftovers of a killed process are removed when the same target
is written again. If the target is a symbolic link, the file that it points to is replaced. Devices and pipes are
written to directly.

A temporary file or folder is locked while its process works on it, and the system releases the lock when the process
ends, however it ends: so an unlocked one is a leftover of a killed process. Process ids would not work, since they are
reused, and each container has its own. Without such locks (Windows, some network file systems), nothing is removed.
"""

import ctypes
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, overload

from bothways.errors import InvalidInput, OutOfDisk, OutputExists

# AT_FDCWD and RENAME_EXCHANGE, from linux/fcntl.h and linux/fs.h.
_HERE, _EXCHANGE = -100, 2

# Error numbers of a write that lacks space (a full disk or quota, or a file of the maximum size).
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# Errors of a lock on a file system without locks; NFS has none on folders.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)

# Endings of temporary names, and the name of a folder that was moved aside.
_UNFINISHED, _REPLACED, _OLD = "unfinished", "replaced", "old"


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of output folder, ``name`` in messages: it has one of the ``files`` and, if ``alone``, no others."""

    name: str
    files: frozenset[str]
    alone: bool = False

    def check(self, folder: Path) -> None:
        """Raise OutputExists if a folder with contents is of another kind."""
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        same = names <= self.files if self.alone else not names.isdisjoint(self.files)
        if names and not same:
            raise OutputExists(f"{str(folder)!r} is not {self.name}, so it is not replaced. Choose another folder.")


MODEL = FolderKind("a model", frozenset({"config.json", "bothways.json"}))


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
    """Open a temporary file for writing, which replaces ``path`` only when the block succeeds.

    Args:
        path: The target; missing parent folders are created. A device or a pipe is written to directly.
        overwrite: Allow an existing file to be replaced.
        binary: Open the file for bytes instead of UTF-8 text.

    Raises:
        OutputExists: ``path`` is a folder, or a file that exists and ``overwrite`` is false.
        InvalidInput: The folder may not be written to, or ``path`` is a disk or a socket.
        OutOfDisk: The disk is full, or the file has its maximum size; nothing was left behind.
    """
    named = Path(path)
    check_file_free(named, overwrite=overwrite)
    mode, encoding, newline = ("wb", None, None) if binary else ("w", "utf-8", "")
    if is_stream(named) or is_opened_by_caller(named):
        mode = mode if is_stream(named) else mode.replace("w", "a")  # after ">> file" in a shell
        with disk_errors(named, named), named.open(mode, encoding=encoding, newline=newline) as direct:
            yield direct
        return
    target = resolved(named)
    with _parents_of(named, target), temporary_file(target) as (handle, temporary):
        stream: IO[Any] = os.fdopen(handle, mode, encoding=encoding, newline=newline)
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        give_usual_mode(temporary)
        temporary.replace(target)


@contextmanager
def new_folder(
    path: str | os.PathLike[str], *, overwrite: bool = False, kind: FolderKind | None = None
) -> Iterator[Path]:
    """Yield the path of a temporary folder, which replaces ``path`` only when the block succeeds.

    An empty folder at ``path`` counts as absent. ``overwrite`` replaces a folder of the given kind.

    Raises:
        OutputExists: ``path`` is a file, or it is a folder with contents (even if it appeared while the block ran), and
            ``overwrite`` is false or the folder is of another kind.
        InvalidInput: ``path`` cannot be replaced or written to.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    named = Path(path)
    target = resolved(named)
    check_folder_free(named, overwrite=overwrite, kind=kind)
    with _parents_of(named, target), temporary_folder(target) as temporary:
        yield temporary
        _flush(temporary)
        temporary.chmod(0o777 & ~_umask())
        check_folder_free(named, overwrite=overwrite, kind=kind)  # it may have appeared meanwhile
        _swap(temporary, target)


def move_folder(folder: Path, path: str | os.PathLike[str], *, overwrite: bool, kind: FolderKind | None = None) -> None:
    """Move a complete folder to ``path``, which must be on the same disk."""
    check_folder_free(path, overwrite=overwrite, kind=kind)
    _swap(folder, resolved(Path(path)))


def give_usual_mode(path: Path) -> None:
    """Set the permissions of a new file according to the umask."""
    path.chmod(0o666 & ~_umask())


@contextmanager
def _parents_of(named: Path, target: Path) -> Iterator[None]:
    """Create the parent folders of ``target`` and remove leftovers; if the block fails, remove the new folders."""
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
    """Flush all files of a folder to disk; some disks report only then that they are full."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("r+b") as stream:
                os.fsync(stream.fileno())


def _swap(temporary: Path, target: Path) -> None:
    """Replace ``target`` by ``temporary``.

    If the system can exchange two names, ``target`` exists at every moment. Otherwise the old folder is moved aside
    first, and moved back if the new one cannot be moved to ``target``.
    """
    if not target.exists():
        temporary.rename(target)
        return
    if _exchange(temporary, target):
        return
    with temporary_folder(target, "replaced") as aside:
        target.rename(aside / _OLD)
        try:
            temporary.rename(target)
        except BaseException:
            (aside / _OLD).rename(target)
            raise


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; return False if the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    done: int = renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)
    return done == 0


@contextmanager
def disk_errors(named: Path, target: Path) -> Iterator[None]:
    """Convert missing permission or space in the block to InvalidInput or OutOfDisk, which name the path ``named``."""
    try:
        yield
    except (OSError, OutOfDisk) as raised:
        # OutOfDisk comes from an output nested in this one, and names a temporary path.
        error = raised.__cause__ if isinstance(raised, OutOfDisk) else raised
        if not isinstance(error, OSError):
            raise
        # EBUSY: a mount point, for example.
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
    """Return True if the path in an operating system error is within the folder of the output."""
    return isinstance(name, str) and target.parent in (Path(name), *Path(name).parents)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_folder_free(path: str | os.PathLike[str], *, overwrite: bool, kind: FolderKind | None = None) -> None:
    """Raise the errors that `new_folder` would raise, before the output is computed."""
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise OutputExists(_in_the_way(target, "file", "folder"))
    check_folder_place(target)
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise already_there(target, "the output folder")
    if kind is not None:
        kind.check(target)


def check_folder_place(path: str | os.PathLike[str]) -> None:
    """Raise InvalidInput for a folder that can never be replaced: the current one, one above it, or a mount point."""
    named = Path(path)
    target = resolved(named)
    would = f"the output would replace the folder {str(named)!r}, which is"
    advice = "Choose another path, such as a new folder in it."
    if named.name in ("", "..") or _holds_current_folder(target):
        raise InvalidInput(f"{would} the current folder or one above it. {advice}")
    if target.is_mount():
        raise InvalidInput(f"{would} a mount point and cannot be replaced. {advice}")


def check_file_writable(path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Raise the errors that `new_file` would raise, before the output is computed."""
    named = Path(path)
    check_file_free(named, overwrite=overwrite)
    if is_stream(named):
        if not os.access(named, os.W_OK):
            raise not_permitted(named, os.strerror(errno.EACCES))
        return
    above = next(each for each in resolved(named).parents if each.exists())
    if not above.is_dir():
        raise InvalidInput(
            f"the output {str(named)!r} cannot be written: {str(above)!r} is a file, where a folder was expected. "
            "Choose another path."
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise not_permitted(named, os.strerror(errno.EACCES))


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return True if ``path`` is a pipe or a character device, such as /dev/null or a terminal."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def is_opened_by_caller(path: str | os.PathLike[str]) -> bool:
    """Return True for /dev/stdout and the like, which are files after ``> file`` in a shell."""
    return re.match(r"/dev/(std(out|err)$|fd/)|/proc/(self|\d+)/fd/", str(path)) is not None


def check_file_free(target: Path, *, overwrite: bool) -> None:
    """Raise OutputExists or InvalidInput if ``target`` is a folder, disk or socket, or a file not to be overwritten."""
    if target.is_dir():
        raise OutputExists(_in_the_way(target, "folder", "file"))
    if is_stream(target):
        return
    if target.exists() and not target.is_file():
        raise InvalidInput(
            f"the output {str(target)!r} is a disk or a socket: expected a file, a pipe or a device such as /dev/null. "
            "Choose another path."
        )
    if target.exists() and not overwrite and not is_opened_by_caller(target):
        raise already_there(target, "the output file")


def resolved(path: Path) -> Path:
    """Resolve symbolic links, so that the file behind a link is replaced."""
    return Path(os.path.realpath(path))


def not_permitted(target: Path, reason: str | None) -> InvalidInput:
    """Return the error for an output that may not be written."""
    return InvalidInput(
        f"the output {str(target)!r} cannot be written: {reason}. Choose another path or check the permissions of its "
        "folder."
    )


def _holds_current_folder(folder: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(folder)
    except FileNotFoundError:  # somebody removed the current folder
        return False


def already_there(target: Path, what: str) -> OutputExists:
    """Return the error for an output that exists; ``what`` is the noun phrase for it."""
    remedy = "Choose another path, or replace it with overwrite=True (--overwrite)."
    return OutputExists(f"{what} {str(target)!r} already exists. {remedy}")


def _in_the_way(target: Path, found: str, expected: str) -> str:
    return f"expected {str(target)!r} to be a {expected} or not to exist, but it is a {found}. Choose another path."


# --- temporary files and folders ---


@contextmanager
def held(folder: str | os.PathLike[str], refusal: str) -> Iterator[None]:
    """Lock an existing folder during the block; on systems without locks, do nothing.

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
    if (path / _OLD).exists() and not target.exists():
        (path / _OLD).rename(target)
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
