"""A real GPU: every backend and family beside the CPU, training of every task, waits, resuming, memory. `make gpu`."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_golden_losses import CASES, losses_of

from bothways import TextClassifier
from bothways.audit import scan
from bothways.encoder import Encoder
from bothways.encoder.attention import BACKENDS
from bothways.encoder.backends.gpu import can_rotate
from bothways.encoder.positions import Angles, Rotary
from bothways.errors import OutOfMemory, UnsupportedAttention
from bothways.families import FAMILIES
from bothways.inference import Runner
from bothways.packing import pack
from bothways.training.optimizers import Stepper
from contract_cases import rows
from tiny_models import TINY, every_family, random_ids, scramble, switch_off_dropout

pytestmark = pytest.mark.gpu
GPU = "cuda"


def encoder_of(model_type, *, hidden=32, heads=2):
    """A tiny encoder for 1,024 tokens, with heads as wide as every kernel wants them."""
    settings = dict(TINY[model_type])
    if "max_position_embeddings" in settings:
        settings["max_position_embeddings"] = 1100
    config = FAMILIES[model_type].config(settings)
    embedding = config.embedding
    if embedding.width == config.hidden:
        embedding = replace(embedding, width=hidden)
    return scramble(Encoder(replace(config, hidden=hidden, heads=heads, embedding=embedding)), spread=0.1)


def exact(encoder, packed):
    with torch.no_grad():
        return encoder.cpu().float()(packed, backend="reference")


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@every_family
def test_hidden_states_of_1024_tokens_are_those_of_a_cpu(model_type, backend):
    packed = pack(random_ids((1024, 300, 7)))
    encoder = encoder_of(model_type)
    expected = exact(encoder, packed)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
        encoder = encoder.to(GPU, dtype)
        try:
            with torch.no_grad():
                found = encoder(packed.to(GPU), backend=backend)
        except UnsupportedAttention:
            assert backend is not None
            continue
        assert (found.float().cpu() - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "width"), [(12, 64), (3, 12), (1, 2)])
def test_the_kernel_rotates_as_torch_does_there_and_back(heads, width, dtype):
    angles_TD = torch.randn(300, width // 2).repeat(1, 2)
    given_T3ND, gradient_TN3D = torch.randn(300, 3, heads, width), torch.randn(300, heads, 3, width)
    rotary, found = Rotary(1.0), []
    assert can_rotate()
    for device in ("cpu", GPU):
        # Rounded once, then computed in float32 by torch.
        kind = torch.float32 if device == "cpu" else dtype
        qkv_T3ND = given_T3ND.to(dtype).to(device, kind).detach().clone().requires_grad_()
        angles = Angles({1.0: (angles_TD.cos().to(device), angles_TD.sin().to(device))})
        turned_T3ND, _ = rotary(qkv_T3ND, None, angles)
        turned_T3ND.backward(gradient_TN3D.to(dtype).to(device, kind).transpose(1, 2))
        found.append([turned_T3ND.detach().float().cpu(), qkv_T3ND.grad.float().cpu()])
    tolerance = 4 * torch.finfo(dtype).eps
    for expected, turned in zip(*found, strict=True):
        torch.testing.assert_close(turned, expected, rtol=tolerance, atol=tolerance)


@every_family
def test_nothing_in_a_forward_pass_waits_for_the_device(model_type):
    encoder, packed = encoder_of(model_type).to(GPU), pack(random_ids((100, 30, 7))).to(GPU)
    with torch.no_grad(), torch.autocast(GPU, torch.bfloat16):
        encoder(packed)
        torch.cuda.set_sync_debug_mode("error")
        try:
            encoder(pack(random_ids((90, 40, 7))).to(GPU))
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("case", CASES)
def test_a_training_has_the_losses_of_one_on_a_cpu_and_waits_for_nothing(case, tmp_path, monkeypatch):
    backward = Stepper._backward

    def watched(*given):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return backward(*given)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    switch_off_dropout(monkeypatch)
    expected = losses_of(case, tmp_path / "cpu")
    monkeypatch.setattr(Stepper, "_backward", watched)
    # Rounding adds up over the updates: the losses of DistilBERT differ by 6 %.
    for precision, tolerance in (("float32", 1e-3), ("bfloat16", 0.1)):
        found = losses_of(case, tmp_path / precision, device=GPU, precision=precision)
        assert found == pytest.approx(expected, rel=tolerance)


def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(base, tmp_path, monkeypatch):
    data, take = rows("single", 24), Stepper.step

    def train(name, **options):
        folders = {"log": tmp_path / f"{name}.jsonl", "checkpoints": tmp_path / name, "checkpoint_every_updates": 1}
        chosen = {"batch_size": 6, "epochs": 2, "seed": 1, "log_every_updates": 1, "show_progress": False}
        model = TextClassifier.from_pretrained(base, device=GPU)
        model.fit(data, validation=data, **chosen, **folders, **options)
        lines = map(json.loads, (tmp_path / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
        return [line["loss"] for line in lines if line["event"] == "update"]

    def stopped(self, objective, update, done):
        if done == 5:
            raise KeyboardInterrupt
        return take(self, objective, update, done)

    whole = train("whole")
    monkeypatch.setattr(Stepper, "step", stopped)
    assert len(train("stopped")) == 5
    monkeypatch.setattr(Stepper, "step", take)
    assert train("stopped", resume=True) == pytest.approx(whole, rel=0.01)


def test_a_batch_that_does_not_fit_is_halved_and_the_budget_kept():
    def compute(packed, windows):
        taken = torch.empty(packed.ids_T.shape[0] * 2**20, dtype=torch.uint8, device=GPU)  # a mebibyte for each token
        return [(window.name, taken.device.type) for window in windows]

    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + 2**31) / total))
    try:
        runner = Runner(compute, torch.device(GPU), 4096)
        windows = [SimpleNamespace(ids=[7] * 100, types=[0] * 100, name=number) for number in range(60)]
        assert runner.run(windows) == [(number, GPU) for number in range(60)]
        assert runner.budget.tokens < 2048
        with pytest.raises(OutOfMemory, match="a single window of 3000 tokens"):
            runner.run([SimpleNamespace(ids=[7] * 3000, types=[0] * 3000)])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_an_audit_finds_the_same_as_on_a_cpu(tiny_bert, tmp_path):
    data = rows("single", 48)
    model = TextClassifier.from_pretrained(tiny_bert, device="cpu")
    model.fit(data, epochs=4, batch_size=6, seed=1, show_progress=False)
    model.save(tmp_path / "run")

    def report(device):
        options = {"dtype": "float32", "device": device}
        found = scan(tmp_path / "run", data, open_options=options, show_progress=False)
        return found.verdict, [(each.name, each.verdict) for each in found.detectors]

    assert report(GPU) == report("cpu")
