"""Readers and writers of a checkpoint folder's files: JSON, safetensors (one file or shards), and scanned pickles."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from bothways.errors import (
    CorruptCheckpoint,
    IncompatibleWeights,
    MissingDependency,
    UnknownModel,
    UnsafeCheckpoint,
    UnsupportedConfig,
)
from bothways.families.family import HEAD_FOLDER, Family
from bothways.families.layout import write_weights
from bothways.reading import MIB, open_regular, parse_json, read_bytes
from bothways.storage import give_usual_mode

if TYPE_CHECKING:
    from torch import Tensor

    from bothways.encoder.int8 import Int8Weight

WEIGHTS = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
# Int8 weights are in a file that other programs do not read. Since ``model.safetensors`` is missing and they do not
# know the quantization method in ``config.json``, they refuse the folder instead of initialising missing weights.
INT8_WEIGHTS = "int8.safetensors"
FULL_WEIGHTS = "float32.safetensors"
_INT8_PARTS = {"codes": "int8", "scale": "float32", "shift": "float32", "stretch": "float32"}
PICKLED = "pytorch_model.bin"
MODULES_FILE = "modules.json"
PICKLED_INDEX = "pytorch_model.bin.index.json"
HEAD_WEIGHTS = f"{HEAD_FOLDER}/{WEIGHTS}"

Known: TypeAlias = Mapping[str, tuple[object, ...] | None]
"""The settings of a file: those without effect on vectors (None), and those of which only these values are known."""

# The header of a model of 1,000 layers has 2 MiB, that of a million tensors 60 MiB.
_MAX_HEADER = 4 * MIB


def read_json(path: Path) -> dict[str, object]:
    """Return the JSON object in a file."""
    try:
        content = parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise UnknownModel(
            f"expected {path.name} in the model folder {str(path.parent)!r}, but there is none. Give the folder that "
            "holds config.json and model.safetensors."
        ) from error
    except ValueError as error:
        raise CorruptCheckpoint(f"{str(path)!r} must be a JSON file: {error}.") from error
    if not isinstance(content, dict):
        raise CorruptCheckpoint(f"{str(path)!r} must hold a JSON object, but it holds a {type(content).__name__}.")
    return content


def read_known(path: Path, known: Known) -> dict[str, object]:
    """Return the settings of a file, without nulls; empty without the file; refuse settings that are not supported."""
    if not path.is_file():
        return {}
    stored = read_json(path)
    for name, value in stored.items():
        values = known.get(name, ())
        if value is not None and values is not None and value not in values:
            only = " or ".join(map(repr, values)) or "leaving it out"
            raise UnsupportedConfig(
                f"{str(path)!r} sets {name} to {value!r:.200}, which is not supported; only {only} is."
            )
    return {name: value for name, value in stored.items() if value is not None}


def read_count(path: Path, settings: Mapping[str, object], name: str) -> int | None:
    """Return a setting that is a number of at least 1; None if it is missing."""
    value = settings.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise CorruptCheckpoint(
            f"{str(path)!r} must give {name} as a whole number of at least 1, but it is {value!r:.80}."
        )
    return value


def read_tensors(folder: Path, *, allow_pickle: bool = False) -> dict[str, Tensor]:
    """Return all tensors of a folder, memory-mapped; a pickle only if allowed, scanned, and without safetensors."""
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


@dataclass(frozen=True, slots=True)
class StoredModule:
    """An entry of ``modules.json``: a class of sentence-transformers, and the folder of its settings and weights."""

    kind: str
    folder: str  # inside of the model's folder; empty for that folder itself

    @property
    def name(self) -> str:
        """The class without its package."""
        return self.kind.rpartition(".")[2]


def stored_modules(folder: Path) -> tuple[StoredModule, ...] | None:
    """Return the modules of an embedder in the layout of sentence-transformers; None if the folder lists none."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return None
    try:
        modules = tuple(
            StoredModule(str(each["type"]), str(each.get("path", ""))) for each in parse_json(read_bytes(path))
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptCheckpoint(f"{str(path)!r} must be a JSON list of modules with a type, but it is not.") from error
    if not modules:
        raise CorruptCheckpoint(f"{str(path)!r} must be a JSON list of modules with a type, but it lists none.")
    for each in modules:
        if Path(each.folder).is_absolute() or ".." in Path(each.folder).parts:
            raise CorruptCheckpoint(
                f"{str(path)!r} names {each.folder!r}, which is not a folder inside of the model's."
            )
    return modules


def read_head_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors in ``head/``, a classifier's linear layer (see `MEAN_HEAD`); empty without this file."""
    path = folder / HEAD_WEIGHTS
    if not path.is_file():
        return {}
    return {f"{HEAD_FOLDER}/{name}": value for name, value in read_safetensors(path).items()}


def int8_tensors(maps: Mapping[str, Int8Weight]) -> dict[str, Tensor]:
    """Return the tensors of int8 weights under their names in the file; the keys of ``maps`` are encoder parameters."""
    return {
        f"{name}.{part}": value
        for name, each in maps.items()
        for part, value in zip(_INT8_PARTS, (each.codes_OI, each.scale_O, each.shift_I, each.stretch_I), strict=True)
    }


def read_int8(folder: Path) -> dict[str, Int8Weight]:
    """Return the int8 weights of a folder by the names of the encoder's parameters; empty if it has none."""
    path = folder / INT8_WEIGHTS
    if not path.is_file():
        return {}
    tensors = read_safetensors(path)
    names = sorted({key.rpartition(".")[0] for key in tensors})
    if len(tensors) != len(names) * len(_INT8_PARTS):
        expected = f"{len(_INT8_PARTS)} tensors for each of {len(names)} weights"
        raise _damaged(path, expected, f"{len(tensors)} tensors")
    return {name: _int8_weight(path, name, tensors) for name in names}


def rounded_weights(folder: Path, family: Family) -> dict[str, Tensor]:
    """Return the int8 weights of a folder, converted to float32, under the family's names."""
    maps = read_int8(folder)
    if not maps:
        return {}
    config = family.config(read_json(folder / "config.json"))
    return write_weights(family.rows, config, {name: each.weight() for name, each in maps.items()}, family.prefix)


def _int8_weight(path: Path, name: str, tensors: Mapping[str, Tensor]) -> Int8Weight:
    from bothways.encoder.int8 import Int8Weight  # loads torch

    codes, scale, shift, stretch = (tensors.get(f"{name}.{part}") for part in _INT8_PARTS)
    if codes is None or codes.dim() != 2:
        raise _damaged(path, f"a matrix {name}.codes", "none" if codes is None else str(tuple(codes.shape)))
    parts, shapes = (codes, scale, shift, stretch), (codes.shape, codes.shape[:1], codes.shape[1:], codes.shape[1:])
    for (part, dtype), value, shape in zip(_INT8_PARTS.items(), parts, shapes, strict=True):
        if value is None or str(value.dtype) != f"torch.{dtype}" or value.shape != shape:
            found = "nothing" if value is None else f"{value.dtype} {tuple(value.shape)}"
            raise _damaged(path, f"{name}.{part} as {dtype} {tuple(shape)}", found)
    assert scale is not None
    assert shift is not None
    assert stretch is not None
    finite = all(bool(each.isfinite().all()) for each in (scale, shift, stretch))
    if not finite or bool((scale <= 0).any()) or bool((stretch <= 0).any()):
        raise _damaged(path, f"finite numbers, and scales above 0, for {name}", "other numbers")
    return Int8Weight(codes, scale, shift, stretch)


def _damaged(path: Path, expected: str, found: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"expected {str(path)!r} to hold {expected}, got {found}: it was altered or damaged. Get the model again."
    )


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a regular file."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fingerprint(folder: Path) -> str:
    """Return the SHA-256 of each weight file in a folder, joined by ``+``; it identifies a model."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    layers = [each.folder for each in stored_modules(folder) or () if each.folder not in ("", HEAD_FOLDER)]
    inside = [f"{layer}/{name}" for layer in layers for name in (WEIGHTS, PICKLED)]
    return "+".join(sha256_of(folder / name) for name in [*names, *inside, HEAD_WEIGHTS] if (folder / name).is_file())


def verify_checksums(folder: Path, checksums: Mapping[str, object]) -> None:
    """Raise CorruptCheckpoint if a file is missing or does not have its recorded checksum."""
    for name, expected in checksums.items():
        path = folder / name
        if not path.is_file():
            raise CorruptCheckpoint(f"{name} is missing from {str(folder)!r}, but has a checksum: get the model again.")
        found = sha256_of(path)
        if found != expected:
            raise CorruptCheckpoint(
                f"{str(path)!r} was altered or damaged: its SHA-256 is {found}, expected {expected}. "
                "Get it again from where it came."
            )


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of one file."""
    with _opened(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)


def read_arrays(path: Path) -> dict[str, NDArray[np.floating]]:
    """Return all arrays of one small file; they must be finite floating-point numbers."""
    try:
        with _opened(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except TypeError as error:
        raise IncompatibleWeights(
            f"expected floating point numbers in {path.name}, but some are of another type: get the model again."
        ) from error
    for name, value in arrays.items():
        if value.dtype.kind != "f":
            raise IncompatibleWeights(
                f"expected floating point weights in {name} of {path.name}, got {value.dtype}: get the model again."
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
            raise CorruptCheckpoint(f"{SHARD_INDEX} names the shard {name!r}, which {str(folder)!r} lacks. Get it.")
        tensors.update(read_safetensors(folder / name))
    absent = sorted(set(places) - set(tensors))
    if absent:
        raise CorruptCheckpoint(f"no shard in {str(folder)!r} has {absent[:5]} of {SHARD_INDEX}: get the model again.")
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
        raise CorruptCheckpoint(f"{str(path)!r} cannot be read as a checkpoint: {error}. Get it again.") from error
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise CorruptCheckpoint(f"{str(path)!r} must hold a mapping from names to tensors: save a state_dict.")
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
        raise CorruptCheckpoint(f"{str(path)!r} is too damaged to scan for code: {error}. Get it again.") from error
    if result.scan_err:
        raise UnsafeCheckpoint(f"{str(path)!r} was not read: a malformed pickle may hide code. Use safetensors.")
    if result.issues_count or result.infected_files:
        found = ", ".join(sorted({f"{g.module}.{g.name}" for g in result.globals if g.safety.value != "innocuous"}))
        raise UnsafeCheckpoint(f"{str(path)!r} would run code (it calls {found}), so it was not read: do not use it.")


# --- writing ---


def write_json(path: Path, content: Mapping[str, object] | Sequence[object]) -> None:
    """Write a JSON object or list, indented, in UTF-8."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file, or raise the operating system's OSError."""
    from safetensors.torch import save_file

    on_host = {name: value.cpu() for name, value in tensors.items()}
    with _written(path):
        save_file(on_host, path, metadata={"format": "pt"})


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write one safetensors file of NumPy arrays, or raise the operating system's OSError."""
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    with _written(path):
        save_file(contiguous, path, metadata={"format": "pt"})


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Convert errors of safetensors to the operating system's error that they mention; set the usual file mode."""
    try:
        yield
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        number = int(found.group(1)) if found else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error
    # The library makes it readable for its owner only.
    give_usual_mode(path)
