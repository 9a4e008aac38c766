"""The encoder computes what transformers computes, for every family of the registry."""

import pytest
import torch
from oracles import (
    call,
    counts_positions_itself,
    difference,
    in_memory,
    layer_steps,
    oracle,
    reads,
    real,
    relative_difference,
    scaled_difference,
)

from bothways.checkpoints import open_checkpoint
from bothways.checkpoints.pretrained import pretrained
from bothways.encoder import Recorder
from bothways.families import FAMILIES
from bothways.families.layout import read_weights
from bothways.packing import pack, unpad
from bothways.products import TORCH
from tiny_models import TINY, every_family, every_family_and_backend, padded, random_ids, random_types, tiny_config

TOLERANCE = 1e-5
sides = pytest.mark.parametrize("side", ["right", "left"])


def ragged(config):
    """One token, the most that the model reads, equal neighbours, and what lies between; with segment ids."""
    lengths = (1, 5, config.max_length or 18, 7, 7, 2)
    types = [[0] * length for length in lengths] if config.embedding.types == 1 else random_types(lengths)
    return random_ids(lengths, seed=3), types


def padded_inputs(model_type, side):
    sequences, types = ragged(tiny_config(model_type))
    ids_BS, mask_BS = padded(sequences, side, TINY[model_type]["pad_token_id"])
    return ids_BS, mask_BS, padded(types, side, 0)[0]


@every_family_and_backend
@sides
def test_every_hidden_state_equals_transformers(saved, model_type, backend, side):
    model, folder = saved(model_type, "encoder")
    checkpoint = open_checkpoint(folder)
    ids_BS, mask_BS, types_BS = padded_inputs(model_type, side)
    packed = unpad(ids_BS, mask_BS, types_BS)
    with torch.no_grad():
        theirs = call(checkpoint.family, model, ids_BS, mask_BS, types_BS, output_hidden_states=True).hidden_states
        encoder = checkpoint.build_encoder()
        last_TH = encoder(packed, backend=backend, record=(record := Recorder()))
    ours = record.hidden_states
    theirs = theirs[:: layer_steps(checkpoint.config)]
    assert len(ours) == len(theirs) == checkpoint.config.layers + 1
    for state_TH, theirs_BSH in zip(ours, theirs, strict=True):
        assert scaled_difference(state_TH, real(theirs_BSH, mask_BS)) < TOLERANCE
    assert difference(last_TH, real(theirs[-1], mask_BS)) < TOLERANCE


@every_family
def test_rows_padded_on_the_left_need_no_positions_where_transformers_counts_them_itself(saved, model_type):
    """For the others transformers counts columns, so that a left-padded row differs from the same row alone."""
    family = FAMILIES[model_type]
    model, folder = saved(model_type, "encoder")
    ids_BS, mask_BS, types_BS = padded_inputs(model_type, "left")
    types = {"token_type_ids": types_BS} if reads(model, "token_type_ids") else {}
    with torch.no_grad():
        theirs = model(input_ids=ids_BS, attention_mask=mask_BS, **types).last_hidden_state
        ours_TH = open_checkpoint(folder).build_encoder()(unpad(ids_BS, mask_BS, types_BS))
    agrees = difference(ours_TH, real(theirs, mask_BS)) < TOLERANCE
    assert agrees is counts_positions_itself(family)


@every_family
def test_called_as_a_model_of_the_ecosystem_it_answers_like_one(saved, model_type):
    model, folder = saved(model_type, "encoder")
    ours = pretrained(open_checkpoint(folder), device="cpu")
    ids_BS, mask_BS, types_BS = padded_inputs(model_type, "right")
    options = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        theirs = call(ours.family, model, ids_BS, mask_BS, types_BS, **options)
        output = ours(input_ids=ids_BS, attention_mask=mask_BS, token_type_ids=types_BS, **options)
    real_BS1 = mask_BS[:, :, None]
    assert torch.equal(output.attention_mask, mask_BS)
    assert difference(output.last_hidden_state, theirs.last_hidden_state * real_BS1) < TOLERANCE
    theirs_states = theirs.hidden_states[:: layer_steps(ours.config)]
    for state_BSH, theirs_BSH in zip(output.hidden_states, theirs_states, strict=True):
        assert scaled_difference(state_BSH, theirs_BSH * real_BS1) < TOLERANCE
    pairs_B1SS = (real_BS1 * mask_BS[:, None, :])[:, None]
    for weights_BNSS, theirs_BNSS in zip(output.attentions, theirs.attentions, strict=True):
        assert difference(weights_BNSS, theirs_BNSS * pairs_B1SS) < TOLERANCE
    if ours.family.pooler_training is not None:
        assert difference(output.pooler_output, theirs.pooler_output) < TOLERANCE


@every_family_and_backend
def test_gradients_equal_transformers(saved, model_type, backend):
    model, folder = saved(model_type, "encoder")
    checkpoint = open_checkpoint(folder)
    encoder = checkpoint.build_encoder()
    ids_BS, mask_BS, types_BS = padded_inputs(model_type, "right")
    model.zero_grad()
    theirs = call(checkpoint.family, model, ids_BS, mask_BS, types_BS).last_hidden_state
    weighted_loss(real(theirs, mask_BS)).backward()
    weighted_loss(encoder(unpad(ids_BS, mask_BS, types_BS), backend=backend)).backward()
    stored = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    # Compared under our names: the gradient of a key bias is zero but for rounding, and fused it has company.
    expected = read_weights(checkpoint.family.rows, checkpoint.config, stored)
    for name, parameter in encoder.named_parameters():
        if parameter.grad is None:
            assert name not in expected
        else:
            assert relative_difference(parameter.grad, expected[name]) < 1e-4, name


def weighted_loss(hidden_TH):
    """A sum of squares; weighted, because behind a layer norm the plain one hardly depends on anything."""
    weights_H = torch.linspace(0.5, 1.5, hidden_TH.shape[1])
    return (weights_H * hidden_TH**2).sum()


@every_family
@pytest.mark.slow
def test_the_layers_of_a_published_base_size_equal_transformers(model_type, monkeypatch):
    # Twelve layers wide, oneDNN's sums in another order than the oracle's come to 1.04e-5 on a Zen 5 core.
    monkeypatch.setattr("bothways.encoder.linear.matrix_product", lambda: TORCH)
    size = next(size for size in FAMILIES[model_type].published if "base" in size.name)
    settings = TINY[model_type] | size.settings | {"vocab_size": 500, "initializer_range": 0.02}
    model = oracle(model_type, "encoder", settings, spread=0.03)
    checkpoint = in_memory(model_type, settings, model)
    sequences = random_ids((1, 512, 37), seed=5, vocabulary=500)
    ids_BS, mask_BS = padded(sequences, "right", settings["pad_token_id"])
    with torch.no_grad():
        theirs = call(checkpoint.family, model, ids_BS, mask_BS).last_hidden_state
        ours_TH = checkpoint.build_encoder()(pack(sequences))
    assert ours_TH.shape[1] == 768
    assert difference(ours_TH, real(theirs, mask_BS)) < TOLERANCE


@pytest.mark.parametrize("padding", [0, 3])
def test_positions_of_roberta_start_behind_the_padding_id_that_the_configuration_names(padding):
    settings = TINY["roberta"] | {"pad_token_id": padding}
    model = oracle("roberta", "encoder", settings)
    checkpoint = in_memory("roberta", settings, model)
    sequences = random_ids((4, checkpoint.config.max_length), seed=7)
    ids_BS, mask_BS = padded(sequences, "right", padding)
    with torch.no_grad():
        theirs = model(input_ids=ids_BS, attention_mask=mask_BS).last_hidden_state
        ours_TH = checkpoint.build_encoder()(pack(sequences))
    assert difference(ours_TH, real(theirs, mask_BS)) < TOLERANCE


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", TOLERANCE), ("float64", 1e-12)])
def test_minilm_equals_transformers_on_real_text(minilm_folder, dtype, tolerance):
    """The oracle runs in float64: hidden states reach 10, where two float32 programs differ by 1e-5 on their own."""
    import transformers

    model = transformers.AutoModel.from_pretrained(minilm_folder, attn_implementation="eager").eval().double()
    ours = pretrained(open_checkpoint(minilm_folder), device="cpu", dtype=dtype)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder)
    texts = ["Rain.", "The harbour was closed for the winter.", "word " * 200, "naïve café, 東京 & more"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**inputs, output_hidden_states=True)
        output = ours(texts, output_hidden_states=True)
    real_BS1 = inputs["attention_mask"][:, :, None]
    assert torch.equal(output.attention_mask, inputs["attention_mask"])
    for ours_BSH, theirs_BSH in zip(output.hidden_states, theirs.hidden_states, strict=True):
        assert difference(ours_BSH.double(), theirs_BSH * real_BS1) < tolerance
    assert difference(output.pooler_output.double(), theirs.pooler_output) < tolerance
