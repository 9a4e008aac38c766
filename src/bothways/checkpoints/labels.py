"""Names of labels in ``config.json``."""

from collections.abc import Mapping

from bothways.errors import CorruptCheckpoint, IncompatibleWeights


def label_names(settings: Mapping[str, object], count: int) -> tuple[str, ...]:
    """Return the names of a head's labels in the order of its scores; ``LABEL_0`` and so on if there are none.

    Raises:
        CorruptCheckpoint: ``id2label`` is not a map from numbers to names.
        IncompatibleWeights: It does not name as many labels as the head has scores.
    """
    stored = settings.get("id2label")
    if stored is None:
        return placeholders(count)
    names = numbered_names(stored)
    if len(names) != count:
        raise IncompatibleWeights(
            f"config.json names {len(names)} labels in id2label, but the head has {count} scores: they do not belong "
            "together."
        )
    return names


def placeholders(count: int) -> tuple[str, ...]:
    """Return the ecosystem's names of unnamed labels."""
    return tuple(f"LABEL_{index}" for index in range(count))


def numbered_names(stored: object) -> tuple[str, ...]:
    """Return the names in ``id2label``, ordered by their numbers.

    Raises:
        CorruptCheckpoint: It is not a map from numbers to names.
    """
    if not isinstance(stored, Mapping) or not all(str(key).isdecimal() and len(str(key)) < 10 for key in stored):
        raise CorruptCheckpoint(f"id2label in config.json must map numbers to labels, but it is {stored!r:.200}.")
    return tuple(str(stored[key]) for key in sorted(stored, key=int))


def label_settings(names: tuple[str, ...]) -> dict[str, object]:
    """Return the settings of ``config.json`` for labels."""
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
