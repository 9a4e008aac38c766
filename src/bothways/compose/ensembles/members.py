"""Checks that models fit into one ensemble: same inputs, same kind of output, same labels."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bothways.compose.ensembles.combining import Combination
from bothways.compose.ensembles.trained import EnsembleColumns, EnsembleOutputs, Member, TrainedEnsemble, combiner_of
from bothways.errors import InvalidInput
from bothways.evaluation.comparison import naming_hint
from bothways.tasks.backend import OpenOptions
from bothways.tasks.registry import SPECS, stored_task, task_class, task_of_heads
from bothways.tasks.task import AnyTask


def open_members(folders: Sequence[Path], options: OpenOptions) -> list[AnyTask]:
    """Open models that may become members.

    Raises:
        InvalidInput: One is no folder, or no model whose scores can be combined.
        NotFitted: One is no trained model.
    """
    for folder in folders:
        if not folder.is_dir():
            raise InvalidInput(
                f"a member of an ensemble is the folder of a trained model, but {str(folder)!r} is none."
            )
    found = [stored_task(folder) or task_of_heads(folder) for folder in folders]
    # A folder that says nothing of itself is opened as what the others are, which can tell best what is not there.
    usual = next((task for task in found if task is not None), next(iter(SPECS)))
    models = []
    for folder, task in zip(folders, (task or usual for task in found), strict=True):
        model = task_class(SPECS[task]).from_pretrained(folder, **options) if task in SPECS else None
        if model is None or not model.spec.combiner:
            raise InvalidInput(
                f"members of an ensemble give scores that can be combined, but {str(folder)!r} is one for {task}, "
                "which gives none."
            )
        models.append(model)
    return models


def gathered(folders: Sequence[Path], models: Sequence[AnyTask], combination: Combination) -> TrainedEnsemble:
    """Gather models that belong together.

    Raises:
        InvalidInput: They are of different tasks, or have different labels.
    """
    first = models[0]
    for folder, model in zip(folders, models, strict=True):
        _check_alike(folders[0], first, folder, model)
    members = tuple(
        Member(_shown(folder), model.fitted, _places(first, folder, model))
        for folder, model in zip(folders, models, strict=True)
    )
    combiner = members[0].combiner.uncalibrated([each.combiner for each in members])
    shared = combiner.shares_inputs
    columns = tuple((first if shared else model).columns for model in models)
    names = tuple(member.name for member in members)
    return TrainedEnsemble(EnsembleOutputs(combiner, combination, members), EnsembleColumns(names, columns))


def _check_alike(home: Path, first: AnyTask, folder: Path, member: AnyTask) -> None:
    """Refuse a member that reads or says something else than the first one.

    Raises:
        InvalidInput: It does.
    """
    (our_task, ours), (their_task, theirs) = (
        (model.spec.name, combiner_of(model.fitted).shared_settings) for model in (first, member)
    )
    if (our_task, ours) == (their_task, theirs):
        return
    wanted = "are models of one task, but "
    if our_task == their_task:
        name = next(name for name in ours if ours[name] != theirs[name])
        wanted = f"have the same {name}, but {str(folder)!r} has {theirs[name]}, against {ours[name]}: "
    own, other = (
        f"{task} ({', '.join(common.values())})" if common else task
        for task, common in ((our_task, ours), (their_task, theirs))
    )
    raise InvalidInput(
        f"members of an ensemble {wanted}{str(home)!r} is one for {own} and {str(folder)!r} one for {other}."
    )


def _places(first: AnyTask, folder: Path, member: AnyTask) -> NDArray[np.int64] | None:
    """Return where a member has the labels of the first one.

    Raises:
        InvalidInput: It has other labels.
    """
    ours, theirs = first.labels, member.labels
    lacking, more = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    if lacking or more:
        differences = [f"lacks {', '.join(map(repr, lacking))}"] * bool(lacking)
        differences += [f"has {', '.join(map(repr, more))} besides"] * bool(more)
        raise InvalidInput(
            f"members of an ensemble have the same labels, but {str(folder)!r} {' and '.join(differences)}, against "
            f"those of {first.name!r}.{naming_hint((*lacking, *more))}"
        )
    return np.array([theirs.index(label) for label in ours], dtype=np.int64) if ours else None


def _shown(folder: Path) -> str:
    """Return a member's folder as its user would write it: by its path from where they are, if it lies below."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
