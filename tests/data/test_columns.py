import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.data import class_label, label_set, number
from bothways.errors import InvalidInput


@pytest.mark.parametrize(
    ("value", "label"),
    [("spam", "spam"), (" a b ", " a b "), (3, "3"), (-1, "-1"), (True, "True"), (2.0, "2"), (np.int64(4), "4")],
)
def test_class_names_are_strings_whole_numbers_and_booleans(value, label):
    assert class_label(value) == label


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (None, "null"),
        ("", "an empty string"),
        (" \t", "only white space"),
        (math.nan, "nan of type float"),
        (np.float32("nan"), "nan of type float"),
        (math.inf, "inf"),
        (0.5, "0.5 of type float"),
        (["a"], "type list"),
        ({"a": 1}, "type dict"),
        (b"a", "type bytes"),
        ("a\ud83d", r"half of a surrogate pair \(U\+D83D\)"),
    ],
)
def test_what_is_no_class_name_is_refused_and_described(value, described):
    with pytest.raises(InvalidInput, match=described):
        class_label(value)


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (["a", "b"], ("a", "b")),
        (("b", "a", "b"), ("b", "a")),
        ([], ()),
        ("", ()),
        (" ", ()),
        ("a", ("a",)),
        ("a| b |c", ("a", "b", "c")),
        ([1, 2], ("1", "2")),
        (["a|b"], ("a|b",)),
        ('["a", "b|c"]', ("a", "b|c")),
        (" ['a', \"b's\"] ", ("a", "b's")),
        ("[]", ()),
        ("[a]|[b]", ("[a]", "[b]")),
    ],
)
def test_label_sets_come_from_lists_and_from_strings_with_bars(value, labels):
    assert label_set(value) == labels


@pytest.mark.parametrize(
    "value", [None, 3, {"a": 1}, ["a", None], [["a"]], "a||b", [""], "['a' 'b']", "['a'\n 'b']", "['a', '']"]
)
def test_what_is_no_label_set_is_refused(value):
    with pytest.raises(InvalidInput, match="expected"):
        label_set(value)


@given(st.floats(-1e18, 1e18))
def test_every_finite_number_is_read_back_from_its_digits(value):
    assert number(value) == value
    assert number(repr(value)) == value
    assert number(f" {value} ") == value


@pytest.mark.parametrize(("value", "result"), [(3, 3.0), (Decimal("0.5"), 0.5), (np.float32(0.25), 0.25), ("+.5", 0.5)])
def test_numbers_of_every_kind_are_read(value, result):
    assert number(value) == result


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        np.bool_(True),
        "",
        "abc",
        "nan",
        "inf",
        "1e999",
        10**400,
        "1_000",
        "\uff11",
        "0x10",
        [1.0],
        math.nan,
        -math.inf,
    ],
)
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(InvalidInput, match="expected a finite number"):
        number(value)


@pytest.mark.parametrize("value", [1e19, -1e300, "2e18"])
def test_a_number_whose_square_no_loss_could_hold_is_refused(value):
    with pytest.raises(InvalidInput, match=r"from -1e\+18 to 1e\+18.*scale the numbers"):
        number(value)
