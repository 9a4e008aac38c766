"""A folder that was trained for one task, opened as another: no answers by a head that means something else."""

import json

import pytest

from bothways import Ensemble, MultiTask, TaskData, open_trained
from bothways.errors import InvalidInput, NotFitted
from bothways.tasks import PairClassifier, QuestionAnswerer, TextClassifier, TextTagger
from classifier_cases import rows
from serving.hub_cases import write_reranker

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


# --- classifiers of other programs, which read texts or pairs ---

ACTIVATION = "torch.nn.modules.linear.Identity"
NAMED = {"id2label": {"0": "quality"}, "label2id": {"quality": 0}}


@pytest.mark.parametrize(
    ("settings", "task"),
    [
        ({}, "pairs"),  # as of bge-reranker-v2-m3
        ({"id2label": None, "label2id": None, "num_labels": 1}, "pairs"),
        ({"sbert_ce_default_activation_function": ACTIVATION, "problem_type": "regression"}, "pairs"),
        ({"sentence_transformers": {"activation_fn": ACTIVATION, "version": "4.0.1"}, **NAMED}, "pairs"),
        ({"problem_type": "regression"}, "classification"),
        (NAMED, "classification"),
    ],
)
def test_files_tell_whether_a_single_output_is_of_a_text_or_of_a_pair(tmp_path, settings, task):
    folder = write_reranker(tmp_path / "theirs", **settings)
    assert open_trained(folder, device="cpu").spec.name == task
    values = {
        each: open_trained(folder, device="cpu", task=each).predict(value).value
        for each, value in (("pairs", ("w5", "w6")), ("classification", "w5"))
    }
    assert values["pairs"] != values["classification"]


def test_a_cross_encoder_reads_pairs_whatever_its_labels(tmp_path):
    folder = write_reranker(tmp_path / "theirs", problem_type="regression")
    general = folder / "config_sentence_transformers.json"
    for kind, task in (("CrossEncoder", "pairs"), ("SentenceTransformer", "classification")):
        general.write_text(json.dumps({"model_type": kind, "prompts": {}}))
        assert open_trained(folder, device="cpu").spec.name == task


def test_members_of_other_programs_rank_pairs_together(tmp_path):
    Ensemble.of([write_reranker(tmp_path / "theirs")] * 2, device="cpu").save(tmp_path / "both")
    one, both = (open_trained(tmp_path / name, device="cpu").predict(("w5", "w6")) for name in ("theirs", "both"))
    assert both.to_dict()["value"] == pytest.approx(one.value, abs=1e-6)


@pytest.mark.parametrize("task", ["tagging", "embedding", "animal"])
def test_a_head_answers_for_no_other_task(tmp_path, task):
    with pytest.raises(InvalidInput, match=f"one task, pairs, so leave out the task '{task}'"):
        open_trained(write_reranker(tmp_path / "theirs"), device="cpu", task=task)


def test_a_trained_model_stays_with_its_task(trained):
    with pytest.raises(InvalidInput, match="one task, pairs, so leave out"):
        open_trained(trained / "pairs", device="cpu", task="classification")
