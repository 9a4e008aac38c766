"""Writing a trained head and the encoder below it into a folder."""

from pathlib import Path

from torch import Tensor

from bothways.checkpoints.save import head_tensors, write_model
from bothways.tasks.outputs import FittedHead


def write_head(fitted: FittedHead, folder: Path) -> None:
    """Write a model in the ecosystem's layout into an existing folder.

    Raises:
        OSError: The disk is full, or the folder cannot be written to.
    """
    backend, outputs = fitted.backend.weights("save"), fitted.outputs
    model, own = backend.model, outputs.settings()
    stored = {**model.settings, "architectures": [model.family.architecture([outputs.head], model.settings)], **own}
    stored = {name: value for name, value in stored.items() if name not in own or value is not None}
    tensors = model.encoder_tensors((outputs.head,)) | tensors_of_head(fitted)
    extras = {"task": fitted.spec.name, **outputs.write(folder), "card": dict(fitted.card), **backend.stored_reading()}
    write_model(folder, stored, tensors, extras)
    model.tokenizer.save(folder, types=model.config.reads_types)


def tensors_of_head(fitted: FittedHead) -> dict[str, Tensor]:
    """Return the head's weights under the family's names."""
    backend = fitted.backend.weights("save")
    model, head = backend.model, backend.head_model.head
    return head_tensors(model.family.head(fitted.outputs.head, model.settings).rows, model.config, head)
