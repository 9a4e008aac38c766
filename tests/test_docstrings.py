"""The examples in docstrings work as written."""

import doctest
import importlib
import pkgutil

import pytest

import bothways

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(bothways.__path__, "bothways.")
    if not module.name.endswith("__main__")
)


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    found = sum(len(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))
    assert found >= 5


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_work(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
