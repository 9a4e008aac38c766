"""Opening a trained model as what it was trained for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from bothways.checkpoints.hub import locate
from bothways.compose.ensembles.ensemble import ENSEMBLE, Ensemble
from bothways.compose.multitask.multitask import MULTITASK, MultiTask
from bothways.errors import InvalidInput, NotFitted
from bothways.tasks.columns import column_names
from bothways.tasks.opening import OpenOptions
from bothways.tasks.predictor import Predictor
from bothways.tasks.registry import SPECS, stored_task, task_class, task_of_heads

# What can be asked of an encoder that was not trained for it.
SIMILARITY = "similarity"

COMPOSED: Mapping[str, type[Predictor[Any, Any, Any]]] = {MULTITASK.name: MultiTask, ENSEMBLE: Ensemble}


def open_trained(
    name_or_path: str | Path,
    *,
    task: str | None = None,
    labels: Sequence[str] | None = None,
    **options: Unpack[OpenOptions],
) -> Predictor[Any, Any, Any]:
    """Open a trained model as the task that it was trained for, or an encoder as one that needs no training.

    Args:
        name_or_path: A folder or a name, see `bothways.load`.
        task: Which of its tasks, for a model that has several; all of them at once when left out. ``"similarity"``
            takes any encoder for an embedder of scored pairs.
        labels: Names of a trained head's outputs, for checkpoints that do not carry them.
        options: See `bothways.tasks.opening.OpenOptions`.

    Raises:
        NotFitted: It is no trained model of a task, but an encoder.
        InvalidInput: Labels were given for a task that has none, or a task that the model does not have. And everything
            that `bothways.load` raises.
    """
    if task == SIMILARITY:
        if labels is not None:
            raise InvalidInput("labels name the outputs of a classifier, but vectors have none: leave them out.")
        return _embedder(name_or_path, options)
    found = locate(name_or_path, revision=options.get("revision"), download=options.get("download", False))
    name = task_name(found.folder, str(name_or_path))
    own: dict[str, Any] = {} if labels is None else {"labels": labels}
    if own and (name in COMPOSED or "labels" not in column_names(SPECS[name].open_options)):
        raise InvalidInput(f"{str(name_or_path)!r} is a model for {name}, which has no labels: leave them out.")
    kind: Any = COMPOSED[name] if name in COMPOSED else task_class(SPECS[name])
    opened: Predictor[Any, Any, Any] = kind.from_pretrained(name_or_path, **own, **options)
    if task is None:
        return opened
    if not isinstance(opened, MultiTask):
        raise InvalidInput(f"{str(name_or_path)!r} is a model of one task, {name}: leave out which ({task!r}).")
    part: Predictor[Any, Any, Any] = opened.part(task)
    return part


def _embedder(name_or_path: str | Path, options: OpenOptions) -> Predictor[Any, Any, Any]:
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
