"""Linear maps in int8: near the float32 ones, exact in their sums, and gone once the weights change."""

import pytest
import torch

from bothways.encoder import int8
from bothways.encoder.int8 import ANY_PAIR, SMALL_PAIR, Int8Weight
from bothways.encoder.linear import Linear, held, hold, release

ROWS = (1, 15, 16, 17, 384, 530)


def made(behind_gelu=False, inputs=70, outputs=37, seed=0, pair=ANY_PAIR):
    generator = torch.Generator().manual_seed(seed)
    layer = Linear(inputs, outputs).requires_grad_(False)
    with torch.no_grad():
        layer.weight.copy_(0.1 * torch.randn(outputs, inputs, generator=generator))
        layer.bias.copy_(torch.randn(outputs, generator=generator))
    shift_I = torch.full((inputs,), -0.17) if behind_gelu else torch.randn(inputs, generator=generator)
    stretch_I = 0.5 + torch.rand(inputs, generator=generator)
    return layer, Int8Weight.of(layer.weight, shift_I, stretch_I, pair)


def inputs(count, *, behind_gelu=False, width=70, seed=1):
    x_TI = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.gelu(x_TI) if behind_gelu else x_TI


@pytest.mark.parametrize("behind_gelu", [False, True])
@pytest.mark.parametrize("count", ROWS)
def test_a_product_in_int8_is_near_that_in_float32(behind_gelu, count):
    layer, as_int8 = made(behind_gelu)
    x_TI = inputs(count, behind_gelu=behind_gelu)
    expected_TO = layer(x_TI)
    error_TO = as_int8.product(x_TI, layer.bias) - expected_TO
    assert error_TO.norm() < 0.03 * (expected_TO - layer.bias).norm()


@pytest.mark.parametrize("behind_gelu", [False, True])
def test_the_operators_give_the_sums_that_float64_gives(behind_gelu, monkeypatch):
    if not int8.largest_pair():
        pytest.skip("this processor or torch multiplies no int8")
    layer, as_int8 = made(behind_gelu, pair=int8.largest_pair())
    assert as_int8.is_fast
    x_TI = inputs(530, behind_gelu=behind_gelu)
    found_TO = as_int8.product(x_TI, layer.bias)
    monkeypatch.setattr(int8, "largest_pair", lambda: 0)
    assert not as_int8.is_fast
    torch.testing.assert_close(as_int8.product(x_TI, layer.bias), found_TO, rtol=0, atol=1e-6)


@pytest.mark.parametrize("signs", [(1, 1), (-1, -1), (1, -1)])
@pytest.mark.parametrize("pair", [(127, 1), (1, 127), (64, 64), (100, 28)])
def test_the_largest_pairs_of_weights_are_added_exactly(pair, signs, monkeypatch):
    """A processor without VNNI adds two products in 16 bits."""
    if not int8.largest_pair():
        pytest.skip("this processor or torch multiplies no int8")
    codes_OI = (torch.tensor(pair) * torch.tensor(signs)).repeat(48, 35).to(torch.int8)
    as_int8 = Int8Weight(codes_OI, torch.ones(48), torch.zeros(70), torch.ones(70))
    assert as_int8.is_fast
    x_TI = torch.ones(20, 70)
    x_TI[:, -1] = 0  # so that all others get the largest code
    found_TO = as_int8.product(x_TI, None)
    monkeypatch.setattr(int8, "largest_pair", lambda: 0)
    torch.testing.assert_close(as_int8.product(x_TI, None), found_TO, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("codes", "pair"),
    [([127, 1], 128), ([127, 2], 129), ([-127, -127], 254), ([127, -127], 127), ([1, 127, 127], 128), ([0], 0)],
)
def test_a_pair_of_weights_are_neighbours_of_one_sign(codes, pair, monkeypatch):
    width = len(codes)
    as_int8 = Int8Weight(
        torch.tensor([[0] * width, codes]).to(torch.int8), torch.ones(2), torch.zeros(width), torch.ones(width)
    )
    assert as_int8.pair == pair
    for largest in (0, SMALL_PAIR, ANY_PAIR):
        monkeypatch.setattr(int8, "largest_pair", lambda largest=largest: largest)
        assert as_int8.is_fast == (pair <= largest)


@pytest.mark.parametrize("pair", [SMALL_PAIR, ANY_PAIR])
def test_weights_are_rounded_to_pairs_of_the_size_that_is_asked_for(pair):
    _, as_int8 = made(pair=pair)
    assert as_int8.codes_OI.abs().max() == pair // 2
    assert as_int8.pair <= pair


def test_each_row_has_the_same_bits_alone_and_among_others():
    layer, as_int8 = made()
    x_TI = 10 * inputs(530)
    together_TO = as_int8.product(x_TI, layer.bias)
    for row in (0, 16, 383, 384, 529):
        assert torch.equal(as_int8.product(x_TI[row : row + 1], layer.bias)[0], together_TO[row])


def test_the_rounded_weights_are_those_that_int8_multiplies_by():
    layer, as_int8 = made()
    x_TI = inputs(40)
    rounded_TO = x_TI @ as_int8.weight().t() + layer.bias
    found_TO = as_int8.product(x_TI, layer.bias)
    assert (found_TO - rounded_TO).norm() < (found_TO - layer(x_TI)).norm()


def test_rows_of_zeros_and_weights_of_zeros_give_the_bias():
    layer, _ = made()
    zeros_I = torch.zeros(70)
    for weight_OI in (layer.weight, torch.zeros_like(layer.weight)):
        as_int8 = Int8Weight.of(weight_OI, zeros_I, torch.ones(70))
        assert torch.equal(as_int8.product(torch.zeros(3, 70), layer.bias), layer.bias.expand(3, -1))
    assert torch.equal(as_int8.product(torch.ones(3, 70), layer.bias), layer.bias.expand(3, -1))


def test_a_row_of_no_numbers_gives_none_and_touches_no_other():
    layer, as_int8 = made()
    x_TI = inputs(4)
    x_TI[2] = torch.nan
    finite_T = as_int8.product(x_TI, layer.bias).isfinite().all(1)
    assert finite_T.tolist() == [True, True, False, True]


def test_inference_multiplies_in_int8_and_training_in_float32():
    layer, as_int8 = made()
    x_TI = inputs(40)
    expected_TO = layer(x_TI)
    hold(layer.weight, as_int8)
    assert torch.equal(layer(x_TI), expected_TO)
    with torch.inference_mode():
        assert torch.equal(layer(x_TI), as_int8.product(x_TI, layer.bias))
        assert layer.double()(x_TI.double()).dtype == torch.float64


def test_a_weight_that_changes_is_no_longer_the_one_in_int8():
    layer, as_int8 = made()
    hold(layer.weight, as_int8)
    assert held(layer.weight) is as_int8
    with torch.no_grad():
        layer.weight.mul_(2)
    assert held(layer.weight) is None
    hold(layer.weight, as_int8)
    release([layer.weight])
    assert held(layer.weight) is None
    assert held(made()[0].weight) is None
