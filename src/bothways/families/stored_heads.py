"""A family's heads: what each one computes, and how it lies on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from bothways.choices import HeadName as HeadName
from bothways.encoder.heads import HeadKind, Labels, MaskedLMHeadKind, MeanOfTokens, ScoreHeadKind
from bothways.errors import CorruptCheckpoint, UnsupportedConfig
from bothways.families.config_keys import Settings
from bothways.families.weight_map import Row, WeightRow

HEAD_NAMES: tuple[HeadName, ...] = get_args(HeadName)


@dataclass(frozen=True, slots=True)
class DropoutSetting:
    """A dropout rate that ``config.json`` keeps for one head alone, and its value where it is left out."""

    name: str
    default: float


@dataclass(frozen=True, slots=True)
class StoredHead:
    """One head.

    Attributes:
        kind: What it computes.
        rows: Its weight rows. Their names are whole, with the prefix where the family writes one; ours begin with
            ``head.``. Rows of the encoder's own part (a pooler that the head reads) are among them.
        dropout: Where the rate before the last linear map stands, if not in the encoder's configuration.
        needs: Settings of ``config.json`` that the head takes for granted, with the values that it can live with, of
            which the first is what leaving it out means.
    """

    kind: HeadKind
    rows: tuple[WeightRow, ...]
    dropout: DropoutSetting | None = None
    needs: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeadBySetting:
    """A head that a setting of ``config.json`` chooses.

    Attributes:
        setting: Its name.
        default: Its value where it is left out.
        heads: The head for each value.
    """

    setting: str
    default: object
    heads: Mapping[object, StoredHead]


FamilyHead = StoredHead | HeadBySetting

# A classifier that reads the mean of the tokens, as a sentence embedder does. No family has a class for it, so that it
# is stored as a bare encoder with two modules of sentence-transformers behind it, the last of them the linear map.
HEAD_POOLING, MEAN = "head_pooling", "mean"
HEAD_FOLDER = "head"
MEAN_HEAD = StoredHead(
    ScoreHeadKind(MeanOfTokens(), None, Labels()), (Row(f"{HEAD_FOLDER}/linear.{{wb}}", "head.output.{wb}"),)
)


def reads_mean(name: str, settings: Settings) -> bool:
    """Return whether a head is `MEAN_HEAD`.

    Raises:
        UnsupportedConfig: Another pooling is asked for.
    """
    pooling = settings.get(HEAD_POOLING, MEAN)
    if pooling != MEAN:
        raise _not_built(HEAD_POOLING, pooling, (MEAN,))
    return name == "sequence" and HEAD_POOLING in settings


def variants(name: str, head: FamilyHead) -> tuple[StoredHead, ...]:
    """All forms that a head may take."""
    own = tuple(head.heads.values()) if isinstance(head, HeadBySetting) else (head,)
    return (*own, MEAN_HEAD) if name == "sequence" else own


def resolved(head: FamilyHead, settings: Settings) -> StoredHead:
    """The head that a ``config.json`` describes.

    Raises:
        UnsupportedConfig: A setting asks for a head that is not built; the message names it.
        CorruptCheckpoint: A dropout rate is not a number.
    """
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
