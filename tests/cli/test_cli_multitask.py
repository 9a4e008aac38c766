"""``train multitask``, and what can be asked of its model."""

import json
import re
import shutil

import pytest
from command_line import call, evaluated, fails, ok, read_jsonl, read_table, rows, saved_of, write_jsonl


def topics(count, seed):
    return [
        {"body": row["text"], "topic": ("short", "long")[number % 2]} for number, row in enumerate(rows(count, seed))
    ]


@pytest.fixture(scope="module")
def task_files(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    write_jsonl(folder / "s.jsonl.gz", rows(48, 1))
    write_jsonl(folder / "t.jsonl.gz", topics(30, 2))
    write_jsonl(folder / "v.jsonl.gz", topics(10, 3))
    write_jsonl(folder / "both.jsonl", [{**row, "topic": "long"} for row in rows(6, 4)])
    return folder


def words(files, task_files, output, *more):
    return [
        *("train", "multitask", "--model", files / "tiny"),
        *("--task", f"sentiment={task_files / 's.jsonl.gz'}:text:label"),
        *("--task", f"topic={task_files / 't.jsonl.gz'}:body:topic"),
        *("--output", output, "--epochs", 2, "--device", "cpu", *more),
    ]


@pytest.fixture(scope="module")
def multi(files, task_files, tmp_path_factory):
    """The folder of a trained run, and how its training ended."""
    run = tmp_path_factory.mktemp("multi") / "run"
    outcome = ok(*words(files, task_files, run, "--validation", f"topic={task_files / 'v.jsonl.gz'}"))
    return run, outcome


def test_training_says_how_each_task_went(multi):
    _, outcome = multi
    assert "sentiment.accuracy" in outcome.out
    assert "topic.accuracy" in outcome.out
    assert re.search(r"^note         sentiment: There were only \d+ held-out rows", outcome.out, re.MULTILINE)


def _next(out):
    (line,) = (line for line in out.splitlines() if line.startswith("next "))
    return line


def test_what_comes_next_can_be_typed(files, task_files, multi, tmp_path):
    assert "--task" not in _next(multi[1].out)  # labels in columns of their own
    same = task_files / "s.jsonl.gz"
    words = ("train", "multitask", "--model", files / "tiny", "--task", f"a={same}", "--task", f"b={same}")
    outcome = call(*words, "--epochs", 1, "--device", "cpu", "--output", tmp_path / "run")
    assert _next(outcome.out).endswith("--task a --data test.jsonl  # your labelled test rows")
    ok("evaluate", tmp_path / "run", "--task", "a", "--data", same, "--resamples", 5)


def test_a_text_is_answered_by_all_tasks_or_by_one(multi):
    run, _ = multi
    (both,) = call("predict", run, "w6 w8").lines()
    assert both["sentiment"]["label"] in {"even", "odd"}
    assert both["topic"]["label"] in {"short", "long"}
    (one,) = call("predict", run, "w6 w8", "--task", "topic").lines()
    assert one["label"] == both["topic"]["label"]
    assert one["probability"] == pytest.approx(both["topic"]["probability"], abs=1e-5)


def test_a_task_that_nothing_calibrates_is_named(multi, tmp_path):
    changed = shutil.copytree(multi[0], tmp_path / "changed")
    assert call("predict", changed, "w6 w8").err == ""
    stored = saved_of(changed)
    (topic,) = (part for part in stored["heads"] if part["name"] == "topic")
    topic["calibration"] = None
    (changed / "bothways.json").write_text(json.dumps(stored))
    said = "the probabilities of topic are not calibrated on held-out rows.\n"
    assert call("predict", changed, "w6 w8").err == said
    assert call("predict", changed, "w6 w8", "--task", "sentiment").err == ""


def test_a_file_is_answered_in_any_format(multi, task_files, tmp_path):
    run, _ = multi
    for name in ("out.jsonl", "out.csv"):
        ok("predict", run, "--data", task_files / "both.jsonl", "--output", tmp_path / name)
    lines = read_jsonl(tmp_path / "out.jsonl")
    table = read_table(tmp_path / "out.csv")
    assert [row["id"] for row in table] == [line["id"] for line in lines]
    for row, line in zip(table, lines, strict=True):
        for task in ("sentiment", "topic"):
            said = line[task]
            assert row[f"{task}_label"] == said["label"]
            assert float(row[f"{task}_probability"]) == said["probability"]
            assert float(row[f"{task}_probabilities_{said['label']}"]) == said["probability"]
    assert not any("{" in cell or "[" in cell for row in table for cell in row.values())


def test_tasks_are_evaluated_one_by_one_or_together(multi, task_files):
    run, _ = multi
    one = call("evaluate", run, "--data", task_files / "v.jsonl.gz", "--task", "topic", "--json").json()
    assert one == evaluated(run, task_files / "v.jsonl.gz", "topic")
    assert one["labels"] == ["long", "short"]
    both = call("evaluate", run, "--data", task_files / "both.jsonl", "--json").json()
    assert both["sentiment"]["n"] == both["topic"]["n"] == both["tokens_read"]["texts"] == 6
    said = call("evaluate", run, "--data", task_files / "both.jsonl").out
    assert "sentiment: 6 rows" in said
    assert "topic: 6 rows" in said
    fails(1, "no column 'topic'", "evaluate", run, "--data", task_files / "s.jsonl.gz")


def test_a_task_that_is_not_there_is_bad_usage(multi, run, task_files):
    folder, _ = multi
    for command in (["predict", folder, "w5"], ["evaluate", folder, "--data", task_files / "both.jsonl"]):
        fails(2, "its tasks are sentiment, topic", *command, "--task", "mood")
    assert call("predict", run, "w5", "--task", "mood").code == 2
    fails(2, "does not read --label", "evaluate", folder, "--data", task_files / "both.jsonl", "--label", "label")


@pytest.mark.parametrize("more", [["--sampling", "uniform"], ["--sampling", "temperature", "--temperature", 3]])
def test_sampling_and_merging_can_be_chosen(files, task_files, tmp_path, more):
    outcome = ok(*words(files, task_files, tmp_path / "run", *more, "--merge", "max", "--json"))
    assert outcome.json()["tasks"][1]["labels"] == ["long", "short"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--task", "third"], "--task must be NAME=FILE"),
        (["--task", "=x.jsonl"], "--task must be NAME=FILE"),
        (["--task", "third=x.jsonl:text"], "FILE, FILE:TEXT:LABEL or FILE:TEXT:LABEL:TARGET"),
        (["--task", "third=x.jsonl::label"], "FILE, FILE:TEXT:LABEL or FILE:TEXT:LABEL:TARGET"),
        (["--task", "third=x.jsonl:text:label:pairs"], "one of single, multi, regression, tagging, got 'pairs'"),
        (["--task", "topic=x.jsonl:text:label"], "a different name for each task"),
        (["--task", "a/b=x.jsonl:text:label"], "letters, digits"),
        (["--validation", "mood=x.jsonl"], "'mood', but the tasks are sentiment, topic"),
        (["--sampling", "temperature", "--temperature", 0.5], "at least 1"),
        (["--temperature", 3], "--temperature needs --sampling temperature"),
        (["--sampling", "uniform", "--temperature", 2], "--temperature needs --sampling temperature"),
        (["--merge", "median"], "median"),
    ],
)
def test_words_that_make_no_sense_are_bad_usage(files, task_files, tmp_path, more, said):
    fails(2, said, *words(files, task_files, tmp_path / "run", *more))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--task", "a=-:text:label", "--task", "b=-:text:label"], "--task a and --task b"),
        (["--task", "a=-", "--task", "b=b.jsonl", "--validation", "b=-"], "--task a and --validation b"),
        (["--task", "a=a", "--task", "b=b", "--validation", "a=-", "--validation", "b=-"], "--validation a and --val"),
    ],
)
def test_standard_input_cannot_be_read_twice(files, tmp_path, given, named):
    words = ("train", "multitask", "--model", files / "tiny", *given, "--output", tmp_path / "run")
    fails(2, (named, "cannot both be standard input"), *words)
    assert list(tmp_path.iterdir()) == []


def test_one_task_alone_is_refused_with_the_command_for_it(files, task_files, tmp_path):
    single = ["train", "multitask", "--model", files / "tiny", "--task", f"s={task_files / 's.jsonl.gz'}"]
    fails(2, "bothways train classification", *single, "--output", tmp_path / "run")


def test_unusable_data_are_named_with_their_task(files, task_files, tmp_path):
    third = ("--task", f"third={task_files / 's.jsonl.gz'}:text:kind")
    fails(1, ("task 'third'", "no column 'kind'"), *words(files, task_files, tmp_path / "run", *third))


def test_labels_and_tags_are_trained_asked_and_evaluated_together(files, task_files, tmp_path):
    tagged = [
        {
            "tokens": row["text"].split(),
            "tags": ["B-X" if word in {"w6", "w8"} else "O" for word in row["text"].split()],
        }
        for row in rows(30, 5)
    ]
    write_jsonl(tmp_path / "n.jsonl.gz", tagged)
    outcome = ok(
        *("train", "multitask", "--model", files / "tiny", "--output", tmp_path / "run", "--device", "cpu"),
        *("--task", f"sentiment={task_files / 's.jsonl.gz'}:text:label"),
        *("--task", f"names={tmp_path / 'n.jsonl.gz'}:tokens:tags:tagging", "--epochs", 1),
    )
    assert "names.span_f1" in outcome.out
    (answer,) = call("predict", tmp_path / "run", "w6 w8, w9").lines()
    assert answer["sentiment"]["label"] in {"even", "odd"}
    assert [word["text"] for word in answer["names"]["words"]] == ["w6", "w8", ",", "w9"]
    for words, said in (
        (["--output", tmp_path / "x.csv"], "the spans of the task 'names' do not fit into the cells of a .csv file"),
        (["--output", tmp_path / "x.conll"], "Name the task that tags: --task names."),
        (["--scheme", "BIOES"], "Name the task that tags: --task names."),
    ):
        fails(2, said, "predict", tmp_path / "run", "w6 w8", *words)
    words = ("--task", "names", "--output", tmp_path / "x.conll")
    ok("predict", tmp_path / "run", "w6 w8", *words)
    report = call("evaluate", tmp_path / "run", "--data", tmp_path / "n.jsonl.gz", "--task", "names", "--json").json()
    assert "span_f1" in report
    both = [{**row, "label": "even"} for row in tagged]
    write_jsonl(tmp_path / "both.jsonl", both)
    report = call("evaluate", tmp_path / "run", "--data", tmp_path / "both.jsonl", "--json").json()
    assert set(report) == {"sentiment", "names", "tokens_read"}


def test_one_task_is_compared_with_a_model_of_that_task(files, multi, task_files, run, tmp_path):
    several, _ = multi
    data = task_files / "s.jsonl.gz"
    given = call("compare", several, run, "--task", "sentiment", "--data", data, "--json", "--quiet", "--resamples", 20)
    alone = call("evaluate", several, "--task", "sentiment", "--data", data, "--json", "--quiet", "--resamples", 20)
    assert given.json()["accuracy_a"] == pytest.approx(alone.json()["accuracy"])
    fails(1, "choose one of sentiment, topic", "compare", several, run, "--data", data, "--quiet")
    fails(2, "each model has only one task", "compare", run, run, "--task", "sentiment", "--data", data, "--quiet")
    scored = tmp_path / "scored.csv"
    scored.write_text("text_a,text_b,score\n" + "".join(f"w5 w6,w{number},{number}\n" for number in range(6, 12)))
    words = ("compare", files / "tiny", files / "tiny", "--task", "similarity", "--data", scored, "--json", "--quiet")
    similar = call(*words)
    assert similar.json()["spearman_difference"] == 0
