"""``train question-answering``, and what one does with a trained answerer on the command line."""

import csv
import json
import re
import shutil

import pytest
from command_line import call, evaluated, fails, ok, read_jsonl, read_table, write_jsonl

from answering_cases import questions
from bothways.progress import six_digits
from bothways.tasks import QuestionAnswerer


def nested_form(row):
    answers = [{"text": each["text"], "answer_start": each["start"]} for each in row["answers"]]
    asked = {"id": row["id"], "question": row["question"], "is_impossible": not answers, "answers": answers}
    return {"context": row["context"], "qas": [asked]}


@pytest.fixture(scope="module")
def data(files):
    """Files of questions: flat rows, and the same as a SQuAD file."""
    flat = write_jsonl(files / "questions.jsonl.gz", questions(24))
    articles = [{"title": row["id"], "paragraphs": [nested_form(row)]} for row in questions(24)]
    nested = files / "questions.json"
    nested.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return flat, nested


@pytest.fixture(scope="module")
def qa(files, data):
    """A run that was trained on flat rows and validated on a SQuAD file, and how its training ended."""
    flat, nested = data
    outcome = call(
        *("train", "question-answering", "--model", files / "tiny", "--train", flat, "--validation", nested),
        *("--output", files / "answering" / "qa", "--seed", 1, "--epochs", 3, "--batch-size", 8),
        *("--learning-rate", 0.003, "--max-answer-tokens", 5, "--device", "cpu"),
    )
    return outcome, files / "answering" / "qa"


def test_training_says_what_it_chose_and_how_to_go_on(qa):
    outcome, run = qa
    assert outcome.code == 0, outcome.err
    assert "exact_match" in outcome.out
    assert "no_answer_threshold" in outcome.out
    assert "max_answer_tokens 5" in outcome.out
    assert f"next         bothways evaluate {run}" in outcome.out
    assert "decline" not in outcome.out


def test_training_says_that_a_model_cannot_decline(files, tmp_path):
    data = write_jsonl(tmp_path / "answered.jsonl", [row for row in questions(24) if row["answers"]])
    words = ("--model", files / "tiny", "--train", data, "--epochs", 1, "--device", "cpu", "--output", tmp_path / "qa")
    outcome = ok("train", "question-answering", *words)
    notes = [line for line in outcome.out.splitlines() if line.startswith("note ")]
    assert any("No held-out question was without an answer" in note for note in notes)
    (said,) = call("predict", tmp_path / "qa", "Who is w5?", "w5 w6 w7").lines()
    assert said["answer"]
    assert said["no_answer_probability"] is None
    file = tmp_path / "said.csv"
    ok("predict", tmp_path / "qa", "--data", data, "--output", file)
    assert {row["no_answer_probability"] for row in csv.DictReader(file.open())} == {""}


def test_answers_of_too_many_tokens_are_bad_usage_before_anything_is_trained(files, qa, tmp_path):
    _, run = qa
    data = write_jsonl(tmp_path / "t.jsonl", [])
    train = ("train", "question-answering", "--model", files / "tiny", "--train", data, "--output", tmp_path / "new")
    for words in (train, ("predict", run, "w5", "w6 w7")):
        fails(2, "at most 100,000", *words, "--max-answer-tokens", 100_001)


def test_both_forms_of_the_data_give_the_numbers_of_the_library(qa, data):
    _, run = qa
    flat, nested = data
    report = QuestionAnswerer.from_pretrained(run, device="cpu").evaluate(flat)
    for file in (flat, nested):
        given = call("evaluate", run, "--data", file, "--json").json()
        assert given == json.loads(json.dumps(report.to_dict()))
    names = ("exact_match", "f1", "has_answer_f1", "no_answer_accuracy", "ece")
    assert {f"{name}{end}" for name in names for end in ("", "_low", "_high")} <= given.keys()
    assert "24 questions, 6 of them without an answer" in call("evaluate", run, "--data", flat).out


def test_a_question_and_its_context_are_answered(qa):
    _, run = qa
    context = "w30 w5 w10 w11 w40"
    (given,) = call("predict", run, "w5", context, "--top", 2, "--max-answer-tokens", 1).lines()
    assert [len(each["text"].split()) for each in given["answers"]] == [1, 1]
    assert all(context[each["start"] : each["end"]] == each["text"] for each in given["answers"])
    expected = QuestionAnswerer.from_pretrained(run, device="cpu").predict(("w5", context)).to_dict()
    (given,) = call("predict", run, "w5", context).lines()
    assert given == six_digits(expected)


@pytest.mark.parametrize("form", [0, 1])
def test_every_row_of_a_file_is_answered_under_its_id(qa, data, form, tmp_path):
    _, run = qa
    ok("predict", run, "--data", data[form], "--output", tmp_path / "out.jsonl")
    lines = read_jsonl(tmp_path / "out.jsonl")
    assert [line["id"] for line in lines] == [row["id"] for row in questions(24)]
    for line, row in zip(lines, questions(24), strict=True):
        assert line["answer"] is None or line["answer"] == row["context"][line["start"] : line["end"]]
    assert any(line["answer"] for line in lines)


def test_one_answer_a_question_is_a_row_of_a_table_and_several_are_a_row_each(qa, data, tmp_path):
    _, run = qa
    path = tmp_path / "out.csv"
    ok("predict", run, "--data", data[0], "--output", path)
    lines = call("predict", run, "--data", data[0]).lines()
    table = read_table(path)
    assert [(row["id"], row["answer"]) for row in table] == [(line["id"], line["answer"] or "") for line in lines]
    assert "answers" not in table[0]
    outcome = call("predict", run, "--data", data[0], "--output", path, "--top", 2, "--overwrite")
    assert "answers of 24 predictions in " in outcome.err
    lines = call("predict", run, "--data", data[0], "--top", 2).lines()
    found = [(number, row["id"], each) for number, row in enumerate(lines, 1) for each in row["answers"]]
    table = read_table(path)
    assert len(table) == len(found) > 24
    for row, (number, name, each) in zip(table, found, strict=True):
        assert row == {"id": name, "row": str(number), **{part: str(value) for part, value in each.items()}}


def test_columns_may_have_other_names(qa, tmp_path):
    _, run = qa
    rows = [{"q": row["question"], "passage": row["context"], "gold": row["answers"]} for row in questions(8)]
    names = ["--question", "q", "--context", "passage", "--answers", "gold"]
    file = write_jsonl(tmp_path / "d.jsonl", rows)
    ok("evaluate", run, "--data", file, *names)
    assert len(call("predict", run, "--data", file, *names).lines()) == 8
    assert "no column 'question'" in call("evaluate", run, "--data", file).err


@pytest.mark.parametrize("method", ["mean", "vote"])
def test_answerers_are_combined_evaluated_and_asked(qa, data, tmp_path, method):
    (_, first), second, output = qa, tmp_path / "second", tmp_path / "ens"
    shutil.copytree(first, second)
    outcome = ok("ensemble", first, second, "--method", method, "--calibrate", data[0], "--output", output)
    assert re.search(r"^threshold    -?\d+\.\d{3}$", outcome.out, re.MULTILINE)
    report = call("evaluate", output, "--data", data[1], "--json").json()
    assert report == evaluated(output, data[1])
    assert [each["member"] for each in report["members"]] == [str(first), str(second)]
    context = "w30 w5 w10 w11 w40"
    (given,) = call("predict", output, "w5", context, "--top", 3, "--max-answer-tokens", 1).lines()
    assert [len(each["text"].split()) for each in given["answers"]] == [1, 1, 1]
    assert all(context[each["start"] : each["end"]] == each["text"] for each in given["answers"])
    assert given.keys() >= {"answer", "disagreement", "mutual_information", "no_answer_probability"}
    lines = call("predict", output, "--data", data[0]).lines()
    assert [line["id"] for line in lines] == [row["id"] for row in questions(24)]


def test_answers_are_not_stacked(qa, data, tmp_path):
    _, run = qa
    words = ("--method", "stacked", "--calibrate", data[0], "--output", tmp_path / "ens")
    fails(1, "by 'mean' or 'vote', not by 'stacked'", "ensemble", run, run, *words)
    assert not (tmp_path / "ens").exists()


def test_other_models_answer_no_questions(qa, run):
    said = "--max-answer-tokens can be given for models that answer questions"
    fails(2, said, "predict", run, "w6 w8", "--max-answer-tokens", 3)
    fails(2, "this model does not read --context", "predict", run, "w6 w8", "--context", "c")
    _, answerer = qa
    for words, said in (
        (["w5"], "expected two texts, the question and the context, got 1"),
        (["w5", "w6", "--labels", "yes", "no"], "which has no labels"),
        (["w5", "w6", "--label", "kind"], "this model does not read --label"),
    ):
        fails(2, said, "predict", answerer, *words)


def test_a_bad_answer_fails_with_its_line_and_id(files, tmp_path):
    bad = {**questions(1)[0], "id": "odd", "answers": [{"text": "w5", "start": 2}]}
    file = write_jsonl(tmp_path / "d.jsonl", [*questions(4), bad])
    words = ("train", "question-answering", "--model", files / "tiny", "--train", file, "--output", tmp_path / "run")
    fails(1, ("line 5 of", "(id 'odd'): expected the answer 'w5' at character 2"), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["d.jsonl"]


def test_the_help_shows_a_row_and_the_short_name_of_the_task_still_works():
    out = call("train", "question-answering", "--help").out
    assert call("train", "answering", "--help").out.partition("\n\n")[2] == out.partition("\n\n")[2]
    assert "  answering" not in call("train", "--help").out
    assert '"answers": [{"text": "Broncos", "start": 12}]' in out
    example = {"context": "In 2016 the Broncos won.", "answers": [{"text": "Broncos", "start": 12}]}
    assert example["context"][12:19] == "Broncos"
    assert example["context"] in out
