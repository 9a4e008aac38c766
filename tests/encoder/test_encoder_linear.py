"""The linear map: whatever library computes it, the numbers and gradients are those of torch's own."""

import copy
import gc
import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)

from bothways import products
from bothways.encoder import linear as module
from bothways.encoder.linear import Linear, linear, rows_to_fill
from bothways.products import ROW_BLOCK

needs_onednn = pytest.mark.skipif(
    not products._has_onednn(), reason="this build of torch has no oneDNN linear operator"
)


def use(monkeypatch, product):
    monkeypatch.setattr(module, "matrix_product", lambda: product)


@pytest.fixture
def asked(monkeypatch):
    """Rows of each product that oneDNN got."""
    seen = []

    def recorded(x, weight, bias=None):
        seen.append(len(x))
        return F.linear(x, weight, bias)

    use(monkeypatch, products.ONEDNN)
    monkeypatch.setattr(module, "onednn_product", recorded)
    return seen


def drawn(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def close(ours, theirs):
    """Equality of sums of standard normal products in another order, up to float32 rounding."""
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5e-4)
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


@needs_onednn
@pytest.mark.parametrize("rows", [ROW_BLOCK, 3 * ROW_BLOCK, 775, 70, 60])
@pytest.mark.parametrize("widths", [(7, 5), (384, 1536), (1536, 384)])
def test_values_and_gradients_equal_those_of_torch(rows, widths, monkeypatch):
    width, outputs = widths
    use(monkeypatch, products.ONEDNN)
    x, weight, bias, gradient = drawn((rows, width), (outputs, width), (outputs,), (rows, outputs))
    with torch.no_grad():
        close(linear(x, weight, bias), F.linear(x, weight, bias))
    for each in (x, weight, bias):
        each.requires_grad_()
    ours, theirs = linear(x, weight, bias), F.linear(x, weight, bias)
    close(ours.detach(), theirs.detach())
    for mine, expected in zip(
        torch.autograd.grad(ours, (x, weight, bias), gradient),
        torch.autograd.grad(theirs, (x, weight, bias), gradient),
        strict=True,
    ):
        assert mine.shape == expected.shape
        close(mine, expected)


@needs_onednn
def test_a_gradient_may_be_a_view_and_a_result_may_be_written_to(monkeypatch):
    use(monkeypatch, products.ONEDNN)
    x, weight = drawn((60, 8), (4, 8))
    weight.requires_grad_()
    linear(x, weight, None).add_(1.0).sum().backward()  # an expanded gradient
    close(weight.grad, x.sum(0).expand(4, 8))


@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_gradients_that_nobody_wants_are_not_computed(frozen, asked):
    x, weight, bias = drawn((ROW_BLOCK, 3), (2, 3), (2,))
    tensors = {"x": x, "weight": weight, "bias": bias}
    for name, each in tensors.items():
        each.requires_grad_(name != frozen)
    linear(x, weight, bias).sum().backward()
    assert tensors[frozen].grad is None
    assert len(asked) == (3 if frozen == "bias" else 2)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("case", ["far from a whole block", "float64", "one dimension", "no rows", "autocast"])
def test_what_onednn_does_not_serve_goes_to_torch(case, grad, asked):
    layer, x = Linear(3, 2), torch.ones(ROW_BLOCK, 3)
    torch.nn.init.ones_(layer.weight)
    with torch.set_grad_enabled(grad):
        if case == "far from a whole block":
            assert layer(x[: ROW_BLOCK * 2 // 3]).shape == (ROW_BLOCK * 2 // 3, 2)
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


@pytest.mark.parametrize(
    ("rows", "wide", "narrow"),
    [
        (ROW_BLOCK, ROW_BLOCK, ROW_BLOCK),
        (2 * ROW_BLOCK - 9, 2 * ROW_BLOCK, ROW_BLOCK),  # the narrower side is copied: the input, or the result
        (ROW_BLOCK + 9, ROW_BLOCK, ROW_BLOCK),  # too many zeros
        (ROW_BLOCK - 9, ROW_BLOCK, ROW_BLOCK),
    ],
)
def test_onednn_gets_whole_blocks(rows, wide, narrow, asked):
    for layer, expected in ((Linear(2, 3), wide), (Linear(3, 2), narrow)):
        x = torch.ones(rows, layer.in_features)
        with torch.inference_mode():
            assert layer(x).shape == (rows, layer.out_features)
        assert asked.pop() == expected
        layer(x).sum().backward()
        forward, *gradient = asked
        assert forward == expected
        # A row for each output; rows that make no block are summed by torch.
        assert gradient == ([layer.out_features] if rows >= ROW_BLOCK else [])
        asked.clear()


def test_torch_multiplies_where_it_is_chosen(asked, monkeypatch):
    use(monkeypatch, products.TORCH)
    assert Linear(3, 2)(torch.ones(ROW_BLOCK, 3)).shape == (ROW_BLOCK, 2)
    assert asked == []


PACKED = replace(products.TORCH, packed_rows=products.ALL_ROWS)
PACKED_FOR_FEW = replace(products.TORCH, packed_rows=products.FEW_ROWS)


@needs_onednn
@pytest.mark.parametrize("rows", [1, 8, 17, 64, 70, 130, 300])
@pytest.mark.parametrize("bias", [False, True])
def test_inference_with_packed_weights_gives_the_numbers_of_torch(rows, bias, monkeypatch):
    use(monkeypatch, PACKED)
    made, (x, weight) = Linear(24, 40, bias=bias), drawn((rows, 24), (40, 24))
    made.weight = torch.nn.Parameter(weight)
    if bias:
        torch.nn.init.ones_(made.bias)
    with torch.inference_mode():
        found = made(x)
        close(found, F.linear(x, made.weight, made.bias))
        found.add_(1.0)  # others write into the result
    assert made(x).requires_grad  # a training takes the weight itself


@needs_onednn
@pytest.mark.parametrize("change", ["in place", "loaded", "replaced", "optimizer", "dtype and back"])
def test_a_parameter_that_changed_is_packed_anew(change, monkeypatch):
    use(monkeypatch, PACKED)
    layer, (x, weight) = Linear(24, 40, bias=False), drawn((9, 24), (40, 24))
    torch.nn.init.ones_(layer.weight)
    with torch.inference_mode():
        layer(x)
    if change == "in place":
        with torch.no_grad():
            layer.weight.copy_(weight)
    elif change == "loaded":
        layer.load_state_dict({"weight": weight})
    elif change == "replaced":
        layer.weight = torch.nn.Parameter(weight)
    elif change == "optimizer":
        layer(x).sum().backward()
        torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True).step()
        weight = layer.weight.detach().clone()
        assert not torch.equal(weight, torch.ones_like(weight))
    else:
        layer.to(torch.float64).to(torch.float32)
        weight = torch.ones_like(weight)
    with torch.inference_mode():
        close(layer(x), x @ weight.t())


@needs_onednn
def test_packed_copies_go_with_their_parameters_and_are_no_part_of_a_module(monkeypatch):
    use(monkeypatch, PACKED)
    gc.collect()
    before, layer = len(module._kept), Linear(24, 40)
    with torch.inference_mode():
        layer(torch.ones(9, 24))
    assert len(module._kept) == before + 1
    assert set(layer.state_dict()) == {"weight", "bias"}
    pickle.dumps(copy.deepcopy(layer))
    del layer
    gc.collect()
    assert len(module._kept) == before


@needs_onednn
def test_weights_that_torch_does_not_count_are_not_packed(monkeypatch):
    use(monkeypatch, PACKED)
    gc.collect()
    before = len(module._kept)
    with torch.inference_mode():
        layer = Linear(24, 40)
        layer(torch.ones(9, 24))
        linear(torch.ones(9, 24), torch.ones(40, 24), None)
    assert len(module._kept) == before


@pytest.mark.parametrize(("rows", "filled"), [(1, 8), (16, 16), (65, 80), (129, 160), (257, 320), (2048, 2048)])
def test_batches_of_inference_are_filled_up_to_small_blocks_where_weights_are_packed(rows, filled, monkeypatch):
    use(monkeypatch, PACKED)
    assert rows + rows_to_fill(rows) == filled


@needs_onednn
def test_weights_packed_for_few_rows_are_not_read_for_many(monkeypatch):
    use(monkeypatch, PACKED_FOR_FEW)
    layer, few = Linear(24, 40, bias=False), products.FEW_ROWS
    weight = torch.nn.init.normal_(layer.weight).detach()
    for rows, is_packed in ((few, True), (few + 1, False), (1, True)):
        (x,) = drawn((rows, 24))
        with torch.inference_mode():
            close(layer(x), x @ weight.t())
        assert isinstance(module.form_of(layer.weight, rows), module.PackedWeight) == is_packed
    assert [rows_to_fill(rows) for rows in (few - 1, few + 1)] == [1, 0]


def test_a_form_that_was_chosen_is_read_for_any_number_of_rows(monkeypatch):
    use(monkeypatch, PACKED_FOR_FEW)
    layer = Linear(8, 4, bias=False)
    chosen = module.BFloat16Weight.of(torch.ones(4, 8))
    module.hold(layer.weight, chosen)
    assert [module.form_of(layer.weight, rows) for rows in (1, products.FEW_ROWS + 1)] == [chosen, chosen]
