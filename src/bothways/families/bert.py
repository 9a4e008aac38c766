"""BERT (Devlin et al. 2018, arXiv:1810.04805)."""

from bothways.encoder.head_kinds import ChoiceLogit, Labels, Relation
from bothways.families.config_keys import ConfigKeys
from bothways.families.family import Family, Published
from bothways.families.rows import BERT_EMBEDDING, BERT_LAYERS, BERT_POOLER, MASKED_LM, SPAN, TOKEN, pooled
from bothways.families.stored_heads import CheckpointHead
from bothways.families.weight_map import Ignored, TensorRow
from bothways.text import recipes

BASE: dict[str, object] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
LARGE = BASE | {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
MINILM = BASE | {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}

POOLER = "bert.pooler.dense.{wb}"

BERT = Family(
    model_type="bert",
    title="BERT",
    paper="Devlin et al. 2018, arXiv:1810.04805",
    reader=ConfigKeys(),
    prefix="bert.",
    rows=(*BERT_EMBEDDING, *BERT_LAYERS, *BERT_POOLER),
    base_architecture="BertModel",
    heads={
        "masked_lm": CheckpointHead(
            MASKED_LM,
            (
                TensorRow("cls.predictions.transform.dense.{wb}", "head.transform.dense.{wb}"),
                TensorRow("cls.predictions.transform.LayerNorm.{wb}", "head.transform.norm.{wb}"),
                TensorRow("cls.predictions.bias", "head.bias"),
                Ignored("cls.predictions.decoder.{wb}"),
            ),
        ),
        "next_sentence": pooled(Relation(), POOLER, "cls.seq_relationship.{wb}", dropout=0.0),
        "sequence": pooled(Labels(), POOLER),
        "token": TOKEN,
        "span": SPAN,
        "multiple_choice": pooled(ChoiceLogit(), POOLER),
    },
    architectures={
        "BertForPreTraining": ("masked_lm", "next_sentence"),
        "BertForMaskedLM": ("masked_lm",),
        "BertForNextSentencePrediction": ("next_sentence",),
        "BertForSequenceClassification": ("sequence",),
        "BertForTokenClassification": ("token",),
        "BertForQuestionAnswering": ("span",),
        "BertForMultipleChoice": ("multiple_choice",),
    },
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
