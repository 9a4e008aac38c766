"""Pickles of immutable values that were read from a file beside the weights. Loads no torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from bothways.checkpoints.files import sha256_of
from bothways.errors import CorruptCheckpoint

V = TypeVar("V")
Reduced = tuple[Callable[..., Any], tuple[Any, ...]]

PUT_BACK = "Put the folder back as it was, or open the model anew and pickle it again."

_FILES: WeakKeyDictionary[object, tuple[Path, str, Callable[..., object], tuple[object, ...]]] = WeakKeyDictionary()


def remember_file(value: V, file: Path, build: Callable[..., V], *args: object) -> V:
    """Record that ``build(*args)`` reads an immutable value from a file beside the weights; return the value.

    It then pickles as the file's path and checksum, if `reduce_value` is registered for its class with
    ``copyreg.pickle`` and the class allows weak references.
    """
    _FILES[value] = (file.absolute(), sha256_of(file), build, args)
    return value


def reduce_value(value: object) -> Any:  # noqa: ANN401 (what object.__reduce_ex__ returns)
    """Reduce a value for pickle: to its file if that is unchanged, else to its fields."""
    found = _FILES.get(value)
    if found is not None and found[0].is_file() and sha256_of(found[0]) == found[1]:
        return _read_again, found
    return object.__reduce_ex__(value, 4)


def _read_again(file: Path, checksum: str, build: Callable[..., V], args: tuple[object, ...]) -> V:
    if not file.is_file() or sha256_of(file) != checksum:
        raise CorruptCheckpoint(
            f"this pickle refers to {str(file)!r}, which has changed or gone since it was pickled. {PUT_BACK}"
        )
    return build(*args)
