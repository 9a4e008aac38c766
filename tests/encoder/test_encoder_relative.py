"""Relative scores by shifted views, and local windows by blocks: what the plain reference gives, gradients too."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from bothways.encoder.attention import BACKENDS, REFERENCE
from bothways.encoder.backends import relative
from bothways.encoder.backends.basic import AttentionCall, RelativeScores
from bothways.encoder.config import LogBuckets
from bothways.encoder.positions import DistanceTable, bucket_rows
from bothways.packing import pack
from tiny_models import random_ids, tiny_encoder

SKEWED, LOCAL, PADDED, FLEX = (BACKENDS[name] for name in ("skewed", "local", "padded", "flex"))
HEADS, WIDTH = 3, 4
TERMS = ("keys", "queries", "both", "shift", "segments", "everything")


def tensors_of(lengths, terms, seed=0):
    """Random tensors of a call by name, wanting gradients, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = sum(lengths), 2 * max(lengths) - 1
    shapes = {"qkv": (rows, 3, HEADS, WIDTH)}
    if terms != "queries":
        shapes["keys"] = (width, HEADS, WIDTH)
    if terms in ("queries", "both", "everything"):
        shapes["queries"] = (width, HEADS, WIDTH)
    if terms in ("shift", "everything"):
        shapes["shift"] = (HEADS, WIDTH)
    if terms in ("segments", "everything"):
        shapes["gain"] = (rows, HEADS)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for name, shape in shapes.items()
    }


def call_of(lengths, tensors, dropout=0.0, scale=0.4):
    types = (torch.arange(sum(lengths)) // 3 % 3).split(lengths)
    bounds = pack([[7] * length for length in lengths], [each.tolist() for each in types], tensors["qkv"].device)
    scores = RelativeScores(*(tensors.get(name) for name in ("keys", "queries", "shift", "gain")))
    return AttentionCall(tensors["qkv"], bounds, scale, dropout, relative=scores)


def outcome(backend, lengths, terms, seed=0):
    """Context and all gradients of a weighted sum of it."""
    tensors = tensors_of(lengths, terms, seed)
    context_TND = backend.attend(call_of(lengths, tensors))
    weights = torch.linspace(-1, 1, context_TND.numel(), dtype=torch.float64).view_as(context_TND)
    (context_TND * weights).sum().backward()
    return {"context": context_TND.detach()} | {name: value.grad for name, value in tensors.items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(
            found[name], expected[name], rtol=0, atol=1e-11, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize(
    ("backend", "lengths"),
    [
        *((SKEWED, each) for each in [(1,), (5, 1, 9), (127, 128, 129), (192, 200), (300, 2)]),
        *((PADDED, each) for each in [(1,), (1, 1), (2,), (9, 4, 1), (70, 3)]),
    ],
)
def test_scores_and_gradients_equal_the_reference(backend, lengths, terms):
    assert_same(outcome(backend, lengths, terms), outcome(REFERENCE, lengths, terms))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple), st.sampled_from(TERMS), st.integers(0, 2**16))
def test_blocks_of_any_length_equal_the_reference(lengths, terms, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relative, "_SHORT", 8)
        patch.setattr(relative, "_BLOCK", 4)
        assert_same(outcome(SKEWED, lengths, terms, seed), outcome(REFERENCE, lengths, terms, seed))


class NoIndexOfPairs(TorchDispatchMode):
    """Fails where a whole number is made for each pair of ``pairs`` tokens, or numbers are read by such an index."""

    def __init__(self, pairs):
        super().__init__()
        self.pairs = pairs

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **kwargs or {})
        for value in [found, *args]:
            if isinstance(value, torch.Tensor) and value.dtype in (torch.int32, torch.int64):
                assert value.numel() < self.pairs, f"{function} has an index of {tuple(value.shape)}"
        return found


@pytest.mark.parametrize("backend", [PADDED, SKEWED], ids=["padded", "skewed"])
@pytest.mark.parametrize("terms", TERMS)
def test_no_index_of_all_pairs_is_made(backend, terms):
    lengths = (40, 31, 1)
    call = call_of(lengths, tensors_of(lengths, terms))
    with NoIndexOfPairs(max(lengths) ** 2):
        backend.attend(call).square().sum().backward()


def test_an_index_of_all_pairs_would_be_noticed():
    lengths = (40, 31, 1)
    with pytest.raises(AssertionError, match="has an index of"), NoIndexOfPairs(max(lengths) ** 2):
        REFERENCE.attend(call_of(lengths, tensors_of(lengths, "keys")))


@pytest.mark.parametrize("model_type", ["deberta", "deberta-v2", "xlnet"])
@pytest.mark.parametrize("lengths", [(1,), (16, 7, 1)])
def test_encoders_whose_texts_are_longer_than_their_distances_equal_the_reference(model_type, lengths):
    encoder = tiny_encoder(model_type, dtype=torch.float64)
    if isinstance(encoder.positions, DistanceTable):
        assert len(encoder.positions.table.weight) < 2 * 16 - 1
    found = []
    for backend in ("padded", "skewed", "reference"):
        encoder.zero_grad()
        hidden_TH = encoder(pack(random_ids(lengths)), backend=backend)
        (hidden_TH * torch.linspace(-1, 1, hidden_TH.numel(), dtype=torch.float64).view_as(hidden_TH)).sum().backward()
        gradients = {name: value.grad for name, value in encoder.named_parameters() if value.grad is not None}
        found.append({"hidden": hidden_TH.detach(), **gradients})
    for ours in found[:2]:
        assert_same(ours, found[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_biases_in_half_precision_are_those_of_float32_but_for_rounding(dtype):
    """Many rows meet one distance: their gradients must not be summed in half precision."""
    lengths, found = (128,) * 8, []
    for precision in (torch.float64, dtype):
        tensors = {name: value.detach().to(precision) for name, value in tensors_of(lengths, "everything").items()}
        tensors = {name: value.requires_grad_() for name, value in tensors.items()}
        context_TND = PADDED.attend(call_of(lengths, tensors))
        # All of one sign, so that a sum that stops growing is seen.
        (context_TND.double() * tensors["qkv"][:, 2].detach().double()).sum().backward()
        found.append({"context": context_TND.detach()} | {name: value.grad for name, value in tensors.items()})
    for name, expected in found[0].items():
        error = (found[1][name].double() - expected).norm() / expected.norm()
        assert error < (0.04 if dtype == torch.bfloat16 else 0.005), f"{name}: {error}"


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("lengths", "terms"),
    [*(((5, 1, 9), each) for each in ("keys", "queries", "segments")), ((1,), "everything"), ((130, 2), "everything")],
)
def test_the_scores_of_the_fused_kernel_equal_the_reference(lengths, terms):
    """Without a GPU it has no gradients."""
    call = call_of(lengths, {name: value.detach() for name, value in tensors_of(lengths, terms).items()})
    torch.testing.assert_close(FLEX.attend(call), REFERENCE.attend(call), rtol=0, atol=1e-11)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("reach", [1, 8, 64, 128])
def test_the_windows_of_the_fused_kernel_equal_the_reference(reach):
    lengths = (130, 3, 300)
    qkv_T3ND = tensors_of(lengths, "queries")["qkv"].detach()
    call = AttentionCall(qkv_T3ND, pack([[7] * length for length in lengths]), 0.4, reach=reach)
    torch.testing.assert_close(FLEX.attend(call), REFERENCE.attend(call), rtol=0, atol=1e-11)


@pytest.mark.gpu
@pytest.mark.parametrize("terms", TERMS)
def test_scores_and_gradients_of_the_fused_kernel_equal_the_reference_on_a_gpu(terms):
    lengths = (127, 1, 300, 64)
    found = []
    for backend in (FLEX, REFERENCE):
        torch.manual_seed(1)
        tensors = {
            name: torch.randn(*value.shape[:-1], 32 if value.shape[-1] == WIDTH else value.shape[-1], device="cuda")
            for name, value in tensors_of(lengths, terms).items()
        }
        tensors = {name: value.requires_grad_() for name, value in tensors.items()}
        context_TND = backend.attend(call_of(lengths, tensors, scale=0.2))
        context_TND.square().sum().backward()
        found.append({"context": context_TND.detach(), **{name: value.grad for name, value in tensors.items()}})
    for name, expected in found[1].items():
        # Its products are made in TF32 or tiles of float32, summed in another order.
        torch.testing.assert_close(found[0][name], expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("lengths", [(6, 9), (140,)])
def test_the_backward_of_dropped_weights_is_that_of_the_forward(lengths):
    """The derivative along a direction, by finite differences under one and the same draw."""
    tensors = tensors_of(lengths, "everything")
    # A direction of its own seed: along some the derivative is nearly nothing, and its difference rounding.
    direction = tensors_of(lengths, "everything", seed=1)

    def loss(step):
        moved = {name: value + step * direction[name] for name, value in tensors.items()}
        torch.manual_seed(5)
        return SKEWED.attend(call_of(lengths, moved, dropout=0.3)).square().sum()

    loss(0.0).backward()
    analytic = sum((value.grad * direction[name]).sum() for name, value in tensors.items()).item()
    with torch.no_grad():
        numeric = ((loss(1e-5) - loss(-1e-5)) / 2e-5).item()
    assert analytic == pytest.approx(numeric, rel=1e-6)


def test_dropped_weights_keep_their_expectation():
    lengths = (30,)
    tensors = {name: value.detach() for name, value in tensors_of(lengths, "both").items()}
    tensors["qkv"][:, 2] = 1.0
    torch.manual_seed(0)
    dropped = torch.stack([SKEWED.attend(call_of(lengths, tensors, dropout=0.5)) for _ in range(400)])
    assert dropped.std() > 0.05
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("reach", [1, 3, 8, 64])
@pytest.mark.parametrize("lengths", [(1, 2, 9), (64, 65, 66), (130, 3), (200,)])
@pytest.mark.parametrize("backend", [LOCAL, PADDED], ids=["local", "padded"])
def test_local_windows_equal_the_reference(lengths, reach, backend):
    found = []
    for one in (backend, REFERENCE):
        qkv_T3ND = tensors_of(lengths, "queries")["qkv"]
        bounds = pack([[7] * length for length in lengths])
        context_TND = one.attend(AttentionCall(qkv_T3ND, bounds, 0.4, reach=reach))
        context_TND.square().sum().backward()
        found.append((context_TND.detach(), qkv_T3ND.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("span", "furthest", "longest"), [(256, 512, 512), (8, 64, 100), (4, 32, 20)])
def test_log_buckets_are_exact_nearby_odd_and_ever_wider(span, furthest, longest):
    rows = torch.from_numpy(bucket_rows(LogBuckets(span, furthest), longest)) - span
    middle, near = longest - 1, span // 2
    assert rows[middle - near : middle + near + 1].tolist() == list(range(-near, near + 1))
    # The last row of the nearer side is cut off by the size of the table.
    inner = [(-d, d) for d in range(1, longest) if rows[middle - d] > -span]
    assert all(rows[middle + low] == -rows[middle + high] for low, high in inner)
    counts = torch.unique_consecutive(rows[middle + near :], return_counts=True)[1].tolist()[:-1]
    assert (rows.diff() >= 0).all()
    assert counts[-1] >= counts[0]
    expected = math.ceil(math.log((furthest // 2) / near) / math.log((furthest - 1) / near) * (near - 1)) + near
    if furthest // 2 < longest:
        assert rows[middle + furthest // 2] == expected
