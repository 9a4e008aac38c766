"""A disk that fills up while a command writes: it says so, and leaves what was there as it was."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import call, fails, ok
from full_disk import begin, commands, contents, unfinished, works

from bothways.retrieval.lexical import written_whole

NAMES = [
    *("search build", "search add", "search delete", "predict", "predict to csv.gz", "embed", "embed to jsonl"),
    *("evaluate --report", "export", "ensemble", "train", "train embedding", "pretrain"),
]


@pytest.fixture
def at_most():
    """Lets no file that this process writes become larger than so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("search add", "search delete")])
def test_folders_above_an_output_are_made(files, run, index, tmp_path, name):
    words = commands(files, run, index, tmp_path)[name]
    place = max(words.index(option) for option in ("--output", "--report") if option in words) + 1
    words[place] = tmp_path / "deep" / "deeper" / words[place].name
    ok(*words)
    assert words[place].exists()


def test_a_folder_for_an_output_is_said_to_be_one(files, run, tmp_path):
    data = files / "test.jsonl.gz"
    for output in (tmp_path, f"{tmp_path / 'absent'}/"):
        fails(2, "is a folder: name a file in it", "predict", run, "--data", data, "--output", output)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 4100])
def test_a_file_that_may_not_grow_is_said_and_leaves_nothing(files, run, index, tmp_path, at_most, name, size):
    words = commands(files, run, index, tmp_path)[name]
    begin(tmp_path, index, name)
    before = contents(tmp_path)
    at_most(size)
    outcome = call(*words)
    at_most(resource.RLIM_INFINITY)
    assert outcome.code in (0, 1)
    if outcome.code == 0:
        assert size > 0
        assert works(tmp_path, name)
    else:
        assert "no space left for" in outcome.err
        assert ".unfinished" not in outcome.err
        assert contents(tmp_path) in (before, {**before, "new": None})
    assert unfinished(tmp_path) == []


def test_an_array_is_written_whole_or_an_error_says_why(tmp_path, at_most):
    # What is left of it fits into a buffer of the C library, whose last write nobody looks at.
    array = np.arange(1020, dtype=np.float32)
    at_most(4096)
    with pytest.raises(OSError, match="File too large"):
        np.save(tmp_path / "array.npy", written_whole(array))
    at_most(resource.RLIM_INFINITY)
    np.save(tmp_path / "array.npy", written_whole(array.reshape(2, -1)[:, ::3]))
    np.testing.assert_array_equal(np.load(tmp_path / "array.npy"), array.reshape(2, -1)[:, ::3])


@pytest.mark.slow
def test_a_full_disk_is_said_and_leaves_nothing(files, run, index, tmp_path):
    unshare = shutil.which("unshare")
    allowed = unshare and subprocess.run([unshare, "-rm", "true"], check=False, capture_output=True).returncode == 0
    if not allowed:
        pytest.skip("needs unshare, and to be let mount a file system in a space of its own")
    script = Path(__file__).with_name("full_disk.py")
    paths = os.pathsep.join([str(script.parent), str(script.parents[1]), *sys.path])
    (tmp_path / "disk").mkdir()
    done = subprocess.run(
        [unshare, "-rm", sys.executable, script, tmp_path / "disk", files, run, index],
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["name"] for each in found} == {*NAMES, "export to ONNX"}
    for each in found:
        assert each["code"] in (0, 1), each
        assert each["whole"], each
        assert each["rest"] == [], each
        assert each["code"] == 0 or "no space left" in each["said"] or "No space left" in each["said"], each
    assert sum(each["code"] for each in found) > len(found) / 2
