"""A new task is a room and a line of the registry: everything else that this house has works for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from verdict_task import VERDICTS, Moderator

from bothways import Ensemble, MultiTask, TaggingData, TaskData, open_trained
from bothways.compose import schemas_of
from bothways.data import read_rows
from bothways.errors import InvalidInput
from bothways.explain import Label, attribute
from bothways.export import export
from bothways.tasks import PairClassifier, compare
from bothways.tasks.registry import SPECS
from classifier_cases import rows, without_dropout
from pair_cases import pairs
from tiny_models import TINY, write_checkpoint

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6}
ROOM = Path(__file__).with_name("verdict_task.py")


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(SPECS, "verdicts", VERDICTS)


def posts(count=24, first=0):
    made = rows(count, first)
    return [{"post": row["text"], "verdict": ("kept", "broken")[row["label"] == "ant"]} for row in made]


TEXTS = [*(row["post"] for row in posts(8, first=50)), "w5 " * 40]


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    folder, saved = tmp_path_factory.mktemp("members"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SPECS, "verdicts", VERDICTS)
        patch.setitem(
            TINY, "bert", {**TINY["bert"], "num_hidden_layers": 1}
        )  # an export takes as long as it has layers
        for seed, family in enumerate(("bert", "distilbert")):
            write_checkpoint(folder / family, family, seed=seed)
            model = Moderator.from_pretrained(without_dropout(folder / family), device="cpu")
            model.fit(posts(), validation=posts(12, first=30), seed=seed, **QUICK)
            model.save(folder / f"{family}-verdicts")
            saved.append(folder / f"{family}-verdicts")
    return saved


# --- what follows from the room ---


def test_the_room_is_short():
    assert len(ROOM.read_text(encoding="utf-8").splitlines()) < 150


def test_a_saved_model_opens_and_predicts_and_is_evaluated(members):
    model = open_trained(members[0], device="cpu")
    assert isinstance(model, Moderator)
    assert list(model.predict_stream(read_rows([{"post": text} for text in TEXTS]))) == model.predict(TEXTS)
    report = model.evaluate(posts(12), resamples=5)
    assert {"accuracy", "nll", "ece"} <= set(report.estimates)


def test_its_schemas_follow_from_its_dataclasses(members):
    model = open_trained(members[0], device="cpu")
    schemas = schemas_of(model)
    for each in model.predict(TEXTS):
        Draft202012Validator(schemas.prediction).validate(each.to_dict())
    fits = Draft202012Validator(schemas.input)
    assert fits.is_valid({"post": "w5"})
    assert not fits.is_valid({"text": "w5"})
    both = Ensemble.of(members, device="cpu")
    Draft202012Validator(schemas_of(both).prediction).validate(both.predict("w5").to_dict())


def test_its_predictions_are_explained(members):
    model = open_trained(members[0], device="cpu")
    (found,) = attribute(model, ["w5 w6 w7"], target=Label("broken"))
    assert [each.text for each in found.words] == ["w5", "w6", "w7"]
    temperature = model.confidence.temperature.value
    (asked,) = model.predict(["w5 w6 w7"])
    assert found.score == pytest.approx(np.log(asked.broken / (1 - asked.broken)) * temperature, abs=1e-4)
    with pytest.raises(InvalidInput, match="expected a label among 'kept', 'broken', got 'ant'"):
        attribute(model, ["w5 w6"], target=Label("ant"))
    (deleted,) = attribute(Ensemble.of(members, device="cpu"), ["w5 w6 w7"], "leave-one-out")
    assert len(deleted.words) == 3


@pytest.mark.slow  # every day: the exports of all tasks of the registry
def test_an_exported_model_gives_the_same_answers(members, tmp_path):
    pytest.importorskip("onnxruntime")
    export(members[0], tmp_path / "onnx", format="onnx")
    model, exported = (open_trained(each, device="cpu") for each in (members[0], tmp_path / "onnx"))
    found = [each.broken for each in exported.predict(TEXTS)]
    assert found == pytest.approx([each.broken for each in model.predict(TEXTS)], abs=1e-5)


COMMANDS = """
import contextlib, io, json, sys
from bothways.tasks.registry import SPECS
from verdict_task import VERDICTS
SPECS[VERDICTS.name] = VERDICTS  # the line of the registry
from bothways.cli import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(words)
    print(json.dumps([code, out.getvalue()]))
"""


def test_the_command_line_has_it(base, tmp_path):
    pytest.importorskip("altair")
    without_dropout(base)
    data, run = tmp_path / "posts.jsonl", tmp_path / "run"
    data.write_text("".join(f"{json.dumps(each)}\n" for each in posts()), encoding="utf-8")
    small = ["--epochs", "2", "--learning-rate", "3e-3", "--batch-size", "6", "--device", "cpu", "--quiet"]
    commands = [
        ["train", "verdicts", "--help"],
        ["train", "verdicts", "--model", base, "--train", data, "--validation", data, "--output", run, *small],
        ["evaluate", run, "--data", data, "--report", tmp_path / "page.html", "--resamples", "5", "--json", "--quiet"],
        ["predict", run, "w5 w6", "w7"],
        ["predict", run, "--data", data, "--output", tmp_path / "out.csv", "--quiet"],
        ["explain", run, "w5 w6", "--label", "broken", "--json"],
        ["schema", run],
        ["schema", "verdicts"],
    ]
    paths = os.pathsep.join([str(ROOM.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps([list(map(str, words)) for words in commands])],
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    codes, outs = zip(*map(json.loads, done.stdout.splitlines()), strict=True)
    assert codes == (0,) * len(commands), done.stderr
    assert VERDICTS.summary in outs[0]
    assert '{"post": "Buy now!", "verdict": "broken"}' in outs[0]
    model = open_trained(run, device="cpu")
    assert model.columns == VERDICTS.columns
    assert set(json.loads(outs[2])) > {"accuracy", "ece"}
    assert "run" in (tmp_path / "page.html").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in outs[3].splitlines()]
    assert [line["broken"] for line in lines] == pytest.approx([each.broken for each in model.predict(["w5 w6", "w7"])])
    header, *cells = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    assert (header.replace('"', ""), len(cells)) == ("post,broken,windows,dropped_tokens", 24)
    assert [each["word"] for each in json.loads(outs[5])["attribution"]["words"]] == ["w5", "w6"]
    assert json.loads(outs[6]) == json.loads(outs[7])
    assert Draft202012Validator(json.loads(outs[6])["prediction"]).is_valid(lines[0])


# --- with other models ---


@pytest.mark.parametrize("method", ["mean", "vote", "stacked"])
def test_it_is_a_member_of_ensembles(members, tmp_path, method):
    alone = [[each.broken for each in open_trained(folder, device="cpu").predict(TEXTS)] for folder in members]
    if method == "mean":
        found = Ensemble.of(members, device="cpu").predict(TEXTS)
        assert [each.together.broken for each in found] == pytest.approx(np.mean(alone, axis=0), abs=1e-6)
    ensemble = Ensemble.of(members, method=method, calibrate=posts(30, first=80), device="cpu")
    assert ensemble.temperature is not None
    report = ensemble.evaluate(posts(12, first=60), resamples=5)
    assert len(report.members) == 2
    assert {"disagreement", "mutual_information"} == set(report.to_dict()["disagreement"])
    ensemble.save(tmp_path / "ensemble")
    again = open_trained(tmp_path / "ensemble", device="cpu")
    assert again.predict(TEXTS) == ensemble.predict(TEXTS)
    assert list(again.predict_stream(read_rows([{"post": text} for text in TEXTS]))) == again.predict(TEXTS)
    assert again.predict(TEXTS[-1]).together.tokens_read.windows > 1
    one = open_trained(members[0], device="cpu")
    assert compare(one, again, posts(12), resamples=5).metrics.keys() >= {"accuracy"}


@pytest.mark.parametrize("words", [False, True], ids=["beside labels", "beside labels and tags"])
def test_it_is_a_part_of_a_model_of_several_tasks(base, tmp_path, words):
    tasks = {"animal": TaskData(rows(18), rows(9)), "verdict": TaskData(posts(), posts(12), task="verdicts")}
    if words:
        texts = [row["text"].split() for row in rows(18)]
        tagged = [{"tokens": each, "tags": ["X", *["Y"] * (len(each) - 1)]} for each in texts]
        tasks["marks"] = TaggingData(tagged, tagged[:6])
    model = MultiTask.from_pretrained(without_dropout(base), device="cpu")
    model.fit(tasks, **QUICK)
    answers, alone = model.predict(TEXTS), model.part("verdict").predict(TEXTS)
    assert isinstance(model.part("verdict"), Moderator)
    assert [each["verdict"].broken for each in answers] == pytest.approx([each.broken for each in alone], abs=1e-6)
    model.save(tmp_path / "saved")
    again = open_trained(tmp_path / "saved", device="cpu")
    assert again.predict(TEXTS) == answers
    assert open_trained(tmp_path / "saved", task="verdict", device="cpu").predict(TEXTS) == alone
    assert list(again.predict_stream(read_rows([{"post": TEXTS[0]}]))) == [again.predict(TEXTS[0])]
    if not words:
        data = [{**post, "label": row["label"]} for post, row in zip(posts(12), rows(12), strict=True)]
        report = again.evaluate(data, resamples=5)
        expected = again.part("verdict").evaluate(data, resamples=5).estimates["accuracy"].value
        assert report["verdict"].estimates["accuracy"].value == expected
        assert again.with_columns(text="body").columns.text == ("body",)


def test_what_reads_something_else_is_no_part_beside_it(base):
    tasks = {"verdict": TaskData(posts(), posts(12), task="verdicts"), "same": TaskData(pairs(), task="pairs")}
    model = MultiTask.from_pretrained(base, device="cpu")
    with pytest.raises(InvalidInput, match="must read the same kind of input, got a text for verdict, a"):
        model.fit(tasks, **QUICK)


def test_it_is_no_member_beside_models_of_other_tasks(members, base, tmp_path):
    other = PairClassifier.from_pretrained(base, device="cpu")
    other.fit(pairs(), validation=pairs(), **QUICK)
    other.save(tmp_path / "pairs")
    with pytest.raises(InvalidInput, match=r"a model for verdicts and .*pairs' one for pairs \(single\)"):
        Ensemble.of([members[0], tmp_path / "pairs"], device="cpu")
