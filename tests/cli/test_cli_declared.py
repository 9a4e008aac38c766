"""Options that are made from declarations."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import pytest
from command_line import call

from bothways.cli.options import given_of, group_of, options_of
from bothways.tasks.registry import SPECS


@dataclass(frozen=True, kw_only=True)
class Base:
    """A base.

    Attributes:
        rate: How fast: ``0.5`` is
            usual.
    """

    rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Toy(Base):
    """A toy.

    Attributes:
        way: ``"up"``, or None for neither.
        count: How many.
        names: Some names.
        value: Nothing to type.
        loss: Nothing to type either.
    """

    way: Literal["up", "down"] | None = "up"
    count: int = 3
    names: Sequence[str] | None = None
    value: object = None
    loss: "Base | None" = None


def test_docstrings_are_read_with_those_of_bases_as_plain_text():
    docs = {each.name: each.help for each in options_of(Toy)}
    assert docs["rate"] == "How fast: '0.5' is usual."
    assert docs["way"] == "'up', or none for neither."
    assert docs["names"] == "Some names."


def test_what_cannot_be_typed_is_no_option_and_what_is_not_given_has_no_value():
    options = options_of(Toy)
    assert [option.name for option in options] == ["rate", "way", "count", "names"]
    group = group_of("Toy", options)
    assert given_of(group()) == {}
    assert given_of(group(way="none", count=2)) == {"way": None, "count": 2}
    assert given_of(None) == {}


# Options of Python alone, since nobody can type them: an annotation in quotes hides an option.
UNTYPED = {"embedding": {"loss"}}


@pytest.mark.parametrize("task", [name for name in SPECS if name != "masked_lm"])
def test_every_task_has_a_command_with_its_columns_options_and_example(monkeypatch, task):
    monkeypatch.setenv("COLUMNS", "200")
    spec = SPECS[task]
    out = call("train", task.replace("_", "-"), "--help").out
    assert spec.summary in out
    declared = {each.name for each in fields(spec.fit_options)}
    assert declared - {each.name for each in options_of(spec.fit_options)} == UNTYPED.get(task, set())
    names = [each.name for each in fields(spec.columns)]
    names += [each.name for each in options_of(spec.fit_options)]
    assert [name for name in names if f"--{name.replace('_', '-')} " not in out] == []
    assert all(json.dumps(name) in out for name in spec.example)


def test_probabilities_are_asked_for_as_the_head_gives_them(run):
    (calibrated,) = call("predict", run, "w6 w8", "--calibrated").lines()
    (plain,) = call("predict", run, "w6 w8", "--no-calibrated").lines()
    assert calibrated["label"] == plain["label"]
    assert calibrated["probability"] != plain["probability"]
