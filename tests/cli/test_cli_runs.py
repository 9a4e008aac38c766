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
from pathlib import Path

import pytest
from command_line import call, rows, write_jsonl
from test_cli_train import words_of

from bothways.cli.training.folders import RunFolders
from bothways.errors import OutputExists
from bothways.storage import new_folder
from bothways.storage import output as storage_output
from bothways.tasks.embedding.objective import EmbeddingObjective
from bothways.tasks.heads.objective import WindowObjective
from bothways.tasks.torch_backend import TorchBackend
from bothways.training import loop, optimizers
from killing import died_before_file_event


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def in_update(monkeypatch):
    """Does something once, during an update with this number."""

    def arrange(number, action):
        calls, usual = itertools.count(1), optimizers.Stepper.step

        def acting(self, *arguments):
            if next(calls) == number:
                action()
            return usual(self, *arguments)

        monkeypatch.setattr(optimizers.Stepper, "step", acting)

    return arrange


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def few(files, tmp_path):
    """The words of a training on so few texts of each label that none are held out, of two updates an epoch."""
    data = write_jsonl(tmp_path / "few.jsonl", rows(12, 0, labels=("even", "odd", "other")))
    return [
        *("train", "embedding", "--model", files / "tiny", "--train", data, "--output", tmp_path / "run"),
        *("--epochs", 3, "--batch-size", 12, "--pairs-per-text", 2, "--device", "cpu"),
    ]


# --- what appears at the output during the training ---


@pytest.mark.parametrize("more", [[], ["--no-checkpoints"], ["--overwrite"]])
def test_what_appears_during_the_training_is_not_replaced(files, tmp_path, in_update, more):
    output = tmp_path / "run"

    def appear():
        output.mkdir()
        (output / "mine.txt").write_text("mine")

    in_update(2, appear)
    outcome = call(*words_of(files, output, *more))
    assert outcome.code == 1
    assert f"the model is in '{output}-2' instead" in outcome.err
    assert (output / "mine.txt").read_text() == "mine"
    assert names(tmp_path) == ["run", "run-2"]
    assert (tmp_path / "run-2" / "training.jsonl").is_file()
    assert call("predict", tmp_path / "run-2", "w6 w8").code == 0


@pytest.mark.parametrize("before", [False, True], ids=["nothing was there", "a model was there"])
def test_another_model_that_appears_during_the_training_is_not_replaced(files, run, tmp_path, in_update, before):
    output = tmp_path / "run"
    if before:
        assert call(*words_of(files, output, "--seed", 8)).code == 0

    def appear():
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(run, output)

    in_update(3, appear)
    (tmp_path / "run-2").mkdir()  # an empty folder is a name that somebody has taken
    outcome = call(*words_of(files, output, "--overwrite", "--json"))
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
    assert call(*words_of(files, output)).code == 1
    assert names(output) == ["mine.txt"]
    assert names(tmp_path) == ["run", "run-2"]


def test_a_resumed_run_replaces_only_what_its_interruption_left(files, run, tmp_path, in_update):
    output = tmp_path / "run"
    words = words_of(files, output, "--batch-size", 64, "--patience", 5)
    words[words.index("--epochs") + 1] = 2
    in_update(4, ctrl_c)  # of three in an epoch
    assert call(*words).code == 130
    shutil.rmtree(output)
    shutil.copytree(run, output)
    outcome = call(*words, "--resume")
    assert outcome.code == 1
    assert "is not what the unfinished run left there" in outcome.err
    assert (output / "bothways.json").read_bytes() == (run / "bothways.json").read_bytes()
    assert call(*words, "--resume", "--overwrite").code == 0
    assert (output / "bothways.json").read_bytes() != (run / "bothways.json").read_bytes()
    assert names(tmp_path) == ["run"]


# --- two at the same time ---


def test_a_second_training_into_the_same_output_is_refused_at_once(files, tmp_path):
    words = words_of(files, tmp_path / "run")
    with RunFolders(tmp_path / "run").held():
        for more in ([], ["--overwrite"], ["--resume"]):
            outcome = call(*words, *more)
            assert outcome.code == 1
            assert "another process is training into" in outcome.err
        assert names(tmp_path) == ["run.checkpoints"]
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_killed_holds_nothing(files, tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from bothways.cli.training.folders import RunFolders\n"
        "with RunFolders(Path(sys.argv[1])).held(): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path / "run"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    words = words_of(files, tmp_path / "run")
    assert "another process" in call(*words).err
    process.kill()
    process.communicate()
    assert call(*words).code == 0
    assert names(tmp_path) == ["run"]


# --- killed while the model is saved ---

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


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
        monkeypatch.setattr(storage_output, "_exchange", lambda *_: False)
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


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["finished", "names cannot be exchanged", "interrupted"])
def test_a_training_that_is_killed_while_it_saves_is_resumed_to_the_same_model(files, tmp_path, scenario):
    script = Path(__file__).with_name("killed_training.py")
    paths = os.pathsep.join([str(script.parent), str(script.parents[1]), *sys.path])
    command = [sys.executable, str(script), str(files), str(tmp_path), scenario, "5"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=600, check=True, env={**os.environ, "PYTHONPATH": paths}
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) > 5
    assert len({each["weights"] for each in found}) == 1
    for each in found:
        assert each["names"] == ["run"], each
        assert each["seed"] == 0
        assert json.loads(each["log"][0])["event"] == "finished"
        assert each["resumed"] == 0 or (each["resumed"] == 1 and "already exists" in each["said"])
    # Refused is only what has nothing left to do.
    assert sum(each["resumed"] for each in found) <= 2


# --- Ctrl-C without validation ---


def test_ctrl_c_without_validation_saves_the_weights_as_far_as_they_came(few, tmp_path, in_update):
    in_update(3, ctrl_c)  # of two in an epoch
    outcome = call(*few)
    assert outcome.code == 130, outcome.err
    assert "holds the weights after update 3, in epoch 2 of 3. Run the same command with --resume" in outcome.err
    assert call("evaluate", tmp_path / "run", "--data", tmp_path / "few.jsonl", "--resamples", 5).code == 0
    assert call(*few, "--resume").code == 0
    assert names(tmp_path) == ["few.jsonl", "run"]


@pytest.mark.parametrize("more", [[], ["--no-checkpoints"]])
def test_ctrl_c_after_the_last_update_saves_the_whole_model(few, tmp_path, monkeypatch, more):
    def pressed(self, what, metrics):
        usual(self, what, metrics)
        if self.state.epoch == 2:  # the third, whose weights are yet to be kept
            ctrl_c()

    usual = loop._Run._say
    monkeypatch.setattr(loop._Run, "_say", pressed)
    outcome = call(*few, *more)
    assert outcome.code == 130, outcome.err
    assert "holds the last epoch, 3." in outcome.err
    assert ("--resume" in outcome.err) == (not more)
    assert call("evaluate", tmp_path / "run", "--data", tmp_path / "few.jsonl", "--resamples", 5).code == 0


# --- SIGTERM, as docker stop and Slurm send it ---


def process_of(*words, wait_for):
    """A process of the program, when a file is there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bothways", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 100
    while not wait_for():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_sigterm_ends_a_training_as_ctrl_c_does(files, tmp_path):
    words = words_of(files, tmp_path / "run", "--batch-size", 8)
    words[words.index("--epochs") + 1] = 200
    log = tmp_path / "run.checkpoints" / "training.jsonl"
    process = process_of(*words, wait_for=lambda: log.exists() and '"epoch", "epoch": 2' in log.read_text())
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "holds the epoch kept so far" in said
    assert "--resume" in said
    assert call("predict", tmp_path / "run", "w6 w8").code == 0
    assert names(tmp_path) == ["run", "run.checkpoints"]
    assert names(tmp_path / "run.checkpoints")[1:] == ["left.sha256", "training.jsonl"]


def test_sigterm_during_an_update_is_remembered_until_its_end(files, tmp_path, in_update):
    words = words_of(files, tmp_path / "run", "--batch-size", 64)
    words[words.index("--epochs") + 1] = 2
    in_update(4, lambda: os.kill(os.getpid(), signal.SIGTERM))  # of three in an epoch
    outcome = call(*words)
    assert outcome.code == 143, outcome.err
    assert call(*words, "--resume").code == 0
    assert names(tmp_path) == ["run"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_while_the_model_is_saved_leaves_what_can_be_resumed(files, tmp_path, monkeypatch):
    usual = TorchBackend.write

    def terminated(*arguments):
        usual(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(TorchBackend, "write", terminated)
        outcome = call(*words_of(files, tmp_path / "run"))
    assert outcome.code == 143
    assert "Nothing was saved. Run the same command with --resume to continue." in outcome.err
    assert "terminated" in outcome.err
    assert names(tmp_path) == ["run.checkpoints"]
    assert call(*words_of(files, tmp_path / "run"), "--resume").code == 0


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
        process = process_of(*words, wait_for=lambda: any((tmp_path / "deep").glob(".out.jsonl.*")))
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
    in_update(1, ctrl_c)
    outcome = call(
        *("train", task, "--model", files / "tiny", "--train", data, "--validation", data, "--out-of-domain", data),
        *("--output", tmp_path / "run", "--epochs", 3, "--batch-size", 16, "--device", "cpu"),
    )
    assert outcome.code == 130, outcome.err
    assert "Run the same command with --resume to continue." in outcome.err
    assert not (tmp_path / "run").exists()


# --- divergence ---


def poison(monkeypatch, kind, updates):
    """After so many updates, of one micro-batch each, the loss is no number."""
    calls, loss = itertools.count(1), kind.loss
    monkeypatch.setattr(
        kind, "loss", lambda self, payload: loss(self, payload) * (1.0 if next(calls) <= updates else math.nan)
    )


def test_a_training_that_diverges_saves_the_epoch_that_it_kept(files, tmp_path, monkeypatch):
    words = words_of(files, tmp_path / "run", "--batch-size", 64)
    words[words.index("--epochs") + 1] = 3
    poison(monkeypatch, WindowObjective, 7)  # of three in an epoch
    outcome = call(*words, "--json")
    assert outcome.code == 1
    assert "the loss of update 8 is nan" in outcome.err
    assert f"{tmp_path / 'run'} holds the epoch kept before that, " in outcome.err
    assert "update 8" in outcome.json()["diverged"]
    saved = json.loads((tmp_path / "run" / "bothways.json").read_text())
    assert saved["calibration"] is not None
    assert "update 8" in saved["card"]["training"]["diverged"]
    assert call("predict", tmp_path / "run", "w6 w8").code == 0
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "training.jsonl").read_text().splitlines()]
    assert events[-1] == "diverged"
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("more", [[], ["--no-checkpoints"]])
def test_a_training_without_validation_that_diverges_saves_its_latest_epoch(few, tmp_path, monkeypatch, more):
    poison(monkeypatch, EmbeddingObjective, 5)
    outcome = call(*few, *more)
    assert outcome.code == 1
    assert "holds the epoch kept before that, 2." in outcome.err
    assert call("evaluate", tmp_path / "run", "--data", tmp_path / "few.jsonl", "--resamples", 5).code == 0


def test_a_training_that_diverges_in_its_first_epoch_saves_nothing(files, tmp_path, monkeypatch):
    poison(monkeypatch, WindowObjective, 1)
    outcome = call(*words_of(files, tmp_path / "run"))
    assert outcome.code == 1
    assert "the loss of update 2 is nan" in outcome.err
    assert not (tmp_path / "run").exists()


def test_a_diverged_model_that_could_not_be_saved_is_saved_by_resuming(files, tmp_path, monkeypatch):
    words = words_of(files, tmp_path / "run", "--batch-size", 64)
    words[words.index("--epochs") + 1] = 2

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        poison(patch, WindowObjective, 4)  # of three in an epoch
        patch.setattr("bothways.tasks.TextClassifier.save", interrupted)
        assert call(*words).code == 130
    poison(monkeypatch, WindowObjective, 1)
    outcome = call(*words, "--resume")
    assert outcome.code == 1
    assert f"{tmp_path / 'run'} holds the epoch kept before that, 1." in outcome.err
    assert names(tmp_path) == ["run"]
