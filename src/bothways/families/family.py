"""A family of published models, as data."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, get_args

from bothways.choices import HeadName as HeadName
from bothways.encoder.config import EncoderConfig, LocalGlobalAttention
from bothways.encoder.head_kinds import (
    HeadKind,
    Labels,
    MaskedLMHeadKind,
    MeanOfTokens,
    Read,
    ScoreHeadKind,
    TextsOfPair,
)
from bothways.errors import CorruptCheckpoint, InvalidInput, UnknownModel, UnsupportedConfig, shown
from bothways.families.keys import HARMLESS, NEUTRAL_NAMES, QUANTIZATION
from bothways.families.layout import (
    ConfigReader,
    Fault,
    Settings,
    SettingsReader,
    TensorRow,
    WeightRow,
    quantization_of,
)
from bothways.lazy import imported
from bothways.text.recipes import TokenizerRecipe

if TYPE_CHECKING:
    from torch import Tensor


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
        kind: The states that the head reads, its transform and its outputs.
        rows: Its rows of the weight map: full names on disk, including the family's prefix if there is one, and our
            names, which begin with ``head.``. They include the rows of a pooler that the head reads.
        dropout: Setting of the dropout rate before the last linear map, if the encoder's rate does not apply.
        needs: Settings of ``config.json`` that the head requires, with their supported values. The first value is the
            default of a missing setting.
    """

    kind: HeadKind
    rows: tuple[WeightRow, ...]
    dropout: DropoutSetting | None = None
    needs: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeadBySetting:
    """A head for each value of a setting in ``config.json``; `default` is the value of a missing setting."""

    setting: str
    default: object
    heads: Mapping[object, CheckpointHead]


FamilyHead = CheckpointHead | HeadBySetting

# A classifier on a sentence embedder reads the mean of the tokens, as the embedder does; for pairs, also each text
# separately. No family has a class for such a head: it is stored as a bare encoder with the last linear map beside it.
HEAD_POOLING, MEAN, PAIR = "head_pooling", "mean", "pair"
HEAD_TOKENS = ("head_start_token_id", "head_separator_token_id")
HEAD_FOLDER = "head"
_BESIDE = (TensorRow(f"{HEAD_FOLDER}/linear.{{wb}}", "head.output.{wb}"),)
MEAN_HEAD = CheckpointHead(ScoreHeadKind(MeanOfTokens(), None, Labels()), _BESIDE)


def pair_settings(start: int, separator: int) -> dict[str, object]:
    """Return the settings of a classifier that also reads the two texts of pairs separately.

    The arguments are the ids of the tokens before and after a text.
    """
    return {HEAD_POOLING: PAIR, **dict(zip(HEAD_TOKENS, (start, separator), strict=True))}


def beside_settings(settings: Settings) -> dict[str, object]:
    """Return those settings that describe a head stored beside the encoder."""
    return {name: settings[name] for name in (HEAD_POOLING, *HEAD_TOKENS) if name in settings}


def head_beside(name: str, settings: Settings) -> CheckpointHead | None:
    """Return the head that is stored beside the encoder if the settings describe one by this name, else None."""
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
    """Return all heads that a name may mean: one per value of a setting; for "sequence" also the mean-pooled one."""
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
        f"config.json sets {name} to {value!r}, which is not supported for this head; only {built} is."
    )


@dataclass(frozen=True, slots=True)
class Published:
    """One published model of a family, with the settings in its ``config.json`` for the encoder's shape."""

    name: str
    year: int
    settings: Settings


# Suffixes of the class names of models with a single head.
_MODELS: dict[HeadName, str] = {
    "masked_lm": "ForMaskedLM",
    "permutation_lm": "LMHeadModel",
    "next_sentence": "ForNextSentencePrediction",
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
    "multiple_choice": "ForMultipleChoice",
}


@dataclass(frozen=True, slots=True)
class Family:
    """A family of encoders: its configurations, and the layout of its models on disk.

    Attributes:
        model_type: Name of the family in ``config.json``.
        title: Name of the family for readers, such as "BERT".
        paper: The publication.
        reader: Function from settings in its ``config.json`` to an `EncoderConfig`, with the settings that it knows.
        prefix: Prefix of the encoder's tensor names in a model with a head.
        rows: Weight rows of the encoder and its pooler, without the prefix.
        class_name: Prefix of the class names of its models in ``config.json``.
        heads: The heads that its models may have, by name.
        pooler_training: The objective that trained the pooler, or None if nothing did and its output is meaningless.
        tokenizer: Recipe for its tokenizer if there is no ``tokenizer.json``.
        published: Its published models.
        layers_key: Setting for the number of layers.
        pretraining_heads: Heads of its ``ForPreTraining`` class, if it has one.
        span_model: Suffix of the class name of its model for question answering.
    """

    model_type: str
    title: str
    paper: str
    reader: ConfigReader
    prefix: str
    rows: tuple[WeightRow, ...]
    class_name: str
    heads: Mapping[HeadName, FamilyHead]
    pooler_training: str | None
    tokenizer: TokenizerRecipe
    published: tuple[Published, ...]
    layers_key: str = "num_hidden_layers"
    pretraining_heads: tuple[HeadName, ...] = ()
    span_model: str = "ForQuestionAnswering"

    @property
    def base_architecture(self) -> str:
        """Class name of the bare encoder in ``config.json``."""
        return f"{self.class_name}Model"

    @property
    def architectures(self) -> dict[str, tuple[HeadName, ...]]:
        """Class names of models with heads in ``config.json``, with the heads of each."""
        both = {f"{self.class_name}ForPreTraining": self.pretraining_heads} if self.pretraining_heads else {}
        ends = _MODELS | {"span": self.span_model}
        return both | {f"{self.class_name}{ends[head]}": (head,) for head in self.heads if head in ends}

    @property
    def read_by_heads(self) -> frozenset[str]:
        """Settings that only heads read."""
        choices = {head.setting for head in self.heads.values() if isinstance(head, HeadBySetting)}
        each = [stored for name, head in self.heads.items() for stored in variants(name, head)]
        rates = {stored.dropout.name for stored in each if stored.dropout is not None}
        return frozenset(choices | rates | {need for stored in each for need in stored.needs})

    def config(self, settings: Settings) -> EncoderConfig:
        """Return the encoder that a ``config.json`` of this family describes.

        Raise `UnsupportedConfig` if it has settings that may change what the encoder computes and are not supported.
        """
        own = {} if quantization_of(settings) is None else {QUANTIZATION: None}
        fault = _own_code(settings) or self.reader.known.unsupported({**settings, **own}) or self._unknown(settings)
        if fault is None:
            config = self.reader(SettingsReader.of(settings, self.reader.known))
            fault = _contradiction(settings, config)
        if fault is not None:
            other = imported("bothways.families.others:recognise")(settings)
            raise UnsupportedConfig(
                fault.alone if other is None else f"this is {other}: not built yet. {fault.problem}"
            )
        return config

    def _unknown(self, settings: Settings) -> Fault | None:
        known = self.reader.known
        ours = {*known.read, *known.harmless, *known.neutral, *known.aliases, *self.read_by_heads, *KNOWN_TO_ALL}
        # A setting without a value sets nothing.
        unknown = {name: value for name, value in settings.items() if value is not None and name not in ours}
        if not unknown:
            return None
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        first = {f"{name:.80}": shown(value) for name, value in [*unknown.items()][:5]}
        several = ", ".join(f"{name} to {value}" for name, value in first.items())
        return Fault(
            f"config.json sets {several}{more}, which {self.title} models do not have: it may change what the model "
            "computes.",
            ", ".join(first) + more,
        )

    def head(self, name: str, settings: Settings) -> CheckpointHead:
        """Return one of the family's heads as a ``config.json`` describes it."""
        known = self.head_name(name)
        return head_beside(known, settings) or resolved(self.heads[known], settings)

    def head_name(self, name: str) -> HeadName:
        """Check that the family has a head of this name, and return the name."""
        found = next((known for known in HEAD_NAMES if known == name and known in self.heads), None)
        if found is None:
            raise InvalidInput(f"a {self.title} model can have one of the heads {', '.join(self.heads)}, got {name!r}.")
        return found

    def architecture(self, heads: Collection[HeadName], settings: Settings) -> str:
        """Return the class name in ``config.json`` for a model with these heads and other settings."""
        if not heads or (len(heads) == 1 and head_beside(next(iter(heads)), settings)):
            return self.base_architecture
        found = next((name for name, held in self.architectures.items() if set(held) == set(heads)), None)
        if found is None:
            known = ", ".join(" with ".join(held) for held in self.architectures.values())
            raise InvalidInput(
                f"a {self.title} model can be stored with the heads {known}, but not with {' and '.join(heads)} alone."
            )
        return found

    def architecture_heads(self, settings: Settings) -> tuple[HeadName, ...]:
        """Return the heads that ``config.json`` names by its architecture or beside the encoder; () if none."""
        named = settings.get("architectures")
        first = named[0] if isinstance(named, list) and named else None
        if isinstance(first, str) and first in self.architectures:
            return self.architectures[first]
        return ("sequence",) if head_beside("sequence", settings) else ()

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors under today's names: with the family's prefix, and LayerNorm ``weight`` and ``bias``."""
        modern = {_modern(name): value for name, value in tensors.items()}
        if any(name.startswith(self.prefix) for name in modern):
            return modern
        return {self.prefix + name: value for name, value in modern.items()}


def _modern(name: str) -> str:
    """Rename LayerNorm ``gamma`` and ``beta``, as in the first BERT checkpoints, to ``weight`` and ``bias``."""
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    if name.endswith("LayerNorm.beta"):
        return name.removesuffix("beta") + "bias"
    return name


# --- settings ---


def _own_code(settings: Settings) -> Fault | None:
    """Return the fault of a model whose function is code in its folder or on the hub; None for others."""
    classes = settings.get("auto_map") or {}
    if not isinstance(classes, Mapping):
        return Fault(f"config.json must give auto_map as an object, but it gives {shown(classes)}.")
    # Classes of settings and tokenizers, and those for TensorFlow and JAX, do not compute the model here.
    models = {name: value for name, value in classes.items() if name.startswith("AutoModel") and value}
    if not models:
        return None
    name, value = next(iter(models.items()))
    return Fault(
        f"config.json names code for the model in auto_map ({name}: {shown(value)}), and bothways never runs code of a "
        "checkpoint.",
        "auto_map",
    )


# Settings that repeat what others give, by the value that these give.
IMPLIED: dict[str, Callable[[EncoderConfig], object]] = {
    "embedding_size": lambda config: config.embedding.width,
    "emb_size": lambda config: config.embedding.width,
    "attention_head_size": lambda config: config.hidden // config.heads,
    "head_dim": lambda config: config.hidden // config.heads,
    "d_head": lambda config: config.hidden // config.heads,
    "pooler_hidden_size": lambda config: config.hidden,
    "sliding_window": lambda config: config.pattern.reach if isinstance(config.pattern, LocalGlobalAttention) else None,
}


KNOWN_TO_ALL = frozenset(("auto_map", *NEUTRAL_NAMES, *HARMLESS, *IMPLIED))


def _contradiction(settings: Settings, config: EncoderConfig) -> Fault | None:
    for name, value in IMPLIED.items():
        if settings.get(name) is not None and settings[name] != value(config):
            return Fault(
                f"config.json sets {name} to {shown(settings[name])}, which is not supported; "
                f"its other settings give {value(config)}."
            )
    return None


# --- the registry ---

_HOMES = {
    "bert": "bothways.families.bert:BERT",
    "roberta": "bothways.families.roberta:ROBERTA",
    "xlm-roberta": "bothways.families.roberta:XLM_ROBERTA",
    "camembert": "bothways.families.roberta:CAMEMBERT",
    "distilbert": "bothways.families.distilbert:DISTILBERT",
    "electra": "bothways.families.electra:ELECTRA",
    "albert": "bothways.families.albert:ALBERT",
    "deberta": "bothways.families.deberta:DEBERTA",
    "deberta-v2": "bothways.families.deberta:DEBERTA_V2",
    "xlnet": "bothways.families.xlnet:XLNET",
    "modernbert": "bothways.families.modernbert:MODERNBERT",
}


class _Families(Mapping[str, Family]):
    """The families by model type; each is imported on first use, since opening a model needs only one."""

    def __getitem__(self, model_type: str) -> Family:
        family: Family = imported(_HOMES[model_type])
        return family

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


FAMILIES: Mapping[str, Family] = _Families()


def family_of(model_type: object) -> Family:
    """Return the family with this name in ``config.json``."""
    return family_in({"model_type": model_type})


def family_in(settings: Settings) -> Family:
    """Return the family that a ``config.json`` names."""
    model_type = settings.get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    other = imported("bothways.families.others:recognise")(settings)
    raise UnknownModel(
        (f"this is {other}: not built yet. " if other else "")
        + f"config.json must name one of the families {', '.join(FAMILIES)} as its model_type, but it names "
        f"{shown(model_type)}."
        + (" If the model is of one of them, add its name to config.json." if model_type is None and not other else "")
    )


# Pickled by name: the weight tables hold lambdas, which cannot be pickled.
copyreg.pickle(Family, lambda family: (family_of, (family.model_type,)))
