"""A family's heads: their computation, and their layout on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from bothways.choices import HeadName as HeadName
from bothways.encoder.head_kinds import (
    HeadKind,
    Labels,
    MaskedLMHeadKind,
    MeanOfTokens,
    Read,
    ScoreHeadKind,
    TextsOfPair,
)
from bothways.errors import CorruptCheckpoint, UnsupportedConfig
from bothways.families.config_keys import Settings
from bothways.families.weight_map import TensorRow, WeightRow

HEAD_NAMES: tuple[HeadName, ...] = get_args(HeadName)


@dataclass(frozen=True, slots=True)
class DropoutSetting:
    """A dropout rate that ``config.json`` has for one head only, with its default."""

    name: str
    default: float


@dataclass(frozen=True, slots=True)
class CheckpointHead:
    """A head of a family: its computation and its tensors on disk.

    Attributes:
        kind: The computation.
        rows: Its weight rows with full names on disk, including the family's prefix if there is one; ours begin with
            ``head.``. They include rows of the encoder's own part (a pooler that the head reads).
        dropout: Setting of the rate before the last linear map, if not that of the encoder's configuration.
        needs: Settings of ``config.json`` that the head requires, with their supported values, the first of which
            applies if the setting is missing.
    """

    kind: HeadKind
    rows: tuple[WeightRow, ...]
    dropout: DropoutSetting | None = None
    needs: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeadBySetting:
    """A head chosen by a setting of ``config.json``.

    Attributes:
        setting: Name of the setting.
        default: Its value if it is missing.
        heads: The head for each value.
    """

    setting: str
    default: object
    heads: Mapping[object, CheckpointHead]


FamilyHead = CheckpointHead | HeadBySetting

# A classifier above a sentence embedder reads the mean of the tokens, as that does, and of pairs also the texts by
# themselves. No family has a class for it, so that it is stored as a bare encoder, with the last linear map beside it.
HEAD_POOLING, MEAN, PAIR = "head_pooling", "mean", "pair"
HEAD_TOKENS = ("head_start_token_id", "head_separator_token_id")
HEAD_FOLDER = "head"
_BESIDE = (TensorRow(f"{HEAD_FOLDER}/linear.{{wb}}", "head.output.{wb}"),)
MEAN_HEAD = CheckpointHead(ScoreHeadKind(MeanOfTokens(), None, Labels()), _BESIDE)


def pair_settings(start: int, separator: int) -> dict[str, object]:
    """Return the settings of a classifier that reads pairs and their texts.

    Args:
        start: Id of the token at the start of a text.
        separator: Id of the token at its end.
    """
    return {HEAD_POOLING: PAIR, **dict(zip(HEAD_TOKENS, (start, separator), strict=True))}


def beside_settings(settings: Settings) -> dict[str, object]:
    """Return the settings of a head that is stored beside the encoder."""
    return {name: settings[name] for name in (HEAD_POOLING, *HEAD_TOKENS) if name in settings}


def head_beside(name: str, settings: Settings) -> CheckpointHead | None:
    """Return the head that is stored beside the encoder, if a ``config.json`` states one."""
    pooling = settings.get(HEAD_POOLING, MEAN)
    if pooling not in (MEAN, PAIR):
        raise _not_built(HEAD_POOLING, pooling, (MEAN, PAIR))
    if name != "sequence" or HEAD_POOLING not in settings:
        return None
    return (
        MEAN_HEAD
        if pooling == MEAN
        else CheckpointHead(ScoreHeadKind(_texts_of_pair(settings), None, Labels()), _BESIDE)
    )


def _texts_of_pair(settings: Settings) -> Read:
    ids = [settings.get(name) for name in HEAD_TOKENS]
    start, separator = (each if isinstance(each, int) and not isinstance(each, bool) else None for each in ids)
    if start is None or separator is None:
        raise CorruptCheckpoint(f"config.json must give {' and '.join(HEAD_TOKENS)} as numbers, but it gives {ids}.")
    return TextsOfPair(start, separator)


def variants(name: str, head: FamilyHead) -> tuple[CheckpointHead, ...]:
    """Return all forms of a head."""
    own = tuple(head.heads.values()) if isinstance(head, HeadBySetting) else (head,)
    return (*own, MEAN_HEAD) if name == "sequence" else own


def resolved(head: FamilyHead, settings: Settings) -> CheckpointHead:
    """Return the head that a ``config.json`` describes."""
    if isinstance(head, HeadBySetting):
        value = settings.get(head.setting, head.default)
        known = {repr(name): stored for name, stored in head.heads.items()}
        if repr(value) not in known:
            raise _not_built(head.setting, value, tuple(head.heads))
        head = known[repr(value)]
    for name, values in head.needs.items():
        if name in settings and settings[name] not in values:
            raise _not_built(name, settings[name], values)
    if head.dropout is None or isinstance(head.kind, MaskedLMHeadKind):
        return head
    rate = settings.get(head.dropout.name, head.dropout.default)
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise CorruptCheckpoint(f"config.json must give {head.dropout.name} as a number, but it gives {rate!r}.")
    return replace(head, kind=replace(head.kind, dropout=float(rate)))


def _not_built(name: str, value: object, values: tuple[object, ...]) -> UnsupportedConfig:
    built = " or ".join(map(repr, values))
    return UnsupportedConfig(
        f"config.json sets {name} to {value!r}, which is not built for this head; only {built} is."
    )
