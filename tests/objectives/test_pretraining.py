"""Tiny models learn a tiny corpus of shards by heart, and vocabulary losses in chunks are those of whole logits."""

import pytest
import torch
from corpora import tiny_tokenizer, write_corpus
from torch.nn.functional import cross_entropy

import bothways.objectives.masked_lm as vocabulary_module
from bothways.encoder import Encoder, MaskedLMHead
from bothways.encoder.heads import new_head
from bothways.families import FAMILIES
from bothways.objectives.corpus import CorpusPieces, NextSentence, SegmentPairs, SentenceOrder
from bothways.objectives.masked_lm import MaskedLM, predict_tokens
from bothways.objectives.masking import Masker, Masking
from bothways.objectives.pretraining import PretrainingObjective
from bothways.packing import pack
from bothways.training.loop import train
from bothways.training.options import TrainingOptions
from tiny_models import TINY, random_ids, scramble, tiny_encoder

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


PLACES = 300


@pytest.fixture(params=[1, 2**23], ids=["five chunks", "one chunk"])
def inputs(request, monkeypatch):
    """A head, its token table, states of places and their targets."""
    monkeypatch.setattr(vocabulary_module, "_ON_CPU", request.param)
    config = tiny_encoder().config
    head = scramble(MaskedLMHead(config, FAMILIES["bert"].heads["masked_lm"].kind))
    torch.manual_seed(0)
    table = torch.randn(config.vocabulary, config.embedding.width, requires_grad=True)
    hidden_MH = torch.randn(PLACES, config.hidden, requires_grad=True)
    return head, table, hidden_MH, torch.randint(config.vocabulary, (PLACES,))


def test_losses_and_gradients_are_those_of_whole_logits(inputs):
    head, table, hidden_MH, targets_M = inputs
    leaves = [hidden_MH, table, *head.parameters()]
    found = predict_tokens(head, table, hidden_MH, targets_M, torch.arange(PLACES))
    logits_MV = head(hidden_MH, table)
    expected_M = cross_entropy(logits_MV, targets_M, reduction="none")
    torch.testing.assert_close(found.losses_M, expected_M.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.total, expected_M.sum(), rtol=1e-5, atol=0.0)
    assert torch.equal(found.right_M, logits_MV.argmax(-1) == targets_M)
    ours, theirs = (torch.autograd.grad(0.37 * loss, leaves) for loss in (found.total, expected_M.sum()))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def test_probabilities_of_all_places_are_shown(inputs):
    head, table, hidden_MH, targets_M = inputs
    seen_MV = torch.zeros(PLACES, len(table))

    def look(probabilities_mV, places):
        seen_MV[places] = probabilities_mV

    predict_tokens(head, table, hidden_MH, targets_M, torch.arange(PLACES), look)
    torch.testing.assert_close(seen_MV, head(hidden_MH, table).softmax(-1).detach())


def test_a_target_without_probability_has_a_finite_loss(inputs):
    head, table, hidden_MH, _ = inputs
    with torch.no_grad():
        head.bias[3] = -400.0
    targets_M = torch.full((PLACES,), 3)
    expected = cross_entropy(head(hidden_MH, table), targets_M, reduction="sum")
    found = predict_tokens(head, table, hidden_MH, targets_M, torch.arange(PLACES))
    assert found.losses_M.isfinite().all()
    torch.testing.assert_close(found.total, expected, rtol=1e-5, atol=0.0)


def test_no_places_have_no_loss_and_gradients_of_zero(inputs):
    head, table, hidden_MH, targets_M = inputs
    none = predict_tokens(head, table, hidden_MH[:0], targets_M[:0], torch.arange(0))
    none.total.backward()
    assert none.total.item() == 0.0
    assert not table.grad.any()


def test_without_gradients_the_sums_of_sequences_are_the_same(inputs):
    head, table, hidden_MH, targets_M = inputs
    packed = pack(random_ids((100, 120, 80)))
    trained = predict_tokens(head, table, hidden_MH, targets_M, torch.arange(PLACES))
    with torch.no_grad():
        validated = predict_tokens(head, table, hidden_MH, targets_M, torch.arange(PLACES))
    assert validated.sums(packed) == pytest.approx(trained.sums(packed))
    assert validated.sums(packed)[:, 2].tolist() == [100, 120, 80]
