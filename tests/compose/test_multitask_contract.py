"""Several tasks above one encoder: labels in families whose heads read different tokens, labels and tags in all."""

import inspect

import pytest
import torch

from bothways import MultiTask, TaggingData, TaskData
from bothways.training.options import AdamW
from contract_cases import answer, padding_side, rows, write_pretrained
from everyday import some_families

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")

DATA = {"animal": rows("single"), "number": rows("regression")}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A factory: a model of two tasks fitted to a few texts each, and the folder that it saved itself into."""
    made = {}

    def make(model_type, *, epochs=2):
        if (model_type, epochs) not in made:
            folder = tmp_path_factory.mktemp(model_type)
            write_pretrained(folder / "base", model_type)
            model = MultiTask.from_pretrained(folder / "base", device="cpu")
            tasks = {
                "animal": TaskData(DATA["animal"], DATA["animal"]),
                "number": TaskData(DATA["number"], DATA["number"], target="regression"),
            }
            settings = {"learning_rate": 3e-3, "batch_size": 8, "optimizer": AdamW(weight_decay=0.0), "patience": 15}
            model.fit(tasks, epochs=epochs, **settings)
            model.save(folder / "saved")
            made[model_type, epochs] = (model, folder / "saved")
        return made[model_type, epochs]

    return make


@pytest.mark.slow  # every day: the golden losses of several tasks
@pytest.mark.parametrize("model_type", ["bert", "xlnet"])
@pytest.mark.parametrize("task", DATA)
def test_each_task_is_learnt_by_heart_beside_the_other(fitted, model_type, task):
    model, _ = fitted(model_type, epochs=60)
    found = [answer(each[task]) for each in model.predict([row["text"] for row in DATA[task]])]
    expected = [row["label"] for row in DATA[task]]
    assert found == (pytest.approx(expected, abs=0.1) if task == "number" else expected)


@some_families("bert", "xlnet")
def test_the_folder_is_a_model_of_the_first_task_for_transformers(fitted, model_type):
    model, folder = fitted(model_type)
    theirs, info = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    side, texts = padding_side(model_type), [row["text"] for row in DATA["animal"]]
    inputs = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
    read = inspect.signature(theirs.forward).parameters
    with torch.no_grad():
        theirs_NC = theirs.eval()(**{name: value for name, value in inputs.items() if name in read}).logits
    ours_NC = model.part("animal").score(DATA["animal"]).logits
    torch.testing.assert_close(torch.from_numpy(ours_NC).float(), theirs_NC, rtol=0, atol=1e-5)


@some_families("bert", "deberta-v2", "xlnet", "modernbert")
def test_labels_and_tags_come_from_one_pass_as_they_do_from_two(tmp_path, model_type):
    write_pretrained(tmp_path / "base", model_type)
    model = MultiTask.from_pretrained(tmp_path / "base", device="cpu")
    tagged = [
        {"tokens": row["text"].split(), "tags": [*"XY" * 20][: len(row["text"].split())]} for row in rows("single")
    ]
    model.fit({"animal": TaskData(DATA["animal"]), "marks": TaggingData(tagged)}, epochs=1, batch_size=8)
    model.save(tmp_path / "saved")
    texts = [row["text"] for row in DATA["animal"]] + ["w5 w6 w7 " * 15]
    answers = MultiTask.from_pretrained(tmp_path / "saved", device="cpu").predict(texts)
    assert answers == model.predict(texts)
    labels, marks = model.part("animal").predict(texts), model.part("marks").predict(texts)
    for each, label, mark in zip(answers, labels, marks, strict=True):
        assert each["animal"].probabilities == pytest.approx(label.probabilities, abs=1e-5)
        assert [word.probability for word in each["marks"].words] == pytest.approx(
            [word.probability for word in mark.words], abs=1e-5
        )
