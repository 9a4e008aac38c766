"""The examples in docstrings work as written, and docstrings begin with what a thing is or does.

Ruff holds the functions to the imperative mood (D401 in pyproject.toml).
"""

import ast
import doctest
import importlib
import pkgutil
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import bothways

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(bothways.__path__, "bothways.")
    if not module.name.endswith("__main__")
)

PACKAGE = Path(bothways.__file__).parent

# Beginnings that put the subject last: "What X is of Y", "Whether of each text its words are read".
INVERTED = re.compile(r"(What|How|Whether|Of|Which|Where|Who|When|That|If|In|On)\b")
# Files that still have such docstrings, and how many. The list may only become shorter.
STILL_INVERTED = {
    "cli/judge_printing.py": 1,
    "cli/training.py": 5,
    "evaluation/prediction_powered/checks.py": 1,
    "evaluation/prediction_powered/estimates.py": 1,
    "evaluation/prediction_powered/planning.py": 1,
    "explain/heads.py": 2,
    "judging/judge.py": 1,
    "judging/negatives.py": 1,
    "judging/preparing.py": 1,
    "judging/quality.py": 1,
    "judging/ranking.py": 1,
    "judging/scoring.py": 2,
    "judging/triples.py": 1,
    "objectives/__init__.py": 1,
    "objectives/agreement.py": 2,
    "objectives/corruption.py": 1,
    "objectives/masked_lm.py": 1,
    "objectives/pieces.py": 1,
    "objectives/replaced_tokens.py": 1,
    "pretraining/assembly.py": 1,
    "pretraining/distiller.py": 1,
    "pretraining/pretrainer.py": 2,
    "pretraining/recipes.py": 3,
    "pretraining/runs.py": 1,
}
# Names that the field does not have, in place of the word that it has; see docs/glossary.md.
OUR_OWN_WORDS = re.compile(
    r"(untelling|told_apart_by|flattered|came_to_nothing|undone_on_failure|OneOfMany|labeller|Labelling|told_from)"
)


def _trees():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def test_docstrings_begin_with_what_a_thing_is_or_does():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = Counter(
        path
        for path, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, documented) and INVERTED.match(ast.get_docstring(node) or "")
    )
    assert {path: count for path, count in found.items() if count > STILL_INVERTED.get(path, 0)} == {}


@pytest.mark.parametrize("docstring", ["What a model is.", "Whether it is.", "Of each text its words.", "How it goes."])
def test_an_inverted_docstring_is_found(docstring):
    assert INVERTED.match(docstring)


def test_no_class_name_stands_for_two_things():
    homes = defaultdict(list)
    for path, tree in _trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path)
    assert len(homes) > 700
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_names_are_those_of_the_field():
    names = {
        (path, name)
        for path, tree in _trees()
        for node in ast.walk(tree)
        for name in (getattr(node, "name", None), getattr(node, "id", None), getattr(node, "arg", None))
        if isinstance(name, str) and OUR_OWN_WORDS.search(name)
    }
    assert names == set()


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    found = sum(len(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))
    assert found >= 5


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_work(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
