"""What a classifier is given wrongly: each case has an error of the tree that says what, and where."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from bothways.errors import (
    CorruptCheckpoint,
    IncompatibleWeights,
    InvalidInput,
    LabelsUnnamed,
    TextTooLong,
    UnknownModel,
    UnsupportedConfig,
)
from bothways.tasks import TextClassifier, compare
from classifier_cases import rows, write_rows
from tiny_models import edit_config

VALIDATION = rows(6, first=30)
GOOD = '{"text": "w5 w6", "label": "ant"}\n{"text": "w6 w7", "label": "bee"}\n'


def opened(folder, **options):
    return TextClassifier.from_pretrained(folder, device="cpu", **options)


def fit(folder, data, **options):
    opened(folder).fit(data, **{"epochs": 1, "validation": VALIDATION, **options})


@pytest.fixture(scope="module")
def fitted(tiny_bert):
    classifier = opened(tiny_bert)
    classifier.fit(rows(), epochs=1, validation=VALIDATION)
    return classifier


@pytest.fixture(scope="module")
def written(fitted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "saved"
    fitted.save(folder)
    return folder


@pytest.fixture
def saved(written, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "saved"))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", "", "empty: expected at least one row"),
        ("a.jsonl", GOOD + '{"text": null, "label": "ant"}\n', "line 3 .* 'text' is null"),
        ("a.jsonl", GOOD + '{"text": " ", "label": "ant"}\n', "line 3 .* only white space"),
        ("a.jsonl", GOOD + '{"text": "w5", "label": null}\n', "line 3 .* the label in 'label' is missing, .* null"),
        ("a.jsonl", GOOD + '{"text": "w5", "label": ["ant"]}\n', "line 3 .* the label in 'label'"),
        ("a.jsonl", GOOD + '{"body": "w5", "label": "ant"}\n', "line 3 .* no column 'text'. It has: 'body', 'label'"),
        ("a.jsonl", GOOD + "{not json}\n", "line 3 .* not valid JSON"),
        ("a.jsonl", GOOD.replace("bee", "ant"), "at least two classes, but every row .* labelled 'ant'"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 60 else None,
)
def test_a_bad_training_file_is_refused_with_the_place(tiny_bert, tmp_path, name, data, words):
    path = tmp_path / name
    path.write_text(data)
    with pytest.raises(InvalidInput, match=words):
        fit(tiny_bert, path)


def test_a_name_in_place_of_an_opened_model_is_refused():
    with pytest.raises(InvalidInput, match=r"got 'runs/x': TextClassifier.from_pretrained\(...\) opens"):
        TextClassifier("runs/x")


def test_a_column_that_is_not_there_is_refused_with_those_that_are(tiny_bert, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", rows())
    with pytest.raises(InvalidInput, match=r"no column 'labels'. It has: 'text', 'label'.* mean label='label'"):
        fit(tiny_bert, path, label="labels")


def test_a_bad_validation_file_is_refused_before_training(tiny_bert, tmp_path):
    path = tmp_path / "validation.jsonl"
    path.write_text(GOOD + '{"text": "w5", "label": "dog"}\n')
    with pytest.raises(InvalidInput, match=r"line 3 of '.*' is labelled 'dog', .* knows 'ant', 'bee', 'cow'"):
        fit(tiny_bert, rows(), validation=path)


def test_too_few_rows_to_hold_any_out_are_refused(tiny_bert):
    data = [{"text": "w5", "label": "ant"}, {"text": "w6", "label": "bee"}]
    with pytest.raises(InvalidInput, match="none can be held out of 2 rows"):
        fit(tiny_bert, data, validation=None)


@pytest.mark.parametrize(
    ("target", "label", "words"),
    [
        ("regression", "high", "expected a finite number"),
        ("regression", float("nan"), "is missing, got null"),
        ("multi", 3, "expected a list of labels"),
    ],
)
def test_a_label_of_the_wrong_kind_is_refused_with_its_row(tiny_bert, target, label, words):
    good = {"regression": 1.5, "multi": ["ant"]}[target]
    data = [{"text": "w5", "label": good}, {"text": "w6", "label": label}]
    with pytest.raises(InvalidInput, match=f"row 2 of the given list: the label in 'label':? {words}"):
        fit(tiny_bert, data, target=target)


def test_labels_that_no_row_names_are_refused(tiny_bert):
    with pytest.raises(InvalidInput, match="expected at least one label"):
        fit(tiny_bert, [{"text": "w5", "label": []}] * 3, target="multi")


def test_a_text_that_is_too_long_is_refused_on_request(tiny_bert):
    with pytest.raises(TextTooLong, match="limit of 18"):
        opened(tiny_bert, on_overflow="error").fit(
            [*rows(), {"text": "w5 " * 17, "label": "ant"}], validation=VALIDATION
        )


def test_an_unknown_label_at_evaluation_is_refused_with_its_row(fitted, tmp_path):
    path = write_rows(tmp_path / "test.jsonl", [*rows(4), {"text": "w5", "label": "dog"}])
    with pytest.raises(InvalidInput, match=r"line 5 of '.*' is labelled 'dog', .* knows 'ant', 'bee', 'cow'"):
        fitted.evaluate(path)


@pytest.mark.parametrize(("bad", "words"), [("", "empty"), (" \n", "only white space"), (None, ""), (3, "int")])
def test_a_text_to_predict_that_is_none_is_refused_by_its_number(fitted, bad, words):
    with pytest.raises(InvalidInput, match=f"text 3 .*{words}"):
        fitted.predict(["w5", "w6", bad, "w7"])


@pytest.mark.parametrize("max_length", [0, 19])
def test_a_length_out_of_range_is_refused(tiny_bert, max_length):
    with pytest.raises(InvalidInput, match=f"between 1 and the model's limit, 18, got {max_length}"):
        opened(tiny_bert, max_length=max_length)


def test_an_unknown_overflow_policy_is_refused(tiny_bert):
    with pytest.raises(InvalidInput, match="on_overflow must be one of"):
        opened(tiny_bert, on_overflow="cut")


def unnamed(folder):
    """Take away what this package keeps, and the names of the classes: a model that someone else saved."""
    (folder / "bothways.json").unlink()
    names = {str(index): f"LABEL_{index}" for index in range(3)}
    edit_config(folder, id2label=names, label2id={name: int(index) for index, name in names.items()})
    return folder


@pytest.mark.parametrize("named", [True, False])
def test_a_head_without_names_predicts_and_warns(saved, fitted, named):
    unnamed(saved)
    if not named:
        edit_config(saved, id2label=None)
    with pytest.warns(LabelsUnnamed, match=r"so they are called LABEL_0, LABEL_1, LABEL_2\. To name them, .* --labels"):
        classifier = opened(saved)
    at = fitted.labels.index(fitted.predict("w5 w9").label)
    assert classifier.predict("w5 w9").label == f"LABEL_{at}"


def test_names_are_asked_for_where_labels_have_to_mean_something(saved, fitted):
    unnamed(saved)
    with pytest.warns(LabelsUnnamed):
        classifier = opened(saved)
    data = [{"text": "w5 w9", "label": "ant"}]
    for fails in (lambda: classifier.evaluate(data), lambda: compare(fitted, classifier, data)):
        with pytest.raises(InvalidInput, match=r"saved without label names: .* labels=\[\.\.\.\], or --labels"):
            fails()
    # Data that call them so are no others.
    assert classifier.evaluate([{**data[0], "label": "LABEL_1"}] * 3, resamples=5).n == 3
    classifier.fit([{"text": f"w{at} w9", "label": "xyz"[at % 3]} for at in range(5, 23)], epochs=1)
    assert classifier.labels == ("x", "y", "z")


def test_labels_name_the_outputs_of_a_head_without_names(saved, fitted, recwarn):
    unnamed(saved)
    classifier = opened(saved, labels=["ant", "bee", "cow"])
    assert not [each for each in recwarn if each.category is LabelsUnnamed]
    assert classifier.predict("w5 w9").label == fitted.predict("w5 w9").label


@pytest.mark.parametrize("labels", [["ant"], ["ant", "bee", "cow", "dog"], ["ant", "bee", "ant"]])
def test_labels_that_do_not_fit_the_head_are_refused(saved, labels):
    with pytest.raises(InvalidInput, match=r"has 3 outputs, so it needs 3 different labels|got 'ant' twice"):
        opened(unnamed(saved), labels=labels)


def test_outputs_with_equal_names_are_refused_unless_they_are_named(saved):
    edit_config(unnamed(saved), id2label={"0": "ant", "1": "bee", "2": "ant"})
    with pytest.raises(InvalidInput, match=r"gives the outputs 0 and 2 the same name, 'ant'. Pass labels=\[...\]"):
        opened(saved)
    assert opened(saved, labels=["ant", "bee", "cow"]).labels == ("ant", "bee", "cow")


def test_labels_for_a_number_are_refused(tiny_bert, tmp_path):
    classifier = opened(tiny_bert)
    data = [{"text": f"w{5 + number}", "label": number} for number in range(6)]
    classifier.fit(data, validation=data, target="regression", epochs=1)
    classifier.save(tmp_path / "saved")
    with pytest.raises(InvalidInput, match="predicts a number: leave labels out"):
        opened(tmp_path / "saved", labels=["high"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"problem_type": "regression"}, "expected 1 output of the regression head, got 3"),
        ({"id2label": {"first": "ant", "second": "bee", "third": "cow"}}, "id2label in config.json must map numbers"),
    ],
)
def test_settings_that_contradict_the_head_are_refused(saved, changes, words):
    edit_config(saved, **changes)
    with pytest.raises(CorruptCheckpoint, match=words):
        opened(saved)


@pytest.mark.parametrize("place", [0, -1])
def test_a_flipped_bit_in_the_weights_is_noticed(saved, place):
    path = saved / "model.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 0x10
    path.write_bytes(damaged)
    with pytest.raises(CorruptCheckpoint, match="SHA-256"):
        opened(saved)


@pytest.mark.parametrize("text", ["", "[]", "{} {}"])
def test_a_bothways_json_that_is_no_object_is_refused(saved, text):
    (saved / "bothways.json").write_text(text, encoding="utf-8")
    with pytest.raises(CorruptCheckpoint, match=r"bothways\.json"):
        opened(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", {"value": 1.5}),
        ("temperature", {"value": 0, "slope": 0}),
        ("temperature", {"value": 1.5, "slope": -0.1}),
        ("temperature", {"value": 1.5, "slope": 0.1, "bias": 0}),
        ("calibration", {"method": "magic"}),
        ("calibration", {"method": "temperature", "value": 0, "slope": 0}),
        ("calibration", {"method": "isotonic", "knots": [[0.5]] * 9, "values": [[0.5]] * 9}),
        ("conformal", {"kind": "magic"}),
        ("conformal", {"kind": "least_ambiguous", "penalty": 1.0}),
        ("out_of_domain", {"kind": "magic", "threshold": 1.0}),
        ("out_of_domain", {"kind": "energy", "threshold": 1.0, "temperature": 0.0}),
        ("out_of_domain", {"kind": "energy", "temperature": 1.0}),
        ("out_of_domain", {"kind": "cosine", "threshold": 1.0}),
        ("max_length", 8.5),
        ("on_overflow", "cut"),
        ("checksums", ["model.safetensors"]),
    ],
)
def test_a_damaged_value_in_bothways_json_is_refused(saved, name, value):
    path = saved / "bothways.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, name: value}))
    with pytest.raises(CorruptCheckpoint, match=name):
        opened(saved)


def test_a_model_of_a_later_format_is_refused(saved):
    path = saved / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    with pytest.raises(UnsupportedConfig, match="format version 2"):
        opened(saved)


def test_a_saved_head_with_another_number_of_names_is_refused(saved):
    edit_config(saved, id2label={"0": "ant", "1": "bee"}, label2id={"ant": 0, "bee": 1})
    with pytest.raises(InvalidInput, match="has 3 outputs"):
        opened(saved)


def test_a_folder_without_a_tokenizer_is_refused(saved):
    for name in ("tokenizer.json", "vocab.txt"):
        (saved / name).unlink(missing_ok=True)
    with pytest.raises(UnknownModel, match="no tokenizer"):
        opened(saved)


def test_a_trained_head_that_lacks_a_layer_is_refused(saved):
    (saved / "bothways.json").unlink()
    tensors = load_file(saved / "model.safetensors")
    left = {name: value for name, value in tensors.items() if "pooler" not in name}
    assert len(left) < len(tensors)
    save_file(left, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(IncompatibleWeights):
        opened(saved)
