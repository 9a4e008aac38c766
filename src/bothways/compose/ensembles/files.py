"""An ensemble on disk: a small folder that points to its members.

``bothways.json`` names each member by its path from the folder, so a folder of runs can be moved as a whole, and by a
checksum of the files that its answers come from. Weights are not copied. A member that is gone, or is no longer what
was combined, is refused when the ensemble is opened.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bothways.checkpoints.files import read_json, sha256_of
from bothways.checkpoints.save import write_json
from bothways.checkpoints.schema import FORMAT_VERSION, OURS, StoredEnsemble, StoredMember, damaged
from bothways.compose.ensembles.combining import Combination, Mean, Stacked, Vote
from bothways.confidence.files import temperature_settings
from bothways.errors import CorruptCheckpoint, UnknownModel, shown
from bothways.evaluation.temperature import Temperature
from bothways.storage import new_folder
from bothways.tasks.backend import OpenOptions
from bothways.tasks.readme import write_readme
from bothways.tasks.spec import TaskSpec
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
    """Return how texts are to be read by these options, without what they leave to the model."""
    asked: OpenOptions = {}
    if (length := options.get("max_length")) is not None:
        asked["max_length"] = length
    if (overflow := options.get("on_overflow")) is not None:
        asked["on_overflow"] = overflow
    if (stride := options.get("stride")) is not None:
        asked["stride"] = stride
    return asked


def write_ensemble(
    folder: str | Path, members: Sequence[Path], spec: TaskSpec, extras: Mapping[str, object], *, overwrite: bool
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
        write_readme(new, "Ensemble", {"": spec})


def read_ensemble(folder: Path) -> tuple[StoredEnsemble, list[Path]]:
    """Return what ``bothways.json`` says, and the members' folders, each checked to be what it was.

    Raises:
        UnknownModel: A member is not where it was.
        CorruptCheckpoint: A member is no longer what it was, or the file is damaged.
        UnsupportedConfig: The file is of a later format.
    """
    stored = StoredEnsemble.of(read_json(folder / OURS))
    return stored, [_member(folder, member) for member in stored.members]


def combination_settings(combination: Combination, temperature: Temperature | None) -> dict[str, object]:
    """Return what ``bothways.json`` is to say of how members are combined and the result is calibrated."""
    return {
        "method": combination.kind,
        **{name: list(values) for name, values in asdict(combination).items()},
        **temperature_settings(temperature),
    }


def stored_combination(stored: StoredEnsemble, members: int, outputs: int | None) -> Combination:
    """Return the combination that ``bothways.json`` names.

    Args:
        stored: What the file says.
        members: How many there are.
        outputs: How many each has; None where every input has others, which nothing can weigh.

    Raises:
        CorruptCheckpoint: It is none for these, or its numbers are not as many as there are members and outputs.
    """
    match stored.method:
        case "mean":
            return Mean()
        case "vote":
            return Vote()
        case "stacked" if outputs is None:
            raise damaged("method", "'mean' or 'vote'", stored.method)
        case "stacked":
            for name, values, count in (("weights", stored.weights, members), ("biases", stored.biases, outputs)):
                if len(values) != count:
                    raise damaged(name, f"{count} finite numbers", values)
            return Stacked(tuple(stored.weights), tuple(stored.biases))


def _member(folder: Path, stored: StoredMember) -> Path:
    path = stored.path
    member = Path(os.path.normpath(folder.resolve() / path))
    if not os.path.isdir(member):  # noqa: PTH112 (of a name that is too long, Path.is_dir raises)
        raise UnknownModel(
            f"the ensemble {str(folder)!r} has a member {shown(path)}, but there is no folder {shown(str(member))}. It "
            "was moved or removed: put it back, or make the ensemble again."
        )
    if member_fingerprint(member) != stored.fingerprint:
        raise CorruptCheckpoint(
            f"the member {path!r} of the ensemble {str(folder)!r} is no longer the model that was combined: its files "
            "have changed. Put the old ones back, or make the ensemble again."
        )
    return member
