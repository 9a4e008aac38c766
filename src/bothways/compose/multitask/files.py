"""Saving and opening one encoder with the heads of several tasks, in one folder.

The file layout of transformers allows one head. ``config.json`` and ``model.safetensors`` have the encoder and the head
of the first task, so other programs can open this task. Each further head is in ``heads/<name>.safetensors``, with the
family's tensor names; together with the encoder in ``model.safetensors`` it is the model of that task. The entries that
this model needs in ``config.json`` (architecture, problem type, label names) are in ``bothways.json``, under
``config``. The confidence of a task (`bothways.confidence`) is in ``heads/<name>/``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from torch import Tensor

from bothways.checkpoints.files import read_safetensors, write_tensors
from bothways.checkpoints.schema import HEAD_NAME, StoredHead, StoredTasks, damaged
from bothways.checkpoints.sentence_transformers import write_model
from bothways.choices import Merge
from bothways.compose.multitask.data import USUAL_TASK
from bothways.data.known_rows import TrainingRows
from bothways.errors import InvalidInput
from bothways.families.family import beside_settings
from bothways.tasks.columns import stored_columns
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import TrainedHead, outputs_type, stored_baseline
from bothways.tasks.registry import SPECS, task_class
from bothways.tasks.task import HeadTask
from bothways.tasks.torch_backend import TorchBackend, head_config, stored_head


def check_names(names: Iterable[str]) -> None:
    """Refuse fewer than two task names, and names that cannot be file names."""
    listed = list(names)
    if len(listed) < 2:
        raise InvalidInput(
            f"expected at least 2 tasks, got {len(listed)}: train a single task with its own command, such "
            f"as bothways train {USUAL_TASK}."
        )
    for name in listed:
        if not re.fullmatch(HEAD_NAME, name) or name == "tokens_read":
            raise InvalidInput(
                f"a task name must consist of letters, digits, '-' and '_' (and not be 'tokens_read'), got {name!r}."
            )


def write_parts(
    folder: Path, backend: TorchBackend, parts: Mapping[str, TrainedHead], extras: Mapping[str, object]
) -> None:
    """Write the encoder and all heads into an existing folder."""
    model, (first, *others) = backend.model, parts.items()
    settings = {**model.settings, **_config(backend, first[1])}
    tensors = model.encoder_tensors((first[1].outputs.head,))
    heads = [_stored(folder, backend, name, part, extras) for name, part in parts.items()]
    for name, part in others:
        write_tensors(folder / _file(name), _tensors(part))
    write_model(folder, settings, tensors | _tensors(first[1]), {**extras, "heads": heads})
    model.tokenizer.save(folder, types=model.config.reads_types)


def _tensors(part: TrainedHead) -> dict[str, Tensor]:
    return stored_head(with_weights(part.backend, "save"), part.outputs.head)


def _config(backend: TorchBackend, part: TrainedHead) -> dict[str, object]:
    """Return the settings of a task for ``config.json``."""
    return head_config(backend, part.outputs.head, part.outputs.settings())


def _stored(
    folder: Path, backend: TorchBackend, name: str, part: TrainedHead, extras: Mapping[str, object]
) -> dict[str, object]:
    """Write the arrays of a task, and return its entry in ``bothways.json``."""
    own = part_folder(folder, name)
    own.mkdir(parents=True)
    # Entries that all tasks share are written once.
    entries = {key: value for key, value in part.write_own(own).items() if key not in extras}
    if not any(own.iterdir()):
        own.rmdir()
    return {"name": name, "task": part.spec.name, "config": _config(backend, part), **entries}


def opened_beside(
    backend: TorchBackend,
    kind: type[HeadTask],
    kinds: Iterable[type[HeadTask]],
    merge: Merge,
    labels: object = None,
) -> TorchBackend:
    """Return the backend with the options of one task; if another task splits texts into words, this one does too."""
    words = any(outputs_type(each.spec).reads_words for each in kinds) and not outputs_type(kind.spec).reads_words
    known = {each.name for each in fields(kind.spec.open_options)}
    given = {"merge": merge, "labels": labels}
    options = kind.spec.open_options(**{name: value for name, value in given.items() if name in known})
    reading = replace(backend.reading, as_words=words, cut=kind.spec.cut)
    return replace(backend, options=options, reading=reading, shared=True)


def opened_for_parts(backend: TorchBackend, stored: StoredTasks) -> TorchBackend:
    """Return the backend with the settings of all heads; ``config.json`` has only those of the first."""
    beside = next(filter(None, (beside_settings(head.config) for head in stored.heads)), None)
    return backend if beside is None else backend.with_settings(beside)


def read_parts(backend: TorchBackend, stored: StoredTasks, merge: Merge) -> dict[str, TrainedHead]:
    """Return the saved tasks of a folder, all on one encoder."""
    kinds = [_kind(head) for head in stored.heads]
    parts: dict[str, TrainedHead] = {}
    for number, (head, kind) in enumerate(zip(stored.heads, kinds, strict=True)):
        if head.name in parts:
            raise damaged("heads", "objects with different names", [each.name for each in stored.heads])
        parts[head.name] = _part(opened_beside(backend, kind, kinds, merge), kind, stored, head, further=number > 0)
    return parts


def _kind(head: StoredHead) -> type[HeadTask]:
    name = head.task or USUAL_TASK
    if name not in SPECS or not SPECS[name].outputs:
        raise damaged("heads", "objects, each naming a task with a head above the encoder", name)
    kind: type[HeadTask] = task_class(SPECS[name])
    return kind


def _part(
    backend: TorchBackend, kind: type[HeadTask], stored: StoredTasks, entry: StoredHead, *, further: bool
) -> TrainedHead:
    """Open one task from its entry in ``bothways.json`` and its own folder."""
    checkpoint, outputs_kind, name = backend.files, outputs_type(kind.spec), entry.name
    own = replace(
        checkpoint,
        folder=part_folder(checkpoint.folder, name),
        settings={**checkpoint.settings, **entry.config},
        extras={"merge": stored.merge, **entry.model_dump(exclude_unset=True)},
    )
    if further:
        tensors = read_safetensors(checkpoint.folder / _file(name))
        own = replace(own, name=f"{checkpoint.name}/{_file(name)}", tensors=tensors)
    head = own.build_score_head(outputs_kind.head)
    read = replace(backend, files=own)
    try:
        outputs = outputs_kind.open(read, head.output.out_features, ours=True)
    except InvalidInput as error:
        labels = f"{head.output.out_features} labels"
        raise damaged("heads", f"objects with settings that fit the head {name!r} of {labels}", entry.config) from error
    columns, baseline = stored_columns(entry.card, kind.spec.columns), stored_baseline(entry, own.folder)
    with_head, known = backend.with_head(head, outputs.layers), TrainingRows(own.folder)
    return TrainedHead(kind.spec, with_head, outputs, columns, entry.card, baseline=baseline, known=known)


def part_folder(folder: Path, name: str) -> Path:
    """Return the folder of a task's arrays, which exists if the task has any."""
    return folder / "heads" / name


def _file(name: str) -> str:
    return f"heads/{name}.safetensors"
