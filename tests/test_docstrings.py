"""The examples in docstrings work as written, and docstrings begin with what a thing is or does.

Ruff holds the functions to the imperative mood (D401 in pyproject.toml).
"""

import ast
import doctest
import importlib
import re
from collections import defaultdict

import pytest

import code_measures as code

WITH_EXAMPLES = [f"bothways.{each.name}".removesuffix(".__init__") for each in code.modules() if ">>> " in each.source]

# Beginnings that put the subject last: "What X is of Y", "Whether of each text its words are read".
INVERTED = re.compile(
    r"(What|How|Whether|Of|Which|Where|Who|When|That|If|In|On|So|As|By|From|To|For|With|Below|Above|Between|At|Both|Its|It)\b"
)
# Names that the field does not have, in place of the word that it has; see docs/glossary.md.
OUR_OWN_WORDS = re.compile(
    r"(untelling|told_apart|flattered|came_to_nothing|undone_on_failure|OneOfMany|labeller|Labelling|told_from|^said$|^[Tt]rust|^Worth$|[Jj]udgement)"
)


def _public_classes():
    for module in code.modules():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield module.path, node


def test_docstrings_begin_with_what_a_thing_is_or_does():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{module.path}:{getattr(node, 'lineno', 1)}"
        for module in code.modules()
        for node in module.nodes
        if isinstance(node, documented) and INVERTED.match(ast.get_docstring(node) or "")
    ]
    assert found == []


def test_public_methods_have_a_docstring_where_they_are_declared():
    documented = {"forward", "reset_parameters", "readable", "readinto", "seek", "seekable", "tell"}  # by torch and io
    bare = []
    for path, owner in _public_classes():
        # Attributes of the class, in its own docstring.
        described = re.findall(r"^    (\w+): |``(\w+)``", ast.get_docstring(owner) or "", re.MULTILINE)
        documented |= {name for names in described for name in names}
        for each in owner.body:
            if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
                bare.append((each.name, f"{path}: {owner.name}.{each.name}"))
                documented |= {each.name} if ast.get_docstring(each) else set()
    assert len(bare) > 1000
    assert [where for name, where in bare if name not in documented] == []


@pytest.mark.parametrize("docstring", ["What a model is.", "Whether it is.", "Of each text its words.", "How it goes."])
def test_an_inverted_docstring_is_found(docstring):
    assert INVERTED.match(docstring)


def test_no_class_name_stands_for_two_things():
    homes = defaultdict(list)
    for path, owner in _public_classes():
        if path != "sklearn.py":  # its estimators have the names of the tasks below them
            homes[owner.name].append(path)
    assert len(homes) > 700
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_names_are_those_of_the_field():
    names = {
        (module.path, name)
        for module in code.modules()
        for node in module.nodes
        for name in (getattr(node, "name", None), getattr(node, "id", None), getattr(node, "arg", None))
        if isinstance(name, str) and OUR_OWN_WORDS.search(name)
    }
    assert names == set()


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_work(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


def test_there_are_examples():
    assert len(WITH_EXAMPLES) >= 5
