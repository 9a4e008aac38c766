"""The slow tests are split into ten parts, of which each is in one run of ten."""

from pathlib import Path
from types import SimpleNamespace

import pytest


class Item:
    def __init__(self, nodeid, slow):
        self.nodeid, self.slow, self.path = nodeid, slow, nodeid.partition("::")[0]

    def get_closest_marker(self, name):
        return self.slow and name == "slow"


@pytest.fixture
def kept(request):
    """The tests that are left when a part of the slow ones is chosen."""
    conftest = request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))

    def choose(items, part):
        left = list(items)
        deselected = []
        hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
        conftest.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _: part, hook=hook), left)
        assert {*left, *deselected} == set(items)
        return left

    return choose


def test_every_slow_test_is_in_one_of_ten_parts_and_the_others_in_all(kept):
    slow = [Item(f"tests/test_some.py::test_slowly[{number}]", True) for number in range(200)]
    fast = [Item(f"tests/test_some.py::test_fast[{number}]", False) for number in range(5)]
    parts = [kept([*fast, *slow], part) for part in range(10)]
    assert all(part[:5] == fast for part in parts)
    assert sorted(item.nodeid for part in parts for item in part[5:]) == sorted(item.nodeid for item in slow)
    assert max(len(part) for part in parts) < 5 + 40
    assert kept([*fast, *slow], None) == [*fast, *slow]


def test_a_test_stays_in_its_part_whatever_is_beside_it(kept):
    slow = [Item(f"test_slowly[{number}]", True) for number in range(30)]
    for part in range(10):
        assert kept(slow[::2], part) == [item for item in kept(slow, part) if item in set(slow[::2])]


def test_files_with_slow_tests_come_first_then_those_with_the_most_tests(kept):
    names = ("one.py::a", "three.py::a", "three.py::b", "three.py::c", "two.py::a", "two.py::b", "long.py::slow")
    ordered = kept([Item(name, name.endswith("slow")) for name in names], None)
    assert [item.path for item in ordered] == ["long.py", *["three.py"] * 3, *["two.py"] * 2, "one.py"]
