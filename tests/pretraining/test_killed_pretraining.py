"""Pre-training that is killed at any moment goes on to the same bits."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed_pretraining.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "electra", "xlnet"])
def test_a_run_that_was_killed_equals_one_that_was_not(name, tmp_path):
    paths = os.pathsep.join([str(SCRIPT.parent), str(SCRIPT.parents[1]), *sys.path])
    command = [sys.executable, str(SCRIPT), str(tmp_path), name]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=300, check=True, env={**os.environ, "PYTHONPATH": paths}
    )
    whole, *killed = (json.loads(line) for line in done.stdout.splitlines())
    assert len(killed) == 20
    for each in killed:
        assert each["codes"] == [-signal.SIGKILL, 0], each
        assert each["course"] == whole["course"], each
    assert len({each["resumed"] for each in killed}) > 2
