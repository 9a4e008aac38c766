"""Tiny models learn a tiny corpus of shards by heart: masked tokens together with the relation of two segments."""

import pytest
import torch
from corpora import tiny_tokenizer, write_corpus

from bothways.encoder import Encoder
from bothways.encoder.heads import new_head
from bothways.families import FAMILIES
from bothways.objectives.corpus import CorpusPieces, NextSentence, SegmentPairs, SentenceOrder
from bothways.objectives.masked_lm import MaskedLM
from bothways.objectives.masking import Masker, Masking
from bothways.objectives.pretraining import PretrainingObjective
from bothways.training.loop import train
from bothways.training.options import TrainingOptions
from tiny_models import TINY

SETTINGS = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SETTINGS |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0}
SETTINGS |= {"initializer_range": 0.15}  # as narrow a model learns nothing for long from the usual 0.02


def numbered_documents():
    """Documents of three sentences that count up, with words of their own: order and document can be told."""
    return [[[5 + 7 * number + 2 * at, 6 + 7 * number + 2 * at] for at in range(3)] for number in range(8)]


def model_of(model_type, head, **settings):
    """A new tiny model with a masked language modelling head and perhaps one for the relation."""
    family = FAMILIES[model_type]
    own = TINY[model_type] | SETTINGS | settings
    config = family.config(own)
    torch.manual_seed(0)
    names = ("masked_lm", head) if head else ("masked_lm",)
    heads = [new_head(config, family.head(name, own).kind, labels=2) for name in names]
    return MaskedLM(Encoder(config), *heads)


def options(**changes):
    usual = {"precision": "float32", "warmup_fraction": 0.05, "weight_decay": 0.0, "show_progress": False, "seed": 0}
    return TrainingOptions(**(usual | changes))


@pytest.mark.slow  # every day: the golden losses of a masked LM with next sentences, and with their order
@pytest.mark.parametrize(
    ("model_type", "relation", "settings"),
    [
        ("bert", NextSentence(), {}),
        ("albert", SentenceOrder(), {"num_hidden_groups": 1, "inner_group_num": 1, "embedding_size": 24}),
    ],
    ids=["bert", "albert"],
)
def test_a_tiny_model_overfits_a_tiny_corpus(tmp_path, model_type, relation, settings):
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer", model_type)
    corpus = write_corpus(tmp_path / "corpus", tokenizer, numbered_documents())
    source = SegmentPairs.of(corpus, tokenizer, 12, relation, 0)
    model = model_of(model_type, relation.head, **settings)
    masker = Masker(tokenizer, Masking(), 0)
    objective = PretrainingObjective.in_epochs(model, source, source, masker, batch_size=8, tokens=60)
    with torch.no_grad():
        model.eval()
        before = objective.validate()
    record = train(objective, options(epochs=400, learning_rate=3e-3))
    after = objective.validate()
    assert before.metrics["masked tokens loss"] > 4
    assert after.metrics["masked tokens loss"] < 1.3
    assert after.metrics["masked tokens accuracy"] > 0.8
    assert after.metrics["segments accuracy"] > 0.95
    assert after.metrics["segments loss"] < 0.2
    assert record.losses[-1] < record.losses[0] / 3


def test_single_segments_train_masked_tokens_alone(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    source = CorpusPieces.of(write_corpus(tmp_path / "corpus", tokenizer, numbered_documents()), tokenizer, 16)
    training, validation = source.hold_out(0.3, 0)
    model = model_of("bert", None)
    objective = PretrainingObjective.in_epochs(
        model, training, validation, Masker(tokenizer, Masking(), 0), batch_size=2, tokens=20
    )
    record = train(objective, options(epochs=2, learning_rate=1e-3))
    assert record.updates == 2 * -(-len(training) // 2)
    assert record.validations[-1].metrics.keys() == {"loss", "perplexity", "accuracy"}
