"""CUDA emulated with tensors on a CPU, for what can go wrong on a GPU and a machine without one would not notice.

Emulated are the casts of autocast, which has other lists on CUDA than on a CPU; the variable-length kernel, which takes
half precision alone; the backends that a GPU gets. Refused is what is wrong or slow there: sums in half precision,
which CUDA rounds at each step, and, where asked for (`no_waits`), whatever has the host wait for the device.

What is not emulated: the speed, the memory, and copies between host and device.
"""

from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bothways.encoder import attention
from bothways.encoder.attention import REFERENCE
from bothways.encoder.backends import gpu
from bothways.encoder.backends.basic import AttentionCall
from bothways.packing import Packed

# From "CUDA Ops that can autocast" in torch's documentation (torch.amp), those that a text encoder could call, and the
# functions of torch.nn.functional that consist of them.
TO_HALF = {
    *("matmul", "mm", "bmm", "mv", "addmm", "addmv", "baddbmm", "addbmm", "linear", "einsum", "chain_matmul"),
    *("conv1d", "conv2d", "conv3d", "prelu", "scaled_dot_product_attention", "linalg_vecdot", "multi_dot"),
}
TO_FLOAT32 = {
    *("softmax", "log_softmax", "layer_norm", "group_norm", "sum", "prod", "cumsum", "cumprod", "norm"),
    *("vector_norm", "exp", "expm1", "log", "log10", "log2", "log1p", "pow", "reciprocal", "rsqrt", "erfinv"),
    *("acos", "asin", "cosh", "sinh", "tan", "softplus", "logsumexp", "cdist", "pdist", "dist", "renorm"),
    *("cosine_similarity", "normalize", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss"),
    *("huber_loss", "kl_div", "triplet_margin_loss", "binary_cross_entropy_with_logits"),
    *("cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "multilabel_soft_margin_loss"),
    *("multi_margin_loss", "soft_margin_loss"),
}
TO_WIDEST = {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "index_put", "scatter_add", "tensordot"}
REFUSED = {"binary_cross_entropy"}

# They read a value on the host.
WAITS = {"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__"}
WAITS_INSIDE = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero"}


class CudaAutocast(TorchFunctionMode):
    """Casts as autocast does on CUDA where autocast is on for the CPU, and then leaves no cast to the CPU's lists."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        del types
        kwargs = kwargs or {}
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "").strip("_")
        name = {"rmatmul": "matmul", "rpow": "pow"}.get(name.removeprefix("linalg_"), name.removeprefix("linalg_"))
        assert name not in REFUSED, f"autocast on CUDA refuses {name}"
        half = torch.get_autocast_dtype("cpu")
        if name in TO_HALF:
            args, kwargs = _cast((args, kwargs), half)
        elif name in TO_FLOAT32:
            args, kwargs = _cast((args, kwargs), torch.float32)
        elif name in TO_WIDEST and _widest((args, kwargs)) is not None:
            args, kwargs = _cast((args, kwargs), _widest((args, kwargs)))
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)


class SumsInFloat32(TorchDispatchMode):
    """Fails where CUDA would sum in half precision, also in a backward pass."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        del types
        name = function.overloadpacket.__name__.strip("_")
        if name in ("index_add", "scatter_add") and args[0].dtype in (torch.bfloat16, torch.float16):
            places = args[2].movedim(args[1], -1).sort(-1).values
            twice = places[..., 1:] == places[..., :-1]
            assert not twice.any(), f"{name} adds in {str(args[0].dtype).removeprefix('torch.')}"
        return function(*args, **kwargs or {})


class NoWaits(TorchFunctionMode):
    """Fails where the host would have to wait for a GPU to know a value."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        del types
        name = getattr(function, "__name__", "")
        assert name not in WAITS, f"{name} waits for the device"
        return function(*args, **kwargs or {})


class NoWaitsInside(TorchDispatchMode):
    """As `NoWaits`, for what happens inside of other operations, such as a mask as an index."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        del types
        name = function.overloadpacket.__name__
        assert name not in WAITS_INSIDE, f"{name} waits for the device"
        if name in ("index", "index_put", "index_put_"):
            masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
            assert not masks, "an index that is a mask waits for the device"
        if name == "repeat_interleave":
            assert (kwargs or {}).get("output_size") is not None, "repeat_interleave without its size waits"
        return function(*args, **kwargs or {})


@contextmanager
def no_waits():
    """Fail where something waits for the device."""
    with NoWaits(), NoWaitsInside():
        yield


def flash_attention(q_TND, k_TND, v_TND, starts, starts_k, longest, longest_k, **options):
    """Stands in for ``flash_attn.flash_attn_varlen_func``: what it takes, its rounding, and its type."""
    assert options.keys() == {"dropout_p", "softmax_scale", "window_size"}
    assert {each.dtype for each in (q_TND, k_TND, v_TND)} <= {torch.float16, torch.bfloat16}
    assert all(each.stride(-1) == 1 for each in (q_TND, k_TND, v_TND))
    assert starts is starts_k
    assert starts.dtype == torch.int32
    with torch._C.DisableTorchFunction():
        lengths = tuple(starts.diff().tolist())
    assert longest == longest_k == max(lengths)
    left, right = options["window_size"]
    assert left == right
    empty = torch.empty(0, dtype=torch.int64)
    types_T = torch.zeros(len(q_TND), dtype=torch.int64)
    packed = Packed(types_T, types_T, empty, starts, lengths)
    with torch.autocast("cpu", enabled=False):
        qkv_T3ND = torch.stack([q_TND, k_TND, v_TND], 1).float()
        reach = None if left < 0 else left
        call = AttentionCall(qkv_T3ND, packed, options["softmax_scale"], options["dropout_p"], reach)
        return REFERENCE.attend(call).to(q_TND.dtype)


@contextmanager
def emulated_cuda(monkeypatch, *, capability=9):
    """Let attention take its batches for those of a GPU, and autocast on a CPU cast as on CUDA.

    Yields:
        A list that grows by the name of each backend that is chosen.
    """
    names, choose = [], attention.choose

    def choose_as_on_a_gpu(request, name=None):
        chosen = choose(replace(request, device="cuda", capability=capability), name)
        names.append(chosen.name)
        return chosen

    with monkeypatch.context() as patch, CudaAutocast(), SumsInFloat32():
        patch.setattr(attention, "choose", choose_as_on_a_gpu)
        patch.setattr(gpu, "flash_attn_kernel", lambda: flash_attention)
        yield names


def _cast(values, dtype):
    """The same arguments with their floating-point tensors in another type, but for float64."""
    if isinstance(values, torch.Tensor):
        return values.to(dtype) if values.is_floating_point() and values.dtype != torch.float64 else values
    if isinstance(values, list | tuple):
        return type(values)(_cast(value, dtype) for value in values)
    if isinstance(values, dict):
        return {name: _cast(value, dtype) for name, value in values.items()}
    return values


def _widest(values):
    if isinstance(values, torch.Tensor):
        return values.dtype if values.is_floating_point() else None
    inside = values.values() if isinstance(values, dict) else values if isinstance(values, list | tuple) else ()
    found = [dtype for dtype in map(_widest, inside) if dtype is not None]
    return max(found, key=lambda dtype: dtype.itemsize, default=None)
