"""Small steps that the tests of this folder share."""

import torch
from safetensors.torch import load_file, save_file

from bothways.checkpoints import open_checkpoint

WEIGHTS = "model.safetensors"
QUERY = "encoder.layer.1.attention.self.query.weight"


def rewrite(folder, change):
    """Change the tensors of a folder."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def open_and_build(folder, **options):
    return open_checkpoint(folder, **options).build_encoder()


def same_weights(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
