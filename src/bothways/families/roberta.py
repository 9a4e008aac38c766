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
    masked_lm,
    pooled,
    transformed,
)
from bothways.families.family import Family, Published
from bothways.families.layout import ConfigKeys
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
    class_name="Roberta",
    heads={
        "masked_lm": masked_lm(
            MASKED_LM_GELU, "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.{wb}"
        ),
        "sequence": transformed(
            ScoreHeadKind(FirstToken(), Transform("tanh", dropout="head"), Labels()),
            "classifier.dense.{wb}",
            "classifier.out_proj.{wb}",
        ),
        "token": TOKEN,
        "span": SPAN,
        # This head reads the pooler, which pre-training leaves untrained.
        "multiple_choice": pooled(ChoiceLogit(), "roberta.pooler.dense.{wb}", dropout="hidden"),
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
    class_name="XLMRoberta",
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
    class_name="Camembert",
    tokenizer=recipes.CAMEMBERT,
    published=(
        Published("almanach/camembert-base", 2019, BASE | SHAPE | {"vocab_size": 32005}),
        Published("almanach/camembert-large", 2020, LARGE | SHAPE | {"vocab_size": 32005}),
    ),
)
