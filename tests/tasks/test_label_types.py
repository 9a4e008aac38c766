"""Labels come back in the type of the data: from predictions, saved, exported and combined models, and files."""

import json
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn.metrics as oracle

from bothways import Ensemble, MultiTask, PairClassifier, TaskData, TextClassifier, compare
from bothways.cli.program import main
from bothways.data import labelled_rows
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.explain import Label, attribute
from bothways.export import export
from bothways.report.mistakes import wrong_predictions
from bothways.retrieval import CrossEncoder
from bothways.tasks import operating_points
from bothways.tasks.classification.outputs import read_labelled
from bothways.tasks.columns import TextColumns
from bothways.tasks.heads.target_training import target_of
from bothways.tasks.heads.targets import converter

TEXTS = [f"w{5 + number % 3} w20" for number in range(12)]
NUMBERS = [number % 3 for number in range(12)]
ROWS = [{"text": text, "label": label} for text, label in zip(TEXTS, NUMBERS, strict=True)]
QUICK = {"epochs": 1, "batch_size": 12}


def fitted(tiny_bert, labels, kind=TextClassifier, **options):
    model = kind.from_pretrained(tiny_bert, device="cpu", **options)
    model.fit(TEXTS, labels, validation=(TEXTS, labels), **QUICK)
    return model


@pytest.fixture(scope="module")
def trained(tiny_bert):
    return fitted(tiny_bert, NUMBERS)


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("types-saved") / "model"
    trained.save(folder)
    return folder


def values_of(labels, kind="single"):
    rows = labelled_rows(["w5"] * len(labels), labels)
    return target_of(kind, read_labelled(rows, TextColumns(), converter(kind))).values


def same(found, expected):
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


@pytest.mark.parametrize(
    ("labels", "values"),
    [
        ([2, 0, 1], (0, 1, 2)),
        ([True, False], (False, True)),
        ([2.0, 1.0], (1.0, 2.0)),
        (np.array([2, 1], dtype=np.int8), (1, 2)),
        (np.array([True, False]), (False, True)),
        (pd.Series([2, None, 1]).dropna(), (1.0, 2.0)),
        (pa.chunked_array([[2, 1]]), (1, 2)),
        (["a", 1], (1, "a")),
        ([3, 1.0, 2], (1.0, 2, 3)),
        ([True, 1, "a"], ()),
        (["2", "1"], ()),
        (["b", "a"], ()),
    ],
)
def test_values_have_the_types_of_the_data(labels, values):
    same(values_of(labels), values)
    same(values_of([[each] for each in labels], "multi"), values)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("single", ["1", 1]),
        ("single", [True, "b", "True"]),
        ("multi", [["1"], [1]]),
        ("multi", ["a|1", ["a", 1]]),
        ("multi", [[True, "b"], ["True"]]),
    ],
)
def test_a_label_of_two_kinds_is_refused_in_every_task(kind, labels):
    with pytest.raises(InvalidInput, match=r"row \d .* of type \w+, but in row 1 .*: both would be the class"):
        values_of(labels, kind)


def test_scikit_learn_compares_labels_with_predictions(trained):
    predictions = trained.predict(TEXTS)
    found = [each.label for each in predictions]
    assert oracle.accuracy_score(NUMBERS, found) == trained.evaluate(ROWS).accuracy.value
    same(trained.labels, (0, 1, 2))
    probabilities_NC = trained.predict_proba(TEXTS)
    assert oracle.log_loss(NUMBERS, probabilities_NC, labels=list(trained.labels)) > 0
    assert [each.probabilities[each.label] for each in predictions] == probabilities_NC.max(1).tolist()
    (one,) = trained.predict([TEXTS[0]], coverage=0.5, top=1)
    assert all(type(label) is int for label in (*one.label_set, *one.probabilities))


def test_data_of_other_types_are_evaluated_by_the_names_of_labels(trained):
    strings, floats = ([{**row, "label": kind(row["label"])} for row in ROWS] for kind in (str, float))
    assert trained.evaluate(strings).to_dict() == trained.evaluate(floats).to_dict() == trained.evaluate(ROWS).to_dict()
    with pytest.raises(InvalidInput, match=r"row 2 .* is labelled '7', which this classifier does not know"):
        trained.evaluate([ROWS[0], {**ROWS[1], "label": 7}])


@pytest.mark.slow
def test_exported_models_keep_the_types(trained, saved, tmp_path):
    export(saved, tmp_path / "onnx", format="onnx")
    exported = TextClassifier.from_pretrained(tmp_path / "onnx")
    same(exported.labels, (0, 1, 2))
    same([each.label for each in exported.predict(TEXTS)], [each.label for each in trained.predict(TEXTS)])


def test_saved_and_combined_models_keep_the_types(tiny_bert, trained, saved, tmp_path):
    other = fitted(tiny_bert, list(map(str, NUMBERS)))
    other.save(tmp_path / "strings")
    again = TextClassifier.from_pretrained(saved, device="cpu")
    ensemble = Ensemble.of([saved, tmp_path / "strings"], device="cpu")
    for model in (again, ensemble):
        same(model.labels, (0, 1, 2))
        same(tuple(model.facts()["labels"]), (0, 1, 2))
    same([each.label for each in again.predict(TEXTS)], [each.label for each in trained.predict(TEXTS)])
    assert {type(each.together.label) for each in ensemble.predict(TEXTS)} == {int}
    same(other.labels, ("0", "1", "2"))
    assert compare(again, other, ROWS).to_dict()["n"] == len(ROWS)


def test_tasks_on_one_encoder_keep_their_types(tiny_bert, tmp_path):
    both, truths = MultiTask.from_pretrained(tiny_bert, device="cpu"), [each == 1 for each in NUMBERS]
    several = [{"text": row["text"], "label": [row["label"], 7]} for row in ROWS]
    true = [{"text": text, "label": label} for text, label in zip(TEXTS, truths, strict=True)]
    both.fit({"true": TaskData(true, true), "several": TaskData(several, several, target="multi")}, **QUICK)
    both.save(tmp_path / "saved")
    for model in (both, MultiTask.from_pretrained(tmp_path / "saved", device="cpu")):
        same(model.part("true").labels, (False, True))
        same(model.part("several").labels, (0, 1, 2, 7))
        found = model.predict(TEXTS[0])
        assert type(found["true"].label) is bool
        assert set(map(type, found["several"].probabilities)) == {int}


def test_the_command_line_writes_labels_as_they_were(saved, tmp_path, capsys):
    assert main(["predict", str(saved), TEXTS[0], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert type(found["label"]) is int
    assert found["probabilities"][str(found["label"])] == found["probability"]
    table = tmp_path / "out.csv"
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    assert main(["predict", str(saved), "--data", str(tmp_path / "in.txt"), "--output", str(table), "--quiet"]) == 0
    assert set(pd.read_csv(table)["label"]) <= {0, 1, 2}


def test_grades_of_a_reranker_may_be_numbers(tiny_bert):
    pairs = PairClassifier.from_pretrained(tiny_bert, device="cpu")
    rows = [{"text_a": text, "text_b": "w9", "label": label} for text, label in zip(TEXTS, NUMBERS, strict=True)]
    pairs.fit(rows, validation=rows, **QUICK)
    scores, _ = CrossEncoder(pairs).read(TEXTS[0], ["w9", "w8"])
    assert (scores >= 0).all()
    assert (scores <= 2).all()


def test_models_without_types_and_labels_given_at_opening(saved, tmp_path):
    settings = json.loads((saved / "bothways.json").read_text())
    assert settings["label_values"] == [0, 1, 2]
    for number, (values, expected) in enumerate(
        [(None, ("0", "1", "2")), ([0, 1.0, 2], (0, 1.0, 2)), ([1, 0, 2], None), ([0, 1, 2.5], None), ([0, 1], None)]
    ):
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        (folder / "bothways.json").write_text(json.dumps({**settings, "label_values": values}))
        if expected is None:
            with pytest.raises(CorruptCheckpoint, match="label_values"):
                TextClassifier.from_pretrained(folder, device="cpu")
        else:
            same(TextClassifier.from_pretrained(folder, device="cpu").labels, expected)
    same(TextClassifier.from_pretrained(saved, device="cpu", labels=[5, True, "a"]).labels, (5, True, "a"))


@pytest.mark.parametrize("labels", [NUMBERS, [each == 1 for each in NUMBERS], [each + 2.0 for each in NUMBERS]])
@pytest.mark.parametrize("target", ["single", "multi"])
def test_reports_pages_and_explanations_have_labels_in_their_types(tiny_bert, tmp_path, labels, target):
    given = labels if target == "single" else [[each] for each in labels]
    model = fitted(tiny_bert, given, target=target)
    rows = labelled_rows(TEXTS, given)
    expected, report = tuple(sorted(set(labels))), model.evaluate(rows, resamples=5)
    same(report.labels, expected)
    same(tuple(each.label for each in report.per_class), expected)
    found = json.loads(json.dumps(report.to_dict()))
    same(tuple(found["labels"]), expected)
    assert list(found["per_class"]) == list(map(str, expected))
    assert all(each.truth in expected and each.predicted in expected for each in report.confused_pairs(9))
    for attribution in attribute(model, TEXTS[:1], "leave-one-out", target=Label(expected[1])):
        same((attribution.label, json.loads(json.dumps(attribution.to_dict()))["label"]), expected[1:2] * 2)
        assert attribution.score_name == f"log odds of {expected[1]!r}"
    scored = model.score(rows)
    predictions = list(model.fitted.outputs.decide(scored.scores))
    names = [each.label if target == "single" else each.labels for each in predictions]
    right = [found == (value if target == "single" else (value,)) for found, value in zip(names, labels, strict=True)]
    wrong = wrong_predictions([each.to_dict() for each in predictions], scored.examples)
    assert len(wrong) == min(len(rows), right.count(False))
    if target == "single":
        assert {type(each.label) for each in model.fitted.issues} <= {type(expected[0])}
        assert len(model.fitted.issues) == min(10, right.count(False))


def test_operating_points_have_labels_in_their_types(tiny_bert):
    model = fitted(tiny_bert, [each == 1 for each in NUMBERS])
    rows = labelled_rows(TEXTS, [each == 1 for each in NUMBERS])
    (point,) = operating_points(model, model.score(rows), at_precision=0.5, resamples=5)
    same((point.label, point.to_dict()["label"]), (True, True))
