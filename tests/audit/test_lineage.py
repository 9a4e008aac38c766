"""Files of models: damaged and hostile ones, where weights come from, and the claims about them."""

import json
import os
import pickle
import subprocess
import sys
import time

import hostile_samples
import pytest
import torch
from safetensors.torch import load_file, save_file
from sarif_schema import violations

from bothways.audit import Severity, scan
from bothways.audit.finding import FAILING
from bothways.audit.formats import as_sarif, as_text
from tiny_models import edit_config, write_checkpoint


def findings(folder, reference=None):
    report = scan(folder, reference=reference, detectors=["ModelProvenanceChecker"])
    return {finding.rule: finding for finding in report.findings}


def changed(source, folder, change):
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    tensors = load_file(source / "model.safetensors")
    save_file({f"{name}": change(value) for name, value in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture
def base(tmp_path):
    write_checkpoint(tmp_path / "base", "bert")
    return tmp_path / "base"


def noisy(share):
    generator = torch.Generator().manual_seed(0)
    return lambda value: value + share * value.std(correction=0) * torch.randn(value.shape, generator=generator)


@pytest.mark.parametrize(
    ("change", "rule", "said"),
    [
        (lambda value: value, "lineage", "identical in all tensors"),
        (noisy(0.05), "lineage", "a fine-tune"),
        (lambda value: value.to(torch.bfloat16), "lineage", "a fine-tune"),
        (lambda value: noisy(1.0)(value * 0.0 + torch.randn(value.shape)), "lineage-unrelated", "unrelated"),
    ],
)
def test_weights_are_told_by_their_distance(change, rule, said, base, tmp_path):
    finding = findings(changed(base, tmp_path / "model", change), base)[rule]
    assert said in finding.title
    assert finding.evidence.details["verdict"].startswith(said.removesuffix("s"))
    assert finding.severity <= Severity.LOW
    assert set(finding.evidence.details["layers"]) == {"layer 0", "layer 1", "layer 2", "outside the layers"}


def test_a_model_with_a_head_is_compared_by_its_encoder(base, tmp_path):
    folder = changed(base, tmp_path / "model", lambda value: value)
    named = {f"bert.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    save_file({**named, "classifier.weight": torch.ones(3, 24)}, folder / "model.safetensors")
    finding = findings(folder, base)["lineage"]
    assert "identical in all compared tensors" in finding.title


def test_another_architecture_has_nothing_in_common(base, tmp_path):
    write_checkpoint(tmp_path / "model", "distilbert")
    assert "lineage-unrelated" in findings(tmp_path / "model", base)


def test_the_layer_that_was_changed_is_named(base, tmp_path):
    folder = changed(base, tmp_path / "model", lambda value: value)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if "layer.1" in name and tensors[name].dim() == 2)
    save_file({**tensors, name: tensors[name] + 1.0}, folder / "model.safetensors")
    details = findings(folder, base)["lineage"].evidence.details
    assert name in details["changed most"][0]
    assert details["layers"]["layer 0"]["distance"] == 0 < details["layers"]["layer 1"]["distance"]


def test_weights_without_safetensors_are_not_compared(base, tmp_path):
    folder = changed(base, tmp_path / "model", lambda value: value)
    (folder / "model.safetensors").unlink()
    assert "no weights in safetensors" in findings(folder, base)["lineage"].title


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 1000}, "vocabulary: 1,000 claimed, 61 in the weights"),
        ({"hidden_size": 48}, "width of the word embeddings: 48 claimed, 24 in the weights"),
        ({"num_hidden_layers": 12}, "layers: 12 claimed, 3 in the weights"),
        (
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}},
            "labels: 2 claimed, 3 in the weights",
        ),
    ],
)
def test_claims_that_differ_from_the_weights_are_found(changes, said, tmp_path):
    write_checkpoint(tmp_path, "bert", architecture="BertForSequenceClassification")
    edit_config(tmp_path, **changes)
    assert findings(tmp_path)["claim-differs"].title == said


def test_a_tokenizer_with_more_ids_than_rows_is_found(base):
    settings = json.loads((base / "tokenizer.json").read_text())
    settings["added_tokens"].append({"id": 5000, "content": "<x>", "special": False})
    (base / "tokenizer.json").write_text(json.dumps(settings))
    assert findings(base)["claim-differs"].title == "highest id of the tokenizer: 5,000 claimed, 60 in the weights"


def test_a_missing_shard_is_found(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001.safetensors"}}')
    assert "missing-file" in findings(tmp_path)


DETECTOR = ["ModelProvenanceChecker"]
UNPICKLED = []
sys.addaudithook(lambda event, arguments: UNPICKLED.append(arguments) if event == "pickle.find_class" else None)


@pytest.mark.parametrize("name", hostile_samples.SAMPLES)
def test_a_malicious_file_is_found(name, tmp_path):
    make, rule, _ = hostile_samples.SAMPLES[name]
    make(tmp_path)
    UNPICKLED.clear()
    begun = time.monotonic()
    report = scan(tmp_path, detectors=DETECTOR)
    assert not UNPICKLED
    assert report.verdict == "fail", report
    found = [finding for finding in report.findings if finding.rule == rule and finding.severity >= FAILING]
    assert found, [(each.rule, each.title) for each in report.findings]
    assert found[0].references
    assert found[0].remedy
    assert not violations(as_sarif(report))
    assert time.monotonic() - begun < 10


def test_there_are_at_least_25_classes_with_their_publication():
    assert len({published for _, _, published in hostile_samples.SAMPLES.values()}) >= 25


def test_a_scan_of_files_loads_no_torch(tmp_path):
    make, _, _ = hostile_samples.SAMPLES["checkpoint_that_calls"]
    make(tmp_path)
    code = (
        "import sys; from bothways.audit import scan; "
        f"report = scan({str(tmp_path)!r}, detectors=['ModelProvenanceChecker']); "
        "print(report.verdict, [name for name in ('torch', 'transformers', 'safetensors') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "fail []", run.stderr


@pytest.mark.slow
def test_all_of_them_are_looked_at_within_bounded_memory(tmp_path):
    for name, (make, _, _) in hostile_samples.SAMPLES.items():
        (tmp_path / name).mkdir()
        make(tmp_path / name)
    code = (
        "import re, sys, pathlib; from bothways.audit import scan\n"
        "for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    scan(folder, detectors=['ModelProvenanceChecker'])\n"
        # Not ru_maxrss, which begins with the memory of the process that started this one.
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1]) // 1024)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert int(run.stdout) < 512, run.stderr  # MiB; a file claims 10 GB, another unpacks to more than it may


def test_names_of_files_can_neither_break_a_report_nor_control_a_terminal(tmp_path):
    name = b"x\xff\x1b[2J\nCRITICAL fake \xe2\x80\xaegpj.pkl"
    (tmp_path / os.fsdecode(name)).write_bytes(pickle.dumps(print))
    report = scan(tmp_path, detectors=DETECTOR)
    written = as_text(report)
    assert r"x\xff\x1b[2J\nCRITICAL fake \u202egpj.pkl" in written
    assert not any("CRITICAL fake" in line and r"\n" not in line for line in written.splitlines())
    for text in (written, json.dumps(report.to_dict(), ensure_ascii=False), json.dumps(as_sarif(report))):
        assert not {"\x1b", "\u202e"} & set(text)
        text.encode()
    assert not violations(as_sarif(report))
