"""Multiple choice: any number of choices, in any form, learnt, calibrated, saved, and the same as in transformers."""

import numpy as np
import pytest
import torch

from bothways import Ensemble
from bothways.errors import InvalidInput, LabelsAmbiguous
from bothways.tasks.multiple_choice.chooser import MultipleChoice
from bothways.tasks.multiple_choice.outputs import ChoiceOutputs
from bothways.tasks.multiple_choice.spec import ChoiceColumns, ChoiceData
from bothways.training.options import AdamW

FIT = {"epochs": 20, "learning_rate": 5e-3, "batch_size": 8, "optimizer": AdamW(weight_decay=0.0)}


def rows(count=24):
    """Contexts with two to four choices; the right one begins with w5."""
    made = []
    for number in range(count):
        choices = [f"w6 w{30 + (number + place) % 7}" for place in range(2 + number % 3)]
        right = number % len(choices)
        choices[right] = choices[right].replace("w6", "w5")
        made.append({"context": f"w{15 + number % 5} w20", "choices": choices, "label": right})
    return made


ASKED = [(row["context"], row["choices"]) for row in rows()]


@pytest.fixture(scope="module")
def fitted(tiny_bert, tmp_path_factory):
    """A model that learnt a few contexts by heart, and the folder that it was saved in."""
    folder = tmp_path_factory.mktemp("choice") / "saved"
    model = MultipleChoice.from_pretrained(tiny_bert, device="cpu")
    model.fit(rows(), validation=rows(), **FIT)
    model.save(folder)
    return model, folder


def test_a_few_contexts_are_learnt_by_heart(fitted):
    model, _ = fitted
    found = model.predict(ASKED)
    assert [each.index for each in found] == [row["label"] for row in rows()]
    assert [each.choice for each in found] == [row["choices"][row["label"]] for row in rows()]
    assert [len(each.probabilities) for each in found] == [len(row["choices"]) for row in rows()]
    assert all(sum(each.probabilities) == pytest.approx(1) for each in found)
    assert model.evaluate(rows(), resamples=10).accuracy.value == 1
    assert model.confidence.calibration is not None


def test_scores_are_those_of_transformers(fitted):
    transformers = pytest.importorskip("transformers")
    model, folder = fitted
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    scored = model.score(rows())
    for (context, choices), each in zip(ASKED, scored.scores, strict=True):
        inputs = tokenizer([context] * len(choices), choices, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = theirs(**{name: value[None] for name, value in inputs.items()}).logits[0]
        np.testing.assert_allclose(each.logits_RC[0], logits.numpy(), atol=1e-5)


def test_long_choices_are_read_in_windows_and_still_learnt_from(tiny_bert):
    model = MultipleChoice.from_pretrained(tiny_bert, device="cpu", max_length=10)
    long = [{**row, "choices": [" ".join([each, *["w40"] * 12]) for each in row["choices"]]} for row in rows(8)]
    model.fit(long, validation=long, epochs=2, batch_size=4, max_tokens=24)
    assert all(
        each.tokens_read.windows > 1 for each in model.predict([(row["context"], row["choices"]) for row in long])
    )


def test_a_label_may_be_the_text_of_the_choice_and_choices_columns_of_their_own(fitted):
    model, _ = fitted
    texts = [{**row, "label": row["choices"][row["label"]]} for row in rows()]
    assert model.evaluate(texts, resamples=5).to_dict() == model.evaluate(rows(), resamples=5).to_dict()
    twos = [row for row in rows() if len(row["choices"]) == 2]
    columns = [
        {"context": row["context"], "a": row["choices"][0], "b": row["choices"][1], "label": row["label"]}
        for row in twos
    ]
    assert model.evaluate(columns, choices=("a", "b"), resamples=5).accuracy.value == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 7}, "one of the choices or an index from 0 to 1"),
        ({"label": "none of them"}, "one of the choices or an index"),
        ({"choices": ["w5"]}, "at least two non-empty texts"),
        ({"choices": "w5 w6"}, "a list of at least two"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_by_its_number(fitted, change, message):
    model, _ = fitted
    with pytest.raises(InvalidInput, match=f"row 2 of the given list.*{message}"):
        model.evaluate([rows()[0], {**rows()[0], **change}])


@pytest.mark.parametrize("asked", ["w5", ("w5",), ("w5", "w6"), [("w5", ["w6"])], ("w5", ["w6", 3])])
def test_what_is_no_context_with_choices_is_refused(fitted, asked):
    model, _ = fitted
    with pytest.raises(InvalidInput):
        model.predict(asked)


def test_several_choosers_are_an_ensemble(fitted, tmp_path):
    model, folder = fitted
    ensemble = Ensemble.of([folder, folder], calibrate=rows(), device="cpu")
    assert [each.together.index for each in ensemble.predict(ASKED)] == [each.index for each in model.predict(ASKED)]
    ensemble.save(tmp_path / "ensemble")
    assert Ensemble.from_pretrained(tmp_path / "ensemble", device="cpu").predict(ASKED) == ensemble.predict(ASKED)


# --- indices or texts: one rule for all labels of a file ---

NAMED = ChoiceColumns(choices=("c0", "c1", "c2", "c3"))


def right(lines, *, label_is=None, usual="index"):
    """The indices of the right choices in a csv file of a context, four choices and a label."""
    rows = [dict(zip(("context", *NAMED.choices, "label"), line.split(","), strict=True)) for line in lines]
    examples = ChoiceOutputs(label_is=usual).read(rows, NAMED, ChoiceData(label_is=label_is))
    return [each.label for each in examples]


SUM, PRODUCT, COLOUR = "1 plus 0 is,2,0,3,1,3", "2 times 2 is,4,5,6,7,0", "the sky is,red,blue,green,grey,1"


def test_a_label_that_is_an_index_and_a_text_is_read_as_the_labels_of_the_whole_file():
    assert right([SUM, PRODUCT]) == [3, 0]
    assert right([PRODUCT, COLOUR, SUM]) == [0, 1, 3]
    assert right([SUM, "2 times 2 is,4,5,6,7,6"]) == [2, 2]  # no index is 6, so these are texts


def test_labels_that_can_all_be_both_are_indices_with_a_note_unless_the_model_or_the_user_says_otherwise():
    with pytest.warns(LabelsAmbiguous, match=r"row 1 .*as indices; for texts, pass label_is='text' \(--label-is t"):
        assert right([SUM]) == [3]
    with pytest.warns(LabelsAmbiguous, match="read as texts; for indices"):
        assert right([SUM], usual="text") == [2]
    assert right([SUM], label_is="text") == [2]
    assert right([SUM], label_is="index", usual="text") == [3]


@pytest.mark.filterwarnings("error")
def test_labels_that_mean_the_same_in_both_ways_need_no_note():
    assert right(["one of,0,1,2,3,3", "two of,0,1,2,3,2"]) == [3, 2]


@pytest.mark.parametrize(("label", "expected"), [(2, 2), (2.0, 2), (" 2 ", 2), ("02", 2)])
def test_an_index_may_be_written_as_any_whole_number(label, expected):
    row = {"context": "a", "choices": ["x", "y", "z"], "label": label}
    assert ChoiceOutputs().read([row], ChoiceColumns())[0].label == expected


@pytest.mark.parametrize("label", [True, -2, 2.5, "2.0", "9" * 5000, "-2", 3, ["x"]])
def test_what_is_no_index_and_no_text_is_refused(label):
    row = {"context": "a", "choices": ["x", "y", "z"], "label": label}
    with pytest.raises(InvalidInput, match=r"row 1 .*one of the choices or an index from 0 to 2, got"):
        ChoiceOutputs().read([row], ChoiceColumns())


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (
            [COLOUR, "snow is,red,blue,green,white,white"],
            {},
            "row 2 .* an index from 0 to 3, got 'white'.*row 1 .*'1'",
        ),
        (["snow is,red,blue,green,white,white", COLOUR], {}, "row 2 .* one of the choices, got '1'.*row 1 .*'white'"),
        ([SUM, COLOUR], {"label_is": "text"}, "row 2 .* one of the choices, got '1'.*--label-is index"),
        (["snow is,red,blue,green,white,white"], {"label_is": "index"}, "row 1 .* an index .*--label-is text"),
        ([PRODUCT, "grass is,red,green,green,blue,green"], {}, "row 2 .*Two choices of the row are equal to it"),
        (["1 and 1,2,2,0,1,2"], {"label_is": "text"}, "row 1 .*must differ, got '2'.*Two choices"),
    ],
)
def test_a_row_that_contradicts_the_rule_is_refused(lines, options, message):
    with pytest.raises(InvalidInput, match=message):
        right(lines, **options)


def test_training_remembers_the_rule_and_applies_a_given_one_to_validation_data(tiny_bert, tmp_path):
    numbers = [{"context": "w5", "choices": ["2", "0", "3", "1"], "label": label} for label in ("3", "0")]
    model = MultipleChoice.from_pretrained(tiny_bert, device="cpu")
    model.fit(numbers, validation=numbers, label_is="text", epochs=1)
    model.save(tmp_path / "texts")
    with pytest.warns(LabelsAmbiguous, match="read as texts"):
        again = MultipleChoice.from_pretrained(tmp_path / "texts", device="cpu").score(numbers)
    assert again.truth.tolist() == model.score(numbers, label_is="text").truth.tolist() == [2, 1]
    assert model.score(numbers, label_is="index").truth.tolist() == [3, 0]
    with pytest.raises(InvalidInput, match=r"row 1 of the given list.*an index"):
        model.fit(numbers, validation=[{**numbers[0], "choices": ["a", "b"], "label": "a"}], label_is="index", epochs=1)
    with pytest.raises(InvalidInput, match="label_is must be one of 'index', 'text', got 'number'"):
        model.fit(numbers, label_is="number")


def test_the_command_line_chooses_the_rule(tmp_path, fitted, capsys):
    from bothways.cli import main

    path = tmp_path / "sums.csv"
    path.write_text("context,c0,c1,c2,c3,label\n" + f"{SUM}\n" * 4, encoding="utf-8")
    choices = [word for name in NAMED.choices for word in ("--choices", name)]
    run = ["evaluate", str(fitted[1]), "--data", str(path), *choices, "--resamples", "5", "--device", "cpu", "--quiet"]
    assert main([*run, "--label-is", "text"]) == 0
    capsys.readouterr()
    assert main(run) == 0
    assert "They are read as indices" in capsys.readouterr().err
