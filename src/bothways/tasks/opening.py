"""Open a model for a task: a checkpoint with weights, or an ONNX export, which needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.checkpoints.hub import LocatedModel, is_exported, locate, no_weights
from bothways.choices import LabelValue, Merge, Pooling, Scheme, TargetKind
from bothways.lazy import require_torch
from bothways.tasks.backend import Backend, OpenOptions
from bothways.threads import loading

if TYPE_CHECKING:
    from bothways.tasks.torch_backend import TorchBackend


class LabelArguments(OpenOptions, total=False):
    """Options of `from_pretrained` for tasks with labels; see `bothways.tasks.classification.spec`."""

    labels: Sequence[LabelValue] | None
    merge: Merge | None
    threshold: float | None


class OpenArguments(OpenOptions, total=False):
    """Options of `from_pretrained` for all tasks: `OpenOptions`, and options that only some tasks declare."""

    labels: Sequence[LabelValue] | None
    merge: Merge | None
    threshold: float | None
    target: TargetKind | None
    scheme: Scheme | None
    max_answer_tokens: int | None
    pooling: Pooling | None
    unit_length: bool | None
    dimensions: int | None


def find_model(name_or_path: str | Path, options: OpenOptions) -> LocatedModel:
    """Find a model, see `bothways.checkpoints.hub.locate`."""
    return locate(
        name_or_path,
        revision=options.get("revision"),
        download=options.get("download", False),
        allow_pickle=options.get("allow_pickle", False),
    )


@contextmanager
def located_model(name_or_path: str | Path, options: OpenOptions) -> Iterator[LocatedModel]:
    """Find a model, which is opened in the block."""
    located = find_model(name_or_path, options)
    if is_exported(located.folder):  # an export is opened without torch
        yield located
        return
    require_torch("opening a model with weights")
    with loading():
        yield located


def open_backend(located: LocatedModel, task: str, options: OpenOptions) -> Backend:
    """Open a model for a task: a checkpoint or an export. Raises the same errors as `bothways.load`."""
    if is_exported(located.folder):
        from bothways.tasks.onnx_backend import OnnxBackend

        return OnnxBackend.open(located, task, options)
    from bothways.tasks.torch_backend import TorchBackend

    return TorchBackend.open(located, task, **options)


def with_weights(backend: Backend, verb: str) -> TorchBackend:
    """Return a backend with weights; for an ONNX export, raise `InvalidInput` that names ``verb``, such as "train"."""
    if backend.export is not None:
        raise no_weights(backend.name, verb)
    from bothways.tasks.torch_backend import TorchBackend

    match backend:
        case TorchBackend():
            return backend
    raise TypeError(f"expected a TorchBackend, got {type(backend).__name__}")
