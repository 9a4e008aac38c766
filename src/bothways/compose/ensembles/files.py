"""An ensemble on disk: a small folder that points to its members.

``bothways.json`` names each member by its path from the folder, so a folder of runs can be moved as a whole, and by a
checksum of the files that its answers come from. Weights are not copied. A member that is gone, or is no longer what
was combined, is refused when the ensemble is opened.
"""

import hashlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bothways.checkpoints.checkpoint import FORMAT_VERSION, OURS
from bothways.checkpoints.files import read_json, sha256_of
from bothways.checkpoints.save import write_json
from bothways.checkpoints.stored import Extras, damaged, stored_overflow, stored_whole
from bothways.compose.ensembles.combining import Combination, Mean, Stacked, Vote
from bothways.errors import CorruptCheckpoint, UnknownModel, UnsupportedConfig
from bothways.evaluation import Temperature
from bothways.storage import new_folder
from bothways.tasks.opening import OpenOptions
from bothways.text.saving import TOKENIZER_FILES

# What decides a member's answers, where it has them; other files may come and go beside.
_WEIGHTS = (".safetensors", ".bin")
_NAMES = ("config.json", OURS, "sentence_bert_config.json", *TOKENIZER_FILES)


def member_fingerprint(folder: Path) -> str:
    """SHA-256 over the names and contents of a saved model's files."""
    content = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if (path.suffix in _WEIGHTS or path.name in _NAMES) and path.is_file():
            content.update(f"{path.name} {sha256_of(path)}\n".encode())
    return content.hexdigest()


def asked_reading(options: OpenOptions) -> OpenOptions:
    """How texts are to be read by these options, without what they leave to the model."""
    asked: OpenOptions = {}
    if (length := options.get("max_length")) is not None:
        asked["max_length"] = length
    if (overflow := options.get("on_overflow")) is not None:
        asked["on_overflow"] = overflow
    if (stride := options.get("stride")) is not None:
        asked["stride"] = stride
    return asked


def stored_reading(stored: Extras) -> OpenOptions:
    """How the members of a saved ensemble were asked to read texts; nothing where they read as each of them does.

    Raises:
        CorruptCheckpoint: That is no way to read them.
    """
    reading = stored.get("reading", {})
    if not isinstance(reading, Mapping):
        raise damaged("reading", "an object", reading)
    # How much a member can read it says itself.
    length, stride = (stored_whole(reading, name, sys.maxsize, least=0) for name in ("max_length", "stride"))
    return asked_reading({"max_length": length, "on_overflow": stored_overflow(reading), "stride": stride})


def write_ensemble(
    folder: str | Path, members: Sequence[Path], extras: Mapping[str, object], *, overwrite: bool
) -> None:
    """Write the folder, whole or not at all.

    Raises:
        OutputExists: The folder exists and ``overwrite`` is false.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    here = Path(folder).resolve()
    stored = [
        {
            "path": Path(os.path.relpath(member.resolve(), here)).as_posix(),
            "fingerprint": member_fingerprint(member),
        }
        for member in members
    ]
    with new_folder(folder, overwrite=overwrite) as new:
        write_json(new / OURS, {"format_version": FORMAT_VERSION, **extras, "members": stored})


def read_ensemble(folder: Path) -> tuple[dict[str, object], list[Path]]:
    """What ``bothways.json`` says, and the members' folders, each checked to be what it was.

    Raises:
        UnknownModel: A member is not where it was.
        CorruptCheckpoint: A member is no longer what it was, or the file is damaged.
        UnsupportedConfig: The file is of a later format.
    """
    stored = read_json(folder / OURS)
    if stored.get("format_version") != FORMAT_VERSION:
        raise UnsupportedConfig(
            f"{OURS} has the format version {stored.get('format_version')!r}, but this version of bothways reads "
            f"{FORMAT_VERSION}. Open the ensemble with the version that saved it."
        )
    listed = stored.get("members")
    if not isinstance(listed, list) or len(listed) < 2:
        raise damaged("members", "a list of two or more", listed)
    return stored, [_member(folder, entry) for entry in listed]


def combination_settings(combination: Combination, temperature: Temperature | None) -> dict[str, object]:
    """What ``bothways.json`` is to say of how members are combined and the result is calibrated."""
    return {
        "method": combination.kind,
        **{name: list(values) for name, values in asdict(combination).items()},
        "temperature": None if temperature is None else asdict(temperature),
    }


def stored_combination(extras: Mapping[str, object], members: int, outputs: int | None) -> Combination:
    """Return the combination that ``bothways.json`` names.

    Args:
        extras: What the file says.
        members: How many there are.
        outputs: How many each has; None where every input has others, which nothing can weigh.

    Raises:
        CorruptCheckpoint: It is none, or its numbers are not as many as there are members and outputs.
    """
    match extras.get("method"):
        case "mean":
            return Mean()
        case "vote":
            return Vote()
        case "stacked" if outputs is not None:
            return Stacked(_numbers(extras, "weights", members), _numbers(extras, "biases", outputs))
        case other:
            known = "'mean' or 'vote'" if outputs is None else "'mean', 'vote' or 'stacked'"
            raise damaged("method", known, other)


def _numbers(extras: Mapping[str, object], name: str, count: int) -> tuple[float, ...]:
    values = extras.get(name)
    listed = values if isinstance(values, list) else []
    if len(listed) != count or not all(isinstance(each, int | float) and math.isfinite(each) for each in listed):
        raise damaged(name, f"{count} finite numbers", values)
    return tuple(float(each) for each in listed)


def _member(folder: Path, entry: object) -> Path:
    path, fingerprint = (entry.get("path"), entry.get("fingerprint")) if isinstance(entry, dict) else (None, None)
    if not isinstance(path, str) or not isinstance(fingerprint, str):
        raise damaged("members", "objects with a path and a fingerprint", entry)
    member = Path(os.path.normpath(folder.resolve() / path))
    if not member.is_dir():
        raise UnknownModel(
            f"the ensemble {str(folder)!r} has a member {path!r}, but there is no folder {str(member)!r}. It was moved "
            "or removed: put it back, or make the ensemble again."
        )
    if member_fingerprint(member) != fingerprint:
        raise CorruptCheckpoint(
            f"the member {path!r} of the ensemble {str(folder)!r} is no longer the model that was combined: its files "
            "have changed. Put the old ones back, or make the ensemble again."
        )
    return member
