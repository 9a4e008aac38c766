"""Opening a trained model as what it was trained for."""

from pathlib import Path
from typing import Any, Unpack, cast

from bothways.checkpoints.hub import locate
from bothways.errors import InvalidInput, NotFitted
from bothways.lazy import imported
from bothways.tasks.predict import AnyPredictor
from bothways.tasks.registry import SPECS, check_open_options, stored_task, task_class, task_of_heads
from bothways.tasks.task import OpenArguments

# What can be asked of an encoder that was not trained for it.
SIMILARITY = "similarity"

# By the name in ``bothways.json``: what is composed of several models or tasks, imported when one is opened.
COMPOSED = {
    "multitask": "bothways.compose.multitask.multitask:MultiTask",
    "ensemble": "bothways.compose.ensembles.ensemble:Ensemble",
}


def open_trained(
    name_or_path: str | Path,
    *,
    task: str | None = None,
    **options: Unpack[OpenArguments],
) -> AnyPredictor:
    """Open a trained model as the task that it was trained for, or an encoder as one that needs no training.

    Args:
        name_or_path: A folder or a name, see `bothways.load`.
        task: Which of its tasks, for a model that has several; all of them at once when left out. ``"similarity"``
            takes any encoder for an embedder of scored pairs.
        options: How the checkpoint is found, where it runs and how texts are read
            (`bothways.tasks.backend.OpenOptions`), and the options of the task, such as ``labels`` for a head whose
            outputs have no names.

    Raises:
        NotFitted: It is no trained model of a task, but an encoder.
        InvalidInput: The model's task has no such option, or the model has no such task. And everything that
            `bothways.load` raises.
    """
    options = cast("OpenArguments", {name: value for name, value in options.items() if value is not None})
    if task == SIMILARITY:
        check_open_options(str(name_or_path), "embedding", options)
        return _embedder(name_or_path, options)
    found = locate(name_or_path, revision=options.get("revision"), download=options.get("download", False))
    name = task_name(found.folder, str(name_or_path))
    check_open_options(str(name_or_path), name, options)
    kind: Any = imported(COMPOSED[name]) if name in COMPOSED else task_class(SPECS[name])
    opened: AnyPredictor = kind.from_pretrained(name_or_path, **options)
    if task is None:
        return opened
    if name != "multitask":
        raise InvalidInput(
            f"expected no task, as {str(name_or_path)!r} is a model of one task, {name}, got {task!r}: leave it out."
        )
    part: AnyPredictor = cast("Any", opened).part(task)
    return part


def _embedder(name_or_path: str | Path, options: OpenArguments) -> AnyPredictor:
    """Any encoder as an embedder of scored pairs."""
    from bothways.tasks.embedding.embedder import SentenceEmbedder
    from bothways.tasks.embedding.spec import ScoredPairs

    return SentenceEmbedder.from_pretrained(name_or_path, **options).with_columns(columns=ScoredPairs())


def task_name(folder: Path, name: str) -> str:
    """Return what the model in a folder was trained for.

    Raises:
        NotFitted: It is no trained model of a task that can be opened like this.
    """
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
        f"{name!r} cannot be asked for predictions: {what}. Known tasks are {', '.join(known)}: train one. How well "
        f"the vectors of an encoder agree with scores of pairs is the task {SIMILARITY!r}, which needs no training."
    )
