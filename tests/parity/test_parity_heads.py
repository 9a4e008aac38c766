"""Heads compute what those of transformers compute, for every family of the registry."""

import pytest
import torch
from oracles import CLASSES, call, difference, real

from bothways.checkpoints import open_checkpoint
from bothways.encoder.heads import read_rows
from bothways.packing import unpad
from tiny_models import TINY, every_family, padded, random_ids

LENGTHS = (1, 6, 6, 11)


@pytest.fixture
def inputs(model_type):
    return padded(random_ids(LENGTHS, seed=11), "right", TINY[model_type]["pad_token_id"])


@every_family
def test_masked_lm_logits_equal_transformers(saved, model_type, inputs):
    model, folder = saved(model_type, "masked_lm")
    checkpoint = open_checkpoint(folder)
    encoder, head = checkpoint.build_encoder(), checkpoint.build_masked_lm_head()
    with torch.no_grad():
        theirs_BSV = call(checkpoint.family, model, *inputs).logits
        ours_TV = head(encoder(unpad(*inputs)), encoder.embedding.tokens.weight)
    assert difference(ours_TV, real(theirs_BSV, inputs[1])) < 1e-5 * theirs_BSV.abs().max()


@every_family
def test_sequence_logits_equal_transformers(saved, model_type, inputs):
    model, folder = saved(model_type, "sequence")
    checkpoint = open_checkpoint(folder)
    packed = unpad(*inputs)
    head = checkpoint.build_score_head("sequence").eval()
    with torch.no_grad():
        theirs_BC = call(checkpoint.family, model, *inputs).logits
        first_BH = read_rows(head.kind.read, checkpoint.build_encoder(), packed)
        ours_BC = head(first_BH)
    assert checkpoint.score_count("sequence") == CLASSES
    assert difference(ours_BC, theirs_BC) < 1e-5


@every_family
def test_a_bare_encoder_has_no_trained_classes(saved, model_type):
    assert open_checkpoint(saved(model_type, "encoder")[1]).score_count("sequence") is None
