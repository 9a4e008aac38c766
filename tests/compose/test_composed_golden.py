"""Golden answers of ensembles, of models of several tasks, and of what is converted from a model."""

import json

import pytest

from bothways import Ensemble, MultiTask, TaskData, TextClassifier
from bothways.compose import check
from bothways.errors import AnswersChanged
from bothways.export import export
from bothways.pretraining.distiller import Distiller
from bothways.pretraining.task_distiller import TaskDistiller
from bothways.quantization import quantize
from contract_cases import rows
from task_cases import CASES, QUICK, fitted

TRAIN, HELD = rows("single", 60)[:40], rows("single", 60)[40:]
UNSEEN = [row["text"] for row in HELD if row["text"] not in {each["text"] for each in TRAIN}]


@pytest.fixture(scope="module")
def animals(bert, tmp_path_factory):
    """The folders of two classifiers of the same labels."""
    folder = tmp_path_factory.mktemp("animals")
    for seed in (1, 2):
        fitted(bert, "classification", TRAIN, HELD, seed=seed).save(folder / f"{seed}")
    return [folder / "1", folder / "2"]


def recorded(folder):
    content = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    return content["inputs"], [each["input"] for each in content["answers"]]


@pytest.mark.parametrize("calibrate", [None, HELD], ids=["uncalibrated", "calibrated"])
def test_an_ensemble_answers_as_recorded(animals, tmp_path, calibrate):
    Ensemble.of(animals, calibrate=calibrate, device="cpu").save(tmp_path / "ens")
    report = check(tmp_path / "ens", device="cpu")
    assert report.ok
    assert (report.task, report.inputs) == ("ensemble", 16)
    source, inputs = recorded(tmp_path / "ens")
    assert source == ("validation" if calibrate else "neutral")
    assert set(UNSEEN) & set(inputs) if calibrate else not set(UNSEEN) & set(inputs)
    again = Ensemble.from_pretrained(tmp_path / "ens", device="cpu", check=True)
    again.save(tmp_path / "again")
    assert recorded(tmp_path / "again") == (source, inputs)
    content = json.loads((tmp_path / "ens" / "bothways.json").read_text(encoding="utf-8"))
    (tmp_path / "ens" / "bothways.json").write_text(json.dumps({**content, "method": "vote"}), encoding="utf-8")
    with pytest.raises(
        AnswersChanged, match=r"settings: bothways.json: method was 'mean', is 'vote'\n  answers: input 1"
    ):
        Ensemble.from_pretrained(tmp_path / "ens", device="cpu", check=True)


def test_several_tasks_quote_no_training_row_of_any_of_them(bert, tmp_path):
    model = MultiTask.from_pretrained(bert, device="cpu")
    other = [{"text": row["text"], "label": len(row["text"]) / 10} for row in [*TRAIN[:20], *HELD[:10]]]
    tasks = {
        "animal": TaskData(TRAIN, HELD),
        "length": TaskData(other, rows("regression", 9), target="regression"),  # learns texts that the first holds out
    }
    model.fit(tasks, **QUICK)
    model.save(tmp_path / "both")
    report = check(tmp_path / "both", device="cpu")
    assert report.ok
    assert report.task == "multitask"
    source, inputs = recorded(tmp_path / "both")
    assert source == "validation"
    assert set(inputs) & set(UNSEEN)
    assert not set(inputs) & {row["text"] for row in [*TRAIN, *other]}
    assert not set(model.part("animal").fitted.golden_inputs) & {row["text"] for row in other}
    MultiTask.from_pretrained(tmp_path / "both", device="cpu", check=True)


# --- conversions ---


def test_an_export_shares_the_inputs_and_has_answers_of_its_own(animals, tmp_path):
    export(animals[0], tmp_path / "onnx", format="onnx")
    export(animals[0], tmp_path / "copy", format="safetensors", golden="neutral")
    export(animals[0], tmp_path / "none", format="safetensors", golden=None)
    assert recorded(tmp_path / "onnx") == recorded(animals[0])
    assert recorded(tmp_path / "copy")[0] == "neutral"
    assert not (tmp_path / "none" / "golden.json").exists()
    report = check(tmp_path / "onnx")
    assert report.ok
    assert "onnxruntime" in report.now["versions"]
    assert check(tmp_path / "copy", device="cpu").ok
    TextClassifier.from_pretrained(tmp_path / "onnx", check=True)
    # The graph computes what the original does: only the files of the weights are others.
    compared = check(tmp_path / "onnx", against=animals[0] / "golden.json")
    assert "answers" not in compared.to_dict()["causes"]
    assert compared.largest_difference < 5e-5
    (tmp_path / "onnx" / "golden.json").write_text("{", encoding="utf-8")
    assert TextClassifier.from_pretrained(tmp_path / "onnx")


@pytest.mark.slow  # every day: the exports of every task
def test_an_embedder_without_a_head_is_exported_with_its_vectors(bert, tmp_path):
    export(bert, tmp_path / "onnx", format="onnx")
    assert check(tmp_path / "onnx").ok
    assert recorded(tmp_path / "onnx")[0] == "neutral"


def test_an_int8_model_shares_the_inputs_and_records_what_int8_computes(animals, tmp_path):
    quantize(animals[0], tmp_path / "int8", [row["text"] for row in TRAIN], cosine=0.9)
    report = check(tmp_path / "int8", device="cpu")
    assert report.ok
    assert report.recorded["precision"] == "int8"
    assert recorded(tmp_path / "int8") == recorded(animals[0])
    quantize(animals[0], tmp_path / "none", [row["text"] for row in TRAIN], cosine=0.9, golden=None)
    assert not (tmp_path / "none" / "golden.json").exists()


def test_a_distilled_classifier_quotes_held_out_texts_that_it_was_not_taught_on(animals, tmp_path):
    distiller = TaskDistiller.from_pretrained(animals[0], layers=1, device="cpu")
    texts = [row["text"] for row in TRAIN] + [HELD[0]["text"]]
    distiller.fit([{"text": text} for text in texts], validation=HELD, updates=2, batch_size=6)
    distiller.save(tmp_path / "small")
    assert check(tmp_path / "small", device="cpu").ok
    source, inputs = recorded(tmp_path / "small")
    assert source == "validation"
    assert set(inputs) & set(UNSEEN)
    assert not set(inputs) & set(texts)


def test_a_distilled_encoder_records_neutral_texts(bert, tmp_path):
    for name, made in (("encoder", bert), ("embedding", tmp_path / "embedder")):
        if name == "embedding":
            fitted(bert, "embedding", CASES["embedding"].rows(24), CASES["embedding"].rows(12)).save(made)
        student = Distiller.from_pretrained(made, layers=1, device="cpu")
        student._card = {}
        student.save(tmp_path / name)
        report = check(tmp_path / name, device="cpu")
        assert report.ok
        assert (report.task, report.source) == (name, "neutral")
