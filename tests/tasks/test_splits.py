"""Holding out a part of the data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.data import Example
from bothways.errors import InvalidInput
from bothways.tasks.splits import hold_out
from bothways.tasks.targets import MultiLabel, Regression, SingleLabel

classes = st.lists(st.sampled_from("abcdef"), min_size=2, max_size=60)
label_sets = st.lists(st.sets(st.sampled_from("abcd")).map(sorted).map(tuple), min_size=2, max_size=40)
numbers = st.lists(st.floats(-9, 9), min_size=2, max_size=60)
fractions = st.floats(0.01, 0.9)


def examples(labels):
    return [Example(f"text {row}", label, row) for row, label in enumerate(labels, start=1)]


def split(labels, fraction=0.1, seed=0):
    """The split, or None where no row can be spared."""
    names = {str: SingleLabel.names, tuple: MultiLabel.names, float: Regression.names}[type(labels[0])]
    try:
        return hold_out(examples(labels), fraction, seed, names)
    except InvalidInput:
        return None


@given(st.one_of(classes, label_sets, numbers), fractions, st.integers(0, 99))
def test_each_row_is_in_one_part_and_both_keep_the_order_of_the_file(labels, fraction, seed):
    parts = split(labels, fraction, seed)
    if parts is not None:
        for part in parts:
            assert [example.row for example in part] == sorted(example.row for example in part)
            assert part
        assert sorted(parts[0] + parts[1], key=lambda example: example.row) == examples(labels)
        assert len(parts[1]) <= max(1, round(fraction * len(labels)))


@given(classes, fractions)
def test_held_out_classes_occur_in_what_stays_and_rare_ones_stay(labels, fraction):
    parts = split(labels, fraction)
    if parts is None:
        assert len(set(labels)) == len(labels)
        return
    assert {example.label for example in parts[0]} == set(labels)


@given(label_sets, fractions)
def test_each_of_several_labels_occurs_in_what_stays(labels, fraction):
    parts = split(labels, fraction)
    if parts is not None:
        assert {name for example in parts[0] for name in example.label} == {name for names in labels for name in names}


@given(numbers)
def test_numbers_need_not_repeat_to_be_held_out(labels):
    assert len(split(labels)[1]) == max(1, round(0.1 * len(labels)))


def test_the_seed_decides_the_split():
    labels = ["a", "b"] * 50
    assert split(labels, seed=4) == split(labels, seed=4)
    assert split(labels, seed=4) != split(labels, seed=5)


def test_frequent_classes_give_the_fraction_that_was_asked_for():
    assert len(split(["a", "b", "c"] * 40, 0.25)[1]) == 30


@pytest.mark.parametrize("labels", [["a"], ["a", "b"], [1.0]])
def test_too_few_rows_are_refused(labels):
    assert split(labels) is None
