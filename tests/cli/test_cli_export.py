"""``bothways export`` from start to finish: what other programs read gives the answers of this one."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from command_line import call, fails, ok
from tokenizers import Tokenizer

from bothways.checkpoints import load
from bothways.evaluation.calibration import calibration_from
from bothways.tasks import SentenceEmbedder, TextClassifier

FROZEN = Path(__file__).parents[1] / "frozen" / "models"
SENTENCES = ["The cat sat on the mat.", "Rates rose again, said the central bank on Tuesday.", "Yes."]


def run_onnx(folder, texts):
    """Outputs of an exported folder by name, read as its description says."""
    described = json.loads((folder / "export.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(texts)
    attributes = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    names = [port["name"] for port in described["inputs"]]
    feed = {name: np.array([getattr(each, attributes[name]) for each in encoded]) for name in names}
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    outputs = [port["name"] for port in described["outputs"]]
    return dict(zip(outputs, session.run(outputs, feed), strict=True)), described


@pytest.mark.slow
def test_an_exported_classifier_gives_the_labels_and_probabilities_of_predict(tmp_path):
    run = FROZEN / "classifier"  # narrow, and of two layers: each takes an export a second
    done = call("export", run, "--format", "onnx", "--head", "sequence", "--output", tmp_path / "x", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json() == {
        "output": str(tmp_path / "x"),
        "format": "onnx",
        "heads": ["sequence"],
        "largest_difference": done.json()["largest_difference"],
    }
    texts = [f"w{5 + number % 3} w{20 + number}" for number in range(12)]
    answers, described = run_onnx(tmp_path / "x", texts)
    probabilities = calibration_from(described["bothways"]["calibration"]).apply(answers["logits"])
    labels = json.loads((tmp_path / "x" / "config.json").read_text())["id2label"]
    predictions = call("predict", run, *texts, "--device", "cpu").lines()
    assert {prediction["label"] for prediction in predictions} == {"ant", "bee", "cow"}
    for row, prediction in zip(probabilities, predictions, strict=True):
        assert labels[str(row.argmax())] == prediction["label"]
        expected = [prediction["probabilities"][labels[str(index)]] for index in range(3)]
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_embedded_minilm_is_exported_without_a_head(minilm_folder, tmp_path):
    name = "sentence-transformers/all-MiniLM-L6-v2"
    done = ok("export", name, "--format", "onnx", "--output", tmp_path / "x")
    assert done.out == ""
    assert "the encoder in" in done.err
    answers, described = run_onnx(tmp_path / "x", SENTENCES)
    assert described["model"] == name
    assert list(answers) == ["last_hidden_state", "rows"]
    with torch.no_grad():
        expected = load(name, device="cpu")(SENTENCES).last_hidden_state
    np.testing.assert_allclose(answers["last_hidden_state"], expected.numpy(), rtol=0, atol=1e-4)
    vectors = SentenceEmbedder.from_pretrained(name, device="cpu").encode(SENTENCES, unit_length=False)
    np.testing.assert_allclose(answers["rows"], vectors, rtol=0, atol=1e-5)


def test_a_classifier_exported_as_safetensors_predicts_the_same(run, tmp_path):
    done = call("export", run, "--format", "safetensors", "--output", tmp_path / "x", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    before, after = (TextClassifier.from_pretrained(folder, device="cpu") for folder in (run, tmp_path / "x"))
    assert after.confidence.calibration == before.confidence.calibration
    assert after.predict("w6 w8 w10").to_dict() == before.predict("w6 w8 w10").to_dict()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--head", "replaced_token"], "can have one of the heads"),
        (["--head", "token"], "holds no token head"),
    ],
)
def test_a_head_that_is_not_there_fails_and_leaves_nothing(run, tmp_path, words, said):
    fails(1, said, "export", run, "--format", "onnx", "--output", tmp_path / "x", *words)
    assert list(tmp_path.iterdir()) == []


def test_no_such_model_and_an_output_that_is_there_fail(run, tmp_path):
    assert "error: " in call("export", tmp_path / "no", "--format", "onnx", "--output", tmp_path / "x").err
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine.txt").touch()
    fails(1, "--overwrite", "export", run, "--format", "safetensors", "--output", tmp_path / "x")
    assert (
        "not an earlier export"
        in call("export", run, "--format", "safetensors", "--output", tmp_path / "x", "--overwrite").err
    )
