"""Readers of a checkpoint folder's files: JSON, safetensors (one file or shards), and scanned pickles."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from bothways.errors import (
    CorruptCheckpoint,
    IncompatibleWeights,
    MissingDependency,
    UnknownModel,
    UnsafeCheckpoint,
)
from bothways.families.family import HEAD_FOLDER
from bothways.reading import MIB, open_regular, parse_json, read_bytes

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
# The other weights of a model in int8, under a name that other programs do not read.
FULL_WEIGHTS = "float32.safetensors"
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
HEAD_WEIGHTS = f"{HEAD_FOLDER}/{WEIGHTS}"

# A model of 1,000 layers has 2 MiB; a million tensors have 60.
_MAX_HEADER = 4 * MIB


def read_json(path: Path) -> dict[str, object]:
    """Return the JSON object in a file.

    Raises:
        UnknownModel: The file is missing or cannot be read.
        CorruptCheckpoint: It is not a JSON object in a regular file, or too large.
    """
    try:
        content = parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise UnknownModel(
            f"expected {path.name} in the model folder {str(path.parent)!r}, but there is none. "
            "Give the folder that holds config.json and model.safetensors."
        ) from error
    except ValueError as error:
        raise CorruptCheckpoint(f"{str(path)!r} must be a JSON file: {error}.") from error
    if not isinstance(content, dict):
        raise CorruptCheckpoint(f"{str(path)!r} must hold a JSON object, but it holds a {type(content).__name__}.")
    return content


def read_tensors(folder: Path, *, allow_pickle: bool = False) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint folder, memory-mapped.

    Args:
        folder: The folder of ``model.safetensors``, or of its shards and their index.
        allow_pickle: Read ``pytorch_model.bin`` if there is nothing else, after a scan.

    Raises:
        UnknownModel: There are no weights.
        UnsafeCheckpoint: There is only a pickle, which is not allowed or holds code.
        CorruptCheckpoint: A file is truncated or has another format.
    """
    if (folder / WEIGHTS).is_file():
        return read_safetensors(folder / WEIGHTS)
    if (folder / SHARD_INDEX).is_file():
        return _read_shards(folder)
    if (folder / FULL_WEIGHTS).is_file():
        return read_safetensors(folder / FULL_WEIGHTS)
    pickled = next((name for name in (PICKLED, PICKLED_INDEX) if (folder / name).is_file()), None)
    if pickled and (pickled == PICKLED_INDEX or not allow_pickle):
        raise UnsafeCheckpoint(
            f"{str(folder)!r} has its weights only in {pickled}, a pickle, and reading a pickle can run code. "
            "Convert it to model.safetensors, or pass allow_pickle=True (--allow-pickle) to have it scanned and read; "
            "pickles in several parts are never read."
        )
    if pickled:
        return _read_pickled(folder / pickled)
    raise UnknownModel(f"expected {WEIGHTS} or {SHARD_INDEX} in the model folder {str(folder)!r}, found neither.")


def read_head_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the linear map of a classifier beside the encoder (`families.stored_heads.MEAN_HEAD`), if any."""
    path = folder / HEAD_WEIGHTS
    if not path.is_file():
        return {}
    return {f"{HEAD_FOLDER}/{name}": value for name, value in read_safetensors(path).items()}


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a regular file."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fingerprint(folder: Path) -> str:
    """Return the joined SHA-256 of a checkpoint folder's weight files, which identifies a model."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    head = [HEAD_WEIGHTS] if (folder / HEAD_WEIGHTS).is_file() else []
    return "+".join(sha256_of(folder / name) for name in [*names, *head])


def verify_checksums(folder: Path, checksums: Mapping[str, str]) -> None:
    """Compare files with their recorded checksums.

    Raises:
        CorruptCheckpoint: A file is missing or differs.
    """
    for name, expected in checksums.items():
        path = folder / name
        if not path.is_file():
            raise CorruptCheckpoint(f"{name} is missing from {str(folder)!r}, though its checksum is on record.")
        found = sha256_of(path)
        if found != expected:
            raise CorruptCheckpoint(
                f"{str(path)!r} was altered or damaged: its SHA-256 is {found}, expected {expected}. "
                "Get it again from where it came."
            )


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of one file.

    Raises:
        CorruptCheckpoint: It is not a safetensors file, is damaged, or has too large a header.
    """
    with _opened(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)


def read_arrays(path: Path) -> dict[str, NDArray[np.floating]]:
    """Return all arrays of one small file of finite floating point numbers.

    Raises:
        CorruptCheckpoint: It is not a safetensors file, is damaged, or a number is infinite or NaN.
        IncompatibleWeights: It holds other types of numbers.
    """
    try:
        with _opened(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except TypeError as error:
        raise IncompatibleWeights(f"expected floating point numbers in {path.name}, but there are others.") from error
    for name, value in arrays.items():
        if value.dtype.kind != "f":
            raise IncompatibleWeights(
                f"expected floating point weights in {name} of {path.name}, but they are {value.dtype}."
            )
        if not np.isfinite(value).all():
            raise CorruptCheckpoint(
                f"expected finite numbers in {name} of {path.name}, but one is infinite or NaN: the file is damaged. "
                "Get the model again from where it came."
            )
    return arrays


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[Any]:
    try:
        with open_regular(path) as stream:
            header = int.from_bytes(stream.read(8), "little")
        if header > _MAX_HEADER:
            raise CorruptCheckpoint(
                f"expected {str(path)!r} to list its tensors in at most {_MAX_HEADER // MIB} MiB, got {header} "
                "bytes: it is damaged. Get it again."
            )
        with safe_open(path, framework=framework) as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CorruptCheckpoint(
            f"{str(path)!r} is not a whole safetensors file ({error}). It is truncated or damaged: get it again."
        ) from error


def _read_shards(folder: Path) -> dict[str, Tensor]:
    places = read_json(folder / SHARD_INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise CorruptCheckpoint(f"{SHARD_INDEX} in {str(folder)!r} must hold a weight_map from tensor to file name.")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        # The name comes from the file: it must not lead out of the folder.
        if Path(name).name != name or not (folder / name).is_file():
            raise CorruptCheckpoint(f"{SHARD_INDEX} names the shard {name!r}, which is not a file in {str(folder)!r}.")
        tensors.update(read_safetensors(folder / name))
    absent = sorted(set(places) - set(tensors))
    if absent:
        raise CorruptCheckpoint(f"the shards in {str(folder)!r} lack tensors that {SHARD_INDEX} names: {absent[:5]}.")
    return tensors


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Scan a pickled checkpoint for code, then read plain tensors and nothing else."""
    import torch

    _scan(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpoint(f"{str(path)!r} holds more than plain tensors and was not read: {error}.") from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise CorruptCheckpoint(f"{str(path)!r} cannot be read as a checkpoint: {error}.") from error
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise CorruptCheckpoint(f"{str(path)!r} must hold a mapping from names to tensors.")
    return content


def _scan(path: Path) -> None:
    try:
        from picklescan.scanner import scan_file_path
    except ImportError as error:
        raise MissingDependency.of("picklescan", extra="unsafe", purpose="reading a pickled checkpoint") from error
    try:
        result = scan_file_path(str(path))
    # For a broken file, the scanner raises whatever its parsers raise.
    except Exception as error:
        raise CorruptCheckpoint(f"{str(path)!r} cannot be scanned for code, so it was not read: {error}.") from error
    if result.scan_err:
        raise UnsafeCheckpoint(f"{str(path)!r} could not be scanned for code, so it was not read.")
    if result.issues_count or result.infected_files:
        found = ", ".join(sorted({f"{g.module}.{g.name}" for g in result.globals if g.safety.value != "innocuous"}))
        raise UnsafeCheckpoint(f"{str(path)!r} would run code when read (it calls {found}). It was not read.")


V = TypeVar("V")
Reduced = tuple[Callable[..., Any], tuple[object, ...]]

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
