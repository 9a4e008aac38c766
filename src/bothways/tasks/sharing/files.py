"""One encoder with the heads of several tasks, in one folder.

The ecosystem's layout holds one head. The first task's stands there, so ``config.json`` and ``model.safetensors`` are a
model of that task for any program. Each further head is ``heads/<name>.safetensors``, with the tensor names of the same
family: laid over those of ``model.safetensors`` they are the model of that task, and ``bothways.json`` says under
``config`` what ``config.json`` would have to say instead (problem type and label names). The encoder is written once.
What a task learnt on held-out rows (`bothways.tasks.labelling.trust`) lies in ``heads/<name>/``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from bothways.checkpoints.files import read_safetensors
from bothways.checkpoints.save import encoder_tensors, write_model, write_tensors
from bothways.errors import InvalidInput
from bothways.storage import new_folder
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.labelling.labeller import HEAD
from bothways.tasks.labelling.target_settings import stored_target, target_settings
from bothways.tasks.merging import Merge
from bothways.tasks.opening import OpenedModel
from bothways.tasks.stored import damaged

# A name is that of a file, and an option's value on the command line.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_names(names: Iterable[str]) -> None:
    """Check the names of tasks.

    Raises:
        InvalidInput: There are fewer than two, or one cannot be the name of a file.
    """
    listed = list(names)
    if len(listed) < 2:
        raise InvalidInput(
            f"several tasks are wanted, but got {len(listed)}: for a single one there is TextClassifier "
            "(bothways train classification)."
        )
    for name in listed:
        if not _NAME.fullmatch(name) or name == "reading":
            raise InvalidInput(
                f"a task is named with letters, digits, '-' and '_' (and not 'reading'), but this one is {name!r}."
            )


def write_parts(
    folder: str | Path,
    opened: OpenedModel,
    parts: Mapping[str, TextClassifier],
    extras: Mapping[str, object],
    *,
    overwrite: bool,
) -> None:
    """Write the encoder and all heads, whole or not at all.

    Raises:
        OutputExists: The folder exists and ``overwrite`` is false.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    model, (first, *others) = opened.model, parts.items()
    settings = {
        **model.settings,
        "architectures": [model.family.architecture([HEAD])],
        **target_settings(first[1].labeller.target),
    }
    tensors = encoder_tensors(model.family, model.config, ("", model.encoder), prefix=model.family.prefix)
    with new_folder(folder, overwrite=overwrite) as new:
        heads = [_stored(new, name, part) for name, part in parts.items()]
        for name, part in others:
            write_tensors(new / _file(name), part.labeller.tensors())
        write_model(new, settings, tensors | first[1].labeller.tensors(), {**extras, "heads": heads})
        model.tokenizer.save(new, types=model.config.reads_types)


def _stored(folder: Path, name: str, part: TextClassifier) -> dict[str, object]:
    """What ``bothways.json`` says of a task; arrays that belong to it are written."""
    _folder(folder, name).mkdir(parents=True)
    stored = {"name": name, "config": target_settings(part.labeller.target), **part.stored_head(_folder(folder, name))}
    if not any(_folder(folder, name).iterdir()):
        _folder(folder, name).rmdir()
    return stored


def read_parts(opened: OpenedModel, merge: Merge) -> dict[str, TextClassifier]:
    """The tasks that were saved in a folder, above one encoder.

    Raises:
        CorruptCheckpoint: What ``bothways.json`` says of the heads, or one of their files, is not what was saved.
        IncompatibleWeights: A head's file lacks tensors.
    """
    stored, parts = opened.extras.get("heads"), {}
    if not isinstance(stored, list) or len(stored) < 2:
        raise damaged("heads", "a list of two or more", stored)
    for number, entry in enumerate(stored):
        name, config = (entry.get("name"), entry.get("config")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in parts or not isinstance(config, dict):
            raise damaged("heads", "objects, each with a name of its own and a config", entry)
        checkpoint = opened.checkpoint
        if number:
            weights = read_safetensors(checkpoint.folder / _file(name))
            checkpoint = replace(checkpoint, name=f"{checkpoint.name}/{_file(name)}", tensors=weights)
        head = checkpoint.build_score_head(HEAD)
        target = stored_target({**checkpoint.settings, **config}, None, head.output.out_features, named=True)
        parts[name] = TextClassifier(opened, merge)
        parts[name].take_head(target, head, entry, _folder(checkpoint.folder, name))
    return parts


def _folder(folder: Path, name: str) -> Path:
    return folder / "heads" / name


def _file(name: str) -> str:
    return f"heads/{name}.safetensors"
