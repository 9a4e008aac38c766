"""Weight rows and heads that several families share."""

from bothways.encoder.head_kinds import (
    EachToken,
    FirstToken,
    HeadNorm,
    Labels,
    MaskedLMHeadKind,
    Rate,
    ScoreHeadKind,
    Scores,
    SpanLogits,
    Transform,
)
from bothways.families.stored_heads import CheckpointHead
from bothways.families.weight_map import Fused, Ignored, TensorRow, WeightRow

# BERT's layout, which RoBERTa and ELECTRA kept.
BERT_EMBEDDING: tuple[WeightRow, ...] = (
    TensorRow("embeddings.word_embeddings.weight", "embedding.tokens.weight"),
    TensorRow("embeddings.position_embeddings.weight", "embedding.positions.weight"),
    TensorRow("embeddings.token_type_embeddings.weight", "embedding.types.weight"),
    TensorRow("embeddings.LayerNorm.{wb}", "embedding.norm.{wb}"),
    Ignored("embeddings.position_ids"),
    Ignored("embeddings.token_type_ids"),
)

# What every layer has after its queries, keys and values; DeBERTa names those otherwise.
BERT_AFTER_QKV: tuple[WeightRow, ...] = (
    TensorRow("encoder.layer.{i}.attention.output.dense.{wb}", "layers.{i}.attention.output.{wb}"),
    TensorRow("encoder.layer.{i}.attention.output.LayerNorm.{wb}", "layers.{i}.attention_norm.{wb}"),
    TensorRow("encoder.layer.{i}.intermediate.dense.{wb}", "layers.{i}.feed_forward.inner.{wb}"),
    TensorRow("encoder.layer.{i}.output.dense.{wb}", "layers.{i}.feed_forward.outer.{wb}"),
    TensorRow("encoder.layer.{i}.output.LayerNorm.{wb}", "layers.{i}.feed_forward_norm.{wb}"),
)

BERT_LAYERS: tuple[WeightRow, ...] = (
    Fused(
        tuple(f"encoder.layer.{{i}}.attention.self.{part}.{{wb}}" for part in ("query", "key", "value")),
        "layers.{i}.attention.qkv.{wb}",
    ),
    *BERT_AFTER_QKV,
)

BERT_POOLER: tuple[WeightRow, ...] = (TensorRow("pooler.dense.{wb}", "pooler.dense.{wb}"),)


# Heads.

OUTPUT: tuple[WeightRow, ...] = (TensorRow("classifier.{wb}", "head.output.{wb}"),)

# A linear map and an activation of the feed-forward's kind or a named one, then a norm, before the tied token table.
MASKED_LM = MaskedLMHeadKind(Transform(norm=HeadNorm()))
MASKED_LM_GELU = MaskedLMHeadKind(Transform("gelu", norm=HeadNorm()))

TOKEN = CheckpointHead(ScoreHeadKind(EachToken(), None, Labels()), OUTPUT)
SPAN = CheckpointHead(
    ScoreHeadKind(EachToken(), None, SpanLogits(), dropout=0.0), (TensorRow("qa_outputs.{wb}", "head.output.{wb}"),)
)


def pooled(scores: Scores, pooler: str, output: str = "classifier.{wb}", *, dropout: Rate = "head") -> CheckpointHead:
    """Return a head on BERT's pooler, whose linear map is stored as ``pooler``."""
    kind = ScoreHeadKind(FirstToken(), Transform("tanh"), scores, dropout=dropout)
    return CheckpointHead(kind, (TensorRow(pooler, "head.transform.dense.{wb}"), TensorRow(output, "head.output.{wb}")))
