"""The choice of layers, on a model that is a sum."""

import numpy as np
import torch
from torch import nn

from bothways.encoder.int8 import Int8Weight
from bothways.encoder.linear import held
from bothways.progress import progress
from bothways.quantization.rounding import RoundedLayer, choose_layers


def test_a_layer_behind_one_that_harms_a_single_text_is_tried_too():
    """Layer b harms the last text alone, and so far the mean less than c does each text."""
    layers = {}
    for name in "abc":
        weight = nn.Parameter(torch.ones(2, 2))
        layers[name] = RoundedLayer(weight, Int8Weight.of(weight, torch.zeros(2), torch.ones(2)))
    angles = {"a": (0.001,) * 10, "b": (0.0,) * 9 + (0.5,), "c": (0.02,) * 10}

    def vectors(texts):
        turned = [name for name, each in layers.items() if held(each.weight) is not None]
        angle_N = np.sum([angles[name] for name in turned] or [(0.0,) * 10], 0)[: len(texts)]
        return np.stack([np.cos(angle_N), np.sin(angle_N)], 1).astype(np.float32)

    texts = [str(number) for number in range(10)]
    with progress("comparing", 3, show=False) as bar:
        found = choose_layers(layers, vectors, texts, vectors(texts), 9, 0.999, bar)
    assert found.cosines_N.min() >= 0.999
    assert set(found.names) == {"a", "c"}
