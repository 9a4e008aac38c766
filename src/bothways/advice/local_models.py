"""Models that load without a download: in installed packages, in the local hub cache, and in a given folder."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bothways.checkpoints.files import read_json
from bothways.checkpoints.hub import cached_models
from bothways.checkpoints.schema import OURS
from bothways.errors import BothwaysError
from bothways.families import FAMILIES

MAX_FOLDERS = 5000  # bounds the time in a large home folder


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that loads without a download.

    Attributes:
        name: Its name for `bothways.load`: a hub name, or a folder.
        family: Its ``model_type``; empty for a model that is composed of several models.
        task: The task that this package trained it for; empty for other models.
        commit: Its commit on the hub, or None.
        by_name: True if `bothways.load` needs only the name; otherwise it needs the commit as ``revision``.
        weights_mb: Size of its weights on disk, in MB of a million bytes.
    """

    name: str
    family: str
    task: str
    commit: str | None
    by_name: bool
    weights_mb: float


def find_local_models(folder: str | Path = ".") -> tuple[LocalModel, ...]:
    """List the models that load without a download, with the size of each.

    Args:
        folder: A folder to search for model folders, two levels deep.
    """
    cached = (
        found
        for each in cached_models()
        if (found := _local_model(each.folder, each.name, each.commit, by_name=each.by_name)) is not None
    )
    return (*cached, *_in_folders(Path(folder)))


def _in_folders(root: Path) -> Iterator[LocalModel]:
    parents = [root]
    for _ in range(2):  # levels
        others: list[Path] = []
        for path in islice((path for parent in parents for path in _folders(parent)), MAX_FOLDERS):
            found = _local_model(path, str(path))
            if found is None:
                others.append(path)
            else:
                yield found
        parents = others


def _folders(root: Path) -> Iterator[Path]:
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return
    yield from (root / name for name in names)


def _local_model(folder: Path, name: str, commit: str | None = None, *, by_name: bool = True) -> LocalModel | None:
    try:
        config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        ours = read_json(folder / OURS) if (folder / OURS).is_file() else {}
        family, task = str(config.get("model_type", "")), str(ours.get("task", ""))
        if family in FAMILIES:
            FAMILIES[family].config(config)  # raises for settings that are not supported
    except (BothwaysError, OSError):
        return None
    size = _weights_bytes(folder) if family in FAMILIES or (task and not family) else 0
    return LocalModel(name, family, task, commit, by_name, size / 1e6) if size else None


def _weights_bytes(folder: Path) -> int:
    """Return the bytes of a model's weights, its parts included: safetensors, else pickles."""
    for kind in ("*.safetensors", "*.bin"):
        size = sum(path.stat().st_size for path in folder.rglob(kind) if path.is_file())
        if size:
            return size
    return 0
