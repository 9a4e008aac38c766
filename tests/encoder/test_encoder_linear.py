"""The linear map: whatever library computes it, the numbers and gradients are those of torch's own."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)

from bothways.encoder import linear as module
from bothways.encoder.linear import Linear, linear

onednn = pytest.mark.skipif(not module.ONEDNN_LINEAR, reason="this build of torch has no oneDNN linear operator")


@onednn
@pytest.mark.parametrize("shape", [(1, 7, 5), (33, 384, 1536), (64, 1536, 384)])
def test_values_and_gradients_equal_those_of_torch(shape):
    rows, width, outputs = shape
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(size, generator=generator) for size in ((rows, width), (outputs, width), (outputs,))]
    seed_TO = torch.randn(rows, outputs, generator=generator)
    found = []
    for compute in (linear, F.linear):
        x, weight, bias = (value.clone().requires_grad_() for value in given)
        y_TO = compute(x, weight, bias)
        y_TO.backward(seed_TO)
        found.append([y_TO.detach(), x.grad, weight.grad, bias.grad])
    for ours, theirs in zip(*found, strict=True):
        # Sums of up to 1,536 products of standard normal numbers, in another order.
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5e-4)
        assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


@onednn
def test_only_the_gradients_that_are_wanted_are_computed():
    x_TI, weight_OI = torch.randn(4, 3), torch.randn(2, 3, requires_grad=True)
    linear(x_TI, weight_OI, torch.zeros(2)).sum().backward()
    assert x_TI.grad is None
    torch.testing.assert_close(weight_OI.grad, x_TI.sum(0).expand(2, 3))


@pytest.mark.parametrize("case", ["float64", "one dimension", "no rows", "autocast", "no operator"])
def test_what_onednn_does_not_serve_goes_to_torch(case, monkeypatch):
    def refuse(*_):
        raise AssertionError("oneDNN was asked")

    monkeypatch.setattr(module, "_product", refuse)
    layer, x = Linear(3, 2), torch.ones(4, 3)
    torch.nn.init.ones_(layer.weight)
    if case == "float64":
        assert layer.double()(x.double()).dtype == torch.float64
    elif case == "one dimension":
        assert layer(x[0]).shape == (2,)
    elif case == "no rows":
        assert layer(x[:0]).shape == (0, 2)
    elif case == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
    else:
        monkeypatch.setattr(module, "ONEDNN_LINEAR", False)
        assert layer(x).shape == (4, 2)
