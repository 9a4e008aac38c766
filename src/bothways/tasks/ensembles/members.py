"""The models that an ensemble can be made of, and their committee."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bothways.checkpoints.checkpoint import OURS
from bothways.checkpoints.files import read_json
from bothways.errors import InvalidInput
from bothways.tasks.ensembles.combining import Combination
from bothways.tasks.ensembles.committee import Committee
from bothways.tasks.ensembles.labelling import LabelCommittee
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.labelling.pairs import PairClassifier
from bothways.tasks.opening import OpenOptions

Model = TextClassifier | PairClassifier

# By the name that ``bothways.json`` gives a task.
MEMBERS: Mapping[str, Callable[..., Model]] = {
    TextClassifier.task: TextClassifier.from_pretrained,
    PairClassifier.task: PairClassifier.from_pretrained,
}


def open_member(folder: str | Path, options: OpenOptions) -> tuple[Path, Model]:
    """A member, and where it is.

    Raises:
        InvalidInput: It is no folder, or no model that an ensemble can be made of.
    """
    path = Path(folder)
    if not path.is_dir():
        raise InvalidInput(f"a member of an ensemble is the folder of a trained model, but {str(folder)!r} is none.")
    # A model that was trained elsewhere has no such file, and can only be a classifier.
    task = read_json(path / OURS).get("task") if (path / OURS).is_file() else TextClassifier.task
    if task not in MEMBERS:
        raise InvalidInput(
            f"ensembles are made of models that label texts or pairs of texts, but {str(folder)!r} is one for {task}."
        )
    return path, MEMBERS[str(task)](path, **options)


def committee_of(members: Sequence[tuple[Path, Model]], combination: Combination) -> Committee[Any, Any, Any]:
    """Gather models that belong together.

    Raises:
        InvalidInput: They are of different tasks, or have different labels.
        NotFitted: One is no trained model.
    """
    first = members[0][1]
    for folder, model in members:
        if _kind(model) != _kind(first):
            raise InvalidInput(
                f"members of an ensemble are models of one task, but {first.model.name!r} is one for {_kind(first)} "
                f"and {str(folder)!r} one for {_kind(model)}."
            )
    return LabelCommittee.of(members, combination)


def _kind(model: Model) -> str:
    return f"{model.task} ({model.labeller.target.kind})"
