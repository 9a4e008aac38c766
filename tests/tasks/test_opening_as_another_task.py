"""A folder that was trained for one task, opened as another: no answers by a head that means something else."""

import pytest

from bothways import MultiTask, TaskData, open_trained
from bothways.errors import InvalidInput, NotFitted
from bothways.tasks import PairClassifier, QuestionAnswerer, TextClassifier, TextTagger
from classifier_cases import rows

QUICK = {"epochs": 1, "batch_size": 6}


@pytest.fixture(scope="module")
def trained(tiny_bert, tmp_path_factory):
    """Folders of a classifier, of a model of pairs, and of one with several tasks, which no test writes to."""
    made = {
        "classification": TextClassifier.from_pretrained(tiny_bert, device="cpu"),
        "pairs": PairClassifier.from_pretrained(tiny_bert, device="cpu"),
        "multitask": MultiTask.from_pretrained(tiny_bert, device="cpu"),
    }
    made["classification"].fit(rows(12), validation=rows(6), **QUICK)
    pairs = [{"text_a": row["text"], "text_b": "w9", "label": row["label"]} for row in rows(12)]
    made["pairs"].fit(pairs, validation=pairs, **QUICK)
    made["multitask"].fit({name: TaskData(rows(12), rows(6)) for name in ("one", "two")}, **QUICK)
    folder = tmp_path_factory.mktemp("opening")
    for name, model in made.items():
        model.save(folder / name)
    return folder


@pytest.mark.parametrize(
    ("kind", "folder", "asked"),
    [
        (TextClassifier, "pairs", "w5 w6"),
        (TextClassifier, "multitask", "w5 w6"),
        (PairClassifier, "classification", ("w5", "w6")),
        (TextTagger, "multitask", ["w5"]),
        (QuestionAnswerer, "pairs", ("w5", "w6 w7")),
    ],
)
def test_what_it_was_trained_for_is_said(trained, kind, folder, asked):
    with pytest.raises(NotFitted, match=rf"was trained for {folder} and not for .*open it with bothways"):
        kind.from_pretrained(trained / folder, device="cpu").predict(asked)
    assert open_trained(trained / folder, device="cpu").fitted.facts()


def test_it_can_be_trained_for_another_task(trained):
    other = TextClassifier.from_pretrained(trained / "pairs", device="cpu")
    other.fit(rows(12), validation=rows(6), **QUICK)
    assert other.predict("w5 w6").label in {"ant", "bee", "cow"}


def test_data_that_are_no_data_of_a_task_are_named(tiny_bert):
    with pytest.raises(InvalidInput, match=r"task 'one': expected its data as TaskData.*got str.*TaskData\(file\)"):
        MultiTask.from_pretrained(tiny_bert, device="cpu").fit({"one": "s.jsonl.gz", "two": "t.jsonl.gz"})
