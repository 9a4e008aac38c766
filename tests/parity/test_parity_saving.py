"""What is saved here opens in transformers, tensor for tensor, and computes the same."""

import pytest
import torch
import transformers
from oracles import call, difference, every_architecture, opened, real

from bothways.checkpoints import load
from bothways.encoder import Encoder, Pooler
from bothways.families import FAMILIES
from bothways.families.layout import Ignored, expand, read_weights, write_weights
from bothways.packing import unpad
from tiny_models import TINY, every_family, padded, random_ids


@pytest.fixture
def inputs(model_type):
    return padded(random_ids((1, 6, 11), seed=13), "right", TINY[model_type]["pad_token_id"])


def open_encoder(folder, model):
    """The bare encoder; RoBERTa and its heirs would add a pooler of random weights unless told not to."""
    has_pooler = isinstance(model.pooler, Pooler)
    poolable = hasattr(transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(folder)), "pooler")
    options = {"add_pooling_layer": False} if poolable and not has_pooler else {}
    return opened(transformers.AutoModel, folder, **options)


@every_family
def test_a_saved_encoder_opens_in_transformers(saved, model_type, inputs, tmp_path):
    ours = load(saved(model_type, "encoder")[1], device="cpu")
    ours.save(tmp_path / "saved")
    theirs = open_encoder(tmp_path / "saved", ours)
    with torch.no_grad():
        ours_TH = ours.encoder(unpad(*inputs))
        output = call(ours.family, theirs, *inputs)
    assert difference(ours_TH, real(output.last_hidden_state, inputs[1])) < 1e-5
    if isinstance(ours.pooler, Pooler):
        pooled_BH = ours(input_ids=inputs[0], attention_mask=inputs[1]).pooler_output
        assert difference(pooled_BH, output.pooler_output) < 1e-5


@every_family
def test_a_saved_folder_with_its_tokenizer_reads_pairs_in_transformers_as_here(saved, model_type, tmp_path):
    """Its tokenizer pads on the right side, and gives out segment ids where the model reads them, and only there."""
    ours = load(saved(model_type, "encoder")[1], device="cpu")
    ours.save(tmp_path / "saved")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer.padding_side == ("left" if model_type == "xlnet" else "right")
    pairs = [("w5 w6", "w7"), ("w8", "w9 w10 w11 w12")]
    inputs = tokenizer(pairs, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = open_encoder(tmp_path / "saved", ours)(**inputs).last_hidden_state
    output = ours(pairs)
    assert difference(real(output.last_hidden_state, output.attention_mask), real(theirs, inputs.attention_mask)) < 1e-5


@pytest.mark.parametrize(("stored", "dtype"), [("float16", "float32"), ("float32", "bfloat16")])
def test_a_saved_configuration_names_the_precision_of_the_saved_weights(saved, stored, dtype, tmp_path):
    model = transformers.AutoModel.from_pretrained(saved("bert", "encoder")[1], dtype=getattr(torch, stored))
    model.save_pretrained(tmp_path / "stored")
    (tmp_path / "stored" / "tokenizer.json").write_bytes((saved("bert", "encoder")[1] / "tokenizer.json").read_bytes())
    load(tmp_path / "stored", device="cpu", dtype=dtype).save(tmp_path / "saved")
    assert opened(transformers.AutoModel, tmp_path / "saved").dtype == getattr(torch, dtype)


def round_trip(model, model_type, rows):
    """Tensors of a model read and written again; ``rows`` are pairs of a map and the prefix before its names."""
    config = FAMILIES[model_type].config(TINY[model_type])
    stored = model.state_dict()
    written, ignored = {}, set()
    for mapped, prefix in rows:
        written |= write_weights(mapped, config, read_weights(mapped, config, stored, prefix), prefix)
        ignored |= ignored_names(mapped, config, prefix)
    assert set(written) == set(stored) - ignored
    for name, value in written.items():
        assert torch.equal(value, stored[name]), name


@every_architecture
def test_tensors_of_a_model_read_and_written_again_are_the_same_under_the_same_names(saved, model_type, architecture):
    family = FAMILIES[model_type]
    heads = [(family.head(name, TINY[model_type]).rows, "") for name in family.architectures[architecture]]
    round_trip(saved(model_type, architecture)[0], model_type, [(family.rows, family.prefix), *heads])


def ignored_names(rows, config, prefix):
    return {
        name for row in expand([row for row in rows if isinstance(row, Ignored)], config, prefix) for name in row.theirs
    }


@every_family
def test_every_weight_of_the_encoder_has_a_row_in_the_map(model_type):
    family = FAMILIES[model_type]
    config = family.config(TINY[model_type])
    mapped = {row.ours for row in expand(family.rows, config) if row.ours and not row.ours.startswith("pooler.")}
    with torch.device("meta"):
        expected = set(Encoder(config).state_dict())
    # A map may know more: biases, or a projection, that a family has in some of its models only.
    assert expected <= mapped
