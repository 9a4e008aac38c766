"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): rotary positions, local and global attention, gated, pre-norm."""

from collections.abc import Mapping

from bothways.encoder.config import (
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    GatedFeedForward,
    LocalGlobalAttention,
    NoPooler,
    PreNorm,
    RotaryPositions,
)
from bothways.encoder.head_kinds import (
    ChoiceLogit,
    EachToken,
    FirstToken,
    HeadNorm,
    Labels,
    MaskedLMHeadKind,
    MeanOfTokens,
    Read,
    ScoreHeadKind,
    Scores,
    SpanLogits,
    Transform,
)
from bothways.errors import CorruptCheckpoint, UnsupportedConfig, shown
from bothways.families.bert import OUTPUT
from bothways.families.family import CheckpointHead, DropoutSetting, Family, HeadBySetting, Published
from bothways.families.layout import Ignored, KnownSettings, SettingsReader, TensorRow, WeightRow
from bothways.text import recipes

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


class ModernBertReader:
    """A reader of ``config.json``."""

    known = KnownSettings(
        required=(
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
            "max_position_embeddings",
        ),
        defaults={
            "initializer_range": 0.02,
            "norm_eps": 1e-5,
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "hidden_activation": "gelu",
            "attention_dropout": 0.0,
            "embedding_dropout": 0.0,
            "mlp_dropout": 0.0,
            "classifier_dropout": 0.0,
            "local_attention": 128,
            "layer_types": None,
            "global_attn_every_n_layers": 3,
            "rope_parameters": None,
            "global_rope_theta": 160_000.0,
            "local_rope_theta": 10_000.0,
        },
        harmless={
            # Left from other models in the code that trained it; positions are rotary in all of them.
            "position_embedding_type": ("absolute", "sans_pos", None),
            **dict.fromkeys(("causal_mask", "is_causal"), (False, None)),
        },
        neutral=(
            *("layer_norm_eps", "initializer_cutoff_factor", "deterministic_flash_attn", "repad_logits_with_grad"),
            *("reference_compile", "sparse_prediction", "sparse_pred_ignore_index"),
        ),
    )

    def __call__(self, reader: SettingsReader) -> EncoderConfig:
        """Return the encoder that a ``config.json`` of ModernBERT describes."""
        hidden, layers = reader.integer("hidden_size"), reader.layers("num_hidden_layers")
        attention_dropout = reader.number("attention_dropout")
        return EncoderConfig(
            vocabulary=reader.integer("vocab_size"),
            hidden=hidden,
            layers=layers,
            heads=reader.integer("num_attention_heads"),
            embedding=EmbeddingConfig(width=hidden, types=0),
            positions=RotaryPositions(
                reader.integer("max_position_embeddings"),
                _theta(reader, _GLOBAL, "global_rope_theta"),
                _theta(reader, _LOCAL, "local_rope_theta"),
            ),
            norm=PreNorm(reader.number("norm_eps"), bias=reader.flag("norm_bias")),
            feed_forward=GatedFeedForward(
                reader.integer("intermediate_size"),
                reader.activation("hidden_activation"),
                bias=reader.flag("mlp_bias"),
            ),
            pattern=LocalGlobalAttention(reader.integer("local_attention") // 2, _seen_whole(reader, layers)),
            attention_biases="all" if reader.flag("attention_bias") else "none",
            pooler=NoPooler(),
            dropout=DropoutRates(
                # There is dropout after the attention's output (below), but none after the feed-forward's.
                hidden=0.0,
                attention=attention_dropout,
                head=reader.number("classifier_dropout"),
                embedding=reader.number("embedding_dropout"),
                inner=reader.number("mlp_dropout"),
                attention_output=attention_dropout,
            ),
            initializer_range=reader.number("initializer_range"),
        )


def _seen_whole(reader: SettingsReader, layers: int) -> tuple[bool, ...]:
    """Return True for each layer with global attention, from ``layer_types`` or the interval of older files."""
    kinds = reader.settings.get("layer_types")
    if kinds is None:
        every = reader.integer("global_attn_every_n_layers")
        if not every:
            raise CorruptCheckpoint("config.json must give global_attn_every_n_layers as at least 1, but it gives 0.")
        return tuple(index % every == 0 for index in range(layers))
    if not isinstance(kinds, list) or not all(kind in (_LOCAL, _GLOBAL) for kind in kinds):
        raise UnsupportedConfig(f"config.json sets layer_types to {kinds!r:.200}; known are {_LOCAL} and {_GLOBAL}.")
    return tuple(kind == _GLOBAL for kind in kinds)


def _theta(reader: SettingsReader, kind: str, name: str) -> float:
    """Return the base of the rotary angles, from ``rope_parameters`` or the setting ``name`` of older files."""
    table = reader.settings.get("rope_parameters") or {}
    if not isinstance(table, Mapping) or not table.keys() <= {_LOCAL, _GLOBAL}:
        raise UnsupportedConfig(
            f"config.json sets rope_parameters to {shown(table, 200)}; it must have objects for {_GLOBAL} and {_LOCAL}."
        )
    stated = table.get(kind) or {}
    others = {key: value for key, value in stated.items() if key != "rope_theta"} if isinstance(stated, Mapping) else {}
    if not isinstance(stated, Mapping) or any(
        value is not None and (key, value) != ("rope_type", "default") for key, value in others.items()
    ):
        raise UnsupportedConfig(
            f"config.json sets {kind} in rope_parameters to {shown(stated, 200)}; only a rope_theta and the rope_type "
            "'default' are supported."
        )
    return SettingsReader({name: stated.get("rope_theta", reader.number(name))}).number(name)


_HEAD: tuple[WeightRow, ...] = (
    TensorRow("head.dense.{wb}", "head.transform.dense.{wb}"),
    TensorRow("head.norm.{wb}", "head.transform.norm.{wb}"),
)
_TRANSFORM = Transform("gelu", norm=HeadNorm(bias=False), bias=False)
_NEEDS: dict[str, tuple[object, ...]] = {
    "classifier_activation": ("gelu",),
    "classifier_bias": (False,),
    "norm_bias": (False,),
}


def _scores(read: Read, scores: Scores) -> CheckpointHead:
    return CheckpointHead(
        ScoreHeadKind(read, _TRANSFORM, scores),
        (*_HEAD, *OUTPUT),
        dropout=DropoutSetting("classifier_dropout", 0.0),
        needs=_NEEDS,
    )


def _pooled(scores: Scores) -> HeadBySetting:
    return HeadBySetting(
        "classifier_pooling", "cls", {"cls": _scores(FirstToken(), scores), "mean": _scores(MeanOfTokens(), scores)}
    )


_BASE: dict[str, object] = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "max_position_embeddings": 8192,
}

MODERNBERT = Family(
    model_type="modernbert",
    title="ModernBERT",
    paper="Warner et al. 2024, arXiv:2412.13663",
    reader=ModernBertReader(),
    prefix="model.",
    rows=(
        TensorRow("embeddings.tok_embeddings.weight", "embedding.tokens.weight"),
        TensorRow("embeddings.norm.{wb}", "embedding.norm.{wb}"),
        TensorRow("layers.{i}.attn_norm.{wb}", "layers.{i}.attention_norm.{wb}"),
        TensorRow("layers.{i}.attn.Wqkv.{wb}", "layers.{i}.attention.qkv.{wb}"),
        TensorRow("layers.{i}.attn.Wo.{wb}", "layers.{i}.attention.output.{wb}"),
        TensorRow("layers.{i}.mlp_norm.{wb}", "layers.{i}.feed_forward_norm.{wb}"),
        TensorRow("layers.{i}.mlp.Wi.{wb}", "layers.{i}.feed_forward.inner.{wb}"),
        TensorRow("layers.{i}.mlp.Wo.{wb}", "layers.{i}.feed_forward.outer.{wb}"),
        TensorRow("final_norm.{wb}", "final_norm.{wb}"),
    ),
    class_name="ModernBert",
    heads={
        "masked_lm": CheckpointHead(
            MaskedLMHeadKind(_TRANSFORM),
            (*_HEAD, TensorRow("decoder.bias", "head.bias"), Ignored("decoder.weight")),
            needs=_NEEDS | {"decoder_bias": (True,)},
        ),
        "sequence": _pooled(Labels()),
        "token": _scores(EachToken(), Labels()),
        "span": _scores(EachToken(), SpanLogits()),
        "multiple_choice": _pooled(ChoiceLogit()),
    },
    pooler_training=None,
    tokenizer=recipes.MODERNBERT,
    published=(
        Published("answerdotai/ModernBERT-base", 2024, _BASE),
        Published(
            "answerdotai/ModernBERT-large",
            2024,
            _BASE
            | {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 2624},
        ),
    ),
)
