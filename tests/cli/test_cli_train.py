"""``train``, from a file of labelled texts to a folder with a model, and everything that can come between."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from command_line import call, fails, names, ok, read_jsonl, rows, saved_of, short_training, write_jsonl

from bothways.cli.training.folders import RunFolders
from bothways.training import checkpoints


def test_training_says_how_it_went_and_what_to_do_next(trained, run):
    assert trained.code == 0
    assert "kept epoch" in trained.out
    assert "accuracy" in trained.out
    assert "calibration" in trained.out
    assert f"next         bothways evaluate {run}" in trained.out
    # Whoever sends the output of a job to a file sees there how far it is.
    slow = re.compile(
        r"[^:]*: ([\d,]+ (of|done)|\d+ (s|min))|(training: )?(expected time|shorter)"
    )  # on a busy machine
    shown = [line for line in trained.err.splitlines() if not slow.match(line)]
    (*began, start), lines = shown[:9], shown[9:]
    epochs, phases = lines[:8], lines[8:]
    assert began == [
        "reading the data",
        "tokenising",
        "tokenising",
        "measuring the speed of this machine",
        "fitting a linear model to the encoder's hidden states",
        "evaluating the baseline",
        "calibrating the baseline",
        "training",
    ]
    assert start.startswith("training: linear model of frozen hidden states: accuracy ")
    assert all(line.startswith(f"training: epoch {at} of 8, ") for at, line in enumerate(epochs, start=1))
    assert all("training loss " in line and "accuracy " in line for line in epochs)
    assert phases == [
        "reading the held-out rows",
        "calibrating",
        "fitting prediction sets",
        "fitting the out-of-domain detector",
        "reading the training rows for the detector",
        "evaluating on the held-out rows",
        "saving the model",
    ]


def test_a_quiet_training_says_nothing_beside_its_result(files, tmp_path):
    outcome = call(*short_training(files, tmp_path / "run", "--quiet"))
    assert (outcome.code, outcome.err) == (0, "")
    assert "saved in" in outcome.out


def test_a_finished_run_is_one_folder_with_its_log(run):
    assert {"config.json", "model.safetensors", "bothways.json", "tokenizer.json", "training.jsonl"} <= {*names(run)}
    assert names(run.parent) == ["x"]
    events = [each["event"] for each in read_jsonl(run / "training.jsonl")]
    assert events[0] == "start"
    assert events.count("epoch") == 9  # and the start
    assert events[-1] == "finished"


def test_a_model_learns_what_its_data_say(files, run):
    report = call("evaluate", run, "--data", files / "test.jsonl.gz", "--json").json()
    assert report["accuracy"] > 0.9


def test_the_summary_as_json_agrees_with_the_saved_model(files, tmp_path):
    summary = ok(*short_training(files, tmp_path / "run", "--json")).json()
    saved = saved_of(tmp_path / "run")
    assert summary["output"] == str(tmp_path / "run")
    assert summary["labels"] == ["even", "odd"]
    assert summary["calibration"] == saved["calibration"]
    assert summary["kept_epoch"] == saved["card"]["training"]["kept_epoch"]
    validations = [each["metrics"]["accuracy"] for each in saved["card"]["training"]["validations"]]
    assert summary["validation"]["accuracy"] == validations[summary["kept_epoch"]]
    assert summary["baseline"]["accuracy"] == validations[0]
    assert len(validations) == 2
    assert not summary["interrupted"]


@pytest.mark.parametrize(
    ("target", "labels", "metric"),
    [("multi", lambda row: [row["label"], "any"], "micro_f1"), ("regression", lambda row: len(row["id"]), "mse")],
)
def test_other_targets_go_the_whole_way(files, tmp_path, target, labels, metric):
    data = write_jsonl(tmp_path / "data.jsonl", [{**row, "label": labels(row)} for row in rows(24, 0)])
    words = ["--train", data, "--validation", data, "--target", target, "--output", tmp_path / "run"]
    ok("train", "classification", "--model", files / "tiny", "--epochs", 1, *words)
    assert metric in call("evaluate", tmp_path / "run", "--data", data, "--json").json()
    predicted = call("predict", tmp_path / "run", "w5 w6")
    assert (predicted.code, predicted.err) == (0, "")  # calibrated, or no probabilities at all


def test_data_come_from_other_formats_and_columns(files, tmp_path):
    made = rows(24, 0)
    lines = ["title\tbody\tkind", *(f"w7\t{row['text']}\t{row['label']}" for row in made)]
    (tmp_path / "data.table").write_text("\n".join(lines) + "\n")
    words = ["--train", tmp_path / "data.table", "--format", "tsv", "--text", "title", "--text", "body"]
    words += ["--label", "kind"]
    ok("train", "classification", "--model", files / "tiny", "--epochs", 1, *words, "--output", tmp_path / "run")


# --- outputs that are there already ---


def test_an_output_that_exists_is_refused_before_any_work(files, run, tmp_path):
    before = (run / "model.safetensors").stat().st_mtime_ns
    words = ("train", "classification", "--model", "no/such", "--train", "no.jsonl", "--output", run)
    fails(1, ("already exists", "--overwrite"), *words)
    assert (run / "model.safetensors").stat().st_mtime_ns == before


def test_overwrite_replaces_a_run_but_never_a_folder_of_other_things(files, tmp_path):
    ok(*short_training(files, tmp_path / "run"))
    (tmp_path / "run" / "mark").touch()
    ok(*short_training(files, tmp_path / "run", "--overwrite"))
    assert not (tmp_path / "run" / "mark").exists()

    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("Dear")
    fails(1, "not a trained model", *short_training(files, tmp_path / "letters", "--overwrite"))
    assert (tmp_path / "letters" / "dear.txt").read_text() == "Dear"


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
    fails(1, said, "train", "classification", "--model", files / "tiny", "--train", data, "--output", tmp_path / "run")
    assert names(tmp_path) == ["data.jsonl"]


def test_a_validation_label_that_training_has_not_is_named(files, tmp_path):
    data = write_jsonl(tmp_path / "other.jsonl", [{"text": "w5", "label": "third"}])
    fails(1, "'third'", *short_training(files, tmp_path / "run", "--validation", data))


# --- interruption ---


def test_ctrl_c_saves_the_best_so_far_of_a_process(files, tmp_path):
    kept = tmp_path / "run.checkpoints"
    words = map(str, short_training(files, tmp_path / "run", "--patience", 1000, epochs=1000))
    process = subprocess.Popen(
        [sys.executable, "-m", "bothways", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 300
    while not list(kept.glob("checkpoint-0*")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "epoch kept so far" in err
    assert "saved in" in out
    assert list(kept.glob("checkpoint-0*"))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_saves_the_best_so_far_and_resume_continues(files, tmp_path, in_update, sent):
    output, unfinished = tmp_path / "run", tmp_path / "run.checkpoints"
    words = short_training(files, output, epochs=2)
    in_update(4, sent)  # of three in an epoch
    interrupted = call(*words)
    assert interrupted.code == 128 + sent
    assert "holds the epoch kept so far" in interrupted.err
    assert "--resume" in interrupted.err
    assert f"saved in     {output}" in interrupted.out
    assert names(tmp_path) == ["run", "run.checkpoints"]
    assert names(unfinished)[1:] == ["checkpoint-stages", "left.sha256", "training.jsonl"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    ok("predict", output, "w6 w8")
    fails(1, "--resume", *words)
    resumed = ok(*words, "--resume", "--json").json()
    assert (resumed["interrupted"], resumed["updates"]) == (False, 6)
    assert names(tmp_path) == ["run"]
    events = [each["event"] for each in read_jsonl(output / "training.jsonl")]
    assert "resumed" in events
    assert events[-1] == "finished"


def test_an_interruption_before_the_first_validation_saves_nothing_but_can_be_resumed(files, tmp_path, in_update):
    words = short_training(files, tmp_path / "run")
    in_update(2, signal.SIGINT)
    fails(130, "--resume", *words)
    assert not (tmp_path / "run").exists()
    ok(*words, "--resume")
    assert names(tmp_path) == ["run"]


def test_overwrite_begins_an_unfinished_run_anew(files, tmp_path):
    checkpoint = tmp_path / "run.checkpoints" / "checkpoint-00000001"
    checkpoint.mkdir(parents=True)
    words = short_training(files, tmp_path / "run")
    assert "unfinished run" in call(*words).err
    ok(*words, "--overwrite")
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("wrong", [{"--train": "no.jsonl"}, {"--model": "no/such"}])
def test_overwrite_forgets_an_unfinished_run_only_for_one_that_gets_as_far(files, tmp_path, wrong):
    unfinished = tmp_path / "run.checkpoints"
    (unfinished / "checkpoint-00000001").mkdir(parents=True)
    (unfinished / "checkpoint-00000001" / "weights").write_text("dear")
    (unfinished / "training.jsonl").write_text("old\n")
    words = short_training(files, tmp_path / "run", "--overwrite")
    for option, value in wrong.items():
        words[words.index(option) + 1] = value
    assert call(*words).code == 1
    assert names(unfinished) == ["checkpoint-00000001", "training.jsonl"]
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
    assert names(folders.unfinished) == ["checkpoint-00000001", "training.jsonl"]
    assert folders.log.read_text() == "new\n"


def test_an_interruption_without_checkpoints_leaves_the_unfinished_run_before(files, tmp_path, in_update):
    in_update(2, signal.SIGINT)
    checkpoint = tmp_path / "run.checkpoints" / "checkpoint-00000001"
    checkpoint.mkdir(parents=True)
    assert call(*short_training(files, tmp_path / "run", "--no-checkpoints", "--overwrite")).code == 130
    assert names(tmp_path) == ["run.checkpoints"]
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


def test_without_checkpoints_an_interruption_leaves_nothing_and_promises_nothing(files, tmp_path, in_update):
    words = short_training(files, tmp_path / "run", "--no-checkpoints")
    in_update(2, signal.SIGINT)
    interrupted = call(*words)
    assert interrupted.code == 130
    assert "--resume" not in interrupted.err
    assert names(tmp_path) == []
    ok(*words)
    assert names(tmp_path) == ["run"]


def test_ctrl_c_while_the_model_is_saved_says_how_to_resume(files, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bothways.tasks.TextClassifier.save", interrupted)
        fails(130, "--resume", *short_training(files, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    ok(*short_training(files, tmp_path / "run", "--resume"))


def test_ctrl_c_while_the_last_checkpoint_is_written_ends_as_interrupted(files, tmp_path, monkeypatch):
    def pressed(self, checkpoint):
        os.kill(os.getpid(), signal.SIGINT)
        usual(self, checkpoint)

    usual = checkpoints.CheckpointFolder.save
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.CheckpointFolder, "save", pressed)
        said = ("holds the epoch kept so far, ", "Run the same command with --resume to continue.")
        fails(130, said, *short_training(files, tmp_path / "run"))
    ok("predict", tmp_path / "run", "w6 w8")
    ok(*short_training(files, tmp_path / "run", "--resume"))
    assert names(tmp_path) == ["run"]


def test_class_weights_are_an_option_and_a_majority_is_named(files, tmp_path):
    made = [{**row, "label": "rare" if at % 8 == 0 else "common"} for at, row in enumerate(rows(80, 0))]
    data = write_jsonl(tmp_path / "data.jsonl", made)
    words = ("--train", data, "--validation", data, "--epochs", 1, "--output", tmp_path / "run", "--json")
    start = ("train", "classification", "--model", files / "tiny", "--device", "cpu", *words)
    summary = call(*start, "--class-weights", "balanced").json()
    assert summary["validation"]["majority_accuracy"] == 0.875
    assert {"accuracy", "macro_f1", "balanced_accuracy"} < summary["validation"].keys()
    shown = call("evaluate", tmp_path / "run", "--data", data, "--report", tmp_path / "page.html")
    assert "'common' is the label of 87.5% of the rows: always predicting it has an accuracy of 0.8750" in shown.out
    assert "always predicting it has an accuracy of 0.8750" in (tmp_path / "page.html").read_text()
    assert call(*start, "--class-weights", "equal", "--overwrite").code == 2
