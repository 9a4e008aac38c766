"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): the discriminator, and the generator with its masked-LM head."""

from bothways.encoder.head_kinds import ChoiceLogit, EachToken, FirstToken, Labels, Replaced, ScoreHeadKind, Transform
from bothways.families.bert import BASE, BERT_EMBEDDING, BERT_LAYERS, LARGE, MASKED_LM_GELU, OUTPUT, SPAN, TOKEN
from bothways.families.family import CheckpointHead, DropoutSetting, Family, Published
from bothways.families.layout import ConfigKeys, Ignored, TensorRow
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
    base_architecture="ElectraModel",
    heads={
        "masked_lm": CheckpointHead(
            MASKED_LM_GELU,
            (
                TensorRow("generator_predictions.dense.{wb}", "head.transform.dense.{wb}"),
                TensorRow("generator_predictions.LayerNorm.{wb}", "head.transform.norm.{wb}"),
                TensorRow("generator_lm_head.bias", "head.bias"),
                Ignored("generator_lm_head.weight"),
            ),
        ),
        "replaced_token": CheckpointHead(
            ScoreHeadKind(EachToken(), Transform(), Replaced(), dropout=0.0),
            (
                TensorRow("discriminator_predictions.dense.{wb}", "head.transform.dense.{wb}"),
                TensorRow("discriminator_predictions.dense_prediction.{wb}", "head.output.{wb}"),
            ),
        ),
        "sequence": CheckpointHead(
            ScoreHeadKind(FirstToken(), Transform("gelu", dropout="head"), Labels()),
            (
                TensorRow("classifier.dense.{wb}", "head.transform.dense.{wb}"),
                TensorRow("classifier.out_proj.{wb}", "head.output.{wb}"),
            ),
        ),
        "token": TOKEN,
        "span": SPAN,
        "multiple_choice": CheckpointHead(
            ScoreHeadKind(FirstToken(), Transform("gelu"), ChoiceLogit()),
            (TensorRow("sequence_summary.summary.{wb}", "head.transform.dense.{wb}"), *OUTPUT),
            dropout=DropoutSetting("summary_last_dropout", 0.1),
            needs={
                "summary_type": ("first",),
                "summary_use_proj": (True,),
                "summary_activation": ("gelu",),
            },
        ),
    },
    architectures={
        "ElectraForPreTraining": ("replaced_token",),
        "ElectraForMaskedLM": ("masked_lm",),
        "ElectraForSequenceClassification": ("sequence",),
        "ElectraForTokenClassification": ("token",),
        "ElectraForQuestionAnswering": ("span",),
        "ElectraForMultipleChoice": ("multiple_choice",),
    },
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
