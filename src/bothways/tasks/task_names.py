"""Which task the model in a folder was trained for: what ``bothways.json`` says, or else the heads that are there."""

from collections.abc import Mapping
from pathlib import Path

from bothways.checkpoints.checkpoint import OURS
from bothways.checkpoints.files import read_json
from bothways.families import family_of
from bothways.tasks.answering.answerer import QuestionAnswerer
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.masks.fill_mask import FillMask
from bothways.tasks.tagging.tagger import TextTagger

# By the head of a checkpoint that was trained elsewhere.
TASK_OF_HEAD = {
    "sequence": TextClassifier.task,
    "token": TextTagger.task,
    "span": QuestionAnswerer.task,
    "masked_lm": FillMask.task,
}


def stored_task(folder: Path) -> str | None:
    """The task that ``bothways.json`` names, if there is one."""
    stored = read_json(folder / OURS).get("task") if (folder / OURS).is_file() else None
    return stored if isinstance(stored, str) else None


def task_of_heads(folder: Path) -> str | None:
    """The task of the first head that ``config.json`` says is there, if one has a task."""
    for head in _heads(read_json(folder / "config.json")):
        if head in TASK_OF_HEAD:
            return TASK_OF_HEAD[head]
    return None


def _heads(settings: Mapping[str, object]) -> tuple[str, ...]:
    family = family_of(settings.get("model_type"))
    stored = settings.get("architectures")
    names = stored if isinstance(stored, list) else []
    return tuple(head for name in names for head in family.architectures.get(str(name), ()))
