"""Writing a fine-tuned encoder with its head, for every task that has one."""

from collections.abc import Mapping
from pathlib import Path

from bothways.checkpoints.save import encoder_tensors, head_tensors, write_model
from bothways.families import HeadName
from bothways.storage import new_folder
from bothways.tasks.objective import HeadModel
from bothways.tasks.opening import OpenedModel


def save_with_head(
    folder: str | Path,
    opened: OpenedModel,
    module: HeadModel,
    head: HeadName,
    *,
    settings: Mapping[str, object],
    extras: Mapping[str, object],
    overwrite: bool,
) -> None:
    """Write a model in the ecosystem's layout, whole or not at all.

    Args:
        folder: Where.
        opened: What it was fine-tuned from.
        module: Encoder and head.
        head: Which head of the family it is.
        settings: What ``config.json`` says besides, or otherwise, than that of the opened model; None takes a setting
            out.
        extras: What ``bothways.json`` says, besides how texts are read.
        overwrite: Whether a folder that is there may be replaced.

    Raises:
        OutputExists: The folder exists and ``overwrite`` is false.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    model = opened.model
    family, config = model.family, model.config
    stored = {**model.settings, "architectures": [family.architecture([head])], **settings}
    stored = {name: value for name, value in stored.items() if name not in settings or value is not None}
    tensors = encoder_tensors(family, config, ("", module.encoder), prefix=family.prefix)
    tensors |= head_tensors(family.head(head, stored).rows, config, module.head)
    with new_folder(folder, overwrite=overwrite) as new:
        write_model(new, stored, tensors, {**extras, **opened.stored_reading()})
        model.tokenizer.save(new)
