"""DeBERTa (He et al. 2020, arXiv:2006.03654) and its versions 2 and 3 (He et al. 2021, arXiv:2111.09543).

Scores between content and distance replace absolute positions. Version 2 projects distances with the layer's
own queries and keys, and large distances share rows; version 3 is version 2 with another pre-training.
"""

from dataclasses import dataclass, replace
from typing import Literal

from bothways.encoder.config import (
    AbsolutePositions,
    AttentionBiases,
    Convolution,
    DenseFeedForward,
    DisentangledPositions,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    EveryDistance,
    FirstLayerConvolution,
    LogBuckets,
    NoConvolution,
    NoPooler,
    NoProjection,
    Positions,
    PostNorm,
    ProjectedBeforeNorm,
)
from bothways.encoder.head_kinds import (
    ChoiceLogit,
    FirstToken,
    HeadNorm,
    Labels,
    MaskedLMHeadKind,
    ScoreHeadKind,
    Transform,
)
from bothways.errors import UnsupportedConfig
from bothways.families.bert import BASE_SHAPE, BERT_AFTER_QKV, BERT_EMBEDDING, LARGE_SHAPE, OUTPUT, SPAN, TOKEN
from bothways.families.family import CheckpointHead, Family, FamilyHead, HeadBySetting, HeadName, Published
from bothways.families.layout import (
    HEAD_AFTER_HEAD,
    Fused,
    Ignored,
    KnownSettings,
    SettingsReader,
    TensorRow,
    WeightRow,
)
from bothways.text import recipes

_BOTH = KnownSettings(
    required=(
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        "max_position_embeddings",
    ),
    defaults={
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "cls_dropout": None,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-7,
        "type_vocab_size": 0,
        "embedding_size": None,
        "relative_attention": False,
        "max_relative_positions": -1,
        "pos_att_type": None,
        "position_biased_input": True,
    },
    harmless={"talking_head": (False, None), "z_steps": (0, 1, None)},
)
_EXTENSIONS: dict[str, object] = {
    "position_buckets": -1,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "conv_kernel_size": 0,
    "conv_groups": 1,
    "conv_act": "tanh",
}


@dataclass(frozen=True, slots=True)
class DebertaReader:
    """A reader of ``config.json`` for both versions.

    `own_keys` is the projection of distances if they do not share the layer's projections; `extensions` is True to read
    version 2's settings: buckets, shared keys, a norm, a convolution.
    """

    biases: AttentionBiases
    own_keys: Literal["own", "own without bias"]
    extensions: bool

    @property
    def known(self) -> KnownSettings:
        """The settings of this version. The first ignores the extensions, and must not have any."""
        if self.extensions:
            return replace(_BOTH, defaults={**_BOTH.defaults, **_EXTENSIONS})
        return replace(_BOTH, harmless={**_BOTH.harmless, **{name: (each, None) for name, each in _EXTENSIONS.items()}})

    def __call__(self, reader: SettingsReader) -> EncoderConfig:
        """Return the encoder that a ``config.json`` describes."""
        hidden = reader.integer("hidden_size")
        width = hidden if reader.settings["embedding_size"] is None else reader.integer("embedding_size")
        dropout = reader.number("hidden_dropout_prob")
        return EncoderConfig(
            vocabulary=reader.integer("vocab_size"),
            hidden=hidden,
            layers=reader.layers("num_hidden_layers"),
            heads=reader.integer("num_attention_heads"),
            embedding=EmbeddingConfig(
                width=width,
                types=reader.integer("type_vocab_size"),
                projection=NoProjection() if width == hidden else ProjectedBeforeNorm(),
            ),
            positions=self._positions(reader),
            norm=PostNorm(reader.number("layer_norm_eps")),
            feed_forward=DenseFeedForward(reader.integer("intermediate_size"), reader.activation("hidden_act")),
            attention_biases=self.biases,
            convolution=self._convolution(reader),
            pooler=NoPooler(),
            dropout=DropoutRates(
                hidden=dropout,
                attention=reader.number("attention_probs_dropout_prob"),
                head=reader.number("cls_dropout", dropout),
                embedding=dropout,
            ),
            initializer_range=reader.number("initializer_range"),
        )

    def _positions(self, reader: SettingsReader) -> Positions:
        count, absolute = reader.integer("max_position_embeddings"), reader.flag("position_biased_input")
        terms = _terms(reader.settings.get("pos_att_type"))
        if not reader.flag("relative_attention"):
            if terms or not absolute:
                raise UnsupportedConfig(
                    "config.json sets relative_attention to false, which is supported only without pos_att_type and "
                    "with position_biased_input: true."
                )
            return AbsolutePositions(count)
        furthest = _positive(reader.number("max_relative_positions")) or count
        buckets = _positive(reader.number("position_buckets")) if self.extensions else None
        shared = self.extensions and reader.flag("share_att_key")
        return DisentangledPositions(
            count=count,
            distances=EveryDistance(furthest) if buckets is None else LogBuckets(buckets, furthest),
            content_to_position="c2p" in terms,
            position_to_content="p2c" in terms,
            keys="shared" if shared else self.own_keys,
            normed=self.extensions and _normed(reader.settings["norm_rel_ebd"]),
            absolute=absolute,
        )

    def _convolution(self, reader: SettingsReader) -> Convolution:
        kernel = reader.integer("conv_kernel_size") if self.extensions else 0
        if not kernel:
            return NoConvolution()
        if kernel % 2 == 0:
            raise UnsupportedConfig(f"config.json sets conv_kernel_size to {kernel}; only odd numbers are supported.")
        return FirstLayerConvolution(kernel, reader.integer("conv_groups"), reader.activation("conv_act"))


def _terms(stated: object) -> frozenset[str]:
    """Return the terms of the scores, given as a list or as a string such as ``"c2p|p2c"``."""
    names = stated.split("|") if isinstance(stated, str) else stated or []
    terms = frozenset(str(name).strip().lower() for name in names) if isinstance(names, list) else None
    if terms is None or not terms <= {"c2p", "p2c"}:
        raise UnsupportedConfig(f"config.json sets pos_att_type to {stated!r}; supported are c2p, p2c and both.")
    return terms


def _normed(stated: object) -> bool:
    """Return True if the table of distances has a norm, given by name or as a string such as ``"none|layer_norm"``."""
    names = {name.strip().lower() for name in stated.split("|")} if isinstance(stated, str) else None
    if names is None or not names <= {"none", "layer_norm"}:
        raise UnsupportedConfig(f"config.json sets norm_rel_ebd to {stated!r}; supported are none and layer_norm.")
    return "layer_norm" in names


def _positive(value: float) -> int | None:
    """Return a positive value as an integer; None for the value -1, with which transformers marks a default."""
    return int(value) if value > 0 else None


_EMBEDDING: tuple[WeightRow, ...] = (
    *BERT_EMBEDDING,
    TensorRow("embeddings.embed_proj.weight", "embedding.early_projection.weight"),
    TensorRow("encoder.rel_embeddings.weight", "positions.table.weight"),
)


def _masked_lm(names: str, decoder: tuple[WeightRow, ...]) -> CheckpointHead:
    return CheckpointHead(
        MaskedLMHeadKind(Transform(norm=HeadNorm())),
        (
            TensorRow(f"{names}.dense.{{wb}}", "head.transform.dense.{wb}"),
            TensorRow(f"{names}.LayerNorm.{{wb}}", "head.transform.norm.{wb}"),
            *decoder,
        ),
    )


_MASKED_LM = HeadBySetting(
    "legacy",
    True,
    {
        True: _masked_lm(
            "cls.predictions.transform",
            (TensorRow("cls.predictions.bias", "head.bias"), Ignored("cls.predictions.decoder.{wb}")),
        ),
        False: _masked_lm("lm_predictions.lm_head", (TensorRow("lm_predictions.lm_head.bias", "head.bias"),)),
    },
)
_POOLED: tuple[WeightRow, ...] = (TensorRow("pooler.dense.{wb}", "head.transform.dense.{wb}"), *OUTPUT)
_POOLING = Transform("gelu")
_NEEDS: dict[str, tuple[object, ...]] = {"pooler_hidden_act": ("gelu",), "pooler_dropout": (0, 0.0)}
_HEADS: dict[HeadName, FamilyHead] = {
    "masked_lm": _MASKED_LM,
    "sequence": CheckpointHead(ScoreHeadKind(FirstToken(), _POOLING, Labels()), _POOLED, needs=_NEEDS),
    "token": TOKEN,
    "span": SPAN,
}

_BASE = BASE_SHAPE | {
    "relative_attention": True,
    "max_relative_positions": -1,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
}
_LARGE = _BASE | LARGE_SHAPE
_V1 = {"vocab_size": 50265}
_V2 = {
    "vocab_size": 128100,
    "position_buckets": 256,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "conv_kernel_size": 3,
    "conv_act": "gelu",
}
_V3 = {"vocab_size": 128100, "position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"}

DEBERTA = Family(
    model_type="deberta",
    title="DeBERTa",
    paper="He et al. 2020, arXiv:2006.03654",
    reader=DebertaReader("query and value, and output", "own without bias", extensions=False),
    prefix="deberta.",
    rows=(
        *_EMBEDDING,
        TensorRow(
            "encoder.layer.{i}.attention.self.in_proj.weight", "layers.{i}.attention.qkv.weight", HEAD_AFTER_HEAD
        ),
        TensorRow("encoder.layer.{i}.attention.self.q_bias", "layers.{i}.attention.qkv.query_bias"),
        TensorRow("encoder.layer.{i}.attention.self.v_bias", "layers.{i}.attention.qkv.value_bias"),
        TensorRow("encoder.layer.{i}.attention.self.pos_proj.weight", "layers.{i}.attention.positions.keys.weight"),
        TensorRow("encoder.layer.{i}.attention.self.pos_q_proj.{wb}", "layers.{i}.attention.positions.queries.{wb}"),
        *BERT_AFTER_QKV,
    ),
    class_name="Deberta",
    heads=_HEADS,
    pooler_training=None,
    tokenizer=recipes.DEBERTA,
    published=(
        Published("microsoft/deberta-base", 2020, _BASE | _V1),
        Published("microsoft/deberta-large", 2020, _LARGE | _V1),
        Published("microsoft/deberta-xlarge", 2020, _LARGE | _V1 | {"num_hidden_layers": 48}),
    ),
)

DEBERTA_V2 = Family(
    model_type="deberta-v2",
    title="DeBERTa v2 and v3",
    paper="He et al. 2021, arXiv:2111.09543",
    reader=DebertaReader("all", "own", extensions=True),
    prefix="deberta.",
    rows=(
        *_EMBEDDING,
        TensorRow("encoder.LayerNorm.{wb}", "positions.norm.{wb}"),
        TensorRow("encoder.conv.conv.{wb}", "convolution.kernel.{wb}"),
        TensorRow("encoder.conv.LayerNorm.{wb}", "convolution.norm.{wb}"),
        TensorRow("encoder.layer.{i}.attention.self.pos_key_proj.{wb}", "layers.{i}.attention.positions.keys.{wb}"),
        TensorRow(
            "encoder.layer.{i}.attention.self.pos_query_proj.{wb}", "layers.{i}.attention.positions.queries.{wb}"
        ),
        Fused(
            tuple(f"encoder.layer.{{i}}.attention.self.{part}_proj.{{wb}}" for part in ("query", "key", "value")),
            "layers.{i}.attention.qkv.{wb}",
        ),
        *BERT_AFTER_QKV,
    ),
    class_name="DebertaV2",
    heads=_HEADS
    | {"multiple_choice": CheckpointHead(ScoreHeadKind(FirstToken(), _POOLING, ChoiceLogit()), _POOLED, needs=_NEEDS)},
    pooler_training=None,
    tokenizer=recipes.DEBERTA_V2,
    published=(
        Published("microsoft/deberta-v2-xlarge", 2021, _BASE | _V2),
        Published("microsoft/deberta-v2-xxlarge", 2021, _BASE | _V2 | {"num_hidden_layers": 48}),
        Published(
            "microsoft/deberta-v3-xsmall",
            2021,
            _BASE | _V3 | {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
        ),
        Published("microsoft/deberta-v3-small", 2021, _BASE | _V3 | {"num_hidden_layers": 6}),
        Published("microsoft/deberta-v3-base", 2021, _BASE | _V3),
        Published("microsoft/deberta-v3-large", 2021, _LARGE | _V3),
        Published("microsoft/mdeberta-v3-base", 2021, _BASE | _V3 | {"vocab_size": 251000}),
    ),
)
