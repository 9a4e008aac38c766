"""Saved models, an index and an unfinished training open, and answer as they did when they were saved; see README.md.

Everything is read through the public API and the command line.
"""

import contextlib
import hashlib
import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import bothways
from bothways import open_trained
from bothways.cli import main
from bothways.compose import check
from bothways.errors import InvalidInput
from bothways.retrieval import Dense
from bothways.training import loop

MODELS = Path(__file__).resolve().parent / "models"
GOLDEN = MODELS.with_name("golden")

# Relative, and absolute below 1. Sums in float32 differ in their last bits from machine to machine; the distance of a
# text to the others of its label is measured in their small deviations, which multiplies that.
TOLERANCE, OF_DISTANCES = 1e-5, 1e-4


def frozen(key):
    """Run a test for each file of answers that has this key, with its name."""
    names = sorted(path.stem for path in MODELS.glob("*.json"))
    return pytest.mark.parametrize("name", [name for name in names if key in stored(name)])


def stored(name):
    return json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))


def opened(root, name, case):
    """The saved model that a case is about, or the part of it."""
    folder = root / case.get("folder", name)
    if "part" in case:
        return open_trained(folder, task=case["part"], device="cpu")
    return getattr(bothways, case["kind"]).from_pretrained(folder, device="cpu")


def answer_of(model, call):
    """What a model answers to a call, as JSON values."""
    answer = getattr(model, call["method"])(call["given"], **call["options"])
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    said = [each.to_dict() for each in answer] if isinstance(answer, list) else answer.to_dict()
    return json.loads(json.dumps(said))


def printed_by(root, words):
    """The JSON lines that a command prints; ``{v}`` in its words is the folder of the models."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([word.format(v=root) for word in words]) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def search_words(name, query, mode):
    """The words of a command that searches an index, whose model has moved since it was built."""
    model = ("--model", "{v}/embedder", "--device", "cpu")
    return ["search", "query", f"{{v}}/{name}", query, "--mode", mode, "--top", "4", "--json", *model]


# Reports had the baseline of the training, which was measured on other rows.
GONE = {"baseline"}


def differences(expected, found, where=""):
    """Where an answer is not what it was: numbers beyond the tolerance, anything else at all. It may say more."""
    if isinstance(expected, dict) and isinstance(found, dict):
        missing = [f"{where}.{name} is gone" for name in expected.keys() - found.keys() - GONE]
        both = [(f"{where}.{name}", value, found[name]) for name, value in expected.items() if name in found]
        return missing + [line for name, *pair in both for line in differences(*pair, name)]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = zip(expected, found, strict=True)
        return [line for number, pair in enumerate(pairs) for line in differences(*pair, f"{where}[{number}]")]
    if isinstance(expected, float) and isinstance(found, float):
        tolerance = OF_DISTANCES if where.endswith("out_of_domain_score") else TOLERANCE
        same = math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance)
    else:
        same = type(expected) is type(found) and expected == found
    return [] if same else [f"{where} was {expected!r} and is now {found!r}"]


@frozen("kind")
def test_a_saved_model_is_opened_as_what_it_is_and_answers_as_it_did(name):
    case = stored(name)
    model = open_trained(MODELS / case.get("folder", name), task=case.get("part"), device="cpu")
    assert type(model).__name__ == case["kind"]
    for call in case["calls"]:
        assert differences(call["answer"], answer_of(model, call)) == [], (call["method"], call["options"])


@frozen("queries")
def test_an_index_is_searched_as_it_was(name):
    asked = stored(name)["queries"]
    for each in asked:
        (hits,) = printed_by(MODELS, search_words(name, each["query"], each["mode"]))
        assert differences(each["hits"], hits) == [], (each["query"], each["mode"])
    search = bothways.SemanticSearch.open(MODELS / name, model=MODELS / "embedder", device="cpu")
    dense = next(each for each in asked if each["mode"] == "dense")
    hits = search.search(dense["query"], k=4, mode=Dense())
    assert [hit.id for hit in hits] == [hit["id"] for hit in dense["hits"]]
    assert [dict(hit.fields) for hit in hits] == [hit["fields"] for hit in dense["hits"]]


@frozen("lines")
def test_the_command_line_prints_what_it_printed(name):
    case = stored(name)
    assert differences(case["lines"], printed_by(MODELS, case["words"])) == []


@frozen("resumed_by")
def test_an_unfinished_training_is_resumed_and_ends_as_it_would_have(name, tmp_path, monkeypatch):
    case, folder = stored(name), shutil.copytree(MODELS / name, tmp_path / "runs")
    monkeypatch.chdir(folder)
    # This machine may have other threads and another library, which the tolerance allows for.
    monkeypatch.setattr(loop, "recorded_arithmetic", lambda: case["arithmetic"])
    answers = {}
    for when in ("before", "after"):
        model = bothways.TextClassifier.from_pretrained("run", device="cpu")
        answers[when] = [answer_of(model, call) for call in case["calls"]]
        if when == "before":
            assert (folder / "run.checkpoints").is_dir()
            with contextlib.redirect_stdout(io.StringIO()):
                assert main(case["resumed_by"]) == 0
    assert differences({when: case[when] for when in answers}, answers) == []
    assert not (folder / "run.checkpoints").exists()
    events = [json.loads(line)["event"] for line in (folder / "run" / "training.jsonl").read_text().splitlines()]
    assert (events[0], events[-1]) == ("start", "finished")


def test_what_was_frozen_is_as_it_was():
    listed = [line.split("  ", 1) for line in (MODELS / "SHA256SUMS").read_text(encoding="utf-8").splitlines()]
    there = {path.relative_to(MODELS).as_posix(): path for path in MODELS.rglob("*") if path.is_file()}
    assert sorted([name for _, name in listed] + ["SHA256SUMS"]) == sorted(there)
    changed = [name for digest, name in listed if hashlib.sha256(there[name].read_bytes()).hexdigest() != digest]
    assert changed == []


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.json")))
def test_golden_answers_that_were_recorded_before_are_read_and_confirmed(name):
    report = check(MODELS / name, against=GOLDEN / f"{name}.json", device="cpu")
    assert report.ok, report.differences


def test_a_folder_of_before_golden_answers_opens_and_says_that_it_has_none():
    assert open_trained(MODELS / "classifier", device="cpu")
    with pytest.raises(InvalidInput, match="has no golden answers: record them with bothways check"):
        open_trained(MODELS / "classifier", device="cpu", check=True)
