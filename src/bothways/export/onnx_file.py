"""Recording a graph and writing it as an ONNX file. Needs the extra ``onnx``."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bothways.errors import MissingDependency
from bothways.export.graph import BATCH, CHOICES, LENGTH, EncoderGraph

if TYPE_CHECKING:
    from onnx_ir import Model

# Of ONNX 1.13: the one that torch's operators are written for, and the oldest that has all of them.
OPSET = 18
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# A file of protocol buffers ends at 2 GiB; above this, the weights lie beside it.
_LARGEST_FILE = 1_800_000_000
# None of them is the size of anything else in a model, and no two are alike.
_RECORDED = {BATCH: 2, CHOICES: 3, LENGTH: 5}
_MOST_ROWS = 1 << 20
_NOISY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


def require_packages() -> None:
    """Check that everything is there before any work is done.

    Raises:
        MissingDependency: A package is not installed.
    """
    for package in PACKAGES:
        if find_spec(package) is None:
            raise MissingDependency.of(package, extra="onnx", purpose="exporting to ONNX")


def versions() -> dict[str, str]:
    """Versions of all that made a file."""
    return {name: version(name) for name in ("bothways", "torch", *PACKAGES)}


def write_onnx(graph: EncoderGraph, path: Path, limit: int | None, metadata: Mapping[str, str]) -> None:
    """Record a graph for batches of all sizes and write it.

    Args:
        graph: In evaluation mode, on the CPU.
        path: The file. Weights go into ``<name>.data`` beside it where they take more than 1.8 GB, and of a graph that
            answers a task: onnxruntime maps that file, so it starts sooner and takes half the memory.
        limit: Most tokens of a sequence; None where there is no limit.
        metadata: What the file says of itself.
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
    # With gradients the layers take no short cut that depends on the number of rows, and overwrite nothing.
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
        assert program is not None  # with dynamo and without a file name there is one
        _clean(program.model, metadata)
        weights = sum(value.numel() * value.element_size() for value in graph.state_dict().values())
        program.save(path, external_data=graph.rows is not None or weights > _LARGEST_FILE)


def _clean(model: "Model", metadata: Mapping[str, str]) -> None:
    """Take out where each operator came from (lines of source and their paths), and put in what the file is."""
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
    """Without the exporter's remarks on its own workings."""
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
