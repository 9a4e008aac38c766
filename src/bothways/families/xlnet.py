"""XLNet (Yang et al. 2019, arXiv:1906.08237): relative positions of Transformer-XL, relative segments, [CLS] last.

The weights include the initial vector of the query stream of pre-training.
"""

from bothways.encoder.config import (
    DenseFeedForward,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    NoPooler,
    PostNorm,
    TransformerXLPositions,
)
from bothways.encoder.head_kinds import (
    ChoiceLogit,
    EachToken,
    Labels,
    LastToken,
    MaskedLMHeadKind,
    ScoreHeadKind,
    Transform,
)
from bothways.families.bert import OUTPUT, SPAN
from bothways.families.family import CheckpointHead, DropoutSetting, Family, Published
from bothways.families.layout import (
    BY_HEAD,
    BY_HEAD_TRANSPOSED,
    IN_TWO_DIMENSIONS_MORE,
    Fused,
    Ignored,
    KnownSettings,
    SettingsReader,
    TensorRow,
    WeightRow,
)
from bothways.text import recipes


class XLNetReader:
    """A reader of ``config.json``."""

    known = KnownSettings(
        required=("vocab_size", "d_model", "n_layer", "n_head", "d_inner"),
        defaults={
            "dropout": 0.1,
            "clamp_len": -1,
            "layer_norm_eps": 1e-12,
            "ff_activation": "gelu",
            "initializer_range": 0.02,
        },
        harmless={
            "attn_type": ("bi", None),
            "bi_data": (False, None),
            "same_length": (False, None),
            "untie_r": (True, None),
        },
        # Memories of earlier calls, and the number of answers that a head for questions searches.
        neutral=("mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "start_n_top", "end_n_top"),
        aliases={
            "n_token": "vocab_size",
            "hidden_size": "d_model",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
    )

    def __call__(self, reader: SettingsReader) -> EncoderConfig:
        """Return the encoder that a ``config.json`` of XLNet describes."""
        hidden, dropout = reader.integer("d_model"), reader.number("dropout")
        clamp = int(reader.number("clamp_len"))
        return EncoderConfig(
            vocabulary=reader.integer("vocab_size"),
            hidden=hidden,
            layers=reader.layers("n_layer"),
            heads=reader.integer("n_head"),
            embedding=EmbeddingConfig(width=hidden, types=0, normed=False, blank=True),
            positions=TransformerXLPositions(clamp=clamp if clamp > 0 else None),
            norm=PostNorm(reader.number("layer_norm_eps")),
            feed_forward=DenseFeedForward(reader.integer("d_inner"), reader.activation("ff_activation")),
            attention_biases="query only",
            pooler=NoPooler(),
            dropout=DropoutRates(
                hidden=dropout, attention=dropout, head=dropout, embedding=dropout, inner=dropout, output=dropout
            ),
            initializer_range=reader.number("initializer_range"),
        )


_ATTENTION = "layer.{i}.rel_attn"
_SUMMARY: tuple[WeightRow, ...] = (
    TensorRow("sequence_summary.summary.{wb}", "head.transform.dense.{wb}"),
    TensorRow("logits_proj.{wb}", "head.output.{wb}"),
)
_SUMMARY_NEEDS: dict[str, tuple[object, ...]] = {
    "summary_type": ("last",),
    "summary_use_proj": (True,),
    "summary_activation": ("tanh",),
    "summary_first_dropout": (0, 0.0, None),
    "summary_proj_to_labels": (False, None),
}
_SUMMARY_DROPOUT = DropoutSetting("summary_last_dropout", 0.1)

_BASE: dict[str, object] = {"vocab_size": 32000, "d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072}
_LARGE = _BASE | {"d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096}

XLNET = Family(
    model_type="xlnet",
    title="XLNet",
    paper="Yang et al. 2019, arXiv:1906.08237",
    reader=XLNetReader(),
    prefix="transformer.",
    rows=(
        TensorRow("word_embedding.weight", "embedding.tokens.weight"),
        TensorRow("mask_emb", "embedding.blank", IN_TWO_DIMENSIONS_MORE),
        Fused(
            (f"{_ATTENTION}.q", f"{_ATTENTION}.k", f"{_ATTENTION}.v"),
            "layers.{i}.attention.qkv.weight",
            BY_HEAD_TRANSPOSED,
        ),
        TensorRow(f"{_ATTENTION}.o", "layers.{i}.attention.output.weight", BY_HEAD),
        TensorRow(f"{_ATTENTION}.r", "layers.{i}.attention.positions.keys.weight", BY_HEAD_TRANSPOSED),
        TensorRow(f"{_ATTENTION}.r_w_bias", "layers.{i}.attention.qkv.query_bias", BY_HEAD),
        TensorRow(f"{_ATTENTION}.r_r_bias", "layers.{i}.attention.positions.distance_bias", BY_HEAD),
        TensorRow(f"{_ATTENTION}.r_s_bias", "layers.{i}.attention.positions.segment_bias", BY_HEAD),
        TensorRow(f"{_ATTENTION}.seg_embed", "layers.{i}.attention.positions.segments", BY_HEAD),
        TensorRow(f"{_ATTENTION}.layer_norm.{{wb}}", "layers.{i}.attention_norm.{wb}"),
        TensorRow("layer.{i}.ff.layer_1.{wb}", "layers.{i}.feed_forward.inner.{wb}"),
        TensorRow("layer.{i}.ff.layer_2.{wb}", "layers.{i}.feed_forward.outer.{wb}"),
        TensorRow("layer.{i}.ff.layer_norm.{wb}", "layers.{i}.feed_forward_norm.{wb}"),
    ),
    class_name="XLNet",
    heads={
        "permutation_lm": CheckpointHead(
            MaskedLMHeadKind(None), (TensorRow("lm_loss.bias", "head.bias"), Ignored("lm_loss.weight"))
        ),
        "sequence": CheckpointHead(
            ScoreHeadKind(LastToken(), Transform("tanh"), Labels()), _SUMMARY, _SUMMARY_DROPOUT, _SUMMARY_NEEDS
        ),
        "token": CheckpointHead(ScoreHeadKind(EachToken(), None, Labels(), dropout=0.0), OUTPUT),
        "span": SPAN,
        "multiple_choice": CheckpointHead(
            ScoreHeadKind(LastToken(), Transform("tanh"), ChoiceLogit()), _SUMMARY, _SUMMARY_DROPOUT, _SUMMARY_NEEDS
        ),
    },
    span_model="ForQuestionAnsweringSimple",
    pooler_training=None,
    tokenizer=recipes.XLNET,
    published=(
        Published("xlnet/xlnet-base-cased", 2019, _BASE),
        Published("xlnet/xlnet-large-cased", 2019, _LARGE),
    ),
    layers_key="n_layer",
)
