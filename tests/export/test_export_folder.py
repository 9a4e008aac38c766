"""What an exported folder holds, that it needs nothing of ours, and what is refused."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import onnx
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bothways.checkpoints import load, open_checkpoint
from bothways.errors import (
    ExportMismatch,
    IncompatibleWeights,
    InvalidInput,
    MissingDependency,
    OutputExists,
    UnknownModel,
    UnsafeCheckpoint,
)
from bothways.export import export
from bothways.export import graph as graph_module
from bothways.export.graph import OPSET
from tiny_models import TINY, edit_config, write_checkpoint

LABELS = {"0": "ant", "1": "bee", "2": "cow"}
TEXTS = ["w5 w6 w7", "w8", "w9 w10 w11 w12 w13"]


def write_tagger(folder, architecture="BertForSequenceClassification"):
    """A tiny BERT with a head, named labels, and a tokenizer file that cuts and pads to six tokens."""
    write_checkpoint(folder, architecture=architecture)
    edit_config(folder, id2label=LABELS)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"max_length": 6, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    content["padding"] = {
        "strategy": {"Fixed": 6},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    path.write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module", autouse=True)
def one_layer():
    """How long an export takes depends on the layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TINY, "bert", TINY["bert"] | {"num_hidden_layers": 1})
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tagger(tmp_path_factory.mktemp("export") / "model")


@pytest.fixture(scope="module", autouse=True)
def weights_beside():
    """Weights beyond a file lie beside it; here those of every export do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_module, "_LARGEST_FILE", 1000)
        yield


@pytest.fixture(scope="module")
def folder(model):
    """The model as ONNX, with its head."""
    written = export(model, model.parent / "onnx", format="onnx", head="sequence")
    assert written.heads == ("sequence",)
    assert 0 < written.largest_difference < 1e-4
    return written.folder


# Alone

ALONE = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("bothways", "torch", "transformers"):
            raise ImportError(f"{name} is not to be used here")

sys.meta_path.insert(0, Absent())
from pathlib import Path
import numpy as np, onnxruntime
from tokenizers import Tokenizer

folder, texts = Path(sys.argv[1]), json.loads(sys.argv[2])
description = json.loads((folder / "export.json").read_text())
labels = json.loads((folder / "config.json").read_text())["id2label"]
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
encoded = tokenizer.encode_batch(texts)
longest = max(len(each.ids) for each in encoded)
pad = lambda row: row + [0] * (longest - len(row))
made = {
    "input_ids": [pad(each.ids) for each in encoded],
    "attention_mask": [pad(each.attention_mask) for each in encoded],
    "token_type_ids": [pad(each.type_ids) for each in encoded],
}
feed = {port["name"]: np.array(made[port["name"]], dtype=port["dtype"]) for port in description["inputs"]}
session = onnxruntime.InferenceSession(folder / "model.onnx")
names = [port["name"] for port in description["outputs"]]
answers = dict(zip(names, session.run(names, feed)))
best = [labels[str(index)] for index in answers["logits"].argmax(1)]
assert not {"bothways", "torch", "transformers"} & set(sys.modules)
print(json.dumps({"logits": answers["logits"].tolist(), "hidden": answers["last_hidden_state"].tolist(), "best": best}))
"""


def alone(folder, texts):
    words = [sys.executable, "-I", "-c", ALONE, str(folder), json.dumps(texts)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_folder_runs_with_onnxruntime_and_tokenizers_alone(model, folder):
    answer = alone(folder, TEXTS)
    ours = load(model, heads="sequence", device="cpu")
    with torch.no_grad():
        expected = ours.apply_head("sequence", TEXTS)
        hidden = ours(TEXTS).last_hidden_state
    np.testing.assert_allclose(answer["logits"], expected.logits.numpy(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(answer["hidden"], hidden.numpy(), rtol=0, atol=1e-4)
    assert answer["best"] == [expected.labels[index] for index in expected.logits.argmax(1)]


def test_the_exported_tokenizer_neither_cuts_nor_pads(model, folder):
    import tokenizers

    assert len(tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")).encode("w5").ids) == 6
    exported = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [len(exported.encode(text).ids) for text in ("w5", "w5 " * 30)] == [3, 32]


def test_the_folder_says_what_it_is(model, folder):
    described = json.loads((folder / "export.json").read_text())
    assert described["opset"] == OPSET
    assert (described["head"], described["labels"]) == ("sequence", list(LABELS.values()))
    assert [port["name"] for port in described["inputs"]] == ["input_ids", "attention_mask", "token_type_ids"]
    assert described["inputs"][0] == {"name": "input_ids", "dtype": "int64", "shape": ["batch", "length"]}
    assert described["outputs"][1] == {"name": "logits", "dtype": "float32", "shape": ["batch", 3]}
    assert described["max_length"] == 18
    assert described["versions"].keys() == {"bothways", "torch", "onnx", "onnxscript", "onnxruntime"}
    assert described["versions"]["onnxruntime"] == version("onnxruntime")
    assert described["check"]["input_shapes"] == [[1, 18], [3, 9]]
    assert json.loads((folder / "config.json").read_text())["id2label"] == LABELS
    # Where the model lay is nobody else's business.
    assert described["model"] == "model"
    assert str(model.parent) not in (folder / "export.json").read_text()


def test_the_file_says_what_it_is_and_not_where_it_was_made(folder):
    model = onnx.load(folder / "model.onnx")
    assert [opset.version for opset in model.opset_import if opset.domain == ""] == [OPSET]
    stated = {entry.key: entry.value for entry in model.metadata_props}
    assert (stated["opset"], stated["head"], stated["model_type"]) == (str(OPSET), "sequence", "bert")
    assert json.loads(stated["labels"]) == list(LABELS.values())
    assert model.producer_name == "bothways"
    content = (folder / "model.onnx").read_bytes()
    assert b".py" not in content
    assert b"site-packages" not in content


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes(model, folder, tmp_path):
    export(model, tmp_path / "again", format="onnx", head="sequence")
    for name in ("model.onnx", "model.onnx.data"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert (folder / "model.onnx.data").stat().st_size > 20_000
    assert "model.onnx.data" in json.loads((folder / "export.json").read_text())["checksums"]


# The check


def test_a_file_that_computes_something_else_is_not_kept(model, folder, tmp_path, monkeypatch):
    def another(graph, path, *_):
        """Write the file of the model as it was, and change the model."""
        for name in ("model.onnx", "model.onnx.data"):
            shutil.copyfile(folder / name, path.with_name(name))
        with torch.no_grad():
            graph.encoder.layers[-1].feed_forward_norm.bias += 0.01

    monkeypatch.setattr("bothways.export.folder.write_onnx", another)
    with pytest.raises(ExportMismatch, match=r"last_hidden_state differs from the model's by 0\.01"):
        export(model, tmp_path / "out", format="onnx", head="sequence")
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_none_are_not_kept(model, folder):
    opened = load(model, heads="sequence", device="cpu")
    graph = graph_module.EncoderGraph(opened.encoder, opened.heads["sequence"])
    with torch.no_grad():
        opened.heads["sequence"].output.bias += torch.nan
    with pytest.raises(ExportMismatch, match="logits differs"):
        graph_module.check_onnx(folder / "model.onnx", opened, graph, "sequence")


# What is refused


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"format": "tflite"}, InvalidInput, "format must be one of 'onnx', 'safetensors', got 'tflite'"),
        ({"format": "onnx", "head": "replaced_token"}, InvalidInput, "got 'replaced_token'"),
        ({"format": "onnx", "head": "token"}, IncompatibleWeights, "holds no token head"),
        ({"format": "safetensors", "head": "token"}, IncompatibleWeights, "holds no token head"),
        ({"format": "onnx", "dtype": "float16"}, InvalidInput, "written in float32, got dtype 'float16'"),
        ({"format": "safetensors", "dtype": "int8"}, InvalidInput, "dtype must be one of"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_leaves_nothing(model, tmp_path, options, error, words):
    with pytest.raises(error, match=words):
        export(model, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format_", ["onnx", "safetensors"])
def test_a_model_that_is_not_there_is_refused(tmp_path, format_):
    with pytest.raises(UnknownModel):
        export(tmp_path / "nothing", tmp_path / "out", format=format_)
    assert list(tmp_path.iterdir()) == []


def test_an_output_is_replaced_only_when_asked_for_and_only_if_it_is_an_export(model, tmp_path):
    out = tmp_path / "out"
    export(model, out, format="safetensors")
    with pytest.raises(OutputExists, match="already exists"):
        export(model, out, format="safetensors")
    export(model, out, format="safetensors", dtype="float16", overwrite=True)
    assert {value.dtype for value in load_file(out / "model.safetensors").values()} == {torch.float16}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputExists, match="not an earlier export"):
        export(model, tmp_path / "other", format="safetensors", overwrite=True)
    assert (tmp_path / "other" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("package", graph_module.PACKAGES)
def test_a_missing_package_is_named_with_the_line_that_installs_it(model, tmp_path, monkeypatch, package):
    monkeypatch.setattr(graph_module, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(MissingDependency, match=rf"'{package}', .*pip install 'bothways\[onnx\]'"):
        export(model, tmp_path / "out", format="onnx")
    export(model, tmp_path / "out", format="safetensors")


# Safetensors


def test_a_pickle_becomes_a_checkpoint_that_transformers_opens(model, tmp_path):
    old = write_tagger(tmp_path / "old")
    tensors = load_file(old / "model.safetensors")
    (old / "model.safetensors").unlink()
    torch.save(tensors, old / "pytorch_model.bin")
    with pytest.raises(UnsafeCheckpoint):
        export(old, tmp_path / "new", format="safetensors")
    written = export(old, tmp_path / "new", format="safetensors", allow_pickle=True)
    assert (written.heads, written.largest_difference) == (("sequence",), None)
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "new").eval()
    assert theirs.config.id2label == {int(number): name for number, name in LABELS.items()}
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")("w5 w6", return_tensors="pt")
    with torch.no_grad():
        ours = load(tmp_path / "new", heads="sequence", device="cpu").apply_head("sequence", "w5 w6")
        torch.testing.assert_close(theirs(**words).logits, ours.logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("head", "kept"), [(None, ("masked_lm", "next_sentence")), ("masked_lm", ("masked_lm",))])
def test_the_heads_that_config_json_names_are_kept_unless_one_is_chosen(tmp_path, head, kept):
    write_checkpoint(tmp_path / "model", architecture="BertForPreTraining")
    assert export(tmp_path / "model", tmp_path / "out", format="safetensors", head=head).heads == kept
    assert open_checkpoint(tmp_path / "out").heads() == kept


def test_a_head_whose_architecture_is_not_named_is_dropped_or_chosen(tmp_path):
    write_checkpoint(tmp_path / "model", architecture="BertForTokenClassification")
    edit_config(tmp_path / "model", architectures=None)
    assert export(tmp_path / "model", tmp_path / "bare", format="safetensors").heads == ()
    assert open_checkpoint(tmp_path / "bare").heads() == ()
    assert export(tmp_path / "model", tmp_path / "tagger", format="safetensors", head="token").heads == ("token",)
    assert open_checkpoint(tmp_path / "tagger").heads() == ("token",)


def test_weights_in_another_layout_are_written_in_the_family_s_own(model, tmp_path):
    old = write_tagger(tmp_path / "old")
    tensors = load_file(old / "model.safetensors")
    renamed = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in tensors.items()}
    save_file(renamed, old / "model.safetensors")
    export(old, tmp_path / "new", format="safetensors")
    assert load_file(tmp_path / "new" / "model.safetensors").keys() == tensors.keys()
