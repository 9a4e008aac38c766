"""What honest people save is not flagged: checkpoints of every family, of transformers and torch, and their layouts."""

import json
import pickle
import random
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bothways.audit import Severity, scan
from bothways.families import FAMILIES
from tiny_models import write_checkpoint

FROZEN = Path(__file__).parents[1] / "frozen" / "models"
FOLDERS = sorted(path.name for path in FROZEN.iterdir() if path.is_dir())


def unflagged(folder):
    """Hold a folder to no finding beyond low."""
    report = scan(folder, detectors=["ModelProvenanceChecker"])
    assert report.verdict == "pass", [
        (each.rule, each.title, each.location) for each in report.at_least(Severity.MEDIUM)
    ]
    return report


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_that_this_package_saved(name):
    unflagged(FROZEN / name)


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints_of_every_family(family, tmp_path):
    write_checkpoint(tmp_path, family)
    unflagged(tmp_path)


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "BertForTokenClassification", "BertForMaskedLM"])
@pytest.mark.parametrize("shards", ["10GB", "20KB"])
def test_folders_that_transformers_saved(kind, shards, tmp_path):
    import transformers

    config = transformers.BertConfig(
        vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37, num_labels=3
    )
    getattr(transformers, kind)(config).save_pretrained(tmp_path, max_shard_size=shards)
    unflagged(tmp_path)


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(61, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))


def optimizer_state(folder):
    made = model()
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    made(torch.arange(5)).sum().backward()
    optimizer.step()
    schedule.step()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(schedule.state_dict(), folder / "scheduler.pt")


def halves():
    made = {key: value.to(torch.bfloat16) for key, value in model().state_dict().items()}
    return {"state_dict": made, "epoch": 3, "note": "best"}


def generator_states():
    return {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}


def many_types():
    kinds = (torch.float16, torch.float64, torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64)
    return {str(kind): torch.ones(3, dtype=kind) for kind in kinds}


def views():
    whole = torch.arange(100.0)
    return {"a": whole[:10], "b": whole[50:], "t": whole.view(10, 10).t()}


# What torch.save writes, by the name of its file.
SAVED_BY_TORCH = {
    "pytorch_model.bin": lambda: model().state_dict(),
    "model.ckpt": halves,
    "parameters.pt": lambda: list(model().parameters()),
    "rng_state.pth": generator_states,
    "metrics.pt": lambda: {"score": np.float64(0.5), "counts": np.arange(7), "b": np.bool_(True)},
    "types.pth": many_types,
    "s.pt": lambda: {"sparse": torch.eye(4).to_sparse(), "size": torch.Size([4, 4]), "on": torch.device("cpu")},
    "views.pt": views,
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", SAVED_BY_TORCH)
def test_files_that_torch_saves(name, zipped, tmp_path):
    torch.save(SAVED_BY_TORCH[name](), tmp_path / name, _use_new_zipfile_serialization=zipped)
    unflagged(tmp_path)


def pickles(folder):
    content = {"words": ["a", "b"], "n": 10**12, "x": 1.5, "t": (1, 2, (3,)), "none": None, "set": {1}}
    for protocol in range(6):
        (folder / f"vocabulary{protocol}.pkl").write_bytes(pickle.dumps(content, protocol))
    (folder / "state.pkl").write_bytes(pickle.dumps(OrderedDict(model().state_dict())))
    (folder / "vectors.pkl").write_bytes(pickle.dumps({"v": np.arange(6.0), "words": np.array(["a", "b"])}))


def arrays_of_numpy(folder):
    np.save(folder / "vectors.npy", np.arange(12.0).reshape(3, 4))
    np.savez(folder / "several.npz", a=np.arange(3), b=np.zeros((4, 4)))
    np.savez_compressed(folder / "packed.npz", a=np.zeros(100_000), b=np.arange(5))


def safetensors_of_all_types(folder):
    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn)
    made = {f"t{at}": torch.ones(2, 3).to(kind) for at, kind in enumerate(kinds)}
    save_file({**made, "empty": torch.zeros(0, 4), "scalar": torch.tensor(1.0)}, folder / "model.safetensors")


def safetensors_whose_header_begins_as_a_pickle(folder):
    """Headers are padded to 8 bytes, and one of 0x280 bytes begins with 80 02."""
    for length in range(540, 640, 8):
        save_file({"x" * length: torch.zeros(1)}, folder / f"model{length}.safetensors")
    assert any(path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x03") for path in folder.iterdir())


def onnx_graph(folder):
    import onnx
    from onnx import TensorProto, helper

    weights = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weights])
    (folder / "onnx").mkdir()
    onnx.save(helper.make_model(graph), folder / "onnx" / "model.onnx")


def onnx_graph_with_its_weights_beside(folder):
    import onnx
    from onnx import TensorProto, helper

    weights = helper.make_tensor("w", TensorProto.FLOAT, [4096], np.ones(4096, np.float32).tobytes(), raw=True)
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [], [weights])
    onnx.save(helper.make_model(graph), folder / "m.onnx", save_as_external_data=True, location="m.onnx_data")


def sentence_transformers_layout(folder):
    write_checkpoint(folder, "bert")
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    listed = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        '{"word_embedding_dimension": 24, "pooling_mode_mean_tokens": true}'
    )
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 128, "do_lower_case": false}')


def texts_beside_a_model(folder):
    write_checkpoint(folder, "roberta")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n(c) os\nsystem\n(a list\n" + "word " * 5000)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "(", "cat", "dog", "c", ".", "R", "b", "o", "i"]))
    (folder / "merges.txt").write_text("#version: 0.2\nc a\nca t\n")
    (folder / ".gitattributes").write_text("*.bin filter=lfs\n")
    (folder / "LICENSE").write_text("MIT")
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message['role'] + ': ' + message.content | trim }}{% endfor %}"
    )


def gguf_with_code_among_its_words(folder):
    """Vocabularies of programs have the names that templates must not have."""
    template = b"{% for m in messages %}<|__media__|>{{ m.content }}{% endfor %}"
    words = b"".join(len(word).to_bytes(8, "little") + word for word in (b"__init__", b"__class__", b"cycler"))
    key = b"tokenizer.chat_template" + (8).to_bytes(4, "little") + len(template).to_bytes(8, "little") + template
    (folder / "model.gguf").write_bytes(b"GGUF" + bytes(20) + words + key)


def numbers_in_a_bin_file(folder):
    generator = np.random.default_rng(0)
    for at in range(200):
        (folder / f"part{at}.bin").write_bytes(generator.bytes(4096)[1:] if at else b"\x00" * 64)


def a_zip_of_texts(folder):
    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/one.txt", "words " * 1000)
        archive.writestr("a/two.json", '{"a": [1, 2, 3]}')


def a_link_within(folder):
    write_checkpoint(folder, "bert")
    (folder / "weights.safetensors").symlink_to("model.safetensors")


SAVED = [
    *(optimizer_state, pickles, arrays_of_numpy, safetensors_of_all_types),
    *(safetensors_whose_header_begins_as_a_pickle, onnx_graph),
    *(onnx_graph_with_its_weights_beside, sentence_transformers_layout, texts_beside_a_model, numbers_in_a_bin_file),
    *(gguf_with_code_among_its_words, a_zip_of_texts, a_link_within),
]


@pytest.mark.parametrize("save", SAVED, ids=lambda save: save.__name__)
def test_files_that_other_programs_save(save, tmp_path):
    save(tmp_path)
    unflagged(tmp_path)


def test_settings_of_a_training_are_named_but_do_not_fail(tmp_path):
    import transformers

    torch.save(transformers.TrainingArguments(output_dir=str(tmp_path / "o")), tmp_path / "training_args.bin")
    report = unflagged(tmp_path)
    assert "pickle-settings" in {finding.rule for finding in report.findings}


def test_a_snapshot_of_the_hub_links_to_its_blobs(tmp_path):
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / ("a" * 40)
    write_checkpoint(blobs, "bert")
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    unflagged(snapshot)


def test_there_are_at_least_50():
    assert len(FOLDERS) + len(FAMILIES) + len(SAVED) + len(SAVED_BY_TORCH) >= 50


def test_a_known_release_is_known():
    from bothways.audit.provenance.checker import KNOWN_RELEASES
    from bothways.checkpoints.hub import EMBEDDED

    for name, embedded in EMBEDDED.items():
        assert KNOWN_RELEASES[embedded.checksums["model.safetensors"]] == name
