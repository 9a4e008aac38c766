"""``bothways explain``: the words of a prediction, attention, and roles of heads."""

import gzip
import json

import numpy as np
import pytest
from command_line import call, ok

TEXT = "w5 w7 w9 w11"
TREE = "1\tw5\t_\tDET\t_\t_\t2\tdet\t_\t_\n2\tw6\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n" * 25


def explained(run, *more):
    return call("explain", run, *more, "--device", "cpu")


def test_words_are_printed_and_given_as_json(run):
    printed = explained(run, TEXT)
    assert printed.code == 0, printed.err
    assert "log odds of 'odd'" in printed.out
    found = explained(run, TEXT, "--label", "even", "--json").json()
    assert found["attribution"]["score_of"] == "log odds of 'even'"
    assert [each["word"] for each in found["attribution"]["words"]] == TEXT.split()
    assert found["tokens"] == ["[CLS]", *TEXT.split(), "[SEP]"]
    np.testing.assert_allclose(np.sum(found["rollout"], axis=1), 1, atol=1e-4)
    without = explained(run, TEXT, "--method", "leave-one-out", "--json").json()["attribution"]
    assert (without["method"], without["completeness_error"]) == ("leave-one-out", None)


@pytest.mark.parametrize("suffix", [".html", ".png", ".svg", ".json", ".npz"])
def test_the_suffix_says_what_is_written(run, tmp_path, suffix):
    path = tmp_path / f"seen{suffix}"
    outcome = explained(run, TEXT, "--output", path)
    assert outcome.code == 0, outcome.err
    assert f"wrote {path}" in outcome.err
    content = path.read_bytes()
    if suffix == ".npz":
        arrays = np.load(path)
        assert arrays["attention"].shape == (3, 4, 6, 6)
        assert arrays["word_weights"].shape == (4,)
    elif suffix == ".json":
        assert json.loads(content)["attribution"]["score_of"] == "log odds of 'odd'"
    else:
        begins = {".html": b"<!DOCTYPE html>", ".png": b"\x89PNG", ".svg": b"<svg"}
        assert content.startswith(begins[suffix])


def test_of_an_encoder_without_a_task_attention_alone_is_shown(files, tmp_path):
    outcome = explained(files / "tiny", TEXT, "--output", tmp_path / "page.html")
    assert outcome.code == 0, outcome.err
    assert "not shown: words, since this model has no task" in outcome.err
    assert explained(files / "tiny", TEXT, "--label", "odd").code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to explain"),
        (("  ",), "visible characters"),
        ((TEXT, "--output", "page.pdf"), "must end in one of .html"),
        ((TEXT, "--label", "third"), "expected a label among 'even', 'odd', got 'third'"),
        ((TEXT, "--tag", "O"), "--tag needs --word"),
        ((TEXT, "--word", "1"), "to be Label or None"),
        ((TEXT, "--answer", "w99"), "--answer must be a part of the context"),
        ((TEXT, "--label", "odd", "--choice", "1"), "expected one of --label"),
        ((TEXT, TEXT), "explains one text at a time, got 2"),
        ((TEXT, "--task", "news"), "model for one task"),
        ((TEXT, "--method", "magic"), "integrated-gradients"),
    ],
)
def test_what_makes_no_sense_is_refused(run, words, message):
    outcome = explained(run, *words)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_text_of_several_windows_is_for_leave_one_out(run):
    outcome = explained(run, "w5 w7 " * 10, "--max-length", 16)
    assert outcome.code == 2
    assert "one window of 16 tokens, got a text with 6 tokens too many" in outcome.err
    outcome = explained(run, "w5 w7 " * 10, "--max-length", 16, "--method", "leave-one-out")
    assert outcome.code == 0, outcome.err


def test_an_ensemble_is_explained_by_leaving_words_out(run, tmp_path):
    ok("ensemble", run, run, "--output", tmp_path / "both")
    outcome = explained(tmp_path / "both", TEXT, "--method", "leave-one-out", "--json")
    assert outcome.code == 0, outcome.err
    assert "an ensemble has several" in outcome.err
    assert len(outcome.json()["attribution"]["words"]) == 4


def test_heads_are_scored_over_trees_and_over_the_packages_own_sentences(files, tmp_path):
    path = tmp_path / "trees.conllu.gz"
    path.write_bytes(gzip.compress(TREE.encode()))
    outcome = ok("explain", "heads", files / "tiny", "--data", path, "--json", "--device", "cpu")
    found = {each["role"]: each for each in outcome.json()["roles"]}
    assert found["det to its head"]["count"] == 25
    assert np.shape(found["previous token"]["scores"]) == (3, 4)
    assert all(0 <= each["random_encoder"] <= 1 for each in found.values())
    printed = ok("explain", "heads", files / "tiny", "--no-random", "--device", "cpu")
    assert "pronoun to its noun" in printed.out


def test_sentences_without_trees_say_so(files):
    outcome = ok("explain", "heads", files / "tiny", "--data", files / "test.jsonl.gz", "--no-random")
    assert "no dependency trees" in outcome.err
