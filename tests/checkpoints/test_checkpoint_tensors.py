"""Tensors that do not belong to the configuration are refused by name; old and prefixed names are read."""

import pytest
import torch
from opening import QUERY, WEIGHTS, open_and_build, rewrite, same_weights
from safetensors.torch import load_file, save_file

from bothways.checkpoints import load, open_checkpoint
from bothways.errors import IncompatibleWeights, TensorsLeftOver
from bothways.families import FAMILIES
from tiny_models import edit_config, every_family, write_checkpoint

PARTS = [QUERY.replace("query", part) for part in ("query", "key", "value")]


def without(name):
    return lambda tensors: tensors.pop(name)


def cast(kind, *names):
    return lambda tensors: tensors.update({name: tensors[name].to(kind) for name in names})


def zeros(shape, *names):
    return lambda tensors: tensors.update({name: torch.zeros(shape) for name in names})


@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        (without("encoder.layer.1.output.dense.bias"), {}, r"lacks 1 of the .*: layers\.1\.feed_forward\.outer\.bias"),
        (without(QUERY), {}, rf"but not bert\.{QUERY}; both belong to layers\.1\.attention\.qkv"),
        (dict, {"num_hidden_layers": 2}, r"16 encoder tensors .*bert\.encoder\.layer\.2\.attention.* and 11 more"),
        (dict, {"intermediate_size": 40}, r"9 tensors.*inner\.bias should be \(40,\) but is \(37,\)"),
        *((zeros(shape, QUERY), {}, QUERY) for shape in [(24, 25), (25, 24), (12, 24), (24,), ()]),
        (zeros((), *PARTS), {}, r"qkv\.weight should be \(72, 24\)"),
        *(
            (cast(kind, *PARTS), {}, rf"floating point weights in .*query.*{kind}.*Quantised")
            for kind in (torch.int8, torch.bool, torch.float8_e4m3fn, torch.complex64)
        ),
        (cast(torch.bfloat16, PARTS[1]), {}, r"same shape and type.*key\.weight \(24, 24\) torch\.bfloat16"),
    ],
)
def test_tensors_that_do_not_belong_to_the_configuration_are_refused_by_name(folder, change, settings, words):
    rewrite(folder, change)
    edit_config(folder, **settings)
    with pytest.raises(IncompatibleWeights, match=words):
        open_and_build(folder)


def test_tensors_that_belong_to_no_head_of_the_family_are_named_in_a_warning(tmp_path):
    write_checkpoint(tmp_path, architecture="BertForMaskedLM")
    rewrite(tmp_path, lambda tensors: tensors.update({"colbert.linear.weight": torch.zeros(3, 24)}))
    assert open_checkpoint(tmp_path).unread() == ("colbert.linear.weight",)
    with pytest.warns(TensorsLeftOver, match=r"1 tensors that belong neither .*: colbert\.linear\.weight"):
        load(tmp_path, device="cpu")


def test_heads_of_the_family_are_no_left_over_tensors(tmp_path, recwarn):
    write_checkpoint(tmp_path, architecture="BertForPreTraining")
    load(tmp_path, device="cpu")
    assert not [warning for warning in recwarn if issubclass(warning.category, TensorsLeftOver)]


def test_a_checkpoint_without_a_masked_lm_head_says_so(folder):
    with pytest.raises(IncompatibleWeights, match="lacks 5 of the 5"):
        open_checkpoint(folder).build_masked_lm_head()


@every_family
def test_two_encoders_of_one_checkpoint_share_no_memory(tmp_path, model_type):
    write_checkpoint(tmp_path, model_type)
    checkpoint = open_checkpoint(tmp_path)
    first, second = checkpoint.build_encoder(), checkpoint.build_encoder()
    before = {name: value.clone() for name, value in second.state_dict().items()}
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    same_weights(second.state_dict(), before)
    same_weights(checkpoint.build_encoder().state_dict(), before)


def test_old_names_of_the_norms_are_read(folder):
    expected = open_and_build(folder).state_dict()

    def age(tensors):
        for name in [name for name in tensors if "LayerNorm" in name]:
            tensors[name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = (
                tensors.pop(name)
            )

    rewrite(folder, age)
    assert "embeddings.LayerNorm.gamma" in load_file(folder / WEIGHTS)
    same_weights(open_and_build(folder).state_dict(), expected)


@every_family
def test_names_with_and_without_the_prefix_are_read(tmp_path, model_type):
    write_checkpoint(tmp_path, model_type)
    expected = open_and_build(tmp_path).state_dict()
    save_file(
        {FAMILIES[model_type].prefix + k: v for k, v in load_file(tmp_path / WEIGHTS).items()}, tmp_path / WEIGHTS
    )
    same_weights(open_and_build(tmp_path).state_dict(), expected)
