"""The CPU's dropout: a coin for each element, the same scale for all that are kept."""

import pytest
import torch

from bothways.encoder.modules import Dropout, dropout


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_elements_are_dropped_at_the_rate_and_the_expectation_stays(rate):
    torch.manual_seed(1)
    values = torch.ones(1000, 1001)
    result = dropout(values, rate)
    count = values.numel()
    dropped = int((result == 0).sum())
    # Five standard deviations of a binomial distribution.
    assert abs(dropped - rate * count) < 5 * (count * rate * (1 - rate)) ** 0.5
    kept = result[result != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-4, atol=0)


def test_neighbours_that_share_a_draw_are_independent():
    torch.manual_seed(2)
    dropped = (dropout(torch.ones(400_000), 0.5) == 0).view(-1, 4).double()
    correlation = torch.corrcoef(dropped.T) - torch.eye(4)
    assert correlation.abs().max() < 5 / 100_000**0.5


def test_the_gradient_passes_through_what_was_kept_and_nothing_else():
    values = torch.randn(37, 19, dtype=torch.float64, requires_grad=True)
    result = dropout(values, 0.3)
    result.sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad * values.detach(), result.detach())


def test_a_seed_decides_the_mask():
    values = torch.ones(101)
    torch.manual_seed(3)
    first = dropout(values, 0.5)
    second = dropout(values, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(values, 0.5), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_the_ends_of_the_scale(rate, expected):
    assert torch.equal(dropout(torch.ones(5), rate), torch.full((5,), expected))


@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (5, 7), (2, 0)])
def test_any_shape(shape):
    assert dropout(torch.ones(shape), 0.4).shape == shape


def test_the_module_is_the_identity_outside_training():
    module = Dropout(0.5).eval()
    values = torch.randn(8)
    assert module(values) is values
    assert not torch.equal(module.train()(torch.ones(64)), torch.ones(64))
