"""Parameters of which the everyday tests take some; all of them run in turn with the slow tests."""

import pytest

from bothways.families import FAMILIES


def some_of(cases, *everyday):
    """Mark as slow what is not named: for tests that a cheaper one stands beside for every case."""
    assert set(everyday) <= set(cases), everyday
    return [case if case in everyday else slow(*(case if isinstance(case, tuple) else (case,))) for case in cases]


def some_families(*everyday):
    """Run a test every day for some families, and for the others in turn."""
    return pytest.mark.parametrize("model_type", some_of(FAMILIES, *everyday))


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)
