"""One encoder with the heads of several tasks, in one folder.

The ecosystem's layout holds one head. The first task's stands there, so ``config.json`` and ``model.safetensors`` are a
model of that task for any program. Each further head is ``heads/<name>.safetensors``, with the tensor names of the same
family: laid over those of ``model.safetensors`` they are the model of that task, and ``bothways.json`` says under
``config`` what ``config.json`` would have to say instead (architecture, problem type, label names). The encoder is
written once. What a task learnt on held-out rows (`bothways.tasks.labelling.trust`) lies in ``heads/<name>/``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from bothways.checkpoints.files import read_safetensors
from bothways.checkpoints.save import encoder_tensors, write_model, write_tensors
from bothways.errors import InvalidInput
from bothways.evaluation.tag_schemes import check_scheme, scheme_of_names
from bothways.storage import new_folder
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.labelling.labeller import HEAD as TEXT_HEAD
from bothways.tasks.labelling.target_settings import stored_names, stored_target
from bothways.tasks.merging import Merge
from bothways.tasks.opening import OpenedModel
from bothways.tasks.sharing.parts import Part, Task, part_of
from bothways.checkpoints.stored import Extras, damaged, stored_choice
from bothways.tasks.tagging.tag_set import TagSet
from bothways.tasks.tagging.tagger import TextTagger
from bothways.tasks.tagging.word_labeller import HEAD as WORD_HEAD

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
    tasks: Mapping[str, Task],
    extras: Mapping[str, object],
    *,
    overwrite: bool,
) -> None:
    """Write the encoder and all heads, whole or not at all.

    Raises:
        OutputExists: The folder exists and ``overwrite`` is false.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    parts = {name: part_of(task) for name, task in tasks.items()}
    model, (first, *others) = opened.model, parts.items()
    settings = {**model.settings, **_config(opened, first[1])}
    tensors = encoder_tensors(model.family, model.config, ("", model.encoder), prefix=model.family.prefix)
    with new_folder(folder, overwrite=overwrite) as new:
        heads = [_stored(new, opened, name, part) for name, part in parts.items()]
        for name, part in others:
            write_tensors(new / _file(name), part.tensors())
        write_model(new, settings, tensors | first[1].tensors(), {**extras, "heads": heads})
        model.tokenizer.save(new, types=model.config.reads_types)


def _config(opened: OpenedModel, part: Part) -> dict[str, object]:
    """What ``config.json`` says of a task."""
    return {"architectures": [opened.model.family.architecture([part.head_name])], **part.settings()}


def _stored(folder: Path, opened: OpenedModel, name: str, part: Part) -> dict[str, object]:
    """What ``bothways.json`` says of a task; arrays that belong to it are written."""
    _folder(folder, name).mkdir(parents=True)
    config, more = _config(opened, part), part.stored(_folder(folder, name))
    stored = {"name": name, "task": part.task.task, "config": config, **more}
    if not any(_folder(folder, name).iterdir()):
        _folder(folder, name).rmdir()
    return stored


def read_parts(opened: OpenedModel, merge: Merge) -> dict[str, Task]:
    """The tasks that were saved in a folder, above one encoder.

    Raises:
        CorruptCheckpoint: What ``bothways.json`` says of the heads, or one of their files, is not what was saved.
        IncompatibleWeights: A head's file lacks tensors.
    """
    stored = opened.extras.get("heads")
    parts: dict[str, Task] = {}
    if not isinstance(stored, list) or len(stored) < 2:
        raise damaged("heads", "a list of two or more", stored)
    tags = any(isinstance(entry, dict) and entry.get("task") == TextTagger.task for entry in stored)
    opened_for_texts = opened.as_words() if tags else opened
    for number, entry in enumerate(stored):
        name, config = (entry.get("name"), entry.get("config")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in parts or not isinstance(config, dict):
            raise damaged("heads", "objects, each with a name of its own and a config", entry)
        weights = _weights(opened, name, config) if number else opened
        if entry.get("task", TextClassifier.task) == TextTagger.task:
            parts[name] = _tagger(opened, weights, entry, config)
        else:
            parts[name] = _classifier(opened_for_texts, weights, entry, config, merge)
    return parts


def _weights(opened: OpenedModel, name: str, config: Extras) -> OpenedModel:
    """The model with the weights of a further head, and what ``config.json`` would say with it."""
    checkpoint, settings = opened.checkpoint, {**opened.checkpoint.settings, **config}
    tensors = read_safetensors(checkpoint.folder / _file(name))
    own = replace(checkpoint, name=f"{checkpoint.name}/{_file(name)}", settings=settings, tensors=tensors)
    return replace(opened, checkpoint=own)


def _classifier(
    opened: OpenedModel, weights: OpenedModel, entry: Extras, config: Extras, merge: Merge
) -> TextClassifier:
    checkpoint = weights.checkpoint
    head = checkpoint.build_score_head(TEXT_HEAD)
    target = stored_target({**checkpoint.settings, **config}, None, head.output.out_features, named=True)
    task = TextClassifier(opened, merge)
    task.take_head(target, head, entry, _folder(checkpoint.folder, str(entry["name"])))
    return task


def _tagger(opened: OpenedModel, weights: OpenedModel, entry: Extras, config: Extras) -> TextTagger:
    head = weights.checkpoint.build_score_head(WORD_HEAD)
    names = stored_names(config, named=True)
    if len(names) != head.output.out_features:
        raise damaged("heads", f"objects, this one with {head.output.out_features} labels", list(names))
    task = TextTagger(opened)
    scheme = stored_choice(entry, "scheme", check_scheme) or scheme_of_names(names)
    task.take_head(TagSet(names, scheme), head, entry)
    return task


def _folder(folder: Path, name: str) -> Path:
    return folder / "heads" / name


def _file(name: str) -> str:
    return f"heads/{name}.safetensors"
