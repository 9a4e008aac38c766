"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): the discriminator, and the generator with its masked-LM head."""

from dataclasses import replace

from bothways.encoder.head_kinds import ChoiceLogit, EachToken, FirstToken, Labels, Replaced, ScoreHeadKind, Transform
from bothways.families.bert import (
    BASE,
    BERT_EMBEDDING,
    BERT_LAYERS,
    LARGE,
    MASKED_LM_GELU,
    SPAN,
    TOKEN,
    masked_lm,
    transformed,
)
from bothways.families.family import DropoutSetting, Family, Published
from bothways.families.layout import ConfigKeys, TensorRow
from bothways.text import recipes

_NARROW = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
SMALL = BASE | {"embedding_size": 128} | _NARROW

ELECTRA = Family(
    model_type="electra",
    title="ELECTRA",
    paper="Clark et al. 2020, arXiv:2003.10555",
    reader=ConfigKeys(embedding="embedding_size", pooler=False),
    prefix="electra.",
    rows=(*BERT_EMBEDDING, TensorRow("embeddings_project.{wb}", "embedding.projection.{wb}"), *BERT_LAYERS),
    class_name="Electra",
    heads={
        "masked_lm": masked_lm(
            MASKED_LM_GELU,
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head.bias",
            "generator_lm_head.weight",
        ),
        "replaced_token": transformed(
            ScoreHeadKind(EachToken(), Transform(), Replaced(), dropout=0.0),
            "discriminator_predictions.dense.{wb}",
            "discriminator_predictions.dense_prediction.{wb}",
        ),
        "sequence": transformed(
            ScoreHeadKind(FirstToken(), Transform("gelu", dropout="head"), Labels()),
            "classifier.dense.{wb}",
            "classifier.out_proj.{wb}",
        ),
        "token": TOKEN,
        "span": SPAN,
        "multiple_choice": replace(
            transformed(ScoreHeadKind(FirstToken(), Transform("gelu"), ChoiceLogit()), "sequence_summary.summary.{wb}"),
            dropout=DropoutSetting("summary_last_dropout", 0.1),
            needs={
                "summary_type": ("first",),
                "summary_use_proj": (True,),
                "summary_activation": ("gelu",),
                "summary_first_dropout": (0, 0.0, None),
                "summary_proj_to_labels": (False, None),
            },
        ),
    },
    pretraining_heads=("replaced_token",),
    pooler_training=None,
    tokenizer=recipes.BERT,
    published=(
        Published("google/electra-small-discriminator", 2020, SMALL),
        Published("google/electra-base-discriminator", 2020, BASE | {"embedding_size": 768}),
        Published("google/electra-large-discriminator", 2020, LARGE | {"embedding_size": 1024}),
        Published("google/electra-small-generator", 2020, SMALL),
        Published("google/electra-base-generator", 2020, BASE | {"embedding_size": 768} | _NARROW),
        Published("google/electra-large-generator", 2020, LARGE | {"embedding_size": 1024} | _NARROW),
    ),
)
