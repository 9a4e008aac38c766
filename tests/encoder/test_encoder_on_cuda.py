"""The encoder as a GPU computes it, emulated on a CPU (`cuda_emulation`): casts, sums in half precision, no waits."""

from dataclasses import replace

import pytest
import torch

from bothways.encoder import Encoder
from bothways.encoder.backends import gpu, masked
from bothways.encoder.config import DropoutRates
from bothways.encoder.head_kinds import EachToken, FirstToken, LastToken, MeanOfTokens
from bothways.encoder.heads import read_rows
from bothways.packing import SelectedRows, pack
from cuda_emulation import emulated_cuda, no_waits
from tiny_models import every_family, random_ids, random_types, scramble, tiny_config

LENGTHS = (13, 9, 9, 2)
READS = {
    "first token": lambda encoder, batch: read_rows(FirstToken(), encoder, batch),
    "last token": lambda encoder, batch: read_rows(LastToken(), encoder, batch),
    "mean": lambda encoder, batch: read_rows(MeanOfTokens(), encoder, batch),
    "each token": lambda encoder, batch: read_rows(EachToken(), encoder, batch),
    "selected": lambda encoder, batch: encoder(batch, rows=SelectedRows(torch.tensor([0, 5, 14, 31]))),
}


def encoder_of(model_type, *, dropout=False):
    """A tiny encoder in training, with heads as wide as flash attention wants them."""
    config = tiny_config(model_type)
    rates = config.dropout if dropout else DropoutRates(hidden=0.0, attention=0.0, head=0.0, embedding=0.0)
    embedding = config.embedding
    if embedding.width == config.hidden:
        embedding = replace(embedding, width=32)
    config = replace(config, hidden=32, heads=4, embedding=embedding, dropout=rates)
    return scramble(Encoder(config), spread=0.1).train()


def batch_for(encoder):
    types = random_types(LENGTHS) if encoder.config.embedding.types > 1 else None
    return pack(random_ids(LENGTHS), types)


def gradients_of(encoder, read, batch):
    encoder.zero_grad()
    hidden = read(encoder, batch)
    loss = (hidden.float() * torch.linspace(-1.0, 1.0, hidden.numel()).view_as(hidden)).sum()
    loss.backward()
    return hidden.detach(), torch.cat([each.grad.flatten() for each in encoder.parameters() if each.grad is not None])


@pytest.mark.parametrize("name", READS)
@every_family
def test_a_step_in_bfloat16_is_that_of_float32_but_for_rounding(model_type, name, monkeypatch):
    encoder = encoder_of(model_type)
    batch = batch_for(encoder)
    expected, expected_gradient = gradients_of(encoder, READS[name], batch)
    with emulated_cuda(monkeypatch), torch.autocast("cpu", torch.bfloat16):
        found, gradient = gradients_of(encoder, READS[name], batch)
    assert (found.float() - expected).norm() < 0.03 * expected.norm()
    assert (gradient - expected_gradient).norm() < 0.1 * expected_gradient.norm()


@pytest.mark.parametrize("name", READS)
@every_family
def test_nothing_waits_for_the_device(model_type, name, monkeypatch):
    encoder = encoder_of(model_type, dropout=True)
    batch = batch_for(encoder)
    with emulated_cuda(monkeypatch), torch.autocast("cpu", torch.bfloat16), no_waits():
        READS[name](encoder, batch).float().sum().backward()


@pytest.mark.parametrize("dropout", [False, True])
@every_family
def test_scores_without_distances_go_to_flash_attention(model_type, dropout, monkeypatch):
    encoder = encoder_of(model_type, dropout=dropout)
    with emulated_cuda(monkeypatch) as chosen, torch.autocast("cpu", torch.bfloat16):
        encoder(batch_for(encoder))
    positions = encoder.layers[0].attention.positions
    relative = positions is not None and positions.has_scores
    assert set(chosen) == {"padded" if relative else "varlen"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_over_tokens_are_not_in_half_precision(dtype, monkeypatch):
    ones_TH, batch = torch.ones(1000, 2, dtype=dtype), pack([[5] * 1000])
    with emulated_cuda(monkeypatch):
        with pytest.raises(AssertionError, match=r"index_add adds in b?float16"):
            torch.zeros(1, 2, dtype=dtype).index_add(0, batch.sequence_T, ones_TH)
        sums_BH = batch.sums(ones_TH)
    assert sums_BH.dtype == torch.float32
    assert sums_BH.tolist() == [[1000.0, 1000.0]]


def test_padded_attention_is_computed_without_cudnn_on_a_gpu():
    usual = torch.backends.cuda.cudnn_sdp_enabled()
    assert usual
    with masked._kernels(torch.device("cpu")):
        assert torch.backends.cuda.cudnn_sdp_enabled()
    with masked._kernels(torch.device("cuda")):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize(
    "error", [None, ImportError("no module named triton"), RuntimeError("Failed to find C compiler")]
)
def test_the_rotation_is_one_kernel_where_that_can_be_compiled(error, monkeypatch):
    def rotate(*_):
        if error is not None:
            raise error

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, **_: zeros(*shape))
    monkeypatch.setattr(gpu, "rotate", rotate)
    gpu.can_rotate.cache_clear()
    assert gpu.can_rotate() == (error is None)
    gpu.can_rotate.cache_clear()
