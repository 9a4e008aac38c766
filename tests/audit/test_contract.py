"""What every detector keeps to, whatever it looks for: it says what it needs, ends with a report, changes nothing.

A detector that is entered in the registry is tried by all of this. The model is a frozen classifier of three labels.
"""

import hashlib
import json
import random
import shutil
import time
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from sarif_schema import violations

from bothways import TextClassifier, open_trained
from bothways.audit import DETECTORS, scan
from bothways.audit.context import Context, Need
from bothways.audit.finding import Verdict
from bothways.audit.formats import as_sarif, as_text
from bothways.audit.scanning import detector_named
from bothways.export import export
from bothways.quantization import quantize

MODEL = Path(__file__).parents[1] / "frozen" / "models" / "classifier"
COLUMNS = {"text": "text", "label": "label"}
LABELS = ["ant", "bee", "cow"]
ROWS = [{"text": f"w{5 + at % 3} w{20 + at % 7} w{30 + at % 5}", "label": LABELS[at % 3]} for at in range(24)]
# Seconds that a detector may take beyond its time limit, on a tiny model: one step of whatever it does.
LATE = 5.0

CASES = {
    "no data": None,
    "one row": ROWS[:1],
    "ten rows": ROWS[:10],
    "another language": [{"text": f"der hund {at} läuft über die straße", "label": LABELS[at % 3]} for at in range(24)],
    "one class": [row for row in ROWS if row["label"] == "ant"],
    "unknown labels": [{**row, "label": "dragon"} for row in ROWS],
    "no labels": [{"text": row["text"]} for row in ROWS],
    "empty texts": [{"text": "", "label": row["label"]} for row in ROWS[:6]],
    "long texts": [{"text": "w5 " * 3000, "label": "ant"}, *ROWS[:5]],
    "strange characters": [{"text": "\u202e\u200b\ufdfd \U0001f600\x00 a\u0301" * 5, "label": "bee"}, *ROWS[:5]],
    "same text": [{"text": "w5 w6", "label": LABELS[at % 3]} for at in range(12)],
    "wrong columns": [{"sentence": "w5", "class": "ant"}] * 3,
}


def audited(model, data, name, **options):
    return scan(
        model,
        data,
        detectors=[name],
        columns=COLUMNS,
        time_limit=options.pop("time_limit", 20.0),
        show_progress=False,
        **options,
    )


def checked(report, name):
    """A report that is whole: one result, a verdict, findings of the detector, all of it JSON, text and SARIF."""
    (result,) = report.detectors
    assert result.name == name
    assert result.verdict in get_args(Verdict)
    assert result.verdict == "pass" or result.reason
    assert result.verdict != "pass" or result.ran
    # A pass says what was checked, on how many rows, and that these were enough to find something.
    assert result.rule
    assert result.verdict != "pass" or result.checks
    assert result.verdict != "pass" or all(each.tells for each in result.checks)
    if result.ran:
        text, log = " ".join(as_text(report).split()), json.dumps(as_sarif(report), ensure_ascii=False)
        for words in result.statements.values():
            assert words in text
            assert json.dumps(words, ensure_ascii=False)[1:-1] in log
    for finding in report.findings:
        assert finding.detector == name
        assert finding.title
        assert finding.rule
        assert finding.severity.label == "info" or finding.remedy, finding
    json.dumps(report.to_dict(), allow_nan=False)
    assert not violations(as_sarif(report))
    assert report.verdict.upper() in as_text(report)
    return result


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_says_what_it_is_and_needs(name):
    detector = detector_named(name)
    assert detector.name == name == type(detector).__name__
    assert set(detector.needs) <= set(get_args(Need))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", DETECTORS)
def test_whatever_the_data_there_is_a_report_and_no_crash(name, case):
    result = checked(audited(MODEL, CASES[case], name), name)
    assert result.verdict != "error", result.reason
    needs = set(detector_named(name).needs)
    if CASES[case] is None and needs & {"texts", "labels", "reference"}:
        assert not result.ran
        assert ("--data" if needs & {"texts", "labels"} else "--reference") in result.reason


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of models of every kind, also those that cannot be searched for triggers or have no weights."""
    folder = tmp_path_factory.mktemp("models")
    quantize(MODEL, folder / "int8", [row["text"] for row in ROWS], cosine=0.9, show_progress=False)
    export(MODEL, folder / "onnx", format="onnx", head="sequence")
    constant = TextClassifier.from_pretrained(MODEL, device="cpu")
    with torch.no_grad():
        for each in constant.fitted.backend.head_model.head.parameters():
            each.zero_()
    constant.save(folder / "constant", golden=None)
    return folder


KINDS = ("embedder", "masked_lm", "tagger", "pairs", "regression", "multi_label", "multitask", "ensemble_vote")


@pytest.mark.parametrize("kind", [*KINDS, "int8", "onnx", "constant"])
@pytest.mark.parametrize("name", DETECTORS)
def test_whatever_the_model_there_is_a_report_that_says_what_was_not_checked(name, kind, models):
    folder = models / kind if (models / kind).exists() else MODEL.parent / kind
    result = checked(audited(folder, ROWS, name), name)
    assert result.verdict != "error", result.reason
    assert result.ran or result.reason, "why it did not run"
    if kind == "constant" and name == "BackdoorTriggerScanner":
        assert result.verdict == "inconclusive"
        assert "get the same label" in result.reason


def test_an_opened_model_without_its_head_still_has_an_encoder():
    model = TextClassifier.from_pretrained(MODEL.parent / "masked_lm", device="cpu")
    assert Context(model.name, model).encoder is model.model


@pytest.mark.parametrize("name", DETECTORS)
def test_the_same_seed_gives_the_same_findings_and_model_and_generators_stay_as_they_were(name):
    model = open_trained(MODEL, device="cpu")
    encoder = model.model.encoder
    before = _state(encoder)
    mode, grads = encoder.training, [each.requires_grad for each in encoder.parameters()]
    given = MODEL if "files" in detector_named(name).needs else model
    first, second = (audited(given, ROWS, name, seed=3) for _ in range(2))
    assert [finding.to_dict() for finding in first.findings] == [finding.to_dict() for finding in second.findings]
    assert _state(encoder) == before
    assert encoder.training == mode
    assert [each.requires_grad for each in encoder.parameters()] == grads
    assert all(each.grad is None for each in encoder.parameters())


def _state(module):
    digest = hashlib.sha256()
    for key, value in module.state_dict().items():
        digest.update(key.encode() + value.numpy().tobytes())
    generators = (torch.random.get_rng_state().numpy().tobytes(), repr(random.getstate()), repr(np.random.get_state()))
    return digest.hexdigest(), generators


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_keeps_to_its_time_limit(name):
    begun = time.monotonic()
    result = checked(audited(MODEL, ROWS, name, time_limit=1e-6), name)
    assert time.monotonic() - begun < LATE
    assert result.verdict in ("inconclusive", "fail")


@pytest.mark.parametrize("damage", ["no files", "no JSON", "cut weights", "other weights"])
@pytest.mark.parametrize("name", DETECTORS)
def test_a_broken_model_never_passes(name, damage, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    if damage == "no files":
        for path in folder.iterdir():
            path.unlink()
    elif damage == "no JSON":
        (folder / "config.json").write_text('{"model_type": ')
    else:
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(
            content[: len(content) // 2] if damage == "cut weights" else b"x" * 9
        )
    result = checked(audited(folder, ROWS, name), name)
    assert result.verdict != "pass", damage
