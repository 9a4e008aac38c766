"""Export of an encoder, with or without a head, to an ONNX graph of padded tensors, and a check of the file.

Writing needs the extra ``onnx``.

Shapes: B sequences, K choices of a question, S longest sequence, H hidden, V vocabulary, C labels.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.checkpoints import PretrainedEncoder
from bothways.checkpoints.exported import ROWS
from bothways.encoder import Encoder, Head, MaskedLMHead, ScoreHead
from bothways.encoder.head_kinds import ChoiceLogit, EachToken, Labels, Relation, Replaced, SpanLogits
from bothways.encoder.heads import head_logits
from bothways.errors import ExportMismatch, MissingDependency
from bothways.export.answers import RowsModule
from bothways.packing import PaddedRows, unpad

if TYPE_CHECKING:
    from onnx_ir import Model

HIDDEN = "last_hidden_state"
BATCH, CHOICES, LENGTH = "batch", "choices", "length"

# Operator set of ONNX 1.13: torch exports to it, and it is the oldest with all operators that the graph needs.
OPSET = 18
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# Protocol buffer files are limited to 2 GiB; above this size, the weights go into a file of their own.
_LARGEST_FILE = 1_800_000_000
# Sizes of the example batch for the export: all different, and different from the sizes in models.
_RECORDED = {BATCH: 2, CHOICES: 3, LENGTH: 5}
_MOST_ROWS = 1 << 20
_NOISY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a graph."""

    name: str  # its name
    # Its dimensions: a name if the size varies between calls, a number if it is fixed.
    shape: tuple[str | int, ...]


class EncoderGraph(nn.Module):
    """An encoder that returns hidden states of a padded batch and, with a head, logits.

    Padding may stand on the left or on the right of a row, and hidden states and logits are zero there. Start and end
    logits are minus infinity where an answer may not start or end. `rows` is a module for an extra output that
    this package reads: ``width`` values for each window or token.
    """

    def __init__(self, encoder: Encoder, head: Head | None, rows: RowsModule | None = None, width: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.rows = rows
        self.width = width
        scores = head.kind.scores if isinstance(head, ScoreHead) else None
        self.per_token = rows is not None and rows.per_token
        self.grouped, self.spanning = isinstance(scores, ChoiceLogit), isinstance(scores, SpanLogits)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Compute the outputs for token ids (B, S), or (B, K, S) for multiple choice; `outputs` names them."""
        choices = input_ids.shape[1] if self.grouped else 1
        shape = input_ids.shape
        if self.grouped:
            input_ids, attention_mask = input_ids.flatten(0, 1), attention_mask.flatten(0, 1)
            token_type_ids = None if token_type_ids is None else token_type_ids.flatten(0, 1)
        batch = PaddedRows.of(input_ids, attention_mask, token_type_ids)
        hidden_TH = self.encoder(batch)
        found = [batch.padded(hidden_TH).view(*shape, hidden_TH.shape[-1])]
        if self.head is not None:
            logits = head_logits(self.head, self.encoder, batch, hidden_TH=hidden_TH, choices=choices)
            found += logits.unbind(-1) if self.spanning else (logits,)
        if self.rows is not None:
            rows: Tensor = self.rows(batch, attention_mask)
            found.append(rows.view(-1, choices, self.width) if self.grouped else rows)
        return tuple(found)

    def inputs(self) -> tuple[Port, ...]:
        """Return the inputs in order; all int64."""
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if self.encoder.config.reads_types else [])]
        return tuple(Port(name, self._places()) for name in names)

    def outputs(self) -> tuple[Port, ...]:
        """Return the outputs in order; all floating point."""
        ports = [Port(HIDDEN, (*self._places(), self.encoder.config.hidden))]
        if self.spanning:
            ports += Port("start_logits", (BATCH, LENGTH)), Port("end_logits", (BATCH, LENGTH))
        elif self.head is not None:
            ports.append(Port("logits", _logits_shape(self.head)))
        if self.rows is not None:
            places = (BATCH, CHOICES) if self.grouped else (BATCH, LENGTH) if self.per_token else (BATCH,)
            ports.append(Port(ROWS, (*places, self.width)))
        return tuple(ports)

    def _places(self) -> tuple[str, ...]:
        return (BATCH, CHOICES, LENGTH) if self.grouped else (BATCH, LENGTH)


def _logits_shape(head: Head) -> tuple[str | int, ...]:
    if isinstance(head, MaskedLMHead):
        return BATCH, LENGTH, len(head.bias)
    match head.kind.scores:
        case ChoiceLogit():
            return BATCH, CHOICES
        case Replaced():
            return BATCH, LENGTH
        case Labels() | Relation() | SpanLogits():
            count = head.output.out_features
            return (BATCH, LENGTH, count) if isinstance(head.kind.read, EachToken) else (BATCH, count)


# --- the file ---


def require_packages() -> None:
    """Check that the packages of the extra ``onnx`` are installed."""
    for package in PACKAGES:
        if find_spec(package) is None:
            raise MissingDependency.of(package, extra="onnx", purpose="exporting to ONNX")


def versions() -> dict[str, str]:
    """Return the versions of the packages that write an ONNX file."""
    return {name: version(name) for name in ("bothways", "torch", *PACKAGES)}


def write_onnx(graph: EncoderGraph, path: Path, limit: int | None, metadata: Mapping[str, str]) -> None:
    """Export a graph, in evaluation mode on the CPU, for any batch size and up to ``limit`` tokens in a sequence.

    Weights above 1.8 GB, and those of a graph with a task's outputs, go into ``<name>.data`` beside the file:
    onnxruntime memory-maps it, so it starts sooner and takes half the memory.
    """
    sizes = {
        BATCH: torch.export.Dim(BATCH, min=1, max=_MOST_ROWS),
        CHOICES: torch.export.Dim(CHOICES, min=1, max=_MOST_ROWS),
        LENGTH: torch.export.Dim(LENGTH, min=1, max=limit or _MOST_ROWS),
    }
    ports = graph.inputs()
    shapes = [[min(_RECORDED[str(name)], limit or 5) for name in port.shape] for port in ports]
    examples = tuple(torch.ones(shape, dtype=torch.int64) for shape in shapes)
    dynamic = tuple({place: sizes[str(name)] for place, name in enumerate(port.shape)} for port in ports)
    # With gradients enabled, layers take no short cuts that depend on the number of rows, and overwrite nothing.
    with _quiet(), torch.enable_grad():
        recorded = torch.export.export(graph, examples, dynamic_shapes=dynamic, strict=False)
        program = torch.onnx.export(
            recorded,
            examples,
            dynamo=True,
            dynamic_shapes=dynamic,
            opset_version=OPSET,
            input_names=[port.name for port in ports],
            output_names=[port.name for port in graph.outputs()],
            verbose=False,
        )
        assert program is not None  # the exporter returns a program unless it writes a file itself
        _clean(program.model, metadata)
        weights = sum(value.numel() * value.element_size() for value in graph.state_dict().values())
        program.save(path, external_data=graph.rows is not None or weights > _LARGEST_FILE)


def _clean(model: "Model", metadata: Mapping[str, str]) -> None:
    """Remove the source lines and paths of all operators, and add the ``metadata`` of the file."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()
    model.metadata_props.update(metadata)
    model.producer_name, model.producer_version = "bothways", version("bothways")


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


# --- the check ---

# Maximum difference of outputs; a share of the largest output if the largest output is above 1.
TOLERANCE = 1e-3
# One sequence that is longer than local windows and exactly encoded distances, and several short, padded ones.
_SIZES = ({BATCH: 1, CHOICES: 2, LENGTH: 300}, {BATCH: 3, CHOICES: 3, LENGTH: 9})


def check_onnx(
    path: Path, model: PretrainedEncoder, graph: EncoderGraph, head: str | None
) -> tuple[tuple[tuple[int, ...], ...], float]:
    """Run the file in onnxruntime and the model in torch on two batches of random ids.

    Return the shapes of the ``input_ids`` and the largest difference outside padding. Outputs may differ by 1e-3, or
    by 0.1 % of the largest output if the largest output is above 1.
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
    return tuple(shapes), largest


def random_inputs(graph: EncoderGraph, generator: torch.Generator, sizes: dict[str, int]) -> dict[str, Tensor]:
    """Return a padded batch for a graph; the first row is the longest, later rows are padded on the right."""
    config = graph.encoder.config
    shape = [min(sizes[str(name)], config.max_length or sizes[LENGTH]) for name in graph.inputs()[0].shape]
    mask = torch.ones(shape, dtype=torch.int64)
    for number, row in enumerate(mask.view(-1, shape[-1])):
        row[max(1, shape[-1] - 2 * number) :] = 0
    kinds = config.embedding.types or 3  # without segment embeddings, ids are only compared; XLNet has 3
    made = {
        "input_ids": torch.randint(0, config.vocabulary, shape, generator=generator),
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, kinds, shape, generator=generator),
    }
    return {port.name: made[port.name] for port in graph.inputs()}


def torch_answers(
    model: PretrainedEncoder, head: str | None, inputs: dict[str, Tensor], graph: EncoderGraph
) -> tuple[NDArray[np.float32], ...]:
    """Return the model's outputs for a batch, in the order of the graph's outputs."""
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
    # Written so that a difference of NaN fails.
    if not largest <= TOLERANCE * scale:
        raise ExportMismatch(
            f"the exported {port.name} differs from the model's by {largest:.2g}, more than {TOLERANCE * scale:.2g}: "
            "nothing was written. Try other versions of torch, onnxscript or onnxruntime."
        )
    return largest
