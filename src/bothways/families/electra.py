"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): the discriminator, and the generator with its masked-LM head."""

from bothways.encoder.heads import MaskedLMHeadKind, SequenceHeadKind
from bothways.families.bert import BASE, LARGE
from bothways.families.config_keys import ConfigKeys
from bothways.families.family import Family, HeadRows, Published
from bothways.families.rows import BERT_EMBEDDING, BERT_LAYERS
from bothways.families.weight_map import Ignored, Row
from bothways.text import recipes

SMALL = BASE | {
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}

ELECTRA = Family(
    model_type="electra",
    title="ELECTRA",
    paper="Clark et al. 2020, arXiv:2003.10555",
    keys=ConfigKeys(embedding="embedding_size", pooler=False),
    prefix="electra.",
    rows=(*BERT_EMBEDDING, Row("embeddings_project.{wb}", "embedding.projection.{wb}"), *BERT_LAYERS),
    base_architecture="ElectraModel",
    masked_lm=HeadRows(
        "ElectraForMaskedLM",
        (
            Row("generator_predictions.dense.{wb}", "head.dense.{wb}"),
            Row("generator_predictions.LayerNorm.{wb}", "head.norm.{wb}"),
            Row("generator_lm_head.bias", "head.bias"),
            Ignored("generator_lm_head.weight"),
            # The replaced-token head of the published discriminators.
            Ignored("discriminator_predictions.dense.{wb}"),
            Ignored("discriminator_predictions.dense_prediction.{wb}"),
        ),
    ),
    masked_lm_kind=MaskedLMHeadKind("gelu"),
    sequence=HeadRows(
        "ElectraForSequenceClassification",
        (Row("classifier.dense.{wb}", "head.dense.{wb}"), Row("classifier.out_proj.{wb}", "head.output.{wb}")),
    ),
    sequence_kind=SequenceHeadKind("gelu", dropout_first=True),
    pooler_training=None,
    tokenizer=recipes.BERT,
    published=(
        Published("google/electra-small-discriminator", 2020, SMALL),
        Published("google/electra-base-discriminator", 2020, BASE | {"embedding_size": 768}),
        Published("google/electra-large-discriminator", 2020, LARGE | {"embedding_size": 1024}),
        Published("google/electra-small-generator", 2020, SMALL),
        Published(
            "google/electra-base-generator",
            2020,
            BASE | {"embedding_size": 768, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
        ),
    ),
)
