"""Attention backends: which serves what, and that all of them compute the same."""

import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.encoder import Encoder
from bothways.encoder.attention import BACKENDS, REFERENCE, choose
from bothways.encoder.backends import gpu
from bothways.encoder.backends.basic import SDPA, AttentionCall, AttentionRequest, Grouped
from bothways.encoder.backends.masked import Padded
from bothways.errors import UnsupportedAttention
from bothways.packing import pack
from tiny_models import backends_of, every_family, random_ids, scramble, tiny_config, tiny_encoder

ON_GPU = AttentionRequest("cuda", torch.bfloat16, 64, 0.0, weights=False, capability=8)
ON_CPU = AttentionRequest("cpu", torch.float32, 64, 0.0, weights=False)
ragged = st.lists(st.integers(1, 12), min_size=1, max_size=6).map(tuple)


def call_of(qkv_T3ND, bounds, dropout=0.0):
    return AttentionCall(qkv_T3ND, bounds, qkv_T3ND.shape[-1] ** -0.5, dropout)


@pytest.fixture
def kernels(monkeypatch):
    """Pretend which of the two variable-length kernels are there."""

    def pretend(*, torch_has_one, flash_attn=None):
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: torch_has_one)
        monkeypatch.setattr(gpu, "flash_attn_kernel", lambda: flash_attn)

    return pretend


@every_family
def test_the_backends_that_serve_a_family_are_those_its_tests_run_with(model_type):
    encoder = tiny_encoder(model_type)
    packed = pack(random_ids((2, encoder.config.max_length or 18)))

    def serves(name):
        try:
            with torch.no_grad():
                encoder(packed, backend=name)
        except UnsupportedAttention:
            return False
        return True

    assert [name for name in BACKENDS if serves(name)] == backends_of(model_type)[1:]


def test_an_unknown_backend_is_refused_and_the_known_ones_are_named():
    with pytest.raises(UnsupportedAttention, match=r"'flash'.* varlen, sdpa, .*, skewed, local, flex, reference"):
        choose(ON_CPU, "flash")


@pytest.mark.parametrize(
    ("name", "request_", "words"),
    [
        ("varlen", ON_CPU, "needs a CUDA device, not 'cpu'"),
        ("varlen", replace(ON_GPU, dtype=torch.float32), "needs float16 or bfloat16, not torch.float32"),
        ("varlen", replace(ON_GPU, head_width=12), "multiple of 8 up to 256, not 12"),
        ("varlen", replace(ON_GPU, head_width=264), "multiple of 8 up to 256, not 264"),
        ("varlen", replace(ON_GPU, capability=7), r"compute capability 8\.0 or newer, and this one has 7\.x"),
        ("varlen", replace(ON_GPU, weights=True), "does not return attention weights"),
        ("varlen", replace(ON_GPU, relative=True), "no scores that depend on distances"),
        ("flex", ON_CPU, "needs a CUDA device, not 'cpu'"),
        ("flex", replace(ON_GPU, head_width=8), "a head width of at least 16, not 8"),
        ("flex", replace(ON_GPU, dropout=0.1), "no attention dropout"),
        ("flex", replace(ON_GPU, weights=True), "does not return attention weights"),
    ],
)
def test_a_named_backend_says_why_it_cannot_serve(kernels, name, request_, words):
    kernels(torch_has_one=True)
    with pytest.raises(UnsupportedAttention, match=f"'{name}' cannot serve this call: .*{words}"):
        choose(request_, name)
    assert name == "flex" or choose(request_).name != name


def test_flex_serves_distances_and_windows_by_name_alone():
    for request_ in (ON_GPU, replace(ON_GPU, relative=True), replace(ON_GPU, local=True)):
        assert choose(request_, "flex").name == "flex"
        assert choose(request_).name != "flex"


def test_varlen_without_a_kernel_says_which_ones_there_could_be(kernels):
    kernels(torch_has_one=False)
    with pytest.raises(UnsupportedAttention, match="built without flash attention, and there is no flash_attn package"):
        choose(ON_GPU, "varlen")


@pytest.mark.parametrize("has", [{"torch_has_one": True}, {"torch_has_one": False, "flash_attn": print}])
def test_varlen_serves_dropout_and_windows(kernels, has):
    kernels(**has)
    for request_ in (ON_GPU, replace(ON_GPU, dropout=0.1), replace(ON_GPU, local=True, dtype=torch.float16)):
        assert choose(request_).name == "varlen"


def test_a_flash_attn_that_cannot_be_imported_or_lacks_the_kernel_is_not_used(monkeypatch, tmp_path):
    for content in ("raise ImportError('undefined symbol')", "flash_attn_func = None", "raise OSError('libcudart')"):
        (tmp_path / "flash_attn.py").write_text(content)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
        gpu.flash_attn_kernel.cache_clear()
        assert gpu.flash_attn_kernel() is None
    gpu.flash_attn_kernel.cache_clear()


def test_torch_has_the_kernel_as_it_is_called():
    # The oldest torch that the package goes with has it so too; a later one may not.
    schema = torch.ops.aten._flash_attention_forward.default._schema
    names = [argument.name for argument in schema.arguments]
    assert names[:10] == [
        *("query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p"),
        *("is_causal", "return_debug_mask"),
    ]
    assert {"scale", "window_size_left", "window_size_right"} <= set(names[10:])
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::_flash_attention_backward", "Meta")
    assert "Autograd" in torch._C._dispatch_dump("aten::_flash_attention_forward")


def test_the_fastest_backend_that_can_serve_is_chosen(kernels):
    kernels(torch_has_one=True)
    assert choose(ON_GPU).name == "varlen"
    assert choose(replace(ON_GPU, dtype=torch.float32)).name == "padded"
    assert choose(ON_CPU).name == "sdpa"
    assert choose(replace(ON_CPU, dropout=0.1)).name == "grouped"
    assert choose(replace(ON_CPU, weights=True)).name == "reference"


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_dropout_keeps_one_tensor_of_the_size_of_the_scores_and_computes_the_same(rate, monkeypatch):
    heads, lengths = 3, (20, 20, 19, 18)
    batch = pack([list(range(length)) for length in lengths])
    qkv_T3ND = torch.randn(sum(lengths), 3, heads, 8, requires_grad=True)
    gradient_TND = torch.randn(sum(lengths), heads, 8)
    kept = {}

    def seen(tensor):
        if tensor.dim() > 2 and tensor.shape[-1] == tensor.shape[-2] == max(lengths):
            kept[tensor.data_ptr()] = tensor.shape
        return tensor

    def gradient():
        torch.manual_seed(0)
        with torch.autograd.graph.saved_tensors_hooks(seen, lambda tensor: tensor):
            context_TND = Grouped().attend(call_of(qkv_T3ND, batch, rate))
        return context_TND, *torch.autograd.grad(context_TND, qkv_T3ND, gradient_TND)

    found = gradient()
    assert len(kept) == 1
    with monkeypatch.context() as patch:  # as in half precision, step by step
        patch.setattr(torch, "is_autocast_enabled", lambda _: True)
        kept.clear()  # the allocator may give a tensor the address of one that is gone
        stepwise = gradient()
    assert len(kept) >= 3
    assert torch.equal(found[0], stepwise[0])
    # Some processors add in another order where a factor of the product is transposed.
    torch.testing.assert_close(found[1], stepwise[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", BACKENDS)
def test_the_named_backend_is_the_one_that_runs(name, monkeypatch):
    class Reached(Exception):
        pass

    def attend(*_):
        raise Reached

    monkeypatch.setattr(type(BACKENDS[name]), "refusal", lambda *_: None)
    monkeypatch.setattr(type(BACKENDS[name]), "attend", attend)
    with pytest.raises(Reached):
        tiny_encoder()(pack([[5, 6]]), backend=name)


@settings(max_examples=30)
@given(lengths=ragged, seed=st.integers(0, 2**16))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kernel", [SDPA(), Grouped(), Padded()], ids=lambda kernel: kernel.name)
def test_the_fast_backends_equal_the_reference(kernel, dtype, tolerance, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    qkv_T3ND = torch.randn(sum(lengths), 3, 4, 6, generator=generator, dtype=dtype)
    bounds = pack(random_ids(lengths))
    difference = kernel.attend(call_of(qkv_T3ND, bounds)) - REFERENCE.attend(call_of(qkv_T3ND, bounds))
    assert difference.abs().max() < tolerance


@settings(max_examples=15)
@given(lengths=ragged)
@pytest.mark.parametrize("kernel", [SDPA(), Grouped(), Padded()], ids=lambda kernel: kernel.name)
def test_gradients_of_the_fast_backends_equal_those_of_the_reference(kernel, lengths):
    bounds = pack(random_ids(lengths))
    gradients = []
    for backend in (kernel, REFERENCE):
        qkv_T3ND = torch.randn(
            sum(lengths), 3, 2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        ).requires_grad_()
        backend.attend(call_of(qkv_T3ND, bounds)).square().sum().backward()
        gradients.append(qkv_T3ND.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", [SDPA(), Grouped(), REFERENCE], ids=lambda backend: backend.name)
def test_attention_dropout_keeps_the_mean(backend):
    torch.manual_seed(0)
    bounds = pack([[5] * 3] * 4000)
    qkv_T3ND = torch.ones(12000, 3, 1, 4)
    context_TND = backend.attend(call_of(qkv_T3ND, bounds, 0.3))
    assert context_TND.std() > 0.1
    assert context_TND.mean().item() == pytest.approx(1.0, abs=0.03)


def gpu_encoder():
    config = replace(
        tiny_config("bert"), hidden=32, heads=4, embedding=replace(tiny_config("bert").embedding, width=32)
    )
    return scramble(Encoder(config), spread=0.1).cuda().bfloat16()


@pytest.mark.gpu
@settings(max_examples=20)
@given(lengths=ragged)
def test_varlen_equals_the_reference_in_half_precision(lengths):
    encoder, packed = gpu_encoder(), pack(random_ids(lengths), device="cuda")
    with torch.no_grad():
        found_TH, expected_TH = (encoder(packed, backend=name) for name in ("varlen", "reference"))
        exact_TH = encoder.float()(packed, backend="reference")
    rounding = (expected_TH.float() - exact_TH).abs().max()
    assert (found_TH.float() - exact_TH).abs().max() < 2 * rounding + 1e-2


@pytest.mark.gpu
def test_varlen_has_the_gradients_of_the_reference():
    packed = pack(random_ids((1, 12, 5, 5)), device="cuda")
    gradients = []
    for name in ("varlen", "reference"):
        encoder = gpu_encoder()
        encoder(packed, backend=name).float().square().mul(torch.linspace(0.5, 1.5, 32).cuda()).sum().backward()
        gradients.append(encoder.layers[0].attention.qkv.weight.grad.float())
    assert torch.linalg.vector_norm(gradients[0] - gradients[1]) < 0.05 * torch.linalg.vector_norm(gradients[1])


@pytest.mark.gpu
def test_varlen_is_what_half_precision_on_a_gpu_gets():
    assert choose(ON_GPU).name == "varlen"
