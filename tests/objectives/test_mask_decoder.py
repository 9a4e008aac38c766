"""DeBERTa's mask decoder: the last layer of transformers applied twice, gradients, and what a tiny model learns."""

import pytest
import torch
import transformers
from corpora import tiny_tokenizer, write_corpus

from bothways.checkpoints import load
from bothways.encoder import Encoder
from bothways.encoder.head_kinds import ScoreHeadKind
from bothways.encoder.heads import new_head
from bothways.encoder.streams import MaskDecoding
from bothways.errors import InvalidInput, UnsupportedConfig
from bothways.families import FAMILIES
from bothways.objectives.corpus import CorpusPieces
from bothways.objectives.masked_lm import MaskDecoder, MaskedLM
from bothways.objectives.masking import Masker, Masking
from bothways.objectives.pretraining import PretrainingObjective
from bothways.packing import SelectedRows, pack
from bothways.training.loop import train
from bothways.training.options import TrainingOptions
from tiny_models import TINY, padded, random_ids, scramble, tiny_config, write_tokenizer

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
    encoder, packed = scramble(Encoder(late_config(model_type))), pack(random_ids(LENGTHS))
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


@pytest.mark.slow
@pytest.mark.slow  # every day: the golden losses of a masked LM with a decoder
def test_a_tiny_corpus_is_learnt_by_heart(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer", "deberta")
    documents = [[[5 + 7 * number + 2 * at, 6 + 7 * number + 2 * at] for at in range(3)] for number in range(8)]
    source = CorpusPieces.of(write_corpus(tmp_path / "corpus", tokenizer, documents), tokenizer, 10)
    own = (
        TINY["deberta"]
        | LATE
        | {
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "pooler_hidden_size": 48,
        }
    )
    own |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.15}
    family = FAMILIES["deberta"]
    config = family.config(own)
    torch.manual_seed(0)
    head = new_head(config, family.head("masked_lm", own).kind)
    model = MaskedLM(Encoder(config), head, decoder=MaskDecoder(config))
    masker = Masker(tokenizer, Masking(), 0)
    objective = PretrainingObjective.in_epochs(model, source, source, masker, batch_size=8, tokens=200)
    usual = {"precision": "float32", "warmup_fraction": 0.05, "weight_decay": 0.0, "show_progress": False, "seed": 0}
    train(objective, TrainingOptions(epochs=200, learning_rate=3e-3, **usual))
    metrics = objective.validate().metrics
    assert metrics["loss"] < 1.0
    assert metrics["accuracy"] > 0.8
