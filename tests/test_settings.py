"""`make test` and `.ci/run`: each slow test and each setting of matrix products is run in turn."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SETTINGS = ["default", "onednn-2", "torch-1", "torch-2", "avx2"]
pytestmark = pytest.mark.skipif(not all(map(shutil.which, ("bash", "git", "make"))), reason="needs bash, git and make")


def make(*arguments):
    return subprocess.run(["make", "-n", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_says_which_library_multiplies_and_on_how_many_threads(setting):
    line = next(each for each in make("test", f"SETTING={setting}").stdout.splitlines() if "pytest" in each)
    library, _, threads = setting.partition("-")
    assert f"OMP_NUM_THREADS={threads or 1} " in line
    assert (f"BOTHWAYS_MATRIX_PRODUCT={library} " in line) == bool(threads)
    assert ("ONEDNN_MAX_CPU_ISA=AVX2" in line) == (setting == "avx2")


def test_a_setting_that_is_misspelt_is_refused():
    found = make("test", "SETTING=avx")
    assert found.returncode == 2
    assert f"expected SETTING to be one of {' '.join(SETTINGS)}, got 'avx'" in found.stderr


@pytest.fixture
def made_by_ci(tmp_path):
    """The words that `.ci/run` gives to make in a repository of so many commits."""
    programs, script = tmp_path / "programs", tmp_path / "repository" / ".ci" / "run"
    programs.mkdir()
    script.parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / ".ci" / "run", script)
    for name, lines in (
        ("make", 'echo "$*" >>"$MADE"'),
        ("python", "exit 0"),
        ("chromedriver", "exit 0"),
        ("apt-get", "exit 1"),  # a test installs nothing, whatever is missing
        ("git", 'case "$1" in rev-parse) echo false ;; rev-list) echo "$COMMITS" ;; esac'),
    ):
        (programs / name).write_text(f"#!/usr/bin/env bash\n{lines}\n")
        (programs / name).chmod(0o755)

    def made(commits):
        log = tmp_path / "made"
        log.unlink(missing_ok=True)
        environment = os.environ | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHON": str(programs / "python"),
            "COMMITS": str(commits),
            "MADE": str(log),
        }
        subprocess.run(["bash", script], env=environment, check=True, capture_output=True, timeout=60)
        asked = log.read_text().splitlines()[-1].split()
        assert asked[0] == "test"
        values = dict(each.split("=", 1) for each in asked[1:])
        return values["SLOW_PART"], values["SETTING"]

    return made


def test_ten_commits_run_every_part_and_every_setting_and_the_next_ten_pair_them_otherwise(made_by_ci):
    first, second = ([made_by_ci(commits) for commits in range(start, start + 10)] for start in (40, 50))
    for made in (first, second):
        assert {part for part, _ in made} == {str(part) for part in range(10)}
        assert {setting for _, setting in made} == set(SETTINGS)
    assert not set(first) & set(second)
