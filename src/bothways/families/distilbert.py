"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108)."""

from dataclasses import replace

from bothways.encoder.head_kinds import ChoiceLogit, EachToken, FirstToken, Labels, ScoreHeadKind, Scores, Transform
from bothways.families.bert import MASKED_LM, SPAN, TOKEN, masked_lm, transformed
from bothways.families.family import CheckpointHead, DropoutSetting, Family, Published
from bothways.families.layout import ConfigKeys, Fused, Ignored, TensorRow
from bothways.text import recipes

BASE = {
    "vocab_size": 30522,
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "max_position_embeddings": 512,
}


def _transformed(scores: Scores) -> CheckpointHead:
    return transformed(ScoreHeadKind(FirstToken(), Transform("relu"), scores), "pre_classifier.{wb}")


DISTILBERT = Family(
    model_type="distilbert",
    title="DistilBERT",
    paper="Sanh et al. 2019, arXiv:1910.01108",
    reader=ConfigKeys(
        hidden="dim",
        layers="n_layers",
        heads="n_heads",
        inner="hidden_dim",
        activation="activation",
        hidden_dropout="dropout",
        attention_dropout="attention_dropout",
        head_dropout="seq_classif_dropout",
        eps=None,
        types=None,
        pooler=False,
        defaults={"activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1, "seq_classif_dropout": 0.2},
        # The table of positions is stored, whether it was learned or computed.
        harmless={"layer_norm_eps": (1e-12, None), "sinusoidal_pos_embds": (False, True, None)},
        aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    ),
    prefix="distilbert.",
    rows=(
        TensorRow("embeddings.word_embeddings.weight", "embedding.tokens.weight"),
        TensorRow("embeddings.position_embeddings.weight", "embedding.positions.weight"),
        TensorRow("embeddings.LayerNorm.{wb}", "embedding.norm.{wb}"),
        Ignored("embeddings.position_ids"),
        Fused(
            (
                "transformer.layer.{i}.attention.q_lin.{wb}",
                "transformer.layer.{i}.attention.k_lin.{wb}",
                "transformer.layer.{i}.attention.v_lin.{wb}",
            ),
            "layers.{i}.attention.qkv.{wb}",
        ),
        TensorRow("transformer.layer.{i}.attention.out_lin.{wb}", "layers.{i}.attention.output.{wb}"),
        TensorRow("transformer.layer.{i}.sa_layer_norm.{wb}", "layers.{i}.attention_norm.{wb}"),
        TensorRow("transformer.layer.{i}.ffn.lin1.{wb}", "layers.{i}.feed_forward.inner.{wb}"),
        TensorRow("transformer.layer.{i}.ffn.lin2.{wb}", "layers.{i}.feed_forward.outer.{wb}"),
        TensorRow("transformer.layer.{i}.output_layer_norm.{wb}", "layers.{i}.feed_forward_norm.{wb}"),
    ),
    class_name="DistilBert",
    heads={
        "masked_lm": masked_lm(
            MASKED_LM, "vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector.weight"
        ),
        "sequence": _transformed(Labels()),
        "token": replace(TOKEN, kind=ScoreHeadKind(EachToken(), None, Labels(), dropout="hidden")),
        "span": replace(SPAN, dropout=DropoutSetting("qa_dropout", 0.1)),
        "multiple_choice": _transformed(ChoiceLogit()),
    },
    pooler_training=None,
    tokenizer=recipes.BERT,
    published=(
        Published("distilbert/distilbert-base-uncased", 2019, BASE),
        Published("distilbert/distilbert-base-cased", 2019, BASE | {"vocab_size": 28996}),
        Published("distilbert/distilbert-base-multilingual-cased", 2019, BASE | {"vocab_size": 119547}),
    ),
    layers_key="n_layers",
)
