"""A target as ``config.json`` keeps it, in the words that the ecosystem's sequence classifiers use."""

from collections.abc import Iterable, Mapping

from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.tasks.targets import MultiLabel, Regression, SingleLabel, Target


def target_settings(target: Target) -> dict[str, object]:
    """What ``config.json`` says of a target."""
    return {
        "problem_type": target.problem_type,
        "id2label": {str(index): label for index, label in enumerate(target.labels)},
        "label2id": {label: index for index, label in enumerate(target.labels)},
    }


def stored_target(
    settings: Mapping[str, object], labels: Iterable[str] | None, classes: int, *, named: bool = False
) -> Target:
    """The target of a trained head, from ``config.json`` and, where that has no names, the caller's labels.

    Args:
        settings: The checkpoint's ``config.json``.
        labels: The caller's names, instead of those in it.
        classes: Outputs of the head.
        named: Whether names such as LABEL_0 were given by someone, and do not stand for none.

    Raises:
        InvalidInput: The labels are missing, or their number is not that of the head's outputs.
        CorruptCheckpoint: ``config.json`` and the head contradict each other.
    """
    problem = settings.get("problem_type")
    if problem == Regression.problem_type or (problem is None and classes == 1):
        if classes != 1:
            raise CorruptCheckpoint(f"config.json says regression, but the trained head has {classes} outputs, not 1.")
        if labels is not None:
            raise InvalidInput("labels name classes, but this checkpoint's head predicts a number: leave labels out.")
        return Regression()
    names = tuple(labels) if labels is not None else stored_names(settings, named=named)
    if len(names) != classes or len(set(names)) != classes:
        raise InvalidInput(
            f"the trained head has {classes} outputs, so it needs as many labels, but got {list(names)}."
        )
    return MultiLabel(names) if problem == MultiLabel.problem_type else SingleLabel(names)


def stored_names(settings: Mapping[str, object], *, named: bool) -> tuple[str, ...]:
    """The names of labels in ``config.json``, in the order of the outputs.

    Args:
        settings: The checkpoint's ``config.json``.
        named: Whether names such as LABEL_0 were given by someone, and do not stand for none.

    Raises:
        InvalidInput: There are none.
        CorruptCheckpoint: They are not numbered.
    """
    stored = settings.get("id2label")
    stored = stored if isinstance(stored, dict) else {}
    if not all(str(key).isdecimal() for key in stored):
        raise CorruptCheckpoint(f"id2label in config.json must map numbers to labels, but its keys are {list(stored)}.")
    names = tuple(str(stored[key]) for key in sorted(stored, key=int))
    unnamed = names == tuple(f"LABEL_{index}" for index in range(len(names)))
    if not names or (unnamed and not named):
        raise InvalidInput(
            "config.json does not say what the classes of its trained head are called "
            f"({', '.join(names[:3]) or 'no id2label'}). Pass labels=[...] in the order of the outputs."
        )
    return names
