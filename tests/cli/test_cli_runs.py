"""Trainings that do not end as they were meant to: what lies on disk then, and that no work is lost."""

import contextlib
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from command_line import call, fails, names, ok, read_jsonl, rows, saved_of, short_training, write_jsonl

from bothways import storage
from bothways.cli.training import run as training_run
from bothways.cli.training.folders import RunFolders
from bothways.errors import OutOfMemory, OutputExists
from bothways.storage import new_folder
from bothways.tasks.embedding.objective import EmbeddingObjective
from bothways.tasks.heads.objective import WindowObjective
from bothways.tasks.torch_backend import TorchBackend
from bothways.training import loop, stages
from killing import die, died_before_file_event


@pytest.fixture
def few(files, tmp_path):
    """The words of a training on so few texts of each label that none are held out, of two updates an epoch."""
    data = write_jsonl(tmp_path / "few.jsonl", rows(12, 0, labels=("even", "odd", "other")))
    return [
        *("train", "embedding", "--model", files / "tiny", "--train", data, "--output", tmp_path / "run"),
        *("--epochs", 3, "--batch-size", 12, "--pairs-per-text", 2, "--device", "cpu"),
    ]


# --- what appears at the output during the training ---


@pytest.mark.parametrize("more", [["--no-checkpoints"], ["--overwrite"]])
def test_what_appears_during_the_training_is_not_replaced(files, tmp_path, in_update, more):
    output = tmp_path / "run"

    def appear():
        output.mkdir()
        (output / "mine.txt").write_text("mine")

    in_update(2, appear)
    fails(1, f"the model is in '{output}-2' instead", *short_training(files, output, *more))
    assert (output / "mine.txt").read_text() == "mine"
    assert names(tmp_path) == ["run", "run-2"]
    assert (tmp_path / "run-2" / "training.jsonl").is_file()
    ok("predict", tmp_path / "run-2", "w6 w8")


@pytest.mark.parametrize("before", [False, True], ids=["nothing was there", "a model was there"])
def test_another_model_that_appears_during_the_training_is_not_replaced(files, run, tmp_path, in_update, before):
    output = tmp_path / "run"
    if before:
        ok(*short_training(files, output, "--seed", 8))

    def appear():
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(run, output)

    in_update(3, appear)
    (tmp_path / "run-2").mkdir()  # an empty folder is a name that somebody has taken
    outcome = call(*short_training(files, output, "--overwrite", "--json"))
    assert outcome.code == 1
    assert outcome.json()["output"] == f"{output}-3"
    assert (output / "bothways.json").read_bytes() == (run / "bothways.json").read_bytes()
    assert names(tmp_path) == ["run", "run-2", "run-3"]


def test_what_appears_while_the_model_is_written_is_not_replaced(files, tmp_path, monkeypatch):
    output, usual = tmp_path / "run", TorchBackend.write

    def appear(*arguments, **more):
        output.mkdir(exist_ok=True)
        (output / "mine.txt").write_text("mine")
        usual(*arguments, **more)

    monkeypatch.setattr(TorchBackend, "write", appear)
    assert call(*short_training(files, output)).code == 1
    assert names(output) == ["mine.txt"]
    assert names(tmp_path) == ["run", "run-2"]


def test_a_resumed_run_replaces_only_what_its_interruption_left(files, run, tmp_path, in_update):
    output = tmp_path / "run"
    words = short_training(files, output, "--patience", 5, epochs=2)
    in_update(4, signal.SIGINT)  # of three in an epoch
    assert call(*words).code == 130
    shutil.rmtree(output)
    shutil.copytree(run, output)
    fails(1, "was not written by the unfinished run", *words, "--resume")
    assert (output / "bothways.json").read_bytes() == (run / "bothways.json").read_bytes()
    ok(*words, "--resume", "--overwrite")
    assert (output / "bothways.json").read_bytes() != (run / "bothways.json").read_bytes()
    assert names(tmp_path) == ["run"]


# --- two at the same time ---


def test_a_second_training_into_the_same_output_is_refused_at_once(files, tmp_path):
    words = short_training(files, tmp_path / "run")
    with RunFolders(tmp_path / "run").held():
        for more in ([], ["--overwrite"], ["--resume"]):
            fails(1, "another process is training into", *words, *more)
        assert names(tmp_path) == ["run.checkpoints"]
    assert names(tmp_path) == []


def test_a_process_that_was_killed_holds_nothing(files, tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from bothways.cli.training.folders import RunFolders\n"
        "with RunFolders(Path(sys.argv[1])).held(): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path / "run"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    words = short_training(files, tmp_path / "run")
    assert "another process" in call(*words).err
    process.kill()
    process.communicate()
    ok(*words)
    assert names(tmp_path) == ["run"]


# --- killed while the model is saved ---


def write_model(weights):
    """Writes what a trained model looks like from outside."""

    def write(folder):
        with new_folder(folder) as new:
            for name in ("config.json", "bothways.json", "model.safetensors"):
                (new / name).write_text(weights)

    return write


def unfinished_run(output, before):
    """A run with a checkpoint, at whose output lies an older model if there was one."""
    folders = RunFolders(output)
    if before is not None:
        write_model(before)(output)
    (folders.unfinished / "checkpoint-00000004").mkdir(parents=True)
    (folders.unfinished / "checkpoint-00000004" / "state.json").write_text("state")
    (folders.unfinished / "replaced" / "checkpoint-00000001").mkdir(parents=True)
    folders.log.write_text("log")


def ends(output, *, finished=True):
    """What a process does that resumes the run, trains to its end and saves it; False if there was nothing to do."""
    folders = RunFolders(output)
    with folders.held():
        if not folders.begin(
            resume=True, overwrite=output.exists() and (output / "model.safetensors").read_text() == "old"
        ):
            return False
        assert folders.resumable
        folders.save(write_model("new"), finished=finished)
        if finished:
            folders.finish()
    return True


@pytest.mark.parametrize(
    ("before", "exchange", "finished"),
    [(None, True, True), ("old", True, True), ("old", False, True), ("old", True, False)],
)
def test_a_run_that_is_killed_at_any_moment_of_its_end_is_resumed(tmp_path, monkeypatch, before, exchange, finished):
    if not exchange:
        monkeypatch.setattr(storage, "_exchange", lambda *_: False)
    ended = 0
    for number in itertools.count(1):
        output = tmp_path / str(number) / "run"
        unfinished_run(output, before)
        killed = died_before_file_event(number, lambda output=output: ends(output, finished=finished))
        whole = not (output.parent / "run.checkpoints").exists()
        if before and exchange:  # at no moment there is neither
            assert (output / "model.safetensors").read_text() in ("old", "new")
        if whole:  # the last that was left to do
            with pytest.raises(OutputExists):
                ends(output)
            ended += 1
        else:
            ends(output)
        assert (output / "model.safetensors").read_text() == "new"
        assert (output / "training.jsonl").read_text() == "log"
        assert names(output.parent) == ["run"]
        if not killed:
            break
    assert number > 20
    assert ended <= 8 if finished else ended == 0


# --- stages ---


STAGES = [
    "fitting a linear model to the encoder's hidden states",
    "evaluating the baseline",
    "reading the held-out rows",
    "reading the training rows for the detector",
    "reading out-of-domain rows",
    "saving the model",
]


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    """A folder with out-of-domain rows, others.jsonl, and an uninterrupted run, run/."""
    folder = tmp_path_factory.mktemp("whole")
    others = write_jsonl(folder / "others.jsonl", [{"text": f"w{number} w20"} for number in range(30, 50)])
    ok(*short_training(files, folder / "run"), "--out-of-domain", others)
    return folder


def without_times(value):
    match value:
        case dict():
            timed = ("seconds", "stages", "resumed_from", "resume")
            return {name: without_times(each) for name, each in value.items() if name not in timed}
        case list():
            return [without_times(each) for each in value]
    return value


@pytest.mark.parametrize("after", [*(pytest.param(number, marks=pytest.mark.slow) for number in range(1, 5)), 5])
def test_a_training_that_is_killed_after_a_stage_repeats_none(files, whole, tmp_path, monkeypatch, after):
    computed, most, stage = [], [after], stages.stage

    def watched(name, total=None):
        if most == [len(computed)]:
            die()
        computed.append(name)
        return stage(name, total)

    for module in (stages, training_run):
        monkeypatch.setattr(module, "stage", watched)
    words = (*short_training(files, tmp_path / "run"), "--out-of-domain", whole / "others.jsonl", "--resume")
    assert died_before_file_event(10**9, lambda: pytest.fail(call(*words).err))
    assert computed == STAGES[:after]
    computed, most = [], []
    ok(*words)
    assert computed == STAGES[after:]
    assert names(tmp_path) == ["run"]
    for name in ("model.safetensors", "training_rows.u64"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / "run" / name).read_bytes()
    for name in ("bothways.json", "golden.json"):
        one, other = (json.loads((folder / "run" / name).read_text()) for folder in (tmp_path, whole))
        assert without_times(one) == without_times(other)


# --- Ctrl-C without validation ---


def test_ctrl_c_without_validation_saves_the_weights_as_far_as_they_came(few, tmp_path, in_update):
    in_update(3, signal.SIGINT)  # of two in an epoch
    fails(130, "holds the weights after update 3, in epoch 2 of 3. Run the same command with --resume", *few)
    ok("evaluate", tmp_path / "run", "--data", tmp_path / "few.jsonl", "--resamples", 5)
    ok(*few, "--resume")
    assert names(tmp_path) == ["few.jsonl", "run"]


@pytest.mark.parametrize("more", [[], ["--no-checkpoints"]])
def test_ctrl_c_after_the_last_update_saves_the_whole_model(few, tmp_path, monkeypatch, more):
    def pressed(self, what, metrics):
        usual(self, what, metrics)
        if self.state.epoch == 2:  # the third, whose weights are yet to be kept
            os.kill(os.getpid(), signal.SIGINT)

    usual = loop._Run._say
    monkeypatch.setattr(loop._Run, "_say", pressed)
    outcome = fails(130, "holds the last epoch, 3.", *few, *more)
    assert ("--resume" in outcome.err) == (not more)
    ok("evaluate", tmp_path / "run", "--data", tmp_path / "few.jsonl", "--resamples", 5)


# --- SIGTERM, as docker stop and Slurm send it ---


def test_sigterm_while_the_model_is_saved_leaves_what_can_be_resumed(files, tmp_path, monkeypatch):
    usual = TorchBackend.write

    def terminated(*arguments):
        usual(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(TorchBackend, "write", terminated)
        outcome = call(*short_training(files, tmp_path / "run"))
    assert outcome.code == 143
    assert (
        "No model was saved, but what is finished is kept. Run the same command with --resume to continue."
        in outcome.err
    )
    assert "terminated" in outcome.err
    assert names(tmp_path) == ["run.checkpoints"]
    again = ok(*short_training(files, tmp_path / "run"), "--resume")
    repeated = {"fitting a linear model to the encoder's hidden states", "reading the held-out rows"}
    assert not repeated & {*again.err.splitlines()}
    assert names(tmp_path) == ["run"]


def test_a_run_that_fails_before_its_first_checkpoint_leaves_no_stages(files, tmp_path, monkeypatch):
    def full(*_):
        raise OutOfMemory("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "_epochs", full)
        assert call(*short_training(files, tmp_path / "run")).code == 1
    assert not (tmp_path / "run.checkpoints" / "checkpoint-stages").exists()
    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "_epochs", pressed)
        outcome = call(*short_training(files, tmp_path / "run"))
    assert outcome.code == 130
    assert "what is finished is kept" in outcome.err
    again = ok(*short_training(files, tmp_path / "run"), "--resume")
    assert "fitting a linear model" not in again.err


def pressed(*_):
    raise KeyboardInterrupt


def test_sigterm_ends_other_commands_and_leaves_nothing(files, run, tmp_path):
    def endless():
        os.mkfifo(tmp_path / "rows.jsonl")
        with contextlib.suppress(BrokenPipeError), (tmp_path / "rows.jsonl").open("w") as stream:
            while not done:
                stream.write('{"text": "w5 w6"}\n' * 100)
                stream.flush()
                time.sleep(0.01)

    done = []
    writer = threading.Thread(target=endless)
    writer.start()
    try:
        output = tmp_path / "deep" / "out.jsonl"
        words = ("predict", run, "--data", tmp_path / "rows.jsonl", "--output", output, "--quiet")
        process = subprocess.Popen(
            [sys.executable, "-m", "bothways", *map(str, words)], stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 100
        while not any((tmp_path / "deep").glob(".out.jsonl.*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=100)
    finally:
        done.append(True)
        writer.join()
    assert process.returncode == 143
    assert said == "error: terminated.\n"
    assert names(tmp_path) == ["rows.jsonl"]


# --- Ctrl-C before a border could be drawn ---


@pytest.mark.parametrize("task", ["classification", "pairs"])
def test_ctrl_c_in_the_first_epoch_with_rows_from_elsewhere_can_be_resumed(files, tmp_path, in_update, task):
    made = [{**row, "text_a": row["text"], "text_b": "w9"} for row in rows(40, 1)]
    data = write_jsonl(tmp_path / "data.jsonl", made)
    in_update(1, signal.SIGINT)
    fails(
        130,
        "Run the same command with --resume to continue.",
        *("train", task, "--model", files / "tiny", "--train", data, "--validation", data, "--out-of-domain", data),
        *("--output", tmp_path / "run", "--epochs", 3, "--batch-size", 16, "--device", "cpu"),
    )
    assert not (tmp_path / "run").exists()


# --- divergence ---


def poison(monkeypatch, kind, updates):
    """After so many updates, of one micro-batch each, the loss is no number."""
    calls, loss = itertools.count(1), kind.loss
    monkeypatch.setattr(
        kind, "loss", lambda self, payload: loss(self, payload) * (1.0 if next(calls) <= updates else math.nan)
    )


def test_a_training_that_diverges_saves_the_epoch_that_it_kept(files, tmp_path, monkeypatch):
    words = short_training(files, tmp_path / "run", epochs=3)
    poison(monkeypatch, WindowObjective, 7)  # of three in an epoch
    outcome = fails(
        1,
        ("the loss of update 8 is nan", f"{tmp_path / 'run'} holds the weights kept before that, from epoch "),
        *words,
        "--json",
    )
    assert "update 8" in outcome.json()["diverged"]
    saved = saved_of(tmp_path / "run")
    assert saved["calibration"] is not None
    assert "update 8" in saved["card"]["training"]["diverged"]
    ok("predict", tmp_path / "run", "w6 w8")
    events = [each["event"] for each in read_jsonl(tmp_path / "run" / "training.jsonl")]
    assert events[-1] == "diverged"
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("more", [[], ["--no-checkpoints"]])
def test_a_training_without_validation_that_diverges_saves_its_latest_epoch(few, tmp_path, monkeypatch, more):
    poison(monkeypatch, EmbeddingObjective, 5)
    fails(1, "holds the weights kept before that, from epoch 2.", *few, *more)
    ok("evaluate", tmp_path / "run", "--data", tmp_path / "few.jsonl", "--resamples", 5)


def test_a_training_that_diverges_in_its_first_epoch_saves_nothing(files, tmp_path, monkeypatch):
    poison(monkeypatch, WindowObjective, 1)
    fails(1, "the loss of update 2 is nan", *short_training(files, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_diverged_model_that_could_not_be_saved_is_saved_by_resuming(files, tmp_path, monkeypatch):
    words = short_training(files, tmp_path / "run", epochs=2)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        poison(patch, WindowObjective, 4)  # of three in an epoch
        patch.setattr("bothways.tasks.TextClassifier.save", interrupted)
        assert call(*words).code == 130
    poison(monkeypatch, WindowObjective, 1)
    fails(1, f"{tmp_path / 'run'} holds the weights kept before that, from epoch 1.", *words, "--resume")
    assert names(tmp_path) == ["run"]
