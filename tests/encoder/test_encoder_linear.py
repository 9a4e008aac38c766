"""The linear map: whatever library computes it, the numbers and gradients are those of torch's own."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)

from bothways.encoder import linear as module
from bothways.encoder.linear import ROW_BLOCK, Linear, linear


@pytest.fixture
def asked(monkeypatch):
    """Rows of each call that oneDNN got."""
    seen = []

    class Recorder:
        def _linear_pointwise(self, x, weight, bias, *_):
            seen.append(len(x))
            return F.linear(x, weight, bias)

    monkeypatch.setattr(module, "ONEDNN_LINEAR", True)
    monkeypatch.setattr(module.torch.ops, "mkldnn", Recorder())
    return seen


@pytest.mark.skipif(not module.ONEDNN_LINEAR, reason="this build of torch has no oneDNN linear operator")
@pytest.mark.parametrize("shape", [(1, 7, 5), (2, 384, 1536), (3, 1536, 384)])
def test_values_equal_those_of_torch(shape):
    blocks, width, outputs = shape
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(size, generator=generator) for size in ((blocks * ROW_BLOCK, width), (outputs, width), (outputs,))
    )
    with torch.no_grad():
        ours, theirs = linear(x, weight, bias), F.linear(x, weight, bias)
    # Sums of up to 1,536 products of standard normal numbers, in another order.
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5e-4)
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


@pytest.mark.parametrize("case", ["gradients", "part of a block", "float64", "one dimension", "no rows", "autocast"])
def test_what_onednn_does_not_serve_goes_to_torch(case, asked):
    layer, x = Linear(3, 2), torch.ones(ROW_BLOCK, 3)
    torch.nn.init.ones_(layer.weight)
    with torch.set_grad_enabled(case == "gradients"):
        if case == "gradients":
            assert layer(x).requires_grad
        elif case == "part of a block":
            assert layer(x[1:]).shape == (ROW_BLOCK - 1, 2)
        elif case == "float64":
            assert layer.double()(x.double()).dtype == torch.float64
        elif case == "one dimension":
            assert layer(x[0]).shape == (2,)
        elif case == "no rows":
            assert layer(x[:0]).shape == (0, 2)
        else:
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(x).dtype == torch.bfloat16
    assert asked == []


def test_whole_blocks_without_gradients_go_to_onednn(asked):
    layer = Linear(3, 2)
    with torch.inference_mode():
        layer(torch.ones(2 * ROW_BLOCK, 3))
    assert asked == [2 * ROW_BLOCK]


def test_a_build_without_the_operator_takes_torch(asked, monkeypatch):
    monkeypatch.setattr(module, "ONEDNN_LINEAR", False)
    with torch.inference_mode():
        assert Linear(3, 2)(torch.ones(ROW_BLOCK, 3)).shape == (ROW_BLOCK, 2)
    assert asked == []
