"""RoBERTa (Liu et al. 2019, arXiv:1907.11692) and the models with the same encoder: XLM-R and CamemBERT."""

from dataclasses import replace

from bothways.encoder.head_kinds import ChoiceLogit, FirstToken, Labels, ScoreHeadKind, Transform
from bothways.families.bert import (
    BASE,
    BERT_EMBEDDING,
    BERT_LAYERS,
    BERT_POOLER,
    LARGE,
    MASKED_LM_GELU,
    SPAN,
    TOKEN,
    pooled,
)
from bothways.families.family import CheckpointHead, Family, Published
from bothways.families.layout import ConfigKeys, Ignored, TensorRow
from bothways.text import recipes

SHAPE: dict[str, object] = {
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}

ROBERTA = Family(
    model_type="roberta",
    title="RoBERTa",
    paper="Liu et al. 2019, arXiv:1907.11692",
    # With the usual padding id of 1, the first two rows of the position table are never used.
    reader=ConfigKeys(padding="pad_token_id", defaults={"pad_token_id": 1}),
    prefix="roberta.",
    rows=(*BERT_EMBEDDING, *BERT_LAYERS, *BERT_POOLER),
    base_architecture="RobertaModel",
    heads={
        "masked_lm": CheckpointHead(
            MASKED_LM_GELU,
            (
                TensorRow("lm_head.dense.{wb}", "head.transform.dense.{wb}"),
                TensorRow("lm_head.layer_norm.{wb}", "head.transform.norm.{wb}"),
                TensorRow("lm_head.bias", "head.bias"),
                Ignored("lm_head.decoder.{wb}"),
            ),
        ),
        "sequence": CheckpointHead(
            ScoreHeadKind(FirstToken(), Transform("tanh", dropout="head"), Labels()),
            (
                TensorRow("classifier.dense.{wb}", "head.transform.dense.{wb}"),
                TensorRow("classifier.out_proj.{wb}", "head.output.{wb}"),
            ),
        ),
        "token": TOKEN,
        "span": SPAN,
        # On the pooler, which pre-training leaves untrained.
        "multiple_choice": pooled(ChoiceLogit(), "roberta.pooler.dense.{wb}", dropout="hidden"),
    },
    architectures={
        "RobertaForMaskedLM": ("masked_lm",),
        "RobertaForSequenceClassification": ("sequence",),
        "RobertaForTokenClassification": ("token",),
        "RobertaForQuestionAnswering": ("span",),
        "RobertaForMultipleChoice": ("multiple_choice",),
    },
    pooler_training=None,
    tokenizer=recipes.ROBERTA,
    published=(
        Published("FacebookAI/roberta-base", 2019, BASE | SHAPE),
        Published("FacebookAI/roberta-large", 2019, LARGE | SHAPE),
        Published("distilbert/distilroberta-base", 2019, BASE | SHAPE | {"num_hidden_layers": 6}),
    ),
)

XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    title="XLM-R",
    paper="Conneau et al. 2019, arXiv:1911.02116",
    base_architecture="XLMRobertaModel",
    architectures={name.replace("Roberta", "XLMRoberta"): heads for name, heads in ROBERTA.architectures.items()},
    tokenizer=recipes.XLM_ROBERTA,
    published=(
        Published("FacebookAI/xlm-roberta-base", 2019, BASE | SHAPE | {"vocab_size": 250002}),
        Published("FacebookAI/xlm-roberta-large", 2019, LARGE | SHAPE | {"vocab_size": 250002}),
    ),
)

CAMEMBERT = replace(
    ROBERTA,
    model_type="camembert",
    title="CamemBERT",
    paper="Martin et al. 2019, arXiv:1911.03894",
    base_architecture="CamembertModel",
    architectures={name.replace("Roberta", "Camembert"): heads for name, heads in ROBERTA.architectures.items()},
    tokenizer=recipes.CAMEMBERT,
    published=(
        Published("almanach/camembert-base", 2019, BASE | SHAPE | {"vocab_size": 32005}),
        Published("almanach/camembert-large", 2020, LARGE | SHAPE | {"vocab_size": 32005}),
    ),
)
