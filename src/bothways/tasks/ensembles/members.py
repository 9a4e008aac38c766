"""The models that an ensemble can be made of, and their committee."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from bothways.errors import InvalidInput
from bothways.tasks.answering.answerer import QuestionAnswerer
from bothways.tasks.embedding.few_shot import FewShotClassifier
from bothways.tasks.ensembles.answering import AnswerCommittee
from bothways.tasks.ensembles.combining import Combination
from bothways.tasks.ensembles.committee import Committee
from bothways.tasks.ensembles.labelling import LabelCommittee, LabelModel
from bothways.tasks.ensembles.tagging import TagCommittee
from bothways.tasks.labelling.classification import TextClassifier
from bothways.tasks.labelling.pairs import PairClassifier
from bothways.tasks.opening import OpenOptions
from bothways.tasks.tagging.tagger import TextTagger
from bothways.tasks.task_names import stored_task, task_of_heads

T = TypeVar("T")

Model: TypeAlias = LabelModel | TextTagger | QuestionAnswerer

# By the name that ``bothways.json`` gives a task.
MEMBERS: Mapping[str, Callable[..., Model]] = {
    TextClassifier.task: TextClassifier.from_pretrained,
    FewShotClassifier.task: FewShotClassifier.from_pretrained,
    PairClassifier.task: PairClassifier.from_pretrained,
    TextTagger.task: TextTagger.from_pretrained,
    QuestionAnswerer.task: QuestionAnswerer.from_pretrained,
}


def open_member(folder: str | Path, options: OpenOptions) -> tuple[Path, Model]:
    """A member, and where it is.

    Raises:
        InvalidInput: It is no folder, or no model that an ensemble can be made of.
    """
    path = Path(folder)
    if not path.is_dir():
        raise InvalidInput(f"a member of an ensemble is the folder of a trained model, but {str(folder)!r} is none.")
    # Of a folder that says nothing of itself a classifier can tell best what is not there.
    task = stored_task(path) or task_of_heads(path) or TextClassifier.task
    if task not in MEMBERS:
        raise InvalidInput(
            "ensembles are made of models that label texts or pairs of texts, tag words, or answer questions, but "
            f"{str(folder)!r} is one for {task}."
        )
    return path, MEMBERS[task](path, **options)


def committee_of(members: Sequence[tuple[Path, Model]], combination: Combination) -> Committee[Any, Any, Any]:
    """Gather models that belong together.

    Raises:
        InvalidInput: They are of different tasks, or have different labels or tags.
        NotFitted: One is no trained model.
    """
    first_folder, first = members[0]
    for folder, model in members:
        if _kind(model) != _kind(first):
            raise InvalidInput(
                f"members of an ensemble are models of one task, but {str(first_folder)!r} is one for {_kind(first)} "
                f"and {str(folder)!r} one for {_kind(model)}."
            )
    match first:
        case TextClassifier() | FewShotClassifier() | PairClassifier():
            return LabelCommittee.of(_all(members, (TextClassifier, FewShotClassifier, PairClassifier)), combination)
        case TextTagger():
            return TagCommittee.of(_all(members, (TextTagger,)), combination)
        case QuestionAnswerer():
            return AnswerCommittee.of(_all(members, (QuestionAnswerer,)), combination)


def _kind(model: Model) -> str:
    match model:
        case TextClassifier() | FewShotClassifier():  # however they were trained, they are asked and answer alike
            return f"{TextClassifier.task} ({model.trusted.target.kind})"
        case PairClassifier():
            return f"{model.task} ({model.trusted.target.kind})"
        case TextTagger() | QuestionAnswerer():
            return model.task


def _all(members: Sequence[tuple[Path, Model]], kinds: tuple[type[T], ...]) -> list[tuple[Path, T]]:
    """The members as what they are known to be."""
    return [(folder, model) for folder, model in members if isinstance(model, kinds)]
