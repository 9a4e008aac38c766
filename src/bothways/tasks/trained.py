"""Which task a trained model is for, and the model as that task."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from bothways.checkpoints.hub import locate
from bothways.errors import InvalidInput, NotFitted
from bothways.tasks.answering.answerer import QuestionAnswerer
from bothways.tasks.embedding.data import ScoredPairs
from bothways.tasks.embedding.embedder import SentenceEmbedder
from bothways.tasks.embedding.few_shot import FewShotClassifier
from bothways.tasks.ensembles.ensemble import Ensemble
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.labelling.pairs import PairClassifier
from bothways.tasks.masks.fill_mask import FillMask
from bothways.tasks.opening import OpenOptions
from bothways.tasks.sharing.multitask import MultiTask
from bothways.tasks.tagging.tagger import TextTagger
from bothways.tasks.task import Task
from bothways.tasks.task_names import stored_task, task_of_heads

Opener = Callable[..., Task]


# By the name that ``bothways.json`` gives a task.
TASKS: dict[str, Opener] = {
    TextClassifier.task: TextClassifier.from_pretrained,
    PairClassifier.task: PairClassifier.from_pretrained,
    SentenceEmbedder.task: SentenceEmbedder.from_pretrained,
    FewShotClassifier.task: FewShotClassifier.from_pretrained,
    FillMask.task: FillMask.from_pretrained,
    QuestionAnswerer.task: QuestionAnswerer.from_pretrained,
    TextTagger.task: TextTagger.from_pretrained,
    MultiTask.task: MultiTask.from_pretrained,
    Ensemble.task: Ensemble.from_pretrained,
}

# What can be asked of an encoder that was not trained for it.
SIMILARITY = "similarity"

# Those whose answers have no names that a caller could give.
WITHOUT_LABELS = (FillMask.task, QuestionAnswerer.task, MultiTask.task, Ensemble.task, SentenceEmbedder.task)


def open_trained(
    name_or_path: str | Path,
    *,
    task: str | None = None,
    labels: Sequence[str] | None = None,
    **options: Unpack[OpenOptions],
) -> Task:
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
        embedder = SentenceEmbedder.from_pretrained(name_or_path, **options)
        embedder.columns = ScoredPairs()
        return embedder
    found = locate(name_or_path, revision=options.get("revision"), download=options.get("download", False))
    name = task_name(found.folder, str(name_or_path))
    if labels is not None and name in WITHOUT_LABELS:
        raise InvalidInput(f"{str(name_or_path)!r} is a model for {name}, which has no labels: leave them out.")
    given: dict[str, Any] = {} if labels is None else {"labels": labels}
    opened = TASKS[name](name_or_path, **given, **options)
    if task is None:
        return opened
    if not isinstance(opened, MultiTask):
        raise InvalidInput(f"{str(name_or_path)!r} is a model of one task, {name}: leave out which ({task!r}).")
    part: Task = opened.part(task)
    return part


def task_name(folder: Path, name: str) -> str:
    """What the model in a folder was trained for.

    Raises:
        NotFitted: It is no trained model of a task that can be opened like this.
    """
    stored = stored_task(folder)
    if stored in TASKS:
        return stored
    if stored is None:
        of_heads = task_of_heads(folder)
        if of_heads is not None:
            return of_heads
    what = f"it is a model for {stored}" if stored else "it is an encoder without the head of a task"
    raise NotFitted(
        f"{name!r} cannot be asked for predictions: {what}. Known tasks are {', '.join(TASKS)}: train one. How well "
        f"the vectors of an encoder agree with scores of pairs is the task {SIMILARITY!r}, which needs no training."
    )
