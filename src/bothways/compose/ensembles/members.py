"""Members of an ensemble: opening them, checking that they fit together, and finding them from a saved ensemble.

For each member, ``bothways.json`` has the path relative to the ensemble's folder, so that ensemble and members can be
moved together, and a checksum of the files that determine its predictions. Weights are not copied. A member that is
missing or has changed is refused when the ensemble is opened.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.files import read_json
from bothways.checkpoints.schema import OURS, StoredEnsemble, StoredMember
from bothways.compose.ensembles.combining import Combination
from bothways.compose.ensembles.trained import (
    EnsembleColumns,
    EnsembleOutputs,
    Member,
    TrainedEnsemble,
    combiner_of,
    member_fingerprint,
)
from bothways.data.label_rows import spelled
from bothways.errors import CorruptCheckpoint, InvalidInput, UnknownModel, shown
from bothways.evaluation.comparison import naming_hint
from bothways.tasks.backend import OpenOptions
from bothways.tasks.registry import SPECS, stored_task, task_class, task_of_heads
from bothways.tasks.task import AnyTask


def open_members(folders: Sequence[Path], options: OpenOptions) -> list[AnyTask]:
    """Open the models to combine; refuse models whose scores cannot be combined."""
    for folder in folders:
        if not folder.is_dir():
            raise InvalidInput(
                f"a member of an ensemble must be the folder of a trained model, but {str(folder)!r} is not a folder."
            )
    found = [stored_task(folder) or task_of_heads(folder) for folder in folders]
    # Open a folder without a task as a model of the other members' task, for the most helpful error.
    usual = next((task for task in found if task is not None), next(iter(SPECS)))
    models = []
    for folder, task in zip(folders, (task or usual for task in found), strict=True):
        model = task_class(SPECS[task]).from_pretrained(folder, **options) if task in SPECS else None
        if model is None or not model.spec.combiner:
            raise InvalidInput(
                f"{str(folder)!r} is a model for {task}, whose scores an ensemble cannot combine: leave it out."
            )
        models.append(model)
    return models


def combine_members(
    folders: Sequence[Path], models: Sequence[AnyTask], combination: Combination, reading: OpenOptions
) -> TrainedEnsemble:
    """Combine models of one task with the same labels; ``reading`` has their explicit options for long texts."""
    first = models[0]
    for folder, model in zip(folders, models, strict=True):
        _check_alike(folders[0], first, folder, model)
    members = tuple(
        Member(folder, _relative_name(folder), model.fitted, _label_indices(first, folder, model))
        for folder, model in zip(folders, models, strict=True)
    )
    combiner = members[0].combiner.uncalibrated([each.combiner for each in members])
    shared = combiner.shares_inputs
    columns = tuple((first if shared else model).columns for model in models)
    names = tuple(member.name for member in members)
    outputs = EnsembleOutputs(combiner, combination, members)
    return TrainedEnsemble(outputs, EnsembleColumns(names, columns), reading)


def _check_alike(home: Path, first: AnyTask, folder: Path, member: AnyTask) -> None:
    """Refuse a member whose task or shared settings differ from the first member's."""
    (our_task, ours), (their_task, theirs) = (
        (model.spec.name, combiner_of(model.fitted).shared_settings) for model in (first, member)
    )
    if (our_task, ours) == (their_task, theirs):
        return
    expected = "must be models of one task, but "
    if our_task == their_task:
        name = next(name for name in ours if ours[name] != theirs[name])
        expected = f"must have the same {name}, but {str(folder)!r} has {theirs[name]}, the first member {ours[name]}: "
    own, other = (
        f"{task} ({', '.join(common.values())})" if common else task
        for task, common in ((our_task, ours), (their_task, theirs))
    )
    raise InvalidInput(
        f"members of an ensemble {expected}{str(home)!r} is a model for {own} and {str(folder)!r} one for {other}."
    )


def _label_indices(first: AnyTask, folder: Path, member: AnyTask) -> NDArray[np.int64] | None:
    """Return the index in ``member.labels`` of each of the first member's labels; refuse different labels."""
    ours, theirs = first.fitted.outputs.labels, member.fitted.outputs.labels
    lacking, more = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    if lacking or more:
        found = [", ".join(spelled(each, [*lacking, *more]) for each in names) for names in (lacking, more)]
        differences = [f"lacks {found[0]}"] * bool(lacking) + [f"also has {found[1]}"] * bool(more)
        raise InvalidInput(
            f"members of an ensemble must have the same labels, but {str(folder)!r} {' and '.join(differences)}, "
            f"compared with {first.name!r}.{naming_hint((*lacking, *more))}"
        )
    return np.array([theirs.index(label) for label in ours], dtype=np.int64) if ours else None


def _relative_name(folder: Path) -> str:
    """Return the path of a member's folder, relative to the working directory if the folder is inside it."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


# --- on disk ---


def explicit_reading(options: OpenOptions) -> OpenOptions:
    """Return the options for long texts (maximum length, overflow, stride) that are not None."""
    given: OpenOptions = {}
    if (length := options.get("max_length")) is not None:
        given["max_length"] = length
    if (overflow := options.get("on_overflow")) is not None:
        given["on_overflow"] = overflow
    if (stride := options.get("stride")) is not None:
        given["stride"] = stride
    return given


def read_ensemble(folder: Path) -> tuple[StoredEnsemble, list[Path]]:
    """Read ``bothways.json``, verify the members' checksums, and return its content and the members' folders."""
    stored = StoredEnsemble.of(read_json(folder / OURS))
    return stored, [_member(folder, member) for member in stored.members]


def _member(folder: Path, stored: StoredMember) -> Path:
    path = stored.path
    member = Path(os.path.normpath(folder.resolve() / path))
    if not os.path.isdir(member):  # noqa: PTH112 (of a name that is too long, Path.is_dir raises)
        raise UnknownModel(
            f"the ensemble {str(folder)!r} has a member {shown(path)}, but its folder {shown(str(member))} does not "
            "exist. Restore the folder, or create the ensemble again."
        )
    if member_fingerprint(member) != stored.fingerprint:
        raise CorruptCheckpoint(
            f"the member {path!r} of the ensemble {str(folder)!r} is no longer the model that was combined: its files "
            "have changed. Restore the old files, or create the ensemble again."
        )
    return member
