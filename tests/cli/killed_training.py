"""Trainings that are killed by SIGKILL while they save their model and clean up, and what --resume then does.

``killed_training.py FILES FOLDER SCENARIO STEP`` kills one process before each STEP-th of its operations on files,
and prints a JSON object for each. All are forked from one process, which computes with one thread, so that nothing is
imported anew.
"""

import hashlib
import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import torch
from command_line import call

from bothways.cli.training.folders import RunFolders
from bothways.storage import output

FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}


def forked(work):
    """Do some work in a process of its own; how it ended."""
    child = os.fork()
    if child == 0:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_before(number):
    """Kill this process before its n-th operation on files, counted from the saving of the model."""
    seen, save = itertools.count(1), RunFolders.save

    def count(event, arguments):
        touched = event in FILE_EVENTS and not (event == "open" and arguments[1] in ("r", "rb"))
        if touched and next(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def armed(*given, **more):
        sys.addaudithook(count)
        return save(*given, **more)

    RunFolders.save = armed


def interrupted_training(words, scenario):
    """A training with a checkpoint: at its end but not saved, or stopped in its second epoch."""

    def stopped(*_, **__):
        raise KeyboardInterrupt

    if scenario == "interrupted":
        from bothways.training import optimizers

        calls, usual = itertools.count(1), optimizers.Stepper.step

        def pressed(self, *arguments):
            if next(calls) == 11:  # of seven in an epoch
                os.kill(os.getpid(), signal.SIGINT)
            return usual(self, *arguments)

        optimizers.Stepper.step = pressed
    else:
        RunFolders.save = stopped
    return call(*words).code


def main(files, folder, scenario, step):
    torch.set_num_threads(1)

    def words(place, *more):
        return [
            *("train", "classification", "--model", files / "tiny", "--train", files / "train.jsonl.gz"),
            *("--validation", files / "validation.jsonl.gz", "--epochs", 2, "--learning-rate", 0.01, "--device", "cpu"),
            *("--batch-size", 32, "--output", place / "run", *more),
        ]

    if scenario == "names cannot be exchanged":
        output._exchange = lambda *_: False
    begun = folder / "begun"
    assert call(*words(folder / "warm", "--no-checkpoints")).code == 0  # what it imports, no child has to
    if scenario != "finished":  # there is a model to replace
        assert call(*words(begun, "--no-checkpoints", "--seed", 9)).code == 0
    more = [] if scenario == "finished" else ["--overwrite"]
    first, expected = begun, 130  # of an interruption, it is what is killed
    if scenario != "interrupted":
        assert forked(lambda: interrupted_training(words(begun, *more), scenario)) == 130
        more, expected = [*more, "--resume"], 0
    for number in itertools.count(1, step):
        here = folder / str(number)
        shutil.copytree(first, here) if first.exists() else here.mkdir()

        def killed(here=here, number=number):
            kill_before(number)
            if scenario == "interrupted":
                return interrupted_training(words(here, *more), scenario)
            return call(*words(here, *more)).code

        code = forked(killed)

        def resumed(here=here):
            outcome = call(*words(here, *more, *([] if "--resume" in more else ["--resume"])))
            (here / "said").write_text(outcome.out + outcome.err)
            return outcome.code

        again = forked(resumed)
        said = (here / "said").read_text()
        (here / "said").unlink()
        trained = json.loads((here / "run" / "bothways.json").read_text())["card"]["training"]
        found = {
            "killed": code,
            "resumed": again,
            "said": said,
            "names": sorted(path.name for path in here.iterdir()),
            "log": (here / "run" / "training.jsonl").read_text().splitlines()[-1:],
            "weights": hashlib.sha256((here / "run" / "model.safetensors").read_bytes()).hexdigest(),
            "seed": trained["settings"]["seed"],
        }
        print(json.dumps(found), flush=True)
        if code != -signal.SIGKILL:
            assert code == expected
            return
        shutil.rmtree(here)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
