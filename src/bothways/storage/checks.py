"""Checks of an output before the work."""

import errno
import os
import stat
from pathlib import Path

from bothways.errors import InvalidInput, OutputExists


def check_folder_free(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise the errors of `new_folder` before the work.

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
    """Check that a folder can be replaced, whatever is in it.

    Raises:
        InvalidInput: It is the current folder or one above it, or a mount point.
    """
    named = Path(path)
    target = resolved(named)
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
    """Raise the errors of `new_file` before the work; an existing file may be replaced.

    Raises:
        OutputExists: ``path`` is a folder.
        InvalidInput: A file is where its folder should be, the folder may not be written to, or ``path`` is a disk or a
            socket.
    """
    named = Path(path)
    check_file_free(named, overwrite=True)
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


def check_file_free(target: Path, *, overwrite: bool) -> None:
    """Check that a file can be written to a target.

    Raises:
        OutputExists: It is a folder, or a file and ``overwrite`` is false.
        InvalidInput: It is a disk or a socket.
    """
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


def resolved(path: Path) -> Path:
    """Resolve symbolic links, so that the file behind a link is replaced."""
    return Path(os.path.realpath(path))


def not_permitted(target: Path, reason: str | None) -> InvalidInput:
    """Return the error for an output without permission."""
    return InvalidInput(
        f"the output {str(target)!r} cannot be written: {reason}. Choose another path or check the permissions of its "
        "folder."
    )


def _holds_current_folder(folder: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(folder)
    except FileNotFoundError:  # somebody removed the current folder
        return False


def _already_there(target: Path, kind: str) -> str:
    return f"the output {kind} {str(target)!r} already exists. Choose another path, or ask for it to be overwritten."


def _in_the_way(target: Path, found: str, expected: str) -> str:
    return f"expected a {expected} or nothing at {str(target)!r}, got a {found}, which was kept. Choose another path."
