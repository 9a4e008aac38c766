"""``bothways recommend`` and ``bothways cost``."""

import dataclasses
import json

import pytest
from command_line import call

import tiny_models
from bothways.advice import Assumptions
from bothways.cli.cost import DecoderOptions


def test_a_recommendation_names_the_kind_of_model_first_and_then_models_with_reasons():
    out = call("recommend", "--task", "sentiment", "--constraint", "latency", "--most", 2).out
    assert out.startswith("classification: an encoder\n")
    assert "\n1. google/electra-small-discriminator\n   MNLI dev accuracy 81.3" in out


def test_a_recommendation_in_json_has_the_same():
    advised = call("recommend", "--task", "ner", "--max-memory-mb", 900, "--json").json()
    assert advised["task"]["architecture"] == "encoder"
    assert advised["ranked"][0]["reasons"]
    assert advised["left_out"]


def test_a_measured_recommendation_gives_clean_json():
    outcome = call("recommend", "--task", "search", "--measure", "--most", 1, "--json")
    assert outcome.code == 0, outcome.err
    (model,) = json.loads(outcome.out)["ranked"]
    assert model["name"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert model["latency_ms"] > 0
    assert model["tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--task", "dancing"), "Known: classification, ner"),
        (("--task", "ner", "--max-latency-ms", 5), "ask for a measurement"),
        (("--task", "ner", "--constraint", "beauty"), "Choose from"),
        (("--constraint", "latency"), "--task"),
    ],
)
def test_a_question_that_makes_no_sense_is_bad_usage(words, said):
    outcome = call("recommend", *words)
    assert outcome.code == 2
    assert outcome.out == ""
    assert said in outcome.err


def test_a_cost_tells_arithmetic_and_memory():
    out = call("cost", "roberta-base", "--batch", 4, "--length", 64).out
    assert out.startswith("FacebookAI/roberta-base: 4 texts of 64 tokens")
    for part in ("FLOPs a token", "weights", "optimizer", "gradients", "activations"):
        assert part in out
    assert "decoder" not in out


def test_a_batch_that_no_machine_could_hold_is_bad_usage():
    outcome = call("cost", "roberta-base", "--batch", 10**9)
    assert outcome.code == 2
    assert "at most 2,147,483,647 tokens" in outcome.err


def test_a_cost_in_json_adds_up(tmp_path):
    tiny_models.write_checkpoint(tmp_path / "tiny")
    found = call("cost", tmp_path / "tiny", "--batch", 2, "--length", 8, "--json").json()
    assert found["inference"]["weights"] == 4 * found["parameters"]
    assert found["training"]["optimizer"] == 2 * found["training"]["weights"]
    assert found["against_decoder"] is None


def test_every_assumption_of_the_comparison_is_printed_and_can_be_changed():
    words = ("cost", "roberta-base", "--against-decoder")
    out = call(*words).out
    for field in dataclasses.fields(Assumptions):
        assert f"--{field.name.replace('_', '-')} " in out
    large, small = (
        call(*words, "--decoder-parameters", size, "--json").json()["against_decoder"]["decoder"]["flops"]
        for size in ("175e9", "7e9")
    )
    assert large > 20 * small


def test_the_options_of_the_comparison_are_those_of_the_library():
    assert dataclasses.asdict(DecoderOptions()) == dataclasses.asdict(Assumptions())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("roberta-base", "--length", 600), 2, "in windows"),
        (("roberta-base", "--batch", 0), 2, "Must be >= 1"),
        (("nobody/nothing",), 1, "not in the catalogue"),
    ],
)
def test_a_cost_that_cannot_be_told_is_a_clear_error(words, code, said):
    outcome = call("cost", *words)
    assert outcome.code == code
    assert said in outcome.err


def test_a_comparison_is_printed_and_written_as_a_page(tmp_path):
    page = tmp_path / "models.html"
    words = ("compare-models", "all-MiniLM-L6-v2", "--lengths", 8, "--lengths", 16, "--batch", 1, "--seconds", 0.01)
    outcome = call(*words, "--report", page, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert [speed["length"] for speed in found["models"][0]["speeds"]] == [8, 16]
    assert "all-MiniLM-L6-v2" in page.read_text(encoding="utf-8")
    assert str(page) in outcome.err


def test_a_comparison_that_makes_no_sense_is_bad_usage():
    outcome = call("compare-models", "roberta-base", "roberta-base")
    assert outcome.code == 2
    assert "named once" in outcome.err
