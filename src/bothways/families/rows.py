"""Weight rows that several families share."""

from bothways.families.weight_map import Fused, Ignored, Row, WeightRow

# BERT's layout, which RoBERTa and ELECTRA kept.
BERT_EMBEDDING: tuple[WeightRow, ...] = (
    Row("embeddings.word_embeddings.weight", "embedding.tokens.weight"),
    Row("embeddings.position_embeddings.weight", "embedding.positions.weight"),
    Row("embeddings.token_type_embeddings.weight", "embedding.types.weight"),
    Row("embeddings.LayerNorm.{wb}", "embedding.norm.{wb}"),
    Ignored("embeddings.position_ids"),
    Ignored("embeddings.token_type_ids"),
)

BERT_LAYERS: tuple[WeightRow, ...] = (
    Fused(
        (
            "encoder.layer.{i}.attention.self.query.{wb}",
            "encoder.layer.{i}.attention.self.key.{wb}",
            "encoder.layer.{i}.attention.self.value.{wb}",
        ),
        "layers.{i}.attention.qkv.{wb}",
    ),
    Row("encoder.layer.{i}.attention.output.dense.{wb}", "layers.{i}.attention.output.{wb}"),
    Row("encoder.layer.{i}.attention.output.LayerNorm.{wb}", "layers.{i}.attention_norm.{wb}"),
    Row("encoder.layer.{i}.intermediate.dense.{wb}", "layers.{i}.feed_forward.inner.{wb}"),
    Row("encoder.layer.{i}.output.dense.{wb}", "layers.{i}.feed_forward.outer.{wb}"),
    Row("encoder.layer.{i}.output.LayerNorm.{wb}", "layers.{i}.feed_forward_norm.{wb}"),
)

BERT_POOLER: tuple[WeightRow, ...] = (Row("pooler.dense.{wb}", "pooler.dense.{wb}"),)
