"""Tiny models learn a tiny corpus of shards by heart; losses in chunks, and the mask decoder."""

import pytest
import torch
import transformers
from corpora import numbered_documents, options, tiny_tokenizer, write_corpus
from torch.nn.functional import cross_entropy

import bothways.objectives.masked_lm as vocabulary_module
from bothways.checkpoints import load
from bothways.encoder import Encoder, MaskedLMHead
from bothways.encoder.head_kinds import ScoreHeadKind
from bothways.encoder.heads import new_head
from bothways.encoder.streams import MaskDecoding
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.families import FAMILIES
from bothways.objectives.corpus import CorpusPieces, NextSentence, SegmentPairs, SentenceOrder
from bothways.objectives.masked_lm import MaskDecoder, MaskedLM, predict_tokens
from bothways.objectives.masking import Masker, Masking
from bothways.objectives.pretraining import PretrainingObjective
from bothways.packing import SelectedRows, pack
from bothways.training.loop import train
from tiny_models import TINY, padded, random_ids, scramble, tiny_config, tiny_encoder, write_tokenizer

SETTINGS = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SETTINGS |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0}
SETTINGS |= {"initializer_range": 0.15}  # as narrow a model learns nothing for long from the usual 0.02


def model_of(model_type, head, **settings):
    """A new tiny model with a masked language modelling head and perhaps one for the relation."""
    family = FAMILIES[model_type]
    own = TINY[model_type] | SETTINGS | settings
    config = family.config(own)
    torch.manual_seed(0)
    names = ("masked_lm", head) if head else ("masked_lm",)
    heads = [new_head(config, family.head(name, own).kind, labels=2) for name in names]
    return MaskedLM(Encoder(config), *heads)


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


LENGTHS = (9, 4, 13)
# As in all published models; the tiny one of DeBERTa v1 has absolute positions in its embedding.
LATE = {"position_biased_input": False}


def late_config(model_type="deberta", **settings):
    return FAMILIES[model_type].config(TINY[model_type] | LATE | settings)


def decoder_of(config):
    torch.manual_seed(3)
    decoder = MaskDecoder(config)
    torch.nn.init.normal_(decoder.positions.weight)
    return decoder


@pytest.mark.parametrize("model_type", ["deberta", "deberta-v2", "bert"])
def test_one_application_without_positions_is_the_last_layer(model_type):
    config = FAMILIES["bert"].config(TINY["bert"]) if model_type == "bert" else late_config(model_type)
    encoder, packed = scramble(Encoder(config)), pack(random_ids(LENGTHS))
    rows = torch.arange(0, sum(LENGTHS), 2)
    with torch.no_grad():
        queries = MaskDecoding(torch.zeros(len(rows), 24), rows, (5, 2, 6), times=1)
        found = encoder(packed, queries=queries)
        expected = encoder(packed, rows=SelectedRows(rows))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_states_are_those_of_the_last_layer_of_transformers_applied_twice(tmp_path):
    """Of v2: queries of their own fail in the v1 of transformers."""
    theirs = scramble(transformers.DebertaV2Model(transformers.DebertaV2Config(**TINY["deberta-v2"] | LATE)), seed=1)
    theirs.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, "deberta-v2")
    ours = load(tmp_path, device="cpu").encoder
    decoder, ids = decoder_of(ours.config), random_ids(LENGTHS)
    packed = pack(ids)
    rows, counts = torch.arange(0, sum(LENGTHS), 2), (5, 2, 6)
    ids_BS, mask_BS = padded(ids, "right", 0)
    with torch.no_grad():
        found = decoder(ours, packed, rows, counts)
        hidden = theirs(ids_BS, mask_BS, output_hidden_states=True).hidden_states[-2]
        query = hidden + decoder.positions(torch.arange(max(LENGTHS)))
        stack = theirs.encoder
        seen, relative = stack.get_attention_mask(mask_BS), stack.get_rel_pos(hidden)
        for _ in range(2):
            output = stack.layer[-1](
                hidden, seen, query_states=query, relative_pos=relative, rel_embeddings=stack.get_rel_embedding()
            )
            query = output[0] if isinstance(output, tuple) else output
    expected = query[mask_BS.bool()][rows]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max().clamp(min=1)


def test_the_decoder_trains_every_layer_and_its_positions():
    config = late_config()
    encoder, decoder = Encoder(config), MaskDecoder(config)
    packed = pack(random_ids(LENGTHS))
    decoder(encoder, packed, torch.arange(0, sum(LENGTHS), 2), (5, 2, 6)).square().sum().backward()
    assert decoder.positions.weight.grad.abs().sum() > 0
    assert all(parameter.grad is not None for parameter in encoder.layers.parameters())


def test_an_encoder_with_absolute_positions_has_no_decoder():
    absolute = FAMILIES["deberta"].config(TINY["deberta"] | {"position_biased_input": True})
    for config in (tiny_config("bert"), absolute):
        with pytest.raises(UnsupportedConfig, match="without absolute positions"):
            MaskDecoder(config)


def test_a_relation_and_a_decoder_are_refused():
    family, own = FAMILIES["bert"], TINY["bert"]
    config = family.config(own)
    head, kind = new_head(config, family.head("masked_lm", own).kind), family.head("next_sentence", own).kind
    assert isinstance(kind, ScoreHeadKind)
    with pytest.raises(InvalidInput, match="both"):
        MaskedLM(Encoder(config), head, new_head(config, kind, labels=2), MaskDecoder(late_config()))
