"""Bounded reading of the files of models and indexes: regular files only, limited bytes, JSON of limited size.

A named pipe or a device may have no end, so it is refused. Data may come from one, see `bothways.data.lines`.
"""

import io
import itertools
import json
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from bothways.errors import CorruptCheckpoint, UnknownModel, nearest

MIB = 2**20

MAX_JSON = 32 * MIB
"""Maximum bytes of a JSON file with settings, which is 10,000 times the usual size."""

# A tokenizer with a million tokens has 3 million values.
_MAX_VALUES = 8_000_000
_MAX_DEPTH = 100
# Maximum number of names in a folder to compare with a misspelt one.
_MAX_NAMES = 1000
# Valid integers are shorter: int(1e30), which tokenizers write for "no limit", has 31 digits, a 64-bit id 19.
_MAX_DIGITS = 100


def did_you_mean_path(path: Path) -> str:
    """Return a hint for the end of an error message: the most similar path in the folder; empty if none is similar."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MAX_NAMES)]
    except OSError:
        return ""
    near = nearest(path.name, names)
    return "" if near is None else f" Did you mean {str(path.parent / near)!r}?"


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading bytes; refuse a pipe or a device without blocking."""
    waitless = getattr(os, "O_NONBLOCK", 0)
    try:
        stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | waitless))  # noqa: SIM115
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a name with a null character is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnknownModel(
            f"{str(path)!r} cannot be read ({reason}): check that it is a file and that you may read it."
        ) from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise CorruptCheckpoint(
            f"expected {str(path)!r} to be a regular file, but it is a pipe or a device. Put a file there."
        )
    return stream


def read_bytes(path: Path, max_bytes: int = MAX_JSON) -> bytes:
    """Read a regular file of at most ``max_bytes`` bytes."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size <= max_bytes and len(content := stream.read(max_bytes + 1)) <= max_bytes:
            return content
    raise CorruptCheckpoint(
        f"{str(path)!r} is too large: expected at most {max_bytes:,} bytes, got {size:,}. Check that it is the "
        "right file of this name, or get it again from where it came."
    )


class JsonTooLarge(ValueError):
    """JSON that exceeds a limit: too many values, nested too deeply, or a number with too many digits."""


def parse_json(content: bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:  # noqa: ANN401 (what json.loads returns)
    """Parse bounded JSON in UTF-8 or raise ValueError; ``pairs`` is the ``object_pairs_hook`` of `json.loads`."""
    if sum(map(content.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise JsonTooLarge(f"more than {_MAX_VALUES} values")
    try:
        value = json.loads(content.decode("utf-8"), parse_int=_whole, object_pairs_hook=pairs)
    except RecursionError as error:
        raise JsonTooLarge("nested too deeply") from error
    _check_depth(value)
    if b"\\u" in content:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("a \\u escape is half of a surrogate pair") from error
    return value


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise JsonTooLarge(f"a whole number of {len(digits)} digits")
    return int(digits)


def _check_depth(value: object) -> None:
    level, depth = [value], 0
    while level:
        if depth > _MAX_DEPTH:
            raise JsonTooLarge(f"nested more than {_MAX_DEPTH} levels deep")
        level, depth = [part for each in level for part in _parts(each)], depth + 1


def _parts(value: object) -> Collection[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
