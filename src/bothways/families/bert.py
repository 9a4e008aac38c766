"""BERT (Devlin et al. 2018, arXiv:1810.04805), and the weight rows and heads that later families reuse."""

from bothways.encoder.head_kinds import (
    ChoiceLogit,
    EachToken,
    FirstToken,
    HeadNorm,
    Labels,
    MaskedLMHeadKind,
    Rate,
    Relation,
    ScoreHeadKind,
    Scores,
    SpanLogits,
    Transform,
)
from bothways.families.family import CheckpointHead, Family, Published
from bothways.families.layout import ConfigKeys, Fused, Ignored, TensorRow, WeightRow
from bothways.text import recipes

# BERT's layout, which RoBERTa and ELECTRA reuse.
BERT_EMBEDDING: tuple[WeightRow, ...] = (
    TensorRow("embeddings.word_embeddings.weight", "embedding.tokens.weight"),
    TensorRow("embeddings.position_embeddings.weight", "embedding.positions.weight"),
    TensorRow("embeddings.token_type_embeddings.weight", "embedding.types.weight"),
    TensorRow("embeddings.LayerNorm.{wb}", "embedding.norm.{wb}"),
    Ignored("embeddings.position_ids"),
    Ignored("embeddings.token_type_ids"),
)

# Every layer's tensors except queries, keys and values, which DeBERTa names differently.
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

# Linear map, activation (the feed-forward's or a named one) and norm, before the tied token table.
MASKED_LM = MaskedLMHeadKind(Transform(norm=HeadNorm()))
MASKED_LM_GELU = MaskedLMHeadKind(Transform("gelu", norm=HeadNorm()))

TOKEN = CheckpointHead(ScoreHeadKind(EachToken(), None, Labels()), OUTPUT)
SPAN = CheckpointHead(
    ScoreHeadKind(EachToken(), None, SpanLogits(), dropout=0.0), (TensorRow("qa_outputs.{wb}", "head.output.{wb}"),)
)


def masked_lm(kind: MaskedLMHeadKind, dense: str, norm: str, bias: str, decoder: str) -> CheckpointHead:
    """Return a masked language modelling head, given its tensor names; ``decoder`` is tied and not read."""
    rows = (
        TensorRow(f"{dense}.{{wb}}", "head.transform.dense.{wb}"),
        TensorRow(f"{norm}.{{wb}}", "head.transform.norm.{wb}"),
        TensorRow(bias, "head.bias"),
        Ignored(decoder),
    )
    return CheckpointHead(kind, rows)


def transformed(kind: ScoreHeadKind, dense: str, output: str = "classifier.{wb}") -> CheckpointHead:
    """Return a head with a transform, given the names of its two linear maps."""
    return CheckpointHead(kind, (TensorRow(dense, "head.transform.dense.{wb}"), TensorRow(output, "head.output.{wb}")))


def pooled(scores: Scores, pooler: str, output: str = "classifier.{wb}", *, dropout: Rate = "head") -> CheckpointHead:
    """Return a head on BERT's pooler, whose linear map is stored as ``pooler``."""
    return transformed(ScoreHeadKind(FirstToken(), Transform("tanh"), scores, dropout=dropout), pooler, output)


BASE_SHAPE: dict[str, object] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
}
BASE = {"vocab_size": 30522} | BASE_SHAPE | {"type_vocab_size": 2}
LARGE_SHAPE: dict[str, object] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
LARGE = BASE | LARGE_SHAPE
MINILM = BASE | {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}

POOLER = "bert.pooler.dense.{wb}"

BERT = Family(
    model_type="bert",
    title="BERT",
    paper="Devlin et al. 2018, arXiv:1810.04805",
    reader=ConfigKeys(),
    prefix="bert.",
    rows=(*BERT_EMBEDDING, *BERT_LAYERS, *BERT_POOLER),
    class_name="Bert",
    heads={
        "masked_lm": masked_lm(
            MASKED_LM,
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.bias",
            "cls.predictions.decoder.{wb}",
        ),
        "next_sentence": pooled(Relation(), POOLER, "cls.seq_relationship.{wb}", dropout=0.0),
        "sequence": pooled(Labels(), POOLER),
        "token": TOKEN,
        "span": SPAN,
        "multiple_choice": pooled(ChoiceLogit(), POOLER),
    },
    pretraining_heads=("masked_lm", "next_sentence"),
    pooler_training="next sentence prediction",
    tokenizer=recipes.BERT,
    published=(
        Published("google-bert/bert-base-uncased", 2018, BASE),
        Published("google-bert/bert-base-cased", 2018, BASE | {"vocab_size": 28996}),
        Published("google-bert/bert-large-uncased", 2018, LARGE),
        Published("google-bert/bert-large-cased", 2018, LARGE | {"vocab_size": 28996}),
        Published("google-bert/bert-base-multilingual-cased", 2018, BASE | {"vocab_size": 119547}),
        Published("sentence-transformers/all-MiniLM-L6-v2", 2021, MINILM),
    ),
)
