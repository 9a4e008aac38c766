"""The baseline that is saved with a model, and evaluated on the same rows."""

import json
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score, log_loss

from bothways import (
    Ensemble,
    MultiTask,
    PairClassifier,
    SentenceEmbedder,
    TaggingData,
    TaskData,
    TextClassifier,
    TextTagger,
    open_trained,
)
from bothways.errors import CorruptCheckpoint
from bothways.tasks.card import CONSTANTS
from bothways.tasks.heads import training as head_training
from bothways.tasks.heads.training import APART, CONTINUED, LINEAR
from bothways.training.objective import Baseline
from contract_cases import pair_rows, rows, write_embedder

QUIET = {"show_progress": False, "epochs": 1, "learning_rate": 1e-3, "batch_size": 8}


def tagged(count=16):
    made = [row["text"].split() for row in rows("single", count)]
    return [{"tokens": words, "tags": ["B-X", *["O"] * (len(words) - 1)]} for words in made]


def scored(count=16):
    return [{"text_a": f"w5 w{20 + at}", "text_b": f"w{20 + at % 3}", "score": at % 4} for at in range(count)]


CASES = {
    "single": (TextClassifier, rows("single"), {}, LINEAR),
    "multi": (TextClassifier, rows("multi"), {"target": "multi"}, LINEAR),
    "regression": (TextClassifier, rows("regression"), {"target": "regression"}, LINEAR),
    "pairs": (PairClassifier, pair_rows("single"), {}, APART),
    "tags": (TextTagger, tagged(), {}, LINEAR),
    "embedder": (SentenceEmbedder, scored(), {}, "embedder before the training"),
}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("baselines")
    write_embedder(folder / "base")
    return folder


@contextmanager
def trained_further():
    """Keep the last epoch even if the baseline is better."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_training, "Baseline", lambda name, _, validate: Baseline(name, -100.0, validate))
        yield


@pytest.fixture(scope="module")
def saved(work):
    """Train a model of a case, of which no epoch falls back to the baseline, and return its folder and itself."""
    made = {}

    def folder_of(case):
        if case not in made:
            kind, data, options, _ = CASES[case]
            model = kind.from_pretrained(work / "base", device="cpu")
            with trained_further():
                record = model.fit(data, validation=data, **options, **QUIET)
            assert case == "embedder" or record.kept_epoch == 1
            model.save(work / case)
            made[case] = work / case, model
        return made[case]

    return folder_of


def edit_stored(folder, baseline):
    path = folder / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "baseline": baseline}))


every_case = pytest.mark.parametrize("case", CASES)


@every_case
def test_the_saved_baseline_is_the_one_that_the_training_measured(saved, work, case, tmp_path):
    (folder, trained), (_, data, _, name) = saved(case), CASES[case]
    opened = open_trained(folder, device="cpu")
    opened.save(tmp_path / "again")
    expected = trained.card.get("baseline", {}).get("metrics") or trained.card["training"]["validations"][0]["metrics"]
    for model in (trained, opened, open_trained(tmp_path / "again", device="cpu")):
        report = model.evaluate(data, resamples=5)
        assert report.baseline.name == name
        compared = report.baseline.metrics.keys() & expected.keys()
        assert compared
        for metric in compared:
            found = report.baseline.metrics[metric]
            assert found.first.value == pytest.approx(expected[metric], abs=1e-4), metric
            assert found.second.value == report.estimates[metric].value
            assert found.difference.value == pytest.approx(found.second.value - found.first.value)
        assert report.to_dict()["baseline"]["tests"]
    assert model.evaluate(data, resamples=5, baseline=False).baseline is None


def test_the_figures_of_the_card_are_calibrated_and_those_of_an_epoch_are_a_loss(saved):
    card = saved("single")[1].card
    assert [*card["baseline"]["metrics"]] == ["accuracy", "macro_f1", "nll"]
    assert [list(each["metrics"]) for each in card["training"]["validations"]] == [["accuracy", "macro_f1", "loss"]] * 2
    assert card["metrics"]["nll"] != card["training"]["validations"][1]["metrics"]["loss"]


@pytest.fixture
def moved(saved, work, tmp_path):
    """Copy the base model and a saved model to another folder."""

    def copy(case):
        for folder in (work / "base", saved(case)[0]):
            shutil.copytree(folder, tmp_path / folder.name)
        return tmp_path / case

    return copy


def test_the_base_model_is_found_beside_the_model_and_only_if_it_is_unchanged(
    moved, saved, work, tmp_path, monkeypatch
):
    folder, data = moved("single"), rows("single")
    monkeypatch.setattr("bothways.tasks.card.locate", None)  # a folder is no name of the hub
    stored = json.loads((folder / "bothways.json").read_text())["baseline"]
    edit_stored(folder, {**stored, "base": {**stored["base"], "name": "base"}})  # relative to a folder above the model
    hidden = work / "base hidden"
    (work / "base").rename(hidden)
    try:
        assert open_trained(folder, device="cpu").evaluate(data, resamples=5).baseline.name == LINEAR
        weights = tmp_path / "base" / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        report = open_trained(folder, device="cpu").evaluate(data, resamples=5)
        assert report.baseline.name == CONSTANTS["single"]
        assert "its base model, 'base', was not found or changed" in report.summary()
    finally:
        hidden.rename(work / "base")


@pytest.mark.parametrize("case", ["single", "multi", "regression", "tags"])
def test_without_the_base_model_the_baseline_is_the_best_constant(moved, saved, monkeypatch, case):
    monkeypatch.setattr("bothways.tasks.card.BaseModel.located", lambda _: None)
    data = CASES[case][1]
    report = open_trained(saved(case)[0], device="cpu").evaluate(data, resamples=5)
    found = {name: each.first.value for name, each in report.baseline.metrics.items()}
    labels = [row["label"] for row in data] if case != "tags" else [tag for row in data for tag in row["tags"]]
    match case:
        case "single":
            dummy = DummyClassifier(strategy="prior").fit([[0]] * len(labels), labels)
            expected = dummy.predict_proba([[0]] * len(labels))
            assert found["accuracy"] == accuracy_score(labels, dummy.predict([[0]] * len(labels)))
            assert found["nll"] == pytest.approx(log_loss(labels, expected), abs=0.01)  # each count is one higher
        case "multi":
            assert found["nll"] == pytest.approx(np.log(2), abs=0.01)  # each label is that of half of the rows
        case "regression":
            assert found["mse"] == pytest.approx(np.var(labels))
        case "tags":
            assert found["accuracy"] == pytest.approx(labels.count("O") / len(labels))
            assert found["span_f1"] == 0


def test_models_of_before_have_no_baseline_and_training_figures_stay_in_the_card(moved):
    folder = moved("single")
    edit_stored(folder, None)
    model = open_trained(folder, device="cpu")
    report = model.evaluate(rows("single"), resamples=5)
    assert (report.baseline, "baseline" in report.summary(), "baseline" in report.to_dict()) == (None, False, False)
    assert model.card["baseline"]["metrics"]


def test_a_model_that_is_its_own_baseline_is_compared_with_a_constant(work):
    model = TextClassifier.from_pretrained(work / "base", device="cpu")
    record = model.fit(rows("single"), validation=rows("single"), **{**QUIET, "learning_rate": 5.0})
    assert record.kept_epoch == 0
    report = model.evaluate(rows("single"), resamples=5)
    assert (report.baseline.name, report.baseline.remark) == (CONSTANTS["single"], "")


def test_a_further_training_is_compared_with_the_model_before(saved, work, tmp_path):
    model = open_trained(saved("single")[0], device="cpu")
    before = model.evaluate(rows("single"), resamples=5)
    with trained_further():
        model.fit(rows("single"), validation=rows("single"), **QUIET)
    model.save(tmp_path / "further")
    report = open_trained(tmp_path / "further", device="cpu").evaluate(rows("single"), resamples=5)
    assert report.baseline.name == CONTINUED
    assert report.baseline.metrics["accuracy"].first.value == before.accuracy.value
    model.fit(rows("single"), validation=rows("single"), **QUIET)  # the model before has no folder
    assert model.evaluate(rows("single"), resamples=5).baseline.name == CONSTANTS["single"]


def test_each_of_several_tasks_has_its_baseline(work, tmp_path):
    model = MultiTask.from_pretrained(work / "base", device="cpu")
    tasks = {
        "animal": TaskData(rows("single"), validation=rows("single")),
        "words": TaggingData(tagged(), validation=tagged()),
    }
    model.fit(tasks, **QUIET)
    model.save(tmp_path / "both")
    opened = open_trained(tmp_path / "both", device="cpu")
    data = [{**one, **other} for one, other in zip(rows("single"), tagged(), strict=True)]
    for found in (model, opened):
        reports = found.evaluate(data, resamples=5).reports
        for name, report in reports.items():
            expected = model.card[name]["baseline"]["metrics"]
            assert report.baseline.name == LINEAR
            assert report.baseline.metrics["accuracy"].first.value == pytest.approx(expected["accuracy"], abs=1e-4)
    assert opened.part("words").evaluate(data, resamples=5).baseline.name == LINEAR


def test_the_baseline_of_an_ensemble_is_its_best_member(saved, work, tmp_path):
    other = open_trained(saved("single")[0], device="cpu")
    other.fit(rows("single"), validation=rows("single"), **{**QUIET, "epochs": 3})
    other.save(tmp_path / "other")
    folders = [saved("single")[0], tmp_path / "other"]
    report = Ensemble.of(folders, device="cpu").evaluate(rows("single"), resamples=5)
    best = max(report.members, key=lambda each: each[1]["accuracy"])
    assert report.baseline.name == f"best member on these rows, {best[0]!r}"
    assert report.baseline.metrics["accuracy"].first.value == best[1]["accuracy"]
    assert report.baseline.metrics["nll"].first.value == pytest.approx(best[1]["nll"])


def test_a_stored_baseline_is_read_by_its_schema(moved):
    folder = moved("single")
    stored = json.loads((folder / "bothways.json").read_text())["baseline"]
    for wrong in ({**stored, "constant": ["x"]}, {**stored, "base": {"name": 3}}, []):
        edit_stored(folder, wrong)
        with pytest.raises(CorruptCheckpoint, match="baseline"):
            open_trained(folder, device="cpu")
