"""``bothways check``: its report, its exit codes and its files; and the inputs of golden answers in other commands."""

import json
import shutil

import pytest
from command_line import call, fails, ok, write_jsonl

from bothways.checkpoints.golden import NEUTRAL
from bothways.data import read_rows
from tiny_models import edit_config


@pytest.fixture
def changed(run, tmp_path):
    """A copy of the trained run, to change."""
    return shutil.copytree(run, tmp_path / "changed")


def inputs(folder):
    content = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    return content["inputs"], [each["input"] for each in content["answers"]]


def test_a_model_that_answers_as_recorded_is_ok(run, files):
    outcome = ok("check", run, "--device", "cpu")
    lines = outcome.out.splitlines()
    assert lines[0] == f"model        {run}: classification, 16 validation inputs"
    assert lines[1].startswith("recorded     float32 on cpu; bothways ")
    assert lines[2] == lines[1].replace("recorded     ", "now          ")
    assert lines[3:6] == ["tokenizer    ok", "weights      ok", "settings     ok"]
    assert lines[6].startswith("answers      ok: numbers differ by at most 0.0e+00 of the largest (tolerance 5e-05)")
    validation = [row.values["text"] for row in read_rows(files / "validation.jsonl.gz")]
    assert set(inputs(run)[1]) & set(validation)


def test_differences_are_named_by_cause_and_the_exit_code_is_1(changed):
    edit_config(changed, layer_norm_eps=0.3)
    outcome = call("check", changed, "--device", "cpu")
    assert outcome.code == 1
    assert "settings     config.json: layer_norm_eps was 1e-12, is 0.3\n" in outcome.out
    assert "answers      input 1, '" in outcome.out
    assert "             the answers to " in outcome.out
    outcome = call("check", changed, "--device", "cpu", "--json")
    found = outcome.json()
    assert outcome.code == 1
    assert not found["ok"]
    assert found["causes"] == ["settings", "answers"]
    assert found["differences"][0] == {
        "cause": "settings",
        "detail": "config.json: layer_norm_eps was 1e-12, is 0.3",
    }
    assert found["recorded"] == found["now"]
    assert {"bothways", "torch", "tokenizers", "numpy", "python"} == found["now"]["versions"].keys()


def test_a_folder_without_golden_answers_says_how_to_record_them(files, changed):
    (changed / "golden.json").unlink()
    said = (f"{str(changed)!r} has no golden answers", f"bothways check {changed} --record {changed / 'golden.json'}")
    fails(1, said, "check", changed)
    outcome = ok("check", changed, "--record", changed / "golden.json", "--device", "cpu")
    assert outcome.err.endswith(f"golden answers to 16 inputs in {changed / 'golden.json'}\n")
    assert inputs(changed) == ("neutral", list(NEUTRAL))
    ok("check", changed, "--device", "cpu")


def test_answers_are_recorded_in_a_file_and_compared_with_it(files, run, tmp_path):
    model, file = files / "tiny", tmp_path / "tiny.golden"
    assert ok("check", model, "--record", file, "--device", "cpu", "--json").json() == {
        "output": str(file),
        "inputs": 16,
    }
    ok("check", model, "--against", file, "--device", "cpu")
    fails(1, ("belong to another model", "--record"), "check", run, "--against", file)
    fails(1, "does not exist: record it with --record", "check", model, "--against", tmp_path / "no.json")
    file.write_text("{}", encoding="utf-8")
    fails(1, "is not a file of golden answers", "check", model, "--against", file)


def test_own_inputs_are_recorded(run, tmp_path):
    data = write_jsonl(tmp_path / "own.jsonl", [{"text": "w5 w6"}, {"text": "w7 w8 w9"}])
    file = tmp_path / "own.golden"
    ok("check", run, "--record", file, "--data", data, "--device", "cpu")
    assert ok("check", run, "--against", file, "--device", "cpu", "--json").json()["source"] == "given"
    fails(2, "--data needs --record", "check", run, "--data", data)
    fails(2, "expected --record or --against", "check", run, "--record", file, "--against", file)
    fails(1, "already exists", "check", run, "--record", file)
    words = ("check", run, "--record", file, "--overwrite")
    fails(1, "'text'", *words, "--data", write_jsonl(tmp_path / "bad.jsonl", [{"a": "b"}]))


@pytest.mark.parametrize("golden", ["neutral", "none"])
def test_a_training_quotes_no_data_where_this_is_asked_for(files, train_words, tmp_path, golden):
    words = [
        "1" if before == "--epochs" else word for before, word in zip(["", *train_words], train_words, strict=False)
    ]
    ok(*words, "--output", tmp_path / "run", "--golden", golden)
    if golden == "none":
        assert not (tmp_path / "run" / "golden.json").exists()
    else:
        assert inputs(tmp_path / "run") == ("neutral", list(NEUTRAL))


def test_who_publishes_a_model_is_told_of_quotes(changed):
    outcome = ok("sign", changed)
    assert (
        f"golden.json quotes up to 16 validation inputs; to publish the model without them: bothways check {changed}"
        in (outcome.err)
    )
    ok("check", changed, "--record", changed / "golden.json", "--overwrite", "--device", "cpu")
    fails(1, ("SHA256SUMS' already exists", "replace it with --overwrite."), "sign", changed)
    assert "quotes" not in ok("sign", changed, "--overwrite").err


def test_an_export_says_so_too(run, tmp_path):
    words = ("export", run, "--format", "safetensors", "--output")
    assert "to publish the model without them: --golden neutral" in ok(*words, tmp_path / "quoting").err
    assert "quotes" not in ok(*words, tmp_path / "neutral", "--golden", "neutral").err
    ok(*words, tmp_path / "none", "--golden", "none")
    assert not (tmp_path / "none" / "golden.json").exists()
