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

# The task of any encoder whose vectors are compared with scores of pairs; it needs no training.
SIMILARITY = "similarity"

ENSEMBLE, MULTITASK = "ensemble", "multitask"

# Models of several models or tasks, by the name in ``bothways.json``; imported when one is opened.
COMPOSED = {
    MULTITASK: "bothways.compose.multitask.multitask:MultiTask",
    ENSEMBLE: "bothways.compose.ensembles.ensemble:Ensemble",
}


def open_trained(name_or_path: str | Path, *, task: str | None = None, **options: Unpack[OpenArguments]) -> AnyTask:
    """Open a trained model as the task that it was trained for, or an encoder as one that needs no training.

    Args:
        name_or_path: A folder or a name, see `bothways.load`.
        task: One of the tasks of a multi-task model. Default: all of them at once. ``"similarity"`` opens any encoder
            as an embedder of scored pairs.
        options: Options for finding the checkpoint, its device and reading texts
            (`bothways.tasks.backend.OpenOptions`), and the options of the task, such as ``labels`` for a head whose
            outputs have no names.

    Raises:
        NotFitted: It is an encoder without a trained task.
        InvalidInput: The model's task has no such option, or the model has no such task. Also raises everything that
            `bothways.load` raises.
    """
    options = cast("OpenArguments", {name: value for name, value in options.items() if value is not None})
    if task == SIMILARITY:
        check_open_options(str(name_or_path), EMBEDDING.name, options)
        embedder: AnyTask = task_class(EMBEDDING).from_pretrained(name_or_path, **options)
        return embedder.with_columns(columns=ScoredPairs())
    located = locate(name_or_path, revision=options.get("revision"), download=options.get("download", False))
    name = task_name(located.folder, str(name_or_path))
    check_open_options(str(name_or_path), name, options)
    if name == MULTITASK:
        several: MultiTask = imported(COMPOSED[name]).from_pretrained(name_or_path, **options)
        return several if task is None else several.part(task)
    kind = imported(COMPOSED[name]) if name in COMPOSED else task_class(SPECS[name])
    opened: AnyTask = kind.from_pretrained(name_or_path, **options)
    if task is not None:
        raise InvalidInput(f"{str(name_or_path)!r} is a model of one task, {name}, so leave out the task {task!r}.")
    return opened


@runtime_checkable
class SeveralTasks(Protocol):
    """A model of several tasks."""

    @property
    def parts(self) -> Mapping[str, AnyTask]:
        """The tasks by name, each a model of its own."""


def parts_of(model: object) -> Mapping[str, AnyTask]:
    """Return the tasks of a model of several by name, each as a model of its own; empty for other models."""
    match model:
        case SeveralTasks(parts=parts):
            return parts
    return {}


def task_name(folder: Path, name: str) -> str:
    """Return the task that the model in a folder was trained for; a `NotFitted` for anything else."""
    known = (*SPECS, *COMPOSED)
    stored = stored_task(folder)
    if stored in known:
        return stored
    if stored is None:
        of_heads = task_of_heads(folder)
        if of_heads is not None:
            return of_heads
    what = f"it is a model for {stored}" if stored else "it is an encoder without the head of a task"
    raise NotFitted(
        f"{name!r} cannot predict: {what}. Train it for one of the tasks {', '.join(known)}. To compare the vectors of "
        f"an untrained encoder with scores of pairs, evaluate it with the task {SIMILARITY!r}."
    )
