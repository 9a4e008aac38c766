"""Multiple choice: any number of choices, in any form, learnt, calibrated, saved, and the same as in transformers."""

import numpy as np
import pytest
import torch

from bothways import Ensemble
from bothways.errors import InvalidInput
from bothways.tasks.multiple_choice.chooser import MultipleChoice
from bothways.training.options import AdamW
from tiny_models import write_checkpoint

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
def fitted(tmp_path_factory):
    """A model that learnt a few contexts by heart, and the folder that it was saved in."""
    folder = tmp_path_factory.mktemp("choice")
    write_checkpoint(folder / "base")
    model = MultipleChoice.from_pretrained(folder / "base", device="cpu")
    model.fit(rows(), validation=rows(), **FIT)
    model.save(folder / "saved")
    return model, folder / "saved"


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


def test_long_choices_are_read_in_windows_and_still_learnt_from(tmp_path):
    write_checkpoint(tmp_path / "base")
    model = MultipleChoice.from_pretrained(tmp_path / "base", device="cpu", max_length=10)
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
