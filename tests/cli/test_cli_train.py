"""``train``, from a file of labelled texts to a folder with a model, and everything that can come between."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from command_line import call, rows, write_jsonl

from bothways.cli.training.folders import RunFolders
from bothways.training import checkpoints, optimizers


def words_of(files, output, *more):
    return [
        *("train", "classification", "--model", files / "tiny", "--train", files / "train.jsonl.gz"),
        *("--output", output, "--epochs", 1, "--device", "cpu", *more),
    ]


def test_training_says_how_it_went_and_what_to_do_next(trained, run):
    assert trained.code == 0
    assert "kept epoch" in trained.out
    assert "accuracy" in trained.out
    assert "calibration" in trained.out
    assert f"next         bothways evaluate {run}" in trained.out
    # Whoever sends the output of a job to a file sees there how far it is.
    began, start, *lines = trained.err.splitlines()
    epochs, phases = lines[:8], lines[8:]
    assert began == "fitting a linear model to the encoder's hidden states"
    assert start.startswith("training: linear model of frozen hidden states: accuracy ")
    assert all(line.startswith(f"training: epoch {at} of 8, ") for at, line in enumerate(epochs, start=1))
    assert all("training loss " in line and "accuracy " in line for line in epochs)
    assert phases == [
        "reading the held-out rows",
        "calibrating",
        "learning label sets with a coverage",
        "fitting the out-of-domain detector",
        "evaluating on the held-out rows",
        f"saving to {run}",
    ]


def test_a_quiet_training_says_nothing_beside_its_result(files, tmp_path):
    outcome = call(*words_of(files, tmp_path / "run", "--quiet"))
    assert (outcome.code, outcome.err) == (0, "")
    assert "saved in" in outcome.out


def test_a_finished_run_is_one_folder_with_its_log(run):
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "model.safetensors", "bothways.json", "tokenizer.json", "training.jsonl"} <= names
    assert [path.name for path in run.parent.iterdir()] == ["x"]
    events = [json.loads(line)["event"] for line in (run / "training.jsonl").read_text().splitlines()]
    assert events[0] == "start"
    assert events.count("epoch") == 9  # and the start
    assert events[-1] == "finished"


def test_a_model_learns_what_its_data_say(files, run):
    report = call("evaluate", run, "--data", files / "test.jsonl.gz", "--json").json()
    assert report["accuracy"] > 0.9


def test_the_summary_as_json_agrees_with_the_saved_model(files, tmp_path):
    summary = call(*words_of(files, tmp_path / "run", "--json", "--seed", 5)).json()
    saved = json.loads((tmp_path / "run" / "bothways.json").read_text())
    assert summary["output"] == str(tmp_path / "run")
    assert summary["labels"] == ["even", "odd"]
    assert summary["calibration"] == saved["calibration"]
    assert summary["kept_epoch"] == saved["card"]["training"]["kept_epoch"] == 1
    start, kept = saved["card"]["training"]["validations"]
    assert summary["validation"]["accuracy"] == kept["metrics"]["accuracy"]
    assert summary["baseline"]["accuracy"] == start["metrics"]["accuracy"]
    assert not summary["interrupted"]


def test_the_same_seed_gives_the_same_weights(files, tmp_path):
    for name in ("one", "two"):
        assert call(*words_of(files, tmp_path / name, "--seed", 4)).code == 0
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("target", "labels", "metric"),
    [("multi", lambda row: [row["label"], "any"], "micro_f1"), ("regression", lambda row: len(row["id"]), "mse")],
)
def test_other_targets_go_the_whole_way(files, tmp_path, target, labels, metric):
    data = write_jsonl(tmp_path / "data.jsonl", [{**row, "label": labels(row)} for row in rows(24, 0)])
    words = ["--train", data, "--validation", data, "--target", target, "--output", tmp_path / "run"]
    assert call("train", "classification", "--model", files / "tiny", "--epochs", 1, *words).code == 0
    assert metric in call("evaluate", tmp_path / "run", "--data", data, "--json").json()
    predicted = call("predict", tmp_path / "run", "w5 w6")
    assert (predicted.code, predicted.err) == (0, "")  # calibrated, or no probabilities at all


def test_data_come_from_other_formats_and_columns(files, tmp_path):
    made = rows(24, 0)
    lines = ["title\tbody\tkind", *(f"w7\t{row['text']}\t{row['label']}" for row in made)]
    (tmp_path / "data.table").write_text("\n".join(lines) + "\n")
    words = [
        "--train",
        tmp_path / "data.table",
        "--format",
        "tsv",
        "--text",
        "title",
        "--text",
        "body",
        "--label",
        "kind",
    ]
    outcome = call(
        "train", "classification", "--model", files / "tiny", "--epochs", 1, *words, "--output", tmp_path / "run"
    )
    assert outcome.code == 0, outcome.err


# --- outputs that are there already ---


def test_an_output_that_exists_is_refused_before_any_work(files, run, tmp_path):
    before = (run / "model.safetensors").stat().st_mtime_ns
    outcome = call("train", "classification", "--model", "no/such", "--train", "no.jsonl", "--output", run)
    assert outcome.code == 1
    assert "already exists" in outcome.err
    assert "--overwrite" in outcome.err
    assert (run / "model.safetensors").stat().st_mtime_ns == before


def test_overwrite_replaces_a_run_but_never_a_folder_of_other_things(files, tmp_path):
    assert call(*words_of(files, tmp_path / "run")).code == 0
    (tmp_path / "run" / "mark").touch()
    assert call(*words_of(files, tmp_path / "run", "--overwrite")).code == 0
    assert not (tmp_path / "run" / "mark").exists()

    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("Dear")
    outcome = call(*words_of(files, tmp_path / "letters", "--overwrite"))
    assert outcome.code == 1
    assert "not a trained model" in outcome.err
    assert (tmp_path / "letters" / "dear.txt").read_text() == "Dear"


def test_an_output_that_cannot_be_made_is_refused_before_any_work(files, tmp_path):
    outcome = call(*words_of(files, files / "train.jsonl.gz" / "run"))
    assert outcome.code == 1
    assert "a file is in the way of a folder" in outcome.err


# --- data that are not usable ---


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ('{"text": "w5", "label": "a"}\n{"text": "w6", "label": "a"}\n', "at least two classes"),
        ('{"text": "w5", "label": "a"}\n{"text": "", "label": "b"}\n', "line 2"),
        ('{"text": "w5", "label": "a"}\n{"texts": "w6", "label": "b"}\n', "no column 'text'"),
        ('{"text": "w5"\n', "not valid JSON"),
    ],
)
def test_unusable_training_data_leave_nothing_behind(files, tmp_path, content, said):
    data = tmp_path / "data.jsonl"
    data.write_text(content)
    outcome = call("train", "classification", "--model", files / "tiny", "--train", data, "--output", tmp_path / "run")
    assert outcome.code == 1
    assert said in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


def test_a_validation_label_that_training_has_not_is_named(files, tmp_path):
    data = write_jsonl(tmp_path / "other.jsonl", [{"text": "w5", "label": "third"}])
    outcome = call(*words_of(files, tmp_path / "run", "--validation", data))
    assert outcome.code == 1
    assert "'third'" in outcome.err


# --- interruption ---


def start_and_interrupt(words, unfinished):
    """Start a training in a process, press Ctrl-C when there is a checkpoint, and wait for the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bothways", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(unfinished.glob("checkpoint-*")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_ctrl_c_saves_the_best_so_far_and_resume_continues(files, tmp_path):
    output, unfinished = tmp_path / "run", tmp_path / "run.checkpoints"
    words = words_of(files, output)
    words[words.index("--epochs") + 1] = 8
    code, out, err = start_and_interrupt(words, unfinished)
    assert code == 130, err
    assert "epoch kept so far" in err
    assert "--resume" in err
    assert "saved in" in out
    assert list(unfinished.glob("checkpoint-*"))
    assert call("predict", output, "w6 w8").code == 0

    again = call(*words)
    assert again.code == 1
    assert "--resume" in again.err

    resumed = call(*words, "--resume", "--json")
    assert resumed.code == 0, resumed.err
    assert not resumed.json()["interrupted"]
    assert resumed.json()["updates"] == 8 * math.ceil(200 * 0.9 / 16)  # a tenth is held out
    assert not unfinished.exists()
    events = [json.loads(line)["event"] for line in (output / "training.jsonl").read_text().splitlines()]
    assert "resumed" in events
    assert events[-1] == "finished"


@pytest.fixture
def ctrl_c_in_the_second_update(monkeypatch):
    """Ctrl-C comes once, during the second update of the test."""
    taken = []

    def interrupted(self, *arguments):
        taken.append(arguments)
        if len(taken) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return usual(self, *arguments)

    usual = optimizers.Stepper.step
    monkeypatch.setattr(optimizers.Stepper, "step", interrupted)


@pytest.mark.usefixtures("ctrl_c_in_the_second_update")
def test_an_interruption_before_the_first_validation_saves_nothing_but_can_be_resumed(files, tmp_path):
    words = words_of(files, tmp_path / "run", "--batch-size", 16)
    outcome = call(*words)
    assert outcome.code == 130
    assert "--resume" in outcome.err
    assert not (tmp_path / "run").exists()
    assert call(*words, "--resume").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_overwrite_begins_an_unfinished_run_anew(files, tmp_path):
    checkpoint = tmp_path / "run.checkpoints" / "checkpoint-00000001"
    checkpoint.mkdir(parents=True)
    words = words_of(files, tmp_path / "run")
    assert "unfinished run" in call(*words).err
    assert call(*words, "--overwrite").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("wrong", [{"--train": "no.jsonl"}, {"--model": "no/such"}])
def test_overwrite_forgets_an_unfinished_run_only_for_one_that_gets_as_far(files, tmp_path, wrong):
    unfinished = tmp_path / "run.checkpoints"
    (unfinished / "checkpoint-00000001").mkdir(parents=True)
    (unfinished / "checkpoint-00000001" / "weights").write_text("dear")
    (unfinished / "training.jsonl").write_text("old\n")
    words = words_of(files, tmp_path / "run", "--overwrite")
    for option, value in wrong.items():
        words[words.index(option) + 1] = value
    assert call(*words).code == 1
    assert sorted(path.name for path in unfinished.iterdir()) == ["checkpoint-00000001", "training.jsonl"]
    assert (unfinished / "checkpoint-00000001" / "weights").read_text() == "dear"
    assert (unfinished / "training.jsonl").read_text() == "old\n"


def test_a_run_set_aside_by_one_that_was_killed_comes_back_unless_there_is_a_newer_one(tmp_path):
    folders = RunFolders(tmp_path / "run")
    (folders.unfinished / "checkpoint-00000007").mkdir(parents=True)
    folders.log.write_text("old\n")
    folders.begin(resume=False, overwrite=True)
    assert not folders.resumable
    folders.log.write_text("new\n")

    folders.begin(resume=True, overwrite=False)
    assert [path.name for path in folders.unfinished.glob("checkpoint-*")] == ["checkpoint-00000007"]
    assert folders.log.read_text() == "old\n"

    folders.begin(resume=False, overwrite=True)
    folders.log.write_text("new\n")
    (folders.unfinished / "checkpoint-00000001").mkdir()
    folders.begin(resume=True, overwrite=False)
    assert sorted(path.name for path in folders.unfinished.iterdir()) == ["checkpoint-00000001", "training.jsonl"]
    assert folders.log.read_text() == "new\n"


@pytest.mark.usefixtures("ctrl_c_in_the_second_update")
def test_an_interruption_without_checkpoints_leaves_the_unfinished_run_before(files, tmp_path):
    checkpoint = tmp_path / "run.checkpoints" / "checkpoint-00000001"
    checkpoint.mkdir(parents=True)
    assert call(*words_of(files, tmp_path / "run", "--no-checkpoints", "--overwrite")).code == 130
    assert [path.name for path in tmp_path.iterdir()] == ["run.checkpoints"]
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


def test_a_run_without_checkpoints_ends_like_any_other(files, tmp_path):
    assert call(*words_of(files, tmp_path / "run", "--no-checkpoints")).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.usefixtures("ctrl_c_in_the_second_update")
def test_an_interruption_without_checkpoints_leaves_nothing_and_promises_nothing(files, tmp_path):
    outcome = call(*words_of(files, tmp_path / "run", "--no-checkpoints"))
    assert outcome.code == 130
    assert "--resume" not in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_the_model_is_saved_says_how_to_resume(files, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bothways.tasks.TextClassifier.save", interrupted)
        outcome = call(*words_of(files, tmp_path / "run"))
    assert outcome.code == 130
    assert "--resume" in outcome.err
    assert not (tmp_path / "run").exists()
    assert call(*words_of(files, tmp_path / "run", "--resume")).code == 0


def test_ctrl_c_while_the_last_checkpoint_is_written_ends_as_interrupted(files, tmp_path, monkeypatch):
    def pressed(self, checkpoint):
        os.kill(os.getpid(), signal.SIGINT)
        usual(self, checkpoint)

    usual = checkpoints.CheckpointFolder.save
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.CheckpointFolder, "save", pressed)
        outcome = call(*words_of(files, tmp_path / "run"))
    assert outcome.code == 130
    assert "holds the epoch kept so far, 1. Run the same command with --resume to continue." in outcome.err
    assert call("predict", tmp_path / "run", "w6 w8").code == 0
    assert call(*words_of(files, tmp_path / "run", "--resume")).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_standard_input_cannot_be_read_twice(files, tmp_path):
    words = ("train", "classification", "--model", files / "tiny", "--train", "-", "--validation", "-")
    outcome = call(*words, "--output", tmp_path / "run")
    assert outcome.code == 2
    assert "cannot both be standard input" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_class_weights_are_an_option_and_a_majority_is_named(files, tmp_path):
    made = [{**row, "label": "rare" if at % 8 == 0 else "common"} for at, row in enumerate(rows(80, 0))]
    data = write_jsonl(tmp_path / "data.jsonl", made)
    words = ("--train", data, "--validation", data, "--epochs", 1, "--output", tmp_path / "run", "--json")
    start = ("train", "classification", "--model", files / "tiny", "--device", "cpu", *words)
    summary = call(*start, "--class-weights", "balanced").json()
    assert summary["validation"]["majority_accuracy"] == 0.875
    assert {"accuracy", "macro_f1", "balanced_accuracy"} < summary["validation"].keys()
    shown = call("evaluate", tmp_path / "run", "--data", data, "--report", tmp_path / "page.html")
    assert "'common' is the label of 87.5% of the rows: always giving it has an accuracy of 0.8750" in shown.out
    assert "always giving it has an accuracy of 0.8750" in (tmp_path / "page.html").read_text()
    assert call(*start, "--class-weights", "equal", "--overwrite").code == 2
