"""The encoder computes what its NumPy counterpart computes, in double precision."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bothways.encoder import Encoder
from bothways.encoder.config import AbsolutePositions, GatedFeedForward, RotaryPositions
from bothways.encoder.minimal import MinimalEncoder
from bothways.encoder.modules import ACTIVATIONS
from bothways.errors import UnsupportedConfig
from bothways.families import FAMILIES
from bothways.packing import pack
from tiny_models import random_ids, random_types, scramble, tiny_config

BERT_STYLE = [name for name in FAMILIES if isinstance(tiny_config(name).positions, AbsolutePositions)]


@pytest.mark.parametrize("model_type", BERT_STYLE)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("backend", ["reference", "sdpa", "grouped", "padded"])
@pytest.mark.parametrize("gradients", [False, True])
def test_packed_encoder_equals_numpy(model_type, activation, backend, gradients):
    config = tiny_config(model_type)
    config = replace(config, feed_forward=replace(config.feed_forward, activation=activation))
    encoder = scramble(Encoder(config)).double()
    minimal = MinimalEncoder(config, {name: value.numpy() for name, value in encoder.state_dict().items()})
    lengths = (1, 6, 6, config.max_length)
    sequences = random_ids(lengths, seed=2)
    types = random_types(lengths) if config.embedding.types == 2 else [[0] * length for length in lengths]
    with torch.set_grad_enabled(gradients):
        ours_TH = encoder(pack(sequences, types), backend=backend).detach().numpy()
    expected_TH = np.concatenate([minimal(ids, kinds) for ids, kinds in zip(sequences, types, strict=True)])
    assert ours_TH.dtype == np.float64
    np.testing.assert_allclose(ours_TH, expected_TH, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "change",
    [{"positions": RotaryPositions(18, 1e4, 1e4)}, {"feed_forward": GatedFeedForward(37, "gelu")}],
)
def test_numpy_encoder_refuses_what_it_does_not_know(change):
    with pytest.raises(UnsupportedConfig, match="absolute positions and dense feed-forward"):
        MinimalEncoder(replace(tiny_config("bert"), **change), {})
