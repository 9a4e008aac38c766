"""Reading the files of a checkpoint folder: JSON, safetensors (one file or shards), and the refused pickles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from bothways.errors import CorruptCheckpoint, IncompatibleWeights, UnknownModel, UnsafeCheckpoint
from bothways.families.stored_heads import HEAD_FOLDER
from bothways.reading import MIB, open_regular, parse_json, read_bytes

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
# The others of a model with weights in int8. Programs that do not know these find no weights, rather than too few.
FULL_WEIGHTS = "float32.safetensors"
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
HEAD_WEIGHTS = f"{HEAD_FOLDER}/{WEIGHTS}"

# A model of 1,000 layers has 2 MiB; a million tensors have 60.
_MOST_HEADER = 4 * MIB


def read_json(path: Path) -> dict[str, object]:
    """Return the JSON object in a file.

    Raises:
        UnknownModel: The file is not there or cannot be read.
        CorruptCheckpoint: It is not a JSON object in a regular file, or one too large.
    """
    try:
        content = parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise UnknownModel(
            f"a model folder must hold {path.name}, but {str(path.parent)!r} does not. "
            "Give the folder that config.json and model.safetensors lie in."
        ) from error
    except ValueError as error:
        raise CorruptCheckpoint(f"{str(path)!r} must be a JSON file, but it is not: {error}.") from error
    if not isinstance(content, dict):
        raise CorruptCheckpoint(f"{str(path)!r} must hold a JSON object, but it holds a {type(content).__name__}.")
    return content


def read_tensors(folder: Path, *, allow_pickle: bool = False) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder, mapped from disk and read when touched.

    Args:
        folder: Where ``model.safetensors``, or its shards and their index, lie.
        allow_pickle: Whether ``pytorch_model.bin`` may be read where there is nothing else; it is scanned first.

    Raises:
        UnknownModel: There are no weights.
        UnsafeCheckpoint: There is only a pickle, and it was not allowed or holds code.
        CorruptCheckpoint: A file is truncated or not what its name says.
    """
    from bothways.checkpoints.pickled import read_pickled

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
        return read_pickled(folder / pickled)
    raise UnknownModel(f"a model folder must hold {WEIGHTS} or {SHARD_INDEX}, but {str(folder)!r} holds neither.")


def read_head_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the linear map of a classifier beside the encoder, see `families.stored_heads.MEAN_HEAD`, if any.

    Raises:
        CorruptCheckpoint: The file is truncated or not what its name says.
    """
    path = folder / HEAD_WEIGHTS
    if not path.is_file():
        return {}
    return {f"{HEAD_FOLDER}/{name}": value for name, value in read_safetensors(path).items()}


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes.

    Raises:
        CorruptCheckpoint: It is no regular file.
        UnknownModel: It may not be read.
    """
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fingerprint(folder: Path) -> str:
    """SHA-256 of the weight files of a checkpoint folder, joined: two models are the same where theirs are."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    head = [HEAD_WEIGHTS] if (folder / HEAD_WEIGHTS).is_file() else []
    return "+".join(sha256_of(folder / name) for name in [*names, *head])


def verify_checksums(folder: Path, checksums: Mapping[str, str]) -> None:
    """Hold files against the checksums that are known for them.

    Raises:
        CorruptCheckpoint: A file is missing or differs from the one the checksum was taken of.
        UnknownModel: A file cannot be read.
    """
    for name, expected in checksums.items():
        path = folder / name
        if not path.is_file():
            raise CorruptCheckpoint(f"{name} is missing from {str(folder)!r}, though its checksum is on record.")
        found = sha256_of(path)
        if found != expected:
            raise CorruptCheckpoint(
                f"{str(path)!r} is not the file it should be: its SHA-256 is {found}, expected {expected}. "
                "It was altered or damaged: get it again from where it came."
            )


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one file.

    Raises:
        CorruptCheckpoint: It is no safetensors file, or damaged, or lists more tensors than any model has.
        UnknownModel: It may not be read.
    """
    with _opened(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)


def read_arrays(path: Path) -> dict[str, NDArray[np.floating]]:
    """All arrays of one small file of finite floating point numbers, for NumPy.

    Raises:
        CorruptCheckpoint: It is no safetensors file, or damaged, or a number is infinite or NaN.
        IncompatibleWeights: It holds whole numbers, truth values or numbers that NumPy does not have.
        UnknownModel: It may not be read.
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
    """Open a safetensors file, whose library tells of its errors in its own way."""
    try:
        with open_regular(path) as stream:
            header = int.from_bytes(stream.read(8), "little")
        if header > _MOST_HEADER:
            raise CorruptCheckpoint(
                f"expected {str(path)!r} to list its tensors in at most {_MOST_HEADER // MIB} MiB, but it takes "
                f"{header} bytes for that: it is damaged. Get it again."
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
        # A shard's name comes from the file: it must not lead out of the folder.
        if Path(name).name != name or not (folder / name).is_file():
            raise CorruptCheckpoint(f"{SHARD_INDEX} names the shard {name!r}, which is not a file in {str(folder)!r}.")
        tensors.update(read_safetensors(folder / name))
    absent = sorted(set(places) - set(tensors))
    if absent:
        raise CorruptCheckpoint(f"the shards in {str(folder)!r} lack tensors that {SHARD_INDEX} names: {absent[:5]}.")
    return tensors
