"""Targets in ``config.json``, in the format of the ecosystem's sequence classifiers."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bothways.checkpoints.schema import damaged, label_settings, numbered_names, placeholders
from bothways.errors import CorruptCheckpoint, InvalidInput, LabelsUnnamed
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel, Target


def target_settings(target: Target) -> dict[str, object]:
    """Return the settings of ``config.json`` for a target."""
    return {"problem_type": target.problem_type, **label_settings(target.labels)}


def stored_target(
    settings: Mapping[str, object], labels: Iterable[str] | None, classes: int, *, named: bool = False
) -> Target:
    """Return the target of a trained head, named by ``config.json`` or else by the caller's labels.

    Args:
        settings: The checkpoint's ``config.json``.
        labels: The caller's names, which replace those in ``config.json``.
        classes: Number of outputs of the head.
        named: Whether names such as LABEL_0 were chosen by someone, rather than stand for missing names.

    Raises:
        InvalidInput: The number of labels differs from the number of the head's outputs.
        CorruptCheckpoint: ``config.json`` and the head contradict each other.
    """
    problem = settings.get("problem_type")
    if problem == Regression.problem_type or (problem is None and classes == 1):
        if classes != 1:
            raise CorruptCheckpoint(f"config.json says regression, but the trained head has {classes} outputs, not 1.")
        if labels is not None:
            raise InvalidInput("labels name classes, but this checkpoint's head predicts a number: leave labels out.")
        return Regression()
    names = tuple(labels) if labels is not None else _names(settings) or placeholders(classes)
    if labels is None and not named and names == placeholders(classes):
        warnings.warn(
            f"config.json does not say what the classes of its trained head are called, so they are {_few(names)}. To "
            "name them, in the order of the outputs: labels=[...], or --labels on the command line.",
            LabelsUnnamed,
            stacklevel=2,
        )
    if len(names) != classes or len(set(names)) != classes:
        raise InvalidInput(
            f"the trained head has {classes} outputs, so it needs as many labels, but got {list(names)}."
        )
    return MultiLabel(names) if problem == MultiLabel.problem_type else SingleLabel(names)


def with_stored_thresholds(target: Target, stored: Sequence[float] | None) -> Target:
    """Return the target with the thresholds that were saved.

    Raises:
        CorruptCheckpoint: There is not exactly one for each label.
    """
    match target, stored:
        case MultiLabel(), [_, *_]:
            if len(stored) != target.outputs:
                raise damaged("thresholds", f"a list of {target.outputs} numbers from 0 to 1", stored)
            return replace(target, thresholds=tuple(stored))
        case _:
            return target


def stored_names(settings: Mapping[str, object], *, named: bool) -> tuple[str, ...]:
    """Return the label names in ``config.json``, for tasks that need them.

    Tags, for example, encode spans only by their names.

    Args:
        settings: The checkpoint's ``config.json``.
        named: Whether names such as LABEL_0 were chosen by someone, rather than stand for missing names.

    Raises:
        InvalidInput: There are no names.
        CorruptCheckpoint: They are not numbered.
    """
    names = _names(settings)
    if not names or (names == placeholders(len(names)) and not named):
        raise InvalidInput(
            "config.json does not say what the classes of its trained head are called "
            f"({_few(names) or 'no id2label'}). Pass labels=[...] in the order of the outputs."
        )
    return names


def _names(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names in the order of the outputs; empty without any."""
    stored = settings.get("id2label")
    return numbered_names(stored if isinstance(stored, dict) else {})


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
