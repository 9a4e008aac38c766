"""Holding out a part of the data."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.data import Example
from bothways.errors import InvalidInput
from bothways.tasks import FillMask, SentenceEmbedder, TextClassifier, TextTagger
from bothways.tasks.embedding.spec import LabelledTexts
from bothways.tasks.heads.splits import hold_out, hold_out_pairs
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel
from classifier_cases import rows

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


def drawn_one_by_one(labels, fraction, seed):
    """The rows that are held out where each is drawn by itself."""
    left, held = Counter(labels), set()
    for index in np.random.default_rng(seed).permutation(len(labels)).tolist():
        if len(held) < min(max(1, round(fraction * len(labels))), len(labels) - 1) and left[labels[index]] > 1:
            held.add(index)
            left.subtract([labels[index]])
    return [row for row in range(len(labels)) if row in held]


@given(classes, fractions, st.integers(0, 99))
def test_rows_without_groups_are_drawn_one_by_one_and_so_are_groups_of_one(labels, fraction, seed):
    expected = drawn_one_by_one(labels, fraction, seed)
    parts = split(labels, fraction, seed)
    assert [example.row - 1 for example in parts[1]] == expected if parts else expected == []
    if parts:
        assert hold_out(examples(labels), fraction, seed, SingleLabel.names, group=lambda row: row.text) == parts


def grouped(groups, labels=None, fraction=0.1, seed=0):
    """The groups and labels that stay, and those that are held out."""
    listed = [
        Example(group, label, row) for row, (group, label) in enumerate(zip(groups, labels or groups, strict=True))
    ]
    names = SingleLabel.names if labels else lambda _: ()
    parts = hold_out(listed, fraction, seed, names, group=lambda row: row.text)
    return [([each.text for each in part], [each.label for each in part]) for part in parts]


@given(st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=60), fractions, st.integers(0, 99))
def test_rows_of_a_group_stay_together_unless_there_is_one_alone(groups, fraction, seed):
    (stays, _), (held, _) = grouped(groups, None, fraction, seed)
    assert stays
    assert held
    assert sorted(stays + held) == sorted(groups)
    if len(set(groups)) > 1:
        assert not set(stays) & set(held)
        wanted, smallest = max(1, round(fraction * len(groups))), min(Counter(groups).values())
        assert len(held) <= max(2 * wanted, smallest)
    else:
        assert len(held) == min(max(1, round(fraction * len(groups))), len(groups) - 1)


@given(classes, st.data(), st.integers(0, 99))
def test_a_label_of_one_group_alone_stays(labels, data, seed):
    groups = data.draw(st.lists(st.sampled_from("uvw"), min_size=len(labels), max_size=len(labels)))
    if len(set(labels)) < len(labels):
        (_, stays), (_, held) = grouped(groups, labels, seed=seed)
        assert held
        assert set(stays) == set(labels)


def test_groups_of_three_give_a_tenth_of_the_rows():
    (stays, _), (held, _) = grouped([f"q{row // 3}" for row in range(300)])
    assert (len(stays), len(held)) == (270, 30)
    assert set(Counter(held).values()) == {3}


def test_a_group_that_is_too_large_is_passed_over():
    for seed in range(10):
        (_, _), (held, _) = grouped(["large"] * 50 + [f"q{row}" for row in range(50)], seed=seed)
        assert "large" not in held
        assert len(held) == 10


@pytest.mark.parametrize("labels", ["aabbbccccc" * 2, [f"l{row // 2}" for row in range(40)], "ab" * 50])
def test_pairs_of_several_labels_are_held_out(labels):
    for seed in range(5):
        stays, held = hold_out_pairs(examples(list(labels)), 0.1, seed)
        assert set(Counter(each.label for each in held).values()) == {2}
        assert max(2, len(labels) // 20) >= len(held) // 2 >= 2
        assert sorted(each.row for each in stays + held) == [each.row for each in examples(labels)]


def test_labels_that_can_spare_a_pair_give_it_first():
    for seed in range(10):
        stays, _ = hold_out_pairs(examples(["a", "b"] * 3 + [f"l{row // 2}" for row in range(20)]), 0.1, seed)
        assert {"a", "b"} < {each.label for each in stays}


@pytest.mark.parametrize(
    "labels",
    [["a", "b"] * 9, ["a"] * 30, ["a", "a", *map(str, range(30))], list(map(str, range(30)))],
    ids=["few rows", "one label", "one pair", "no pair"],
)
def test_where_two_labels_have_no_pair_to_spare_none_is_held_out(labels):
    assert hold_out_pairs(examples(labels), 0.1, 0) is None


def test_of_equal_rows_none_is_held_out_in_a_pair():
    listed = [Example(f"text {row // 2}", f"l{row // 20}", row) for row in range(40)]
    listed += [Example(f"other {row}", f"l{row % 2}", 40 + row) for row in range(8)]
    for seed in range(10):
        _, held = hold_out_pairs(listed, 0.1, seed, group=lambda row: row.text)
        assert len(held) == 4
        assert all(each.text.startswith("other") for each in held)


# --- rows that are there twice ---


def twice(count=24):
    return [row for row in rows(count) for _ in range(2)]


def words_twice():
    return [{"tokens": row["text"].split(), "tags": ["O", *["B-X"] * row["text"].count(" ")]} for row in twice()]


TWICE = {
    "classification.learner": (TextClassifier, lambda: (twice(), {}), lambda row: row.text),
    "tagging.learner": (TextTagger, lambda: (words_twice(), {}), lambda row: row.text.text),
    "masked_lm.trained": (FillMask, lambda: ([row["text"] for row in twice()], {}), lambda row: row.text),
    "embedding.training": (SentenceEmbedder, lambda: (twice(), {"columns": LabelledTexts()}), lambda row: row.text[0]),
}


class SplitError(Exception):
    """The data were split, and the training need not begin."""


@pytest.mark.parametrize("module", TWICE)
def test_a_text_that_is_there_twice_is_not_learnt_and_held_out(tiny_bert, monkeypatch, module):
    kind, made, text = TWICE[module]
    parts = []

    def spied(*given, **options):
        parts.extend(hold_out(*given, **options))
        raise SplitError

    monkeypatch.setattr(f"bothways.tasks.{module}.hold_out", spied)
    data, options = made()
    with pytest.raises(SplitError):
        kind.from_pretrained(tiny_bert, device="cpu").fit(data, epochs=1, **options)
    stays, held = parts
    assert len(held) >= 2
    assert not {text(row) for row in stays} & {text(row) for row in held}
