"""Opening a trained model as the task that it was trained for."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Unpack, cast, runtime_checkable

from bothways.checkpoints.hub import locate
from bothways.errors import InvalidInput, NotFitted
from bothways.lazy import imported
from bothways.tasks.embedding.spec import EMBEDDING, ScoredPairs
from bothways.tasks.opening import OpenArguments
from bothways.tasks.registry import SPECS, check_open_options, stored_task, task_class, task_of_heads
from bothways.tasks.task import AnyTask

if TYPE_CHECKING:
    from bothways.compose.multitask.multitask import MultiTask

# Value of ``task`` in `open_trained` that opens any encoder as an untrained embedder of scored pairs.
SIMILARITY = "similarity"

ENSEMBLE, MULTITASK = "ensemble", "multitask"

# Classes of ensembles and multi-task models, by the name in ``bothways.json``; imported when one is opened.
COMPOSED = {
    MULTITASK: "bothways.compose.multitask.multitask:MultiTask",
    ENSEMBLE: "bothways.compose.ensembles.ensemble:Ensemble",
}


def open_trained(name_or_path: str | Path, *, task: str | None = None, **options: Unpack[OpenArguments]) -> AnyTask:
    """Open a trained model as the task that it was trained for, or an encoder as an untrained embedder.

    Args:
        name_or_path: A folder or a name, see `bothways.load`.
        task: One task of a multi-task model. Default: all its tasks at once. ``"similarity"`` opens any encoder as an
            embedder of scored pairs. For a classifier of another program, ``"pairs"`` or ``"classification"``: what it
            reads. Default: pairs if its files say so, or if it has a single output without a name and no problem_type.
        options: Options for the download, the device and long texts (`bothways.tasks.backend.OpenOptions`), and options
            of the task, such as ``labels`` to give label names to a head that was saved without them.

    Raises:
        NotFitted: The model is an encoder without a trained task.
        InvalidInput: The task has no such option, or the model has no such task. Also raises everything that
            `bothways.load` raises.
    """
    options = cast("OpenArguments", {name: value for name, value in options.items() if value is not None})
    if task == SIMILARITY:
        check_open_options(str(name_or_path), EMBEDDING.name, options)
        embedder: AnyTask = task_class(EMBEDDING).from_pretrained(name_or_path, **options)
        return embedder.with_columns(columns=ScoredPairs())
    located = locate(name_or_path, revision=options.get("revision"), download=options.get("download", False))
    name = task_name(located.folder, str(name_or_path))
    if task is not None and stored_task(located.folder) is None and _same_outputs(task, name):
        name, task = task, None
    check_open_options(str(name_or_path), name, options)
    if name == MULTITASK:
        several: MultiTask = imported(COMPOSED[name]).from_pretrained(name_or_path, **options)
        return several if task is None else several.part(task)
    kind = imported(COMPOSED[name]) if name in COMPOSED else task_class(SPECS[name])
    opened: AnyTask = kind.from_pretrained(name_or_path, **options)
    if task is not None:
        raise InvalidInput(f"{str(name_or_path)!r} is a model for one task, {name}, so leave out the task {task!r}.")
    return opened


def _same_outputs(task: str, other: str) -> bool:
    """Return True if tasks, such as classification and pairs, differ only in their inputs."""
    return task in SPECS and SPECS[task].outputs == SPECS[other].outputs


@runtime_checkable
class SeveralTasks(Protocol):
    """A model of several tasks."""

    @property
    def parts(self) -> Mapping[str, AnyTask]:
        """The tasks by name, each as a separate model."""


def parts_of(model: object) -> Mapping[str, AnyTask]:
    """Return the tasks of a multi-task model by name, each as a separate model; return {} for other models."""
    match model:
        case SeveralTasks(parts=parts):
            return parts
    return {}


def task_name(folder: Path, name: str) -> str:
    """Return the task that the model in a folder was trained for; raise `NotFitted` if there is none."""
    known = (*SPECS, *COMPOSED)
    stored = stored_task(folder)
    if stored in known:
        return stored
    if stored is None:
        of_heads = task_of_heads(folder)
        if of_heads is not None:
            return of_heads
    what = f"it is a model for {stored}" if stored else "it is an encoder without a task head"
    raise NotFitted(
        f"{name!r} cannot predict: {what}. Train it for one of the tasks {', '.join(known)}. To compare an untrained "
        f"encoder's cosines with the scores of text pairs, evaluate it with the task {SIMILARITY!r}."
    )
