"""What is saved here opens in transformers, tensor for tensor, and computes the same."""

import pytest
import torch
import transformers
from oracles import AUTO, call, difference, opened, real

from bothways.checkpoints import load, open_checkpoint
from bothways.checkpoints.save import encoder_tensors, head_tensors, write_model
from bothways.encoder import Encoder, Pooler
from bothways.families import FAMILIES
from bothways.families.weight_map import Ignored, expand, read_weights, write_weights
from bothways.packing import unpad
from tiny_models import TINY, every_family, padded, random_ids


@pytest.fixture
def inputs(model_type):
    return padded(random_ids((1, 6, 11), seed=13), "right", TINY[model_type]["pad_token_id"])


def open_encoder(folder, model):
    """The bare encoder; RoBERTa and its heirs would add a pooler of random weights unless told not to."""
    has_pooler = isinstance(model.pooler, Pooler)
    poolable = hasattr(AUTO["encoder"].from_config(transformers.AutoConfig.from_pretrained(folder)), "pooler")
    options = {"add_pooling_layer": False} if poolable and not has_pooler else {}
    return opened(AUTO["encoder"], folder, **options)


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
def test_a_saved_encoder_opens_here_with_the_same_tensors(saved, model_type, tmp_path):
    ours = load(saved(model_type, "encoder")[1], device="cpu")
    ours.save(tmp_path / "saved")
    again = load(tmp_path / "saved", device="cpu")
    assert again.config == ours.config
    for name, value in ours.encoder.state_dict().items():
        assert torch.equal(again.encoder.state_dict()[name], value), name


@pytest.mark.parametrize(("stored", "dtype"), [("float16", "float32"), ("float32", "bfloat16")])
def test_a_saved_configuration_names_the_precision_of_the_saved_weights(saved, stored, dtype, tmp_path):
    model = AUTO["encoder"].from_pretrained(saved("bert", "encoder")[1], dtype=getattr(torch, stored))
    model.save_pretrained(tmp_path / "stored")
    (tmp_path / "stored" / "tokenizer.json").write_bytes((saved("bert", "encoder")[1] / "tokenizer.json").read_bytes())
    load(tmp_path / "stored", device="cpu", dtype=dtype).save(tmp_path / "saved")
    assert opened(AUTO["encoder"], tmp_path / "saved").dtype == getattr(torch, dtype)


@every_family
@pytest.mark.parametrize("kind", ["masked_lm", "sequence"])
def test_a_saved_model_with_a_head_opens_in_transformers(saved, model_type, kind, inputs, tmp_path):
    model, folder = saved(model_type, kind)
    checkpoint = open_checkpoint(folder)
    family, config = checkpoint.family, checkpoint.config
    head = checkpoint.build_head(kind)
    tensors = encoder_tensors(family, config, ("", checkpoint.build_encoder()), prefix=family.prefix)
    settings = {**checkpoint.settings, "architectures": [family.architecture([kind])]}
    write_model(tmp_path, settings, tensors | head_tensors(family.head(kind, settings).rows, config, head))
    again = opened(AUTO[kind], tmp_path)
    assert type(again).__name__ == family.architecture([kind])
    with torch.no_grad():
        expected = call(family, model, *inputs).logits
        found = call(family, again, *inputs).logits
    assert torch.equal(found, expected)


@every_family
@pytest.mark.parametrize("kind", ["encoder", "masked_lm", "sequence"])
def test_tensors_read_and_written_again_are_the_same_under_the_same_names(saved, model_type, kind):
    family = FAMILIES[model_type]
    model, _ = saved(model_type, kind)
    config = family.config(TINY[model_type])
    prefix = "" if kind == "encoder" else family.prefix
    head = () if kind == "encoder" else family.head(kind, {}).rows
    stored = model.state_dict()
    written = write_weights(family.rows, config, read_weights(family.rows, config, stored, prefix), prefix)
    written |= write_weights(head, config, read_weights(head, config, stored))
    ignored = {
        name for rows, before in ((family.rows, prefix), (head, "")) for name in ignored_names(rows, config, before)
    }
    assert set(written) == set(stored) - ignored
    for name, value in written.items():
        assert torch.equal(value, stored[name]), name


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
    assert expected <= mapped
    # The projection of ELECTRA is there only where the widths differ, as they do here.
    assert mapped == expected
