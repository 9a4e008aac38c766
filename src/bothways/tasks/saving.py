"""How every task with a trained head is written."""

from collections.abc import Callable, Mapping
from pathlib import Path

from bothways.checkpoints.save import encoder_tensors, head_tensors, write_model
from bothways.families import HeadName
from bothways.storage import new_folder
from bothways.tasks.objective import HeadModel
from bothways.tasks.opening import OpenedModel


def save_task(
    folder: str | Path,
    opened: OpenedModel,
    module: HeadModel,
    head: HeadName,
    *,
    settings: Mapping[str, object],
    extras: Mapping[str, object],
    beside: Callable[[Path], Mapping[str, object]] | None = None,
    overwrite: bool,
) -> None:
    """Write a trained model in the ecosystem's layout, whole or not at all.

    Args:
        folder: Where to.
        opened: What was opened, with its tokenizer and the way that it reads.
        module: Encoder and head.
        head: Which head of the family.
        settings: What ``config.json`` says besides, or otherwise, than that of the opened model; None takes a setting
            out.
        extras: What ``bothways.json`` says of the task.
        beside: Writes further files into the folder, and returns what ``bothways.json`` says of them.
        overwrite: Whether a model that is there may be replaced.

    Raises:
        OutputExists: The folder exists and ``overwrite`` is false.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    family, config = opened.model.family, opened.model.config
    stored = {**opened.model.settings, "architectures": [family.architecture([head])], **settings}
    stored = {name: value for name, value in stored.items() if name not in settings or value is not None}
    tensors = encoder_tensors(family, config, ("", module.encoder), prefix=family.prefix)
    tensors |= head_tensors(family.head(head, stored).rows, config, module.head)
    with new_folder(folder, overwrite=overwrite) as new:
        more = {} if beside is None else beside(new)
        write_model(new, stored, tensors, {**extras, **opened.stored_reading(), **more})
        opened.model.tokenizer.save(new, types=config.reads_types)
