"""Ceilings of the package: how long its paths are, how large its pieces, how loosely it is typed. They only fall.

``make ceilings`` prints them; ``python tests/test_ceilings.py --lower`` writes today's figures into the table, wherever
they have fallen. After a conflict in the table, keep either side and lower again.
"""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import code_measures as code

UPPER_HALF = ("tasks", "compose", "explain", "retrieval")
HERE = Path(__file__).resolve()


@dataclass(frozen=True)
class Ceiling:
    """A figure that only falls."""

    name: str
    ceiling: int
    """The highest figure that passes."""
    slack: int
    """The most that the figure may be below before the ceiling has to follow; a third of it is left as room."""
    goal: int
    measure: Callable[[], int]


def _traced(path, figure):
    return lambda: _paths()[path][figure]


@functools.cache
def _paths():
    """The measures of the traced paths, by name."""
    # One thread and one library on every machine: what is faster decides which functions run.
    settings = {"OMP_NUM_THREADS": "1", "BOTHWAYS_MATRIX_PRODUCT": "torch", "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE.with_name("traced_paths.py")), folder]
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


# One row for each: name, ceiling, slack, goal, measure.
CEILINGS = (
    # Paths: functions of the package that run, and their files.
    Ceiling("files of a warm predict", 24, 2, 28, _traced("predict", "files")),
    Ceiling("functions of a warm predict", 100, 8, 100, _traced("predict", "functions")),
    Ceiling("depth of a warm predict", 16, 1, 16, _traced("predict", "depth")),
    Ceiling("files of a table -> fit -> save", 79, 5, 80, _traced("fit", "files")),
    Ceiling("files that a search from the shell loads", 83, 8, 100, _traced("search", "loaded")),
    Ceiling("modules for training that predict and search load", 0, 0, 0, lambda: len(_paths()["training"])),
    # Sizes.
    Ceiling("files at the root of a package", 15, 2, 15, lambda: max(code.files_at_the_root().values())),
    Ceiling("public members of a class", 25, 3, 25, lambda: max(code.class_members().values())),
    Ceiling("classes above each other", 2, 0, 2, lambda: max(code.class_depths().values())),
    Ceiling("lines of the longest file", 450, 30, 450, lambda: max(code.file_lengths().values())),
    Ceiling("files above 450 lines", 0, 0, 0, lambda: _above(450, code.file_lengths())),
    Ceiling("lines of the longest function", 60, 10, 60, lambda: max(code.function_lengths().values())),
    Ceiling("functions above 60 lines", 0, 2, 0, lambda: _above(60, code.function_lengths())),
    Ceiling("lines of src", 89_740, 9000, 64_000, lambda: code.lines("src/**/*.py")),
    Ceiling("lines of tests", 71_980, 9000, 48_000, lambda: code.lines("tests/**/*.py")),
    Ceiling("lines of benchmarks", 5_740, 400, 5_284, lambda: code.lines("benchmarks/**/*.py")),
    Ceiling("lines of docs/LOG.md", 648, 200, 700, lambda: code.lines("docs/LOG.md")),
    # Types.
    Ceiling("Any in tasks, compose, explain, retrieval", 60, 15, 60, lambda: code.names("Any", UPPER_HALF)),
    Ceiling("Any elsewhere", 124, 15, 150, lambda: code.names("Any") - code.names("Any", UPPER_HALF)),
    Ceiling("isinstance in tasks", 60, 8, 60, lambda: code.calls("isinstance", ("tasks",))),
    Ceiling("getattr with a default", 7, 3, 10, code.defaulted_attributes),
    Ceiling("type: ignore", 20, 3, 30, code.ignored_types),
    Ceiling("cast", 16, 3, 20, lambda: code.calls("cast")),
    Ceiling("exec", 0, 0, 0, lambda: code.calls("exec")),
    # Imports.
    Ceiling("circles of imports inside packages", 0, 0, 0, lambda: len(code.circles())),
    Ceiling("deferred imports of our own modules", 47, 10, 60, code.deferred_imports),
    # Words.
    Ceiling("docstrings 'Return what/which/whether/how/where/of'", 0, 15, 0, code.inverted_returns),
)


def _above(limit, lengths):
    return sum(length > limit for length in lengths.values())


@pytest.mark.parametrize("row", CEILINGS, ids=lambda row: row.name)
def test_a_figure_stays_below_its_ceiling_and_takes_it_along(row):
    figure = row.measure()
    assert figure <= row.ceiling, f"{row.name}: {figure}, above the ceiling of {row.ceiling}: make it less"
    lowest = row.ceiling - row.slack
    assert figure >= lowest, f"{row.name}: fell from {row.ceiling} to {figure}: python tests/test_ceilings.py --lower"


# --- the measures themselves: each sees what it counts ---


def made(**sources):
    return [code.Module(name.replace("_in_", ".").replace("_init", "__init__"), text) for name, text in sources.items()]


def test_members_and_depth_follow_the_bases_through_modules():
    modules = made(
        tasks_in_a="class A(Protocol):\n    x: int\n    _y: int\n    def f(self):\n        self.z = 1\n",
        tasks_in_b="from bothways.tasks.a import A as B\nclass C(B[int]):\n    f = 1\n    def g(self): ...\n",
        tasks_in_c="from .b import C\nclass D(C): ...\nclass E(TypedDict):\n    a: int\n",
    )
    assert code.class_members(modules) == {"tasks.a:A": 3, "tasks.b:C": 4, "tasks.c:D": 4}
    assert code.class_depths(modules) == {"tasks.a:A": 1, "tasks.b:C": 2, "tasks.c:D": 3, "tasks.c:E": 1}


@pytest.mark.parametrize(
    "second",
    [
        "from bothways.tasks.a import x",
        "from bothways.tasks import a",
        "from .a import x",
        "from . import a",
        "def f():\n    import bothways.tasks.a",
        "if TYPE_CHECKING:\n    from bothways.tasks.a import x",
        "importlib.import_module('bothways.tasks.a')",
    ],
)
def test_a_circle_is_found_wherever_an_import_hides(second):
    modules = made(tasks_in_a="from bothways.tasks.c import y", tasks_in_c="import bothways.tasks.b", tasks_in_b=second)
    assert code.circles(modules) == [["tasks.a", "tasks.b", "tasks.c"]]
    assert code.circles(modules[:2]) == []


def test_imports_count_as_deferred_in_functions_alone():
    source = (
        "import bothways.a\ndef f():\n    import json\n    from bothways import a, b\n    __import__('bothways.a')\n"
    )
    assert code.deferred_imports(made(tasks_in_a=source)) == 2


def test_names_count_in_code_and_in_texts_of_annotations():
    source = "from typing import Any\nx: 'list[Any]' = 'Any'\ndef f(y: typing.Any) -> dict[str, Any]: ...\n"
    assert code.names("Any", ("tasks",), made(tasks_in_a=source, data_in_a=source)) == 3


def test_calls_and_words_are_counted():
    source = (
        'def f():\n    """Return what it is."""\n    isinstance(a, b); getattr(a, "b", None); getattr(a, b, None)\n'
        'def g():\n    """Return the whole."""\n    x = 1  # type: ignore[misc]\n'
    )
    modules = made(tasks_in_a=source)
    assert code.calls("isinstance", ("tasks",), modules) == 1
    assert code.defaulted_attributes(modules) == 1
    assert code.ignored_types(modules) == 1
    assert code.inverted_returns(modules) == 1
    assert code.file_lengths(modules) == {"tasks.a": 6}
    assert code.function_lengths(modules) == {"tasks.a:f:1": 3, "tasks.a:g:4": 3}


# --- the table ---


def _print_table():
    for row in CEILINGS:
        print(f"{row.name:58} {row.measure():8,} of {row.ceiling:8,}; goal {row.goal:7,}")


def _lower():
    """Write today's figures into the table above, where they are lower."""
    text = HERE.read_text(encoding="utf-8")
    for row in CEILINGS:
        figure = row.measure()
        ceiling = figure + row.slack // 3
        if figure <= row.goal:
            ceiling = min(ceiling, row.goal)  # what is reached is kept
        if figure > row.ceiling:
            print(f"{row.name}: {figure:,} is above {row.ceiling:,}")
        elif ceiling < row.ceiling:
            start = re.escape(f'Ceiling("{row.name}", ')
            text = re.sub(rf"({start})[\d_]+", lambda found, ceiling=ceiling: f"{found[1]}{ceiling:_}", text)
            print(f"{row.name}: {row.ceiling:,} -> {ceiling:,}")
    HERE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _lower() if "--lower" in sys.argv else _print_table()
