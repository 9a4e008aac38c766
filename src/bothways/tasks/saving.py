"""How every task with a trained head is written."""

from collections.abc import Mapping
from pathlib import Path

from bothways.checkpoints.save import encoder_tensors, head_tensors, write_model
from bothways.families import HeadName
from bothways.tasks.objective import HeadModel
from bothways.tasks.opening import OpenedModel


def write_task(
    new: Path,
    opened: OpenedModel,
    module: HeadModel,
    head: HeadName,
    *,
    settings: Mapping[str, object],
    extras: Mapping[str, object],
) -> None:
    """Write a trained model in the ecosystem's layout.

    Args:
        new: An existing folder, best one from ``bothways.storage.new_folder``.
        opened: What was opened, with its tokenizer and the way that it reads.
        module: Encoder and head.
        head: Which head of the family.
        settings: What ``config.json`` says besides, or otherwise, than that of the opened model; None takes a setting
            out.
        extras: What ``bothways.json`` says of the task.
    """
    family, config = opened.model.family, opened.model.config
    stored = {**opened.model.settings, "architectures": [family.architecture([head])], **settings}
    stored = {name: value for name, value in stored.items() if name not in settings or value is not None}
    tensors = encoder_tensors(family, config, ("", module.encoder), prefix=family.prefix)
    tensors |= head_tensors(family.head(head, stored).rows, config, module.head)
    write_model(new, stored, tensors, {**extras, **opened.stored_reading()})
    opened.model.tokenizer.save(new, types=config.reads_types)
