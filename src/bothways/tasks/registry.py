"""All tasks by name, and the task of a model in a folder. The class of a task is imported on first use.

To add a task, add its spec to `SPECS`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bothways import checkpoints
from bothways.choices import GoldenSource
from bothways.errors import BothwaysError, InvalidInput
from bothways.lazy import imported
from bothways.progress import phase
from bothways.tasks.classification.spec import CLASSIFICATION, PAIRS
from bothways.tasks.columns import AnyColumns, stored_columns
from bothways.tasks.embedding.spec import EMBEDDING, stored_kind
from bothways.tasks.masked_lm.spec import MASKED_LM
from bothways.tasks.multiple_choice.spec import MULTIPLE_CHOICE
from bothways.tasks.question_answering.spec import QUESTION_ANSWERING
from bothways.tasks.spec import NoOptions, TaskSpec
from bothways.tasks.tagging.spec import TAGGING

SPECS: Mapping[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        CLASSIFICATION,
        PAIRS,
        QUESTION_ANSWERING,
        TAGGING,
        EMBEDDING,
        MASKED_LM,
        MULTIPLE_CHOICE,
    )
}


def check_open_options(model: str, task: str, options: Mapping[str, object]) -> None:
    """Raise `InvalidInput` for options that the model's task does not have, or TypeError if no task has them."""
    from bothways.tasks.backend import OpenOptions

    kind = SPECS[task].open_options if task in SPECS else NoOptions
    known = {each.name for each in fields(kind)}.union(OpenOptions.__annotations__)
    foreign = [name for name, value in options.items() if value is not None and name not in known]
    if foreign:
        named = " and ".join(foreign)
        for name in foreign:
            if not any(name in {each.name for each in fields(spec.open_options)} for spec in SPECS.values()):
                raise TypeError(f"opening a model got an unexpected keyword argument {name!r}.")
        raise InvalidInput(
            f"{named} can only be given for {models_with('open_options', foreign[0])}, but {model!r} is a model for "
            f"{task}, which has no {named}: leave {named} out."
        )


def models_with(declaration: str, option: str) -> str:
    """Return a phrase for the models whose tasks declare an option: ``models that tag words or answer questions``.

    ``declaration`` is the kind of options, such as ``"predict_options"``.
    """
    return models(
        spec for spec in SPECS.values() if option in {each.name for each in fields(getattr(spec, declaration))}
    )


def models(specs: Iterable[TaskSpec]) -> str:
    """Return a phrase for the models of these tasks, for messages."""
    *others, last = dict.fromkeys(spec.does for spec in specs)
    return f"models that {' or '.join([', '.join(others), last] if others else [last])}"


def task_class(spec: TaskSpec) -> Any:  # noqa: ANN401 (a subclass of Task)
    """Import the class of a task."""
    return imported(spec.home)


def write_golden_of(folder: Path, source: Path, golden: GoldenSource | None) -> None:
    """Write the golden answers of a model that was converted, with the inputs in the folder of the original, if any."""
    if golden is None:
        return
    name = task_of(folder)
    try:
        if name in SPECS:
            answering = replace(
                task_class(SPECS[name]).from_pretrained(folder, device="cpu")._answering(), source=source
            )
            checkpoints.write_golden(folder, answering, golden)
        else:
            checkpoints.load(folder, device="cpu").write_golden(folder, golden)
    except BothwaysError as error:
        phase(f"no golden answers were recorded: {error}")


def task_of(folder: Path) -> str:
    """Return the task of the model in a folder; embedding if it has none, since any encoder embeds texts."""
    return stored_task(folder) or task_of_heads(folder) or EMBEDDING.name


def stored_task(folder: Path) -> str | None:
    """Return the task named in ``bothways.json``, if there is one."""
    stored = _stored_in(folder).get("task")
    return stored if isinstance(stored, str) else None


def _stored_in(folder: Path) -> Mapping[str, object]:
    from bothways.checkpoints.files import read_json
    from bothways.checkpoints.schema import OURS

    return read_json(folder / OURS) if (folder / OURS).is_file() else {}


def stored_columns_in(folder: Path) -> AnyColumns | None:
    """Return the columns that the model in a folder, or its first task, was trained on; None if it names no task."""
    match _stored_in(folder):
        case {"heads": [{"task": str(name), "card": dict(card)}, *_]} | {"task": str(name), "card": dict(card)}:
            pass
        case _:
            return None
    if name == EMBEDDING.name:
        return stored_kind(card)
    return stored_columns(card, SPECS[name].columns) if name in SPECS else None


def task_of_heads(folder: Path) -> str | None:
    """Return the task of the first architecture in ``config.json`` that has one; None if none has.

    A classifier of another program may read texts or pairs, which its head does not tell; see `_reads_pairs`.
    """
    from bothways.checkpoints.files import read_json
    from bothways.families import family_in

    settings = read_json(folder / "config.json")
    family, stored = family_in(settings), settings.get("architectures")
    by_head = {spec.head: spec.name for spec in SPECS.values() if spec.head is not None}
    for name in stored if isinstance(stored, list) else []:
        for head in family.architectures.get(str(name), ()):
            if head in by_head:
                found = by_head[head]
                return PAIRS.name if found == CLASSIFICATION.name and _reads_pairs(folder, settings) else found
    return None


def _reads_pairs(folder: Path, settings: Mapping[str, object]) -> bool:
    """Return True if the files of a classifier of another program say, or suggest, that it reads pairs of texts.

    Cross-encoders of sentence-transformers say so. A single output without a name suggests it: rerankers have one, and
    models that predict a number for a text name a ``problem_type``, which the trainer of transformers writes.
    """
    if checkpoints.is_cross_encoder(folder, settings):
        return True
    unnamed = settings.get("id2label", {"0": "LABEL_0"} if settings.get("num_labels") == 1 else None)
    return unnamed == {"0": "LABEL_0"} and settings.get("problem_type") is None
