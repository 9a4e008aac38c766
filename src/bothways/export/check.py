"""Comparison of an ONNX file with the model that it was written from.

Shapes: B sequences, K choices, S longest sequence.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.checkpoints import PretrainedEncoder
from bothways.errors import ExportMismatch
from bothways.export.graph import BATCH, CHOICES, LENGTH, EncoderGraph, Port
from bothways.packing import unpad

# Of any number, where the largest is up to 1; of larger ones, this share of the largest.
TOLERANCE = 1e-3
# One long text alone, beyond local windows and exact distances, and several short ones of which most are padded.
_SIZES = ({BATCH: 1, CHOICES: 2, LENGTH: 300}, {BATCH: 3, CHOICES: 3, LENGTH: 9})


@dataclass(frozen=True, slots=True)
class ExportCheck:
    """The result of the check."""

    shapes: tuple[tuple[int, ...], ...]  # shapes of the ``input_ids``
    largest_difference: float  # the largest difference for real tokens


def check_onnx(path: Path, model: PretrainedEncoder, graph: EncoderGraph, head: str | None) -> ExportCheck:
    """Run the file in onnxruntime and the model in torch on two batches of random ids.

    Args:
        path: The file.
        model: The model.
        graph: The recorded graph.
        head: Name of its head.

    Raises:
        ExportMismatch: They differ by more than 1e-3, or by more than this share of the largest number.
    """
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    largest, shapes = 0.0, []
    for sizes in _SIZES:
        inputs = random_inputs(graph, generator, sizes)
        shapes.append(tuple(inputs["input_ids"].shape))
        found = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        real = inputs["attention_mask"].numpy() != 0
        expected = torch_answers(model, head, inputs, graph)
        for port, ours, theirs in zip(graph.outputs(), expected, found, strict=True):
            largest = max(largest, _difference(port, ours, theirs, real))
    return ExportCheck(tuple(shapes), largest)


def random_inputs(graph: EncoderGraph, generator: torch.Generator, sizes: dict[str, int]) -> dict[str, Tensor]:
    """Return a padded batch for a graph; the first row is the longest, the others are padded on the right."""
    config = graph.encoder.config
    shape = [min(sizes[str(name)], config.max_length or sizes[LENGTH]) for name in graph.inputs()[0].shape]
    mask = torch.ones(shape, dtype=torch.int64)
    for number, row in enumerate(mask.view(-1, shape[-1])):
        row[max(1, shape[-1] - 2 * number) :] = 0
    kinds = config.embedding.types or 3  # without embeddings they are compared, and XLNet's [CLS] is of a third kind
    made = {
        "input_ids": torch.randint(0, config.vocabulary, shape, generator=generator),
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, kinds, shape, generator=generator),
    }
    return {port.name: made[port.name] for port in graph.inputs()}


def torch_answers(
    model: PretrainedEncoder, head: str | None, inputs: dict[str, Tensor], graph: EncoderGraph
) -> tuple[NDArray[np.float32], ...]:
    """Return the model's outputs for a batch, in the order of the graph's."""
    ids, mask, types = (inputs.get(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
    assert ids is not None  # every graph takes them
    rows = (None if value is None else value.flatten(0, -2) for value in (ids, mask, types))
    with torch.inference_mode():
        input_ids, attention_mask, token_type_ids = rows
        called = model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        hidden = called.last_hidden_state.view(*ids.shape, -1)
        answers = [hidden]
        if head is not None:
            answer = model.apply_head(head, input_ids=ids, attention_mask=mask, token_type_ids=types)
            answers += answer.logits.unbind(-1) if head == "span" else (answer.logits,)
        if graph.rows is not None:
            found = graph.rows.packed(unpad(ids.flatten(0, -2), attention_mask, token_type_ids))
            answers.append(found.view(*ids.shape[:-1], graph.width) if graph.grouped else found)
    return tuple(value.numpy() for value in answers)


def _difference(port: Port, ours: NDArray[np.float32], theirs: NDArray[np.float32], real: NDArray[np.bool_]) -> float:
    if ours.shape != theirs.shape:
        raise ExportMismatch(f"the exported {port.name} has the shape {theirs.shape}, but it should be {ours.shape}.")
    if LENGTH in port.shape:
        ours, theirs = ours[real], theirs[real]
    largest, scale = float(np.abs(ours - theirs).max()), max(1.0, float(np.abs(ours).max()))
    # Written so that a difference that is no number fails.
    if not largest <= TOLERANCE * scale:
        raise ExportMismatch(
            f"the exported {port.name} differs from the model's by {largest:.2g}, more than {TOLERANCE * scale:.2g}: "
            "nothing was written. Other versions of torch, onnxscript or onnxruntime may do better."
        )
    return largest
