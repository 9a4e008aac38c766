"""Files of a job by path or URL: on this machine, or in an object store through fsspec (``s3://``, ``gs://``)."""

import gzip
import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import fsspec
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from bothways.data.corpus import corpus_files
from bothways.data.formats import has_format
from bothways.data.lines import open_file
from bothways.errors import InvalidInput, MissingDependency
from bothways.storage import disk_errors, give_usual_mode, temporary_file

_MARKS = "*?["
# Errors of networks and stores may pass: so often an action is tried.
TRIES = 4
# Packages whose errors are those of a store, and the ones that a second try does not mend.
_STORES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure")
_WITHOUT_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FileState:
    """A file at one moment: its path or URL, its size in bytes, and its time of change or its tag in a store."""

    url: str
    size: int
    version: str


def is_remote(url: str) -> bool:
    """Return True for a URL, such as ``s3://bucket/file``, and False for a path of this machine."""
    return "://" in url and not url.startswith("file://")


def check_place(url: str) -> None:
    """Raise InvalidInput for a URL without a bucket or of an unknown store, MissingDependency without its package."""
    if is_remote(url):
        _system(url)


def joined(folder: str, *names: str) -> str:
    """Return the path or URL of a file in a folder."""
    return "/".join([folder.rstrip("/") or "/", *names]) if is_remote(folder) else str(Path(folder, *names))


def found_files(paths: Sequence[str]) -> list[FileState]:
    """Return the files at these paths in a fixed order: as given, those of folders and patterns sorted by name.

    In folders, files whose name begins with a dot and files of unknown formats are skipped.

    Raises:
        InvalidInput: There is no file of rows at one of the paths.
    """
    found: list[FileState] = []
    for path in paths:
        here = [*(_remote_files(path) if is_remote(path) else _local_files(path))]
        if not here:
            raise InvalidInput(
                f"there is no file of rows at {path!r}: expected a file, a pattern, or a folder with names that end in "
                ".jsonl, .csv, .tsv, .txt, .json (also followed by .gz), .parquet or .xlsx."
            )
        found += here
    return found


def _local_files(path: str) -> Iterator[FileState]:
    named = Path(path.removeprefix("file://"))
    if not (any(mark in path for mark in _MARKS) and not named.exists()):
        for file in corpus_files([named]):
            yield state_of(str(file))
        return
    place = next(place for place, part in enumerate(named.parts) if any(mark in part for mark in _MARKS))
    folder = Path(*named.parts[:place])
    for file in sorted(folder.glob(str(Path(*named.parts[place:])))):
        if file.is_file() and not file.name.startswith("."):
            yield state_of(str(file))


def _remote_files(url: str) -> Iterator[FileState]:
    system, path = _system(url)
    scheme, folder = url.partition("://")[0], path.rstrip("/")

    def listed() -> Mapping[str, Mapping[str, object]]:
        """Return the facts of the store about its files, by name: one request for a thousand of them."""
        system.invalidate_cache()
        known: Mapping[str, Mapping[str, object]]
        if any(mark in path for mark in _MARKS):
            known = system.glob(path, detail=True)
            return {name: info for name, info in known.items() if not name.rpartition("/")[2].startswith(".")}
        with suppress(FileNotFoundError):
            if (info := system.info(path))["type"] == "file":
                return {path: info}
        known = system.find(folder, detail=True)
        parts = {name: name.removeprefix(folder).split("/") for name in known}
        hidden = {name for name, each in parts.items() if any(part.startswith(".") for part in each)}
        return {name: info for name, info in known.items() if has_format(parts[name][-1]) and name not in hidden}

    for name, info in sorted(_tried(url, listed).items()):
        if info["type"] == "file":
            yield _state(name if is_remote(name) else f"{scheme}://{name}", info)


def state_of(url: str) -> FileState:
    """Return the state of a file.

    Raises:
        InvalidInput: The file does not exist or may not be read.
    """
    if not is_remote(url):
        with open_file(Path(url)) as stream:
            known = os.fstat(stream.fileno())
        return FileState(url, known.st_size, str(known.st_mtime_ns))
    system, path = _system(url)

    def told() -> Mapping[str, object]:
        system.invalidate_cache()
        known: Mapping[str, object] = system.info(path)
        return known

    return _state(url, _tried(url, told))


def _state(url: str, info: Mapping[str, object]) -> FileState:
    version = next((str(info[key]) for key in ("ETag", "etag", "LastModified", "mtime", "updated") if key in info), "")
    return FileState(url, int(str(info["size"])), version)


@contextmanager
def opened(url: str) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes from any place.

    Raises:
        InvalidInput: The file does not exist or may not be read.
    """
    if not is_remote(url):
        with open_file(Path(url)) as stream:
            yield stream
        return
    system, path = _system(url)
    with _named(url), system.open(path, "rb", block_size=2**20) as remote:
        yield io.BufferedReader(remote, 2**16)


def read(url: str) -> bytes | None:
    """Return the bytes of a small file, or None if there is none."""
    if not is_remote(url):
        return Path(url).read_bytes() if Path(url).is_file() else None
    system, path = _system(url)

    def found() -> bytes | None:
        try:
            return bytes(system.cat_file(path))
        except FileNotFoundError:
            return None

    return _tried(url, found)


def read_all(folder: str, suffix: str) -> dict[str, bytes]:
    """Return the bytes of the files of a folder whose names end so, by name, in order."""
    if not is_remote(folder):
        files = sorted(Path(folder).glob(f"*{suffix}")) if Path(folder).is_dir() else []
        return {file.name: file.read_bytes() for file in files if not file.name.startswith(".")}
    system, path = _system(folder)

    def found() -> dict[str, bytes]:
        system.invalidate_cache()
        names = [name for name in system.find(path) if name.endswith(suffix)]
        contents = system.cat(names) if names else {}
        return {name.rpartition("/")[2]: bytes(contents[name]) for name in sorted(names)}

    return _tried(folder, found)


def sizes(folder: str) -> dict[str, int]:
    """Return the size of each file and folder of a folder by name; nothing if there is no such folder."""
    if not is_remote(folder):
        known: dict[str, int] = {}
        for entry in os.scandir(folder) if Path(folder).is_dir() else ():
            with suppress(FileNotFoundError):  # a worker has just removed or renamed it
                known[entry.name] = entry.stat().st_size
        return known
    system, path = _system(folder)

    def found() -> dict[str, int]:
        system.invalidate_cache()
        details = system.find(path, detail=True)
        return {name.rpartition("/")[2]: int(info["size"]) for name, info in details.items()}

    return _tried(folder, found)


def write(url: str, content: bytes) -> None:
    """Write a small file, which appears whole or not at all; an old one is replaced.

    Raises:
        InvalidInput: The file may not be written.
        OutOfDisk: The disk is full.
    """
    with written(url) as path:
        path.write_bytes(content)


@contextmanager
def written(url: str, keep: Callable[[], object] = lambda: True) -> Iterator[Path]:
    """Yield the path of a file to write, which becomes ``url``, synced, when the block succeeds.

    Nothing is written if ``keep`` then returns something false.
    """
    if not is_remote(url):
        target = Path(url)
        with disk_errors(target, target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary_file(target) as (handle, temporary):
                os.close(handle)
                yield temporary
                if keep():
                    with temporary.open("r+b") as stream:
                        os.fsync(stream.fileno())
                    give_usual_mode(temporary)
                    temporary.replace(target)
        return
    system, path = _system(url)
    with tempfile.TemporaryDirectory(prefix="bothways-job-") as folder:
        temporary = Path(folder, "part")
        yield temporary
        if keep():
            _tried(url, lambda: system.put_file(str(temporary), path))


def remove(url: str) -> None:
    """Remove a file, or a folder with all that is in it; nothing happens if it does not exist."""
    if not is_remote(url):
        if Path(url).is_dir():
            shutil.rmtree(url)
        else:
            Path(url).unlink(missing_ok=True)
        return
    system, path = _system(url)

    def removed() -> None:
        system.invalidate_cache()
        if system.exists(path):
            system.rm(path, recursive=True)

    _tried(url, removed)


def _system(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the path in it."""
    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        scheme = url.partition("://")[0]
        package = fsspec.registry.known_implementations.get(scheme, {}).get("class", scheme).partition(".")[0]
        raise MissingDependency.of(package, extra="jobs", purpose=f"reading and writing {scheme}://") from error
    except ValueError as error:
        raise InvalidInput(f"{url!r} cannot be read or written: {error}. Give a path, s3://... or gs://...") from error
    if not path.strip("/"):
        raise InvalidInput(f"{url!r} names no bucket: write {url.partition('://')[0]}://BUCKET/FOLDER.")
    return system, path


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn the last error of a store that does not answer into InvalidInput."""
    try:
        yield
    except ConnectionError as error:
        raise InvalidInput(
            f"the store did not answer in {TRIES} tries: {error}. Check the network and the address; the same call "
            "goes on after the blocks that are done."
        ) from error


def _tried(url: str, action: Callable[[], _T]) -> _T:
    """Return the result of an action on a store, which is tried again if the store does not answer."""
    for number in range(1, TRIES):
        with suppress(ConnectionError), _named(url):
            return action()
        time.sleep(2**number / 8)
    with _named(url):
        return action()


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Turn errors of a store into InvalidInput, or ConnectionError if they may pass; both name the URL."""
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no file {url!r}, or no such bucket. Check the path and its spelling.") from error
    except PermissionError as error:
        raise InvalidInput(
            f"{url!r} may not be read or written with these credentials: {error}. Check them, and the path."
        ) from error
    except Exception as error:
        if type(error).__name__ in _WITHOUT_CREDENTIALS:
            raise InvalidInput(
                f"{url!r} cannot be reached without credentials: {error}. Set those of the store, such as "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            ) from error
        from_store = type(error).__module__.partition(".")[0] in _STORES
        if from_store or (isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile)):
            raise ConnectionError(f"{url!r}: {error or type(error).__name__}") from error
        raise
