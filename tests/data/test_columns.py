import math
import unicodedata
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.data import Row, class_label, label_set, number, read_examples
from bothways.data.columns import list_at, strings_at, text_at, unwrapped, words_at, written_list, written_objects
from bothways.errors import EmptyInput, InvalidInput, LabelsAmbiguous
from bothways.text.characters import VISIBLE


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
        ("['a' 'b']", ("a", "b")),
        ("['a'\n \"b's\"]", ("a", "b's")),
        ("('a', 'b,c')", ("a", "b,c")),
        ("('a')", ("('a')",)),
        ("[a]|[b]", ("[a]", "[b]")),
    ],
)
def test_label_sets_come_from_lists_and_from_strings_with_bars(value, labels):
    assert label_set(value) == labels


@pytest.mark.parametrize("value", [None, 3, {"a": 1}, ["a", None], [["a"]], "a||b", [""], "['a', '']"])
def test_what_is_no_label_set_is_refused(value):
    with pytest.raises(InvalidInput, match="expected"):
        label_set(value)


@pytest.mark.parametrize(
    ("value", "labels"), [(("b", "a", "b"), ("b", "a")), ("a|b|a", ("a", "b")), ([1, 1.0, 2], ("1", "2"))]
)
def test_a_repeated_label_counts_once_with_a_note(value, labels):
    with pytest.warns(LabelsAmbiguous, match=rf"repeat '{labels[0]}', which counts once"):
        assert label_set(value) == labels


@pytest.mark.parametrize(
    "value",
    [
        [1, 0, 0],
        (0, 0),
        [0.0, 1.0, 1.0],
        [True, False, False],
        ["0", "1", "0"],
        "[1 0 0]",
        "[1. 0. 0.]",
        "1 0 0",
        "[1, 0, 0]",
        "(1, 0, 0)",
        "1,0,0",
        "1|0|0",
        "['1', '0', '0']",
    ],
)
def test_a_multi_hot_vector_is_refused_with_what_to_write(value):
    with pytest.raises(InvalidInput, match=r"got a multi-hot vector .* --labels a,b,c; or .*in zip\(names, vector\)"):
        label_set(value)


def test_numbers_that_name_labels_are_no_vector():
    assert label_set([0, 1]) == ("0", "1") == label_set("0|1")
    assert label_set([1]) == ("1",) == label_set("1")
    assert label_set("10") == ("10",)


@given(st.floats(-1e18, 1e18))
def test_every_finite_number_is_read_back_from_its_digits(value):
    assert number(value) == value
    assert number(repr(value)) == value
    assert number(f" {value} ") == value


@pytest.mark.parametrize(("value", "result"), [(3, 3.0), (Decimal("0.5"), 0.5), (np.float32(0.25), 0.25), ("+.5", 0.5)])
def test_numbers_of_every_kind_are_read(value, result):
    assert number(value) == result


NOT_FINITE = [None, True, np.bool_(True), "", "abc", "nan", "inf", "1e999", "1_000", "\uff11", "0x10", [1.0]]


@pytest.mark.parametrize("value", [*NOT_FINITE, 10**400, math.nan, -math.inf])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(InvalidInput, match="expected a finite number"):
        number(value)


@pytest.mark.parametrize("value", [1e19, -1e300, "2e18"])
def test_a_number_whose_square_no_loss_could_hold_is_refused(value):
    with pytest.raises(InvalidInput, match=r"from -1e\+18 to 1e\+18.*scale the numbers"):
        number(value)


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [
        ([1, "1"], "'1', of type str, but in row 1 of the given list it is 1, of type int"),
        (["2", 2.0], "2.0, of type float, but in row 1 of the given list it is '2', of type str"),
        ([True, "True"], "'True', of type str"),
    ],
)
def test_a_class_that_is_a_string_in_one_row_and_a_number_in_another_is_refused(labels, kinds):
    with pytest.raises(InvalidInput) as caught:
        read_examples([{"text": "a", "label": label} for label in labels])
    assert str(caught.value).startswith("row 2 of the given list: the label in 'label' is ")
    assert kinds in str(caught.value)
    assert "all as strings or all as numbers" in str(caught.value)


def test_labels_of_one_kind_are_one_class_however_numbers_are_written():
    rows = [{"text": "a", "label": label} for label in (1, 1.0, np.int64(1), np.float32(1), 2, True, False, True)]
    assert [each.label for each in read_examples(rows)] == ["1", "1", "1", "1", "2", "True", "False", "True"]
    with pytest.raises(InvalidInput, match="'1' occurs as a string and as a number"):
        label_set([1, "2", "1"])


@pytest.mark.parametrize(("value", "several"), [("x,y", "x|y"), ("x; y", "x|y"), ("Rock, Pop", "Rock|Pop")])
def test_labels_with_another_separator_are_asked_about(value, several):
    with pytest.raises(InvalidInput) as caught:
        label_set(value)
    assert f"write {several!r} or the list" in str(caught.value)
    assert label_set(several) == tuple(several.split("|"))
    assert label_set(f'["{value}"]') == (value,) == label_set([value])
    assert label_set("a, b|c") == ("a, b", "c")


ARRAYS = [
    np.array(["a [1]", "b"], dtype=object),
    np.array(["a [1]", "b"]),
    np.array(["a [1]", "it's"], dtype=object),
    np.array(['say "x"', "b"] * 60, dtype=object),  # over several lines
    np.array([], dtype=object),
]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("printed", [str, repr, lambda array: f"np.{array!r}"])
def test_arrays_are_read_as_numpy_prints_them(array, printed):
    text, listed = printed(array), array.tolist()
    assert written_list(text, "") == listed
    assert written_objects(text) == listed
    row = Row(1, {"words": text, "choices": text, "tags": printed(np.array(["O"] * len(listed)))})
    if listed:
        assert list(words_at(row, "words").listed()) == listed
        assert strings_at(row, "tags") == ["O"] * len(listed)
        assert list_at(row, "choices", "") == listed
    if len(set(listed)) == len(listed):
        assert label_set(text) == tuple(listed)


def test_answers_of_squad_are_read_as_pandas_prints_them():
    answers = {"text": np.array(["Denver [1]", "x"], dtype=object), "answer_start": np.array([177, 3], dtype=np.int32)}
    assert written_objects(repr(answers)) == {"text": ["Denver [1]", "x"], "answer_start": [177, 3]}
    assert written_objects(repr([answers])) == [{"text": ["Denver [1]", "x"], "answer_start": [177, 3]}]


@pytest.mark.parametrize("text", ["array", "array of things", "tensor(", "array(['a'", "array([1), 2]"])
def test_other_text_is_no_array(text):
    assert written_list(text, "") is None
    assert written_objects(text) is None
    assert unwrapped(text) == text


def test_long_text_that_begins_as_an_array_is_read_in_no_time():
    for text in (
        "array([" + ",a=" * 50_000,
        "array([]" + ",a=" * 50_000,
        "array(['" * 20_000,
        "array([" + "'a'" * 50_000,
    ):
        assert written_objects(text) is None


UNSEEN = ["\u200b", "\ufeff", "\u00a0", "\x00\x1b", "\ufe0f\U000e0101", "\u2800\u3164", "\u200d\u00ad"]


@pytest.mark.parametrize("seen", UNSEEN, ids=ascii)
def test_a_text_without_a_visible_character_is_empty(seen):
    with pytest.raises(EmptyInput, match=r"is only (invisible characters|white space)"):
        text_at(Row(1, {"text": f" {seen}\n"}), "text")
    assert text_at(Row(1, {"text": f"{seen}a"}), "text") == f"{seen}a"


@given(st.text())
def test_letters_digits_and_signs_are_visible(text):
    fillers = "\u115f\u1160\u3164\uffa0\u2800"
    drawn = [each for each in text if unicodedata.category(each)[0] in "LNPS" and each not in fillers]
    if drawn:
        assert VISIBLE.search(text)
    elif all(unicodedata.category(each) in ("Zs", "Zl", "Zp", "Cc") for each in text):
        assert not VISIBLE.search(text)
