"""Pre-training in several processes has the course of one, sharded or not, and is resumed by any number of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("several_processes.py")
RECIPES = ["bert", "roberta", "albert", "deberta", "deberta-v3", "xlnet", "modernbert"]


@pytest.mark.parametrize(
    ("name", "counts"), [("electra", [2]), *(pytest.param(name, [2, 4], marks=pytest.mark.slow) for name in RECIPES)]
)
def test_the_course_does_not_depend_on_the_number_of_processes(name, counts, tmp_path):
    paths = os.pathsep.join([str(SCRIPT.parent), str(SCRIPT.parents[1]), *sys.path])
    command = [sys.executable, str(SCRIPT), str(tmp_path), ",".join(map(str, counts)), name]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=600, check=True, env={**os.environ, "PYTHONPATH": paths}
    )
    alone, *others = (json.loads(line) for line in done.stdout.splitlines())
    (alone,) = alone["found"]
    assert len(others) == 6 * len(counts)
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
