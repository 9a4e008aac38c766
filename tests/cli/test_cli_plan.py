"""``bothways plan``."""

import math

import pytest
from command_line import call, ok


def test_a_plan_says_what_a_published_run_takes():
    outcome = call("plan", "roberta", "--hardware", "8 x H100", "--price", "2")
    assert (outcome.code, outcome.err) == (0, "")
    said = " ".join(outcome.out.split())
    for words in (
        "RoBERTa base, as published, on 8 x H100",
        "500,000 of 8,000 sequences of 512 tokens: 2.05 trillion tokens",
        "assumes 40% of 989 TFLOP/s",
        "accumulated in an update",
    ):
        assert words in said


def test_numbers_can_be_changed():
    plain = call("plan", "bert", "--hardware", "A100", "--json").json()
    found = call("plan", "bert", "--hardware", "A100", "--batch-size", 1024, "--updates", 1000, "--json").json()
    assert [each["phase"] for each in found["phases"]] == [
        {"updates": 900, "batch": 1024, "length": 128, "growth": None},
        {"updates": 100, "batch": 1024, "length": 512, "growth": None},
    ]
    assert found["learning_rate"] == pytest.approx(2 * plain["learning_rate"])
    assert found["tokens"] == 1024 * (900 * 128 + 100 * 512)
    faster = call("plan", "bert", "--hardware", "A100", "--utilisation", 0.8, "--json").json()
    assert faster["hours"] == pytest.approx(plain["hours"] / 2)
    stated = call("plan", "bert", "--hardware", "A100", "--tokens-per-second", 1000, "--json").json()
    assert stated["hours"] == pytest.approx(stated["tokens"] / 1000 / 3600)


def test_a_plan_counts_tokens_and_growing_batches():
    words = ("plan", "roberta", "--hardware", "8 x H100", "--json")
    full = call(*words, "--tokens", "50G").json()
    grown = call(*words, "--tokens", "50G", "--batch-from", 256, "--batch-warmup-tokens", "10G").json()
    assert full["updates"] == math.ceil(50e9 / (8000 * 512))
    for found in (full, grown):
        assert 50e9 <= found["tokens"] < 50e9 + 8000 * 512
    # The warm-up takes 10 G tokens at (256 + 8,000) / 2 sequences of 512.
    assert grown["updates"] - full["updates"] == pytest.approx(10e9 / 512 / 4128 - 10e9 / 512 / 8000, abs=3)
    assert grown["phases"][0]["phase"]["growth"] == {"first": 256, "updates": math.ceil(10e9 / 512 / 4128)}


def test_this_machine_is_the_default():
    outcome = ok("plan", "electra", "--scale", "tiny")
    assert "this machine" in outcome.out
    assert "measured here" in outcome.out
