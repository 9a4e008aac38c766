"""ALBERT (Lan et al. 2019, arXiv:1909.11942): layers that share weights, and a narrow embedding."""

from bothways.encoder.head_kinds import ChoiceLogit, Labels
from bothways.families.bert import BERT_EMBEDDING, LARGE_SHAPE, MASKED_LM, SPAN, TOKEN, masked_lm, pooled
from bothways.families.family import Family, Published
from bothways.families.layout import ConfigKeys, Fused, TensorRow
from bothways.text import recipes

_LAYER = "encoder.albert_layer_groups.{g}.albert_layers.{j}"

BASE: dict[str, object] = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
LARGE = BASE | LARGE_SHAPE
XLARGE = LARGE | {"hidden_size": 2048, "intermediate_size": 8192}
XXLARGE = BASE | {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384}

POOLER = "albert.pooler.{wb}"

ALBERT = Family(
    model_type="albert",
    title="ALBERT",
    paper="Lan et al. 2019, arXiv:1909.11942",
    reader=ConfigKeys(
        head_dropout="classifier_dropout_prob",
        embedding="embedding_size",
        sharing_groups="num_hidden_groups",
        sharing_inner="inner_group_num",
        always_projected=True,
        defaults={
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "classifier_dropout_prob": 0.1,
            "num_hidden_groups": 1,
            "inner_group_num": 1,
        },
        # Google's first files describe features that no published model has.
        harmless={
            **dict.fromkeys(("net_structure_type", "gap_size", "num_memory_blocks"), (0, None)),
            "down_scale_factor": (1, None),
            "layers_to_keep": ([], None),
            "ln_type": ("postln", None),
        },
    ),
    prefix="albert.",
    rows=(
        *BERT_EMBEDDING,
        TensorRow("encoder.embedding_hidden_mapping_in.{wb}", "embedding.projection.{wb}"),
        Fused(
            (
                f"{_LAYER}.attention.query.{{wb}}",
                f"{_LAYER}.attention.key.{{wb}}",
                f"{_LAYER}.attention.value.{{wb}}",
            ),
            "layers.{i}.attention.qkv.{wb}",
        ),
        TensorRow(f"{_LAYER}.attention.dense.{{wb}}", "layers.{i}.attention.output.{wb}"),
        TensorRow(f"{_LAYER}.attention.LayerNorm.{{wb}}", "layers.{i}.attention_norm.{wb}"),
        TensorRow(f"{_LAYER}.ffn.{{wb}}", "layers.{i}.feed_forward.inner.{wb}"),
        TensorRow(f"{_LAYER}.ffn_output.{{wb}}", "layers.{i}.feed_forward.outer.{wb}"),
        TensorRow(f"{_LAYER}.full_layer_layer_norm.{{wb}}", "layers.{i}.feed_forward_norm.{wb}"),
        TensorRow("pooler.{wb}", "pooler.dense.{wb}"),
    ),
    class_name="Albert",
    heads={
        "masked_lm": masked_lm(
            MASKED_LM, "predictions.dense", "predictions.LayerNorm", "predictions.bias", "predictions.decoder.{wb}"
        ),
        # Its number of outputs is num_labels, as in transformers.
        "sentence_order": pooled(Labels(), POOLER, "sop_classifier.classifier.{wb}"),
        "sequence": pooled(Labels(), POOLER),
        "token": TOKEN,
        "span": SPAN,
        "multiple_choice": pooled(ChoiceLogit(), POOLER),
    },
    pretraining_heads=("masked_lm", "sentence_order"),
    pooler_training="sentence order prediction",
    tokenizer=recipes.ALBERT,
    published=(
        Published("albert/albert-base-v2", 2019, BASE),
        Published("albert/albert-large-v2", 2019, LARGE),
        Published("albert/albert-xlarge-v2", 2019, XLARGE),
        Published("albert/albert-xxlarge-v2", 2019, XXLARGE),
    ),
)
