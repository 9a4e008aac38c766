"""BERT (Devlin et al. 2018, arXiv:1810.04805)."""

from bothways.encoder.heads import MaskedLMHeadKind, SequenceHeadKind
from bothways.families.config_keys import ConfigKeys
from bothways.families.family import Family, HeadRows, Published
from bothways.families.rows import BERT_EMBEDDING, BERT_LAYERS, BERT_POOLER
from bothways.families.weight_map import Ignored, Row
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

BERT = Family(
    model_type="bert",
    title="BERT",
    paper="Devlin et al. 2018, arXiv:1810.04805",
    keys=ConfigKeys(),
    prefix="bert.",
    rows=(*BERT_EMBEDDING, *BERT_LAYERS, *BERT_POOLER),
    base_architecture="BertModel",
    masked_lm=HeadRows(
        "BertForMaskedLM",
        (
            Row("cls.predictions.transform.dense.{wb}", "head.dense.{wb}"),
            Row("cls.predictions.transform.LayerNorm.{wb}", "head.norm.{wb}"),
            Row("cls.predictions.bias", "head.bias"),
            Ignored("cls.predictions.decoder.{wb}"),
            Ignored("cls.seq_relationship.{wb}"),
        ),
    ),
    masked_lm_kind=MaskedLMHeadKind(),
    sequence=HeadRows(
        "BertForSequenceClassification",
        (Row("bert.pooler.dense.{wb}", "head.dense.{wb}"), Row("classifier.{wb}", "head.output.{wb}")),
    ),
    sequence_kind=SequenceHeadKind("tanh", dropout_first=False),
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
