"""Old ``.bin`` checkpoints: scanned for code first, then read as plain tensors and nothing else."""

import pickle
from pathlib import Path

import torch
from torch import Tensor

from bothways.errors import CorruptCheckpoint, MissingDependency, UnsafeCheckpoint


def read_pickled(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a pickled checkpoint.

    Raises:
        MissingDependency: ``picklescan`` is not installed; without a scan nothing is read.
        UnsafeCheckpoint: The pickle would import or call something that is not needed to hold tensors.
        CorruptCheckpoint: It cannot be read or does not hold tensors.
    """
    _scan(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpoint(f"{str(path)!r} holds more than plain tensors and was not read: {error}.") from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise CorruptCheckpoint(f"{str(path)!r} cannot be read as a checkpoint: {error}.") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CorruptCheckpoint(f"{str(path)!r} must hold a mapping from names to tensors, but it does not.")
    return content


def _scan(path: Path) -> None:
    try:
        from picklescan.scanner import scan_file_path
    except ImportError as error:
        raise MissingDependency.of("picklescan", extra="unsafe", purpose="reading a pickled checkpoint") from error
    try:
        result = scan_file_path(str(path))
    # The scanner lets out whatever its parsers of archives and pickles meet with in a broken file.
    except Exception as error:
        raise CorruptCheckpoint(f"{str(path)!r} cannot be scanned for code, so it was not read: {error}.") from error
    if result.scan_err:
        raise UnsafeCheckpoint(f"{str(path)!r} could not be scanned for code, so it was not read.")
    if result.issues_count or result.infected_files:
        found = ", ".join(sorted({f"{g.module}.{g.name}" for g in result.globals if g.safety.value != "innocuous"}))
        raise UnsafeCheckpoint(f"{str(path)!r} would run code when read (it calls {found}). It was not read.")
