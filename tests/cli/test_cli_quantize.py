"""``bothways quantize`` from start to finish: every command reads what it writes."""

import pytest
from command_line import call, fails, ok, rows, write_jsonl


@pytest.fixture(scope="module")
def quantized(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    data = write_jsonl(folder / "texts.jsonl.gz", rows(60, 3))
    done = call("quantize", run, "--data", data, "--output", folder / "int8", "--cosine", "0.99", "--json")
    assert (done.code, done.err) == (0, "")
    return folder / "int8", done.json()


def test_a_quantized_classifier_predicts_and_evaluates(run, quantized, tmp_path):
    folder, printed = quantized
    assert printed["output"] == str(folder)
    assert printed["texts"] == 60
    assert printed["min_cosine"] >= 0.99
    assert printed["int8"]
    given = [row["text"] for row in rows(20, 7)]
    before, after = (call("predict", each, *given, "--device", "cpu").lines() for each in (run, folder))
    assert [each["label"] for each in after] == [each["label"] for each in before]
    data = write_jsonl(tmp_path / "test.jsonl", rows(30, 9))
    first, second = (
        call("evaluate", each, "--data", data, "--json", "--device", "cpu").json() for each in (run, folder)
    )
    assert second["accuracy"] == first["accuracy"]


def test_what_became_int8_and_what_was_lost_is_said(run, tmp_path):
    data = write_jsonl(tmp_path / "texts.jsonl", rows(30, 3))
    done = ok("quantize", run, "--data", data, "--output", tmp_path / "int8", "--cosine", "0.9")
    assert done.out == ""
    assert "linear layers in int8" in done.err
    assert "minimum" in done.err
    assert "30 texts" in done.err
    assert "these are few texts" in done.err


def test_a_quantized_model_is_not_trained_distilled_or_exported(quantized, tmp_path):
    folder, _ = quantized
    data = write_jsonl(tmp_path / "train.jsonl", rows(40, 5))
    for said, words in (
        ("train the original model", ("train", "classification", "--model", folder, "--train", data)),
        ("distill the original model", ("distill", "--teacher", folder, "--layers", "1", "--data", data)),
        ("export the original model", ("export", folder, "--format", "safetensors")),
        ("export the original model", ("export", folder, "--format", "onnx")),
    ):
        fails(1, said, *words, "--output", tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dtype", "bfloat16"], "from float32"),
        (["--device", "cuda"], "on the CPU"),
        (["--cosine", "1.5"], "--cosine"),
        (["--most-texts", "0"], "--most-texts"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(run, tmp_path, words, message):
    data = write_jsonl(tmp_path / "texts.jsonl", rows(10, 3))
    fails(2, message, "quantize", run, "--data", data, "--output", tmp_path / "int8", *words)
    assert not (tmp_path / "int8").exists()


def test_data_that_cannot_be_read_leave_nothing(run, tmp_path):
    data = write_jsonl(tmp_path / "texts.jsonl", [{"words": "w5"}])
    assert call("quantize", run, "--data", data, "--output", tmp_path / "int8").code == 1
    assert call("quantize", run, "--data", tmp_path / "no.jsonl", "--output", tmp_path / "int8").code == 1
    assert not (tmp_path / "int8").exists()
