"""Costs from runs that compute nothing agree with other counts, and with what processes really take."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from bothways.advice import cost, find_config
from bothways.advice.costs import (
    RUNTIME_BYTES,
    TRAINING_RUNTIME_BYTES,
    _flops,
    count_flops,
    inference_bytes,
    training_bytes,
)
from bothways.advice.measuring import job_for, measure
from bothways.advice.worker import resident_bytes
from bothways.encoder.config import SharedGroups
from bothways.errors import BothwaysError, CorruptCheckpoint, InvalidInput, OutOfMemory, UnknownModel
from bothways.families import FAMILIES
from bothways.families.catalogue import find_published
from everyday import slow, some_of

PUBLISHED = [size.name for family in FAMILIES.values() for size in family.published]
# One for each way to attend and to share layers, all of which are traced in a second or two.
DIFFERENT = ("google/electra-small-discriminator", "albert/albert-base-v2", "microsoft/deberta-base")


@pytest.mark.parametrize(
    ("name", "batch", "length"),
    [
        ("google-bert/bert-base-uncased", 2, 128),
        ("sentence-transformers/all-MiniLM-L6-v2", 1, 512),
        slow("FacebookAI/roberta-large", 1, 64),
        slow("distilbert/distilbert-base-uncased", 3, 256),
        ("albert/albert-xlarge-v2", 1, 128),
        ("google/electra-small-discriminator", 4, 32),
    ],
)
def test_operations_are_those_of_the_padded_model_of_transformers(name, batch, length):
    family, size = find_published(FAMILIES.values(), name)
    settings = transformers.AutoConfig.for_model(family.model_type, **size.settings)
    with torch.device("meta"):
        theirs = transformers.AutoModel.from_config(settings, attn_implementation="eager").eval()
        ids = torch.zeros(batch, length, dtype=torch.int64)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        theirs(input_ids=ids)
    # Theirs computes the pooler too; the two differ by less than a thousandth.
    assert count_flops(find_config(name)[1], batch, length) == pytest.approx(counter.get_total_flops(), rel=0.1)


@pytest.mark.parametrize("length", [1, 100])
def test_operations_of_bert_are_those_of_the_formula(length):
    # Of a layer: 4 projections of H x H and 2 of H x 4H for each token, and 2 products of n x H for each token.
    _, config = find_config("bert-base-uncased")
    hidden, tokens = 768, length
    assert count_flops(config, 1, length) == 12 * tokens * (2 * 12 * hidden**2 + 4 * length * hidden)


@pytest.mark.parametrize("name", ["google/electra-small-discriminator", "albert/albert-base-v2"])
def test_counting_a_few_layers_gives_what_counting_all_gives(name):
    _, config = find_config(name)
    assert count_flops(config, 2, 16) == _flops(config, 2, 16)


@pytest.mark.parametrize(
    ("name", "groups", "batch", "length"),
    [
        ("google/electra-small-discriminator", None, 4, 64),
        ("google/electra-small-discriminator", 2, 2, 16),
        slow("microsoft/deberta-v3-xsmall", None, 2, 16),
        slow("microsoft/deberta-v3-xsmall", 2, 4, 64),
    ],
)
def test_the_memory_of_a_few_layers_tells_that_of_all(monkeypatch, name, batch, length, groups):
    _, config = find_config(name)
    if groups is not None:
        config = replace(config, sharing=SharedGroups(groups))
    followed = training_bytes.__wrapped__(config, batch, length)
    monkeypatch.setattr("bothways.advice.costs._layers_alike", lambda _: False)
    assert followed == training_bytes.__wrapped__(config, batch, length)


def test_layers_that_are_not_all_alike_are_all_counted():
    _, config = find_config("albert/albert-base-v2")
    grouped = replace(config, sharing=SharedGroups(3))
    assert count_flops(grouped, 1, 16) == count_flops(config, 1, 16)
    assert inference_bytes(grouped, 1, 16) == inference_bytes(config, 1, 16)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("google/electra-small-discriminator", 32),
        ("albert/albert-base-v2", 8),
        slow("answerdotai/ModernBERT-base", 16),
        slow("answerdotai/ModernBERT-base", 300),
    ],
)
def test_memory_of_many_texts_is_that_of_a_run_with_all_of_them(monkeypatch, name, length):
    _, config = find_config(name)
    batch = 90 if length < 100 else 18
    followed = inference_bytes(config, batch, length), training_bytes(config, batch, length)
    monkeypatch.setattr("bothways.advice.costs._steady", lambda *_: batch)
    inference = inference_bytes.__wrapped__(config, batch, length)
    training = training_bytes.__wrapped__(config, batch, length)
    assert followed[0] == pytest.approx(inference, rel=1e-5)
    assert followed[1].activations == pytest.approx(training.activations, rel=1e-5)
    # The peak of the smaller batches may be at another moment than that of the larger ones.
    assert 0.97 * training.peak < followed[1].peak < 1.0001 * training.peak


@pytest.mark.parametrize(("layers", "batch"), [(5, 4), slow(5, 32), slow(12, 4), slow(12, 32)])
def test_checkpointed_layers_are_counted_as_a_run_of_all_of_them(monkeypatch, layers, batch):
    _, config = find_config("google/electra-small-discriminator")
    config = replace(config, layers=layers)
    followed = training_bytes(config, batch, 32, checkpointing=True)
    usual = cost(config, batch=batch, length=32).training
    lean = cost(config, batch=batch, length=32, activation_checkpointing=True).training
    assert lean.activations == followed.activations < 0.4 * usual.activations
    assert lean.peak <= usual.peak
    monkeypatch.setattr("bothways.advice.costs._layers_alike", lambda _: False)
    whole = training_bytes.__wrapped__(config, batch, 32, checkpointing=True)
    assert followed.activations == whole.activations
    assert followed.peak == pytest.approx(whole.peak, rel=0.01)


def test_weights_are_no_activations():
    # A layer keeps for each token its inputs and what lies within it, some 20 times its width and no more.
    _, config = find_config("google-bert/bert-base-uncased")
    per_number = training_bytes(config, 2, 32).activations / (2 * 32 * config.layers * config.hidden * 4)
    assert 10 < per_number < 30


def test_the_memory_of_a_million_texts_is_known_at_once():
    _, config = find_config("google/electra-small-discriminator")
    few, many = (cost(config, batch=batch, length=8) for batch in (100_000, 1_000_000))
    assert many.inference.activations == pytest.approx(10 * few.inference.activations, rel=0.01)
    assert many.training.activations <= many.training.peak


@pytest.mark.parametrize("name", some_of(PUBLISHED, *DIFFERENT, "xlnet/xlnet-base-cased"))
def test_every_published_model_can_be_judged_without_being_built(name):
    found = cost(find_config(name)[1], batch=1, length=16)
    assert found.parameters * 4 == found.inference.weights
    assert 0 < found.inference.activations < found.training.activations
    assert 5 * found.training.weights <= found.training.peak


needs_linux = pytest.mark.skipif(resident_bytes("VmHWM") is None, reason="this system does not tell resident memory")


@needs_linux
@pytest.mark.parametrize(
    ("name", "batch", "length", "training"),
    [
        slow("google-bert/bert-base-uncased", 2, 128, False),
        ("distilbert/distilbert-base-uncased", 4, 64, True),
        slow("google/electra-small-discriminator", 16, 128, True),
        slow("google-bert/bert-base-uncased", 8, 128, True),
        slow("FacebookAI/roberta-base", 2, 64, True),
    ],
)
def test_memory_is_within_a_fifth_of_what_a_process_takes(monkeypatch, name, batch, length, training):
    found = cost(find_config(name)[1], batch=batch, length=length)
    if training:
        monkeypatch.setattr("bothways.advice.measuring.WORKER", (str(Path(__file__).with_name("training_worker.py")),))
    measured = measure(job_for(name, lengths=(length,), batch=batch, seconds=0.01))
    # A build of torch for CUDA loads more libraries than the one that the estimate is of.
    loaded = TRAINING_RUNTIME_BYTES if training else RUNTIME_BYTES
    runtime = loaded if torch.version.cuda is None else measured.runtime_bytes + loaded - RUNTIME_BYTES
    expected = (found.training if training else found.inference).peak + runtime
    assert expected == pytest.approx(measured.peak_bytes, rel=0.2)


@needs_linux
def test_a_measurement_has_speeds_for_each_length():
    measured = measure(job_for("all-MiniLM-L6-v2", lengths=(8, 32), batch=2, seconds=0.01))
    assert [speed.length for speed in measured.speeds] == [8, 32]
    assert all(speed.latency_ms > 0 and speed.tokens_per_second > 0 for speed in measured.speeds)
    assert measured.runtime_bytes < measured.peak_bytes


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", OutOfMemory, "fewer or shorter texts"),
        ("raise MemoryError", OutOfMemory, "fewer or shorter texts"),
        ("raise ValueError('no luck')", BothwaysError, "ValueError: no luck"),
    ],
)
def test_a_process_that_fails_is_an_error_that_says_why(monkeypatch, code, error, said):
    monkeypatch.setattr("bothways.advice.measuring.WORKER", ("-c", code))
    with pytest.raises(error, match=said):
        measure(job_for("all-MiniLM-L6-v2"))


@pytest.mark.parametrize(
    ("batch", "length", "said"),
    [(0, 8, "at least 1"), (1, 513, "into windows"), (10**9, 128, "at most 2,147,483,647 tokens")],
)
def test_a_cost_that_makes_no_sense_is_refused(batch, length, said):
    with pytest.raises(InvalidInput, match=said):
        cost(find_config("bert-base-uncased")[1], batch=batch, length=length)


def test_a_folder_has_a_cost_and_needs_no_weights(tmp_path):
    with pytest.raises(UnknownModel, match=r"config\.json"):
        find_config(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises((CorruptCheckpoint, UnknownModel)):
        find_config(tmp_path)
    settings = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    settings.save_pretrained(tmp_path)
    assert find_config(tmp_path)[1].hidden == 32
