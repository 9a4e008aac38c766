"""Layer-wise decay of the learning rate: the rate of every parameter, as a table worked out by hand says."""

import pytest
import torch
from torch import nn

from bothways import load
from bothways.errors import InvalidInput
from bothways.training.optimizers import NamedOptimizer
from bothways.training.options import AdamW, TrainingOptions
from tiny_models import write_checkpoint


# At a decay of 0.5 and a rate of 1: the head has 1, the last of L layers 0.5 ** 2, the embedding 0.5 ** (L + 2).
def table(layers, *like_the_embedding, **others):
    rates = {f"layers.{layer}": 0.5 ** (layers + 1 - layer) for layer in range(layers)}
    return dict.fromkeys(("embedding", *like_the_embedding), 0.5 ** (layers + 2)) | rates | others


TABLES = {
    **{family: table(3) for family in ("bert", "electra", "xlnet")},
    "camembert": table(2),
    "deberta": table(3, "positions"),
    "deberta-v2": table(3, "positions", "convolution"),
    "modernbert": table(4, final_norm=1 / 2),
    # Four layers of two groups with two inner layers each: the first group is layers 1 and 2, the other 3 and 4.
    "albert": table(4) | {"layers.0": 1 / 16, "layers.1": 1 / 16, "layers.2": 1 / 4, "layers.3": 1 / 4},
}


def options(**changes):
    usual = {"optimizer": AdamW(weight_decay=0.0), "precision": "float32", "layer_decay": 0.5}
    return TrainingOptions(**(usual | changes))


def model_of(family, folder):
    write_checkpoint(folder, family)
    return nn.ModuleDict({"encoder": load(folder, device="cpu").encoder, "head": nn.Linear(32, 2)})


def steps_of(module, **changes):
    """How far one step moves the parameters, which all have a gradient of 1: Adam's first step is the rate."""
    optimizer = NamedOptimizer(module, options(**changes))
    before = {name: each.detach().clone() for name, each in module.named_parameters()}
    for each in module.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step(1.0)
    return {name: (before[name] - each.detach()) for name, each in module.named_parameters()}


@pytest.mark.parametrize("family", TABLES)
def test_every_parameter_moves_at_the_rate_of_its_layer(family, tmp_path):
    rates = {"head": 1.0, **{f"encoder.{part}": rate for part, rate in TABLES[family].items()}}
    found = set()
    for name, moved in steps_of(model_of(family, tmp_path)).items():
        part = next(each for each in rates if name.startswith(f"{each}."))
        found.add(part)
        torch.testing.assert_close(moved, torch.full_like(moved, rates[part]), atol=1e-5, rtol=0, msg=name)
    assert found == set(rates)


def test_matrices_decay_at_the_rate_of_their_layer(tmp_path):
    module = model_of("bert", tmp_path)
    weight = module["encoder"].layers[2].attention.output.weight
    expected = weight.detach() * (1 - 0.1 / 4) - 1 / 4
    steps_of(module, optimizer=AdamW(weight_decay=0.1))
    torch.testing.assert_close(weight.detach(), expected, atol=1e-5, rtol=0)


def test_of_two_encoders_each_has_its_own_rates(tmp_path):
    module = nn.ModuleDict({name: model_of(name, tmp_path / name) for name in ("bert", "camembert")})
    moved = steps_of(module)
    assert float(moved["bert.encoder.embedding.tokens.weight"].mean()) == pytest.approx(1 / 32, abs=1e-5)
    assert float(moved["camembert.encoder.embedding.tokens.weight"].mean()) == pytest.approx(1 / 16, abs=1e-5)


def test_without_an_encoder_there_are_no_layers():
    with pytest.raises(InvalidInput, match="needs a module with an encoder"):
        NamedOptimizer(nn.Linear(2, 2), options())
