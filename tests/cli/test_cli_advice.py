"""``bothways recommend`` and ``bothways cost``."""

import json

import huggingface_hub.constants
import pytest
from command_line import call, fails, ok

import tiny_models
from bothways.advice import card, recommending

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A hub cache that knows one model by its name; the current folder is empty."""
    repository = tmp_path / "hub" / "models--google--electra-small-discriminator"
    tiny_models.write_checkpoint(repository / "snapshots" / COMMIT, "electra")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "hub"


@pytest.fixture
def short_catalogue(monkeypatch):
    """Let recommendations look at few models: each takes a third of a second to count."""
    names = ("google/electra-small-discriminator", "microsoft/deberta-v3-xsmall", "microsoft/deberta-v3-base")
    others = ("FacebookAI/roberta-base", "sentence-transformers/all-MiniLM-L6-v2")
    cards = [card(name) for name in (*names, *others)]
    monkeypatch.setattr(recommending, "catalogue", lambda: cards)
    monkeypatch.setattr(recommending, "training_flops", lambda _: 1e11)


@pytest.mark.usefixtures("short_catalogue")
def test_a_recommendation_names_local_models_then_the_kind_of_model_and_then_models_with_reasons(cache):
    out = call("recommend", "--task", "sentiment", "--constraint", "latency", "--most", 2).out
    assert out.startswith("Local models:\n")
    assert "\n  google/electra-small-discriminator: electra, " in out
    assert out.index("\nThis machine: ") < out.index("\nclassification: an encoder\n")
    assert "\n1. google/electra-small-discriminator\n   MNLI dev accuracy 81.3" in out
    assert f"\n   local: commit {COMMIT}\n" in out
    assert "\n   estimated here: " in out
    assert " ~training\n   1 google/electra-small-discriminator " in out
    assert "to fine-tune it on 2,000 texts of 128 tokens\n" in out
    assert (
        "\n   commit: resolved by the download; download it: bothways models microsoft/deberta-v3-xsmall --download"
        in out
    )


@pytest.mark.usefixtures("short_catalogue")
def test_a_recommendation_names_the_commit_and_the_command_to_get_it(cache):
    ranked = call("recommend", "--task", "nli", "--most", 30, "--json").json()["ranked"]
    commands = {model["name"]: model["command"] for model in ranked}
    roberta = "e2da8e2f811d1448a5b465c236feacd80ffbac7b"
    assert (
        commands["FacebookAI/roberta-base"]
        == f"bothways models FacebookAI/roberta-base --revision {roberta} --download"
    )
    assert commands["microsoft/deberta-v3-base"].endswith(" --download --allow-pickle")
    assert commands["google/electra-small-discriminator"] == ""
    assert all(model["training_seconds"] > 0 for model in ranked)


def test_a_task_for_a_decoder_measures_no_machine(cache, monkeypatch):
    monkeypatch.setattr("bothways.advice.this_machine", lambda: pytest.fail("it was measured"))
    out = call("recommend", "--task", "chat").out
    assert out.startswith("Local models")
    assert "\nchat: a decoder\n" in out


def test_a_model_is_fetched_by_its_name_and_says_its_commit_and_folder(cache):
    folder = cache / "models--google--electra-small-discriminator" / "snapshots" / COMMIT
    for name in ("electra-small-discriminator", "google/electra-small-discriminator"):
        outcome = call("models", name, "--download")
        assert outcome.out == f"google/electra-small-discriminator at {COMMIT}\n{folder}\n", outcome.err
    found = call("models", "google/electra-small-discriminator", "--download", "--revision", COMMIT, "--json").json()
    assert found == {"name": "google/electra-small-discriminator", "revision": COMMIT, "folder": str(folder)}


def test_a_model_whose_weights_are_a_pickle_says_how_to_fetch_it(cache):
    folder = cache / "models--google--electra-small-discriminator" / "snapshots" / COMMIT
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    words = ("models", "google/electra-small-discriminator", "--download")
    fails(1, "Add --allow-pickle", *words)
    ok(*words, "--allow-pickle")


@pytest.mark.usefixtures("short_catalogue")
def test_a_recommendation_in_json_has_the_same():
    advised = call("recommend", "--task", "ner", "--max-memory-mb", 900, "--json").json()
    assert advised["task"]["architecture"] == "encoder"
    assert advised["ranked"][0]["reasons"]
    assert advised["left_out"]


@pytest.mark.slow
@pytest.mark.usefixtures("short_catalogue")
def test_a_measured_recommendation_gives_clean_json():
    outcome = ok("recommend", "--task", "search", "--measure", "--most", 1, "--json")
    (model,) = json.loads(outcome.out)["ranked"]
    assert model["name"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert model["latency_ms"] > 0
    assert model["tokens_per_second"] > 0


def test_a_cost_tells_arithmetic_and_memory():
    out = call("cost", "roberta-base", "--batch", 4, "--length", 64).out
    assert out.startswith("FacebookAI/roberta-base: 4 texts of 64 tokens")
    for part in ("FLOPs a token", "weights", "optimizer", "gradients", "activations"):
        assert part in out


def test_a_cost_in_json_adds_up(tiny_bert):
    found = call("cost", tiny_bert, "--batch", 2, "--length", 8, "--json").json()
    assert found["inference"]["weights"] == 4 * found["parameters"]
    assert found["training"]["optimizer"] == 2 * found["training"]["weights"]


def test_a_comparison_has_speeds_at_each_length():
    words = ("compare-models", "all-MiniLM-L6-v2", "--lengths", 8, "--lengths", 16, "--batch", 1, "--seconds", 0.01)
    outcome = ok(*words, "--json")
    found = json.loads(outcome.out)
    assert [speed["length"] for speed in found["models"][0]["speeds"]] == [8, 16]
