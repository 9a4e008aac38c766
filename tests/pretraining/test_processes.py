"""Pre-training that is killed goes on to the same bits, and in several processes it has the course of one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RECIPES = ["bert", "roberta", "albert", "deberta", "deberta-v3", "xlnet", "modernbert"]


def reports(script, *words):
    """Run a script of this folder and read the lines that it prints."""
    paths = os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])
    command = [sys.executable, str(HERE / script), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "electra", "xlnet"])
def test_a_run_that_was_killed_equals_one_that_was_not(name, tmp_path):
    whole, *killed = reports("killed_pretraining.py", tmp_path, name)
    assert len(killed) == 8
    for each in killed:
        assert each["codes"] == [-signal.SIGKILL, 0], each
        assert each["course"] == whole["course"], each
    assert len({each["resumed"] for each in killed}) > 2


@pytest.mark.parametrize(
    ("name", "counts", "layouts"),
    [
        ("electra", "2", "sharded"),
        *(pytest.param(name, "2,4", "whole,sharded", marks=pytest.mark.slow) for name in RECIPES),
    ],
)
def test_the_course_does_not_depend_on_the_number_of_processes(name, counts, layouts, tmp_path):
    alone, *others = reports("several_processes.py", tmp_path, counts, layouts, name)
    (alone,) = alone["found"]
    assert len(others) == 3 * len(counts.split(",")) * len(layouts.split(","))
    for run in others:
        assert set(run["codes"]) == {0}, run["place"]
        for found in run["found"]:
            resumed = "resumed" in run["place"]
            assert found["interrupted"] is not resumed
            assert found["resumed"] == (3 if resumed else None)
            assert len(found["losses"]) == (6 if resumed else 3)
            assert found["losses"] == pytest.approx(alone["losses"][: len(found["losses"])], abs=1e-5), run["place"]
            assert found["scores"] == pytest.approx(alone["scores"][: len(found["scores"])], abs=1e-5), run["place"]
            assert found["away"] < (1e-5 if resumed else 1)
