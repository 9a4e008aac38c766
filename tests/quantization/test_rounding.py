"""Maps in int8 fitted to correlated rows, as hidden states are, and the choice of layers."""

import numpy as np
import pytest
import torch
from torch import nn

from bothways.encoder.int8 import ANY_PAIR, SMALL_PAIR, Int8Weight
from bothways.encoder.linear import held
from bothways.progress import progress
from bothways.quantization.rounding import InputSample, RoundedLayer, choose_layers, fitted


def correlated(rows, width, seed, few=4):
    """Rows that lie near a space of few dimensions."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(few, width, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(rows, width, generator=generator)
    return torch.randn(rows, few, generator=generator) @ directions + 0.05 * noise


def sample_of(*batches):
    sample = InputSample(batches[0].shape[1], torch.Generator().manual_seed(0))
    for each in batches:
        sample.add(each)
    return sample


def lost(found, weight_OI, rows_TI):
    return float((found.product(rows_TI, None) - rows_TI @ weight_OI.t()).square().mean())


def test_weights_that_make_up_for_one_another_lose_less_of_rows_that_were_not_seen():
    weight_OI = torch.randn(16, 48, generator=torch.Generator().manual_seed(0))
    sample = sample_of(*(correlated(512, 48, seed) for seed in range(8)))
    unseen_TI = correlated(512, 48, 99)
    plain = Int8Weight.of(weight_OI, torch.zeros(48), torch.ones(48))
    # Rounding of the rows remains.
    assert lost(fitted(weight_OI, sample, ANY_PAIR), weight_OI, unseen_TI) < 0.7 * lost(plain, weight_OI, unseen_TI)


@pytest.mark.parametrize("width", [48, 49])
def test_weights_of_one_size_are_rounded_to_small_pairs_and_lose_less_than_each_for_itself(width):
    """Such weights would all become the largest number."""
    signs_OI = torch.randn(16, width, generator=torch.Generator().manual_seed(0)).sign()
    weight_OI = signs_OI * (1 + 0.1 * torch.rand(16, width, generator=torch.Generator().manual_seed(1)))
    found = fitted(weight_OI, sample_of(*(correlated(512, width, seed) for seed in range(8))), SMALL_PAIR)
    plain = Int8Weight.of(weight_OI, torch.zeros(width), torch.ones(width), SMALL_PAIR)
    unseen_TI = correlated(512, width, 99)
    assert found.pair <= SMALL_PAIR
    assert lost(found, weight_OI, unseen_TI) < lost(plain, weight_OI, unseen_TI)


def test_in_small_pairs_each_output_takes_the_step_that_suits_it():
    """One large weight leaves its output's others small, so the finest step fits; equal weights want a coarse one."""
    weight_OI = 0.1 * torch.randn(2, 48, generator=torch.Generator().manual_seed(0))
    weight_OI[0, 0] = 1
    weight_OI[1] = weight_OI[1].sign()
    sample = sample_of(*(correlated(512, 48, seed) for seed in range(8)))
    largest_O = fitted(weight_OI, sample, SMALL_PAIR).codes_OI.abs().amax(1)
    assert largest_O[0] > 100 > largest_O[1]
    assert fitted(weight_OI, sample, ANY_PAIR).codes_OI.abs().amax(1).min() > 120


def test_sums_over_rows_leave_out_those_that_maps_are_compared_on():
    batches = [correlated(100, 8, seed) for seed in range(2)]
    sample = sample_of(*batches)
    rows_TI, left_RI = torch.cat(batches).double(), sample.rows_RI.double()
    assert sample.count == 200 - len(left_RI) == 72
    torch.testing.assert_close(sample.sum_I.double(), rows_TI.sum(0) - left_RI.sum(0), rtol=1e-5, atol=1e-4)
    expected_II = rows_TI.t() @ rows_TI - left_RI.t() @ left_RI
    torch.testing.assert_close(sample.products_II.double(), expected_II, rtol=1e-5, atol=1e-4)
    assert torch.equal(sample.low_I.double(), rows_TI.amin(0))
    assert torch.equal(sample.high_I.double(), rows_TI.amax(0))


def test_rows_that_are_zero_everywhere_and_few_rows_are_fitted_too():
    weight_OI = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    for rows_TI in (torch.zeros(100, 8), torch.zeros(1, 8), correlated(1, 8, 0)):
        found = fitted(weight_OI, sample_of(rows_TI), ANY_PAIR)
        assert torch.isfinite(found.product(rows_TI, None)).all()
        assert lost(found, weight_OI, rows_TI) < 1e-3


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
