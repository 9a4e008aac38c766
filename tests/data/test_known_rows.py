"""Checksums of rows: equal for the same texts in any spelling, told apart by the label, and small on disk."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.data import Example, known_rows
from bothways.data.known_rows import ALIKE, KNOWN_ROWS, NEW, OTHER_LABEL, UNCHECKED, KnownRows, compared, normalised
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.text import Words

KNOWN = [
    Example("Ein Café  am Meer", "a", 1),
    Example(("premise", "hypothesis"), "b", 2),
    Example(("context", ("one", "two")), 1, 3),
    Example(Words.of_list(["Li", "left"]), ("B-PER", "O"), 4),
    Example("several", ("x", "y"), 5),
    Example("a number", 0.5, 6),
    Example("raw", None, 7),
]


def found(*rows, known=KNOWN):
    return KnownRows.of(known).find([Example(text, label, 0) for text, label in rows]).tolist()


def test_rows_are_found_by_their_texts_and_the_label_tells_more():
    assert found(*((each.text, each.label) for each in KNOWN)) == [ALIKE] * len(KNOWN)
    assert found(
        (unicodedata.normalize("NFD", " EIN CAFÉ\tam\u00a0meer\n"), "a"),
        ("ein café am meer", "b"),
        ("ein cafe am meer", "a"),
        (("hypothesis", "premise"), "b"),
        (("context", ("two", "one")), 1),
        (("context", ("one", "two")), 0),
        (Words.of_text("li  LEFT"), ("B-PER", "O")),
        (Words.of_list(["Li", "left"]), ("O", "B-PER")),
        ("several", ("y", "x")),
        ("several", ("y",)),
        ("a number", 0.25),
        ("raw", "a label"),
        ("a number", None),
    ) == [
        ALIKE,
        OTHER_LABEL,
        NEW,
        NEW,
        NEW,
        OTHER_LABEL,
        ALIKE,
        OTHER_LABEL,
        ALIKE,
        OTHER_LABEL,
        OTHER_LABEL,
        ALIKE,
        ALIKE,
    ]


def test_a_text_with_two_labels_is_known_with_both():
    known = [Example("t", "a", 0), Example("T ", "b", 1)]
    assert found(("t", "a"), ("t", "b"), ("t", "c"), known=known) == [ALIKE, ALIKE, OTHER_LABEL]


@given(st.text(), st.text())
def test_texts_are_known_by_their_normal_form(one, other):
    same = normalised(one) == normalised(other)
    assert (found((other, "x"), known=[Example(one, "x", 0)]) == [ALIKE]) == same
    assert found((f" {unicodedata.normalize('NFD', one)}\n", "x"), known=[Example(one, "x", 0)]) == [ALIKE]
    assert normalised((one, other)) == normalised((one.upper().lower(), other)) or one.upper().lower() != one.lower()


def test_nothing_is_known_of_no_rows():
    assert found(("t", "a"), known=[]) == [NEW]
    assert KnownRows.of(KNOWN).find([]).tolist() == []


def test_a_file_gives_back_the_rows_in_eight_bytes_each(tmp_path):
    assert KnownRows.read(tmp_path) is None
    KnownRows.of(KNOWN).write(tmp_path)
    assert (tmp_path / KNOWN_ROWS).stat().st_size == 8 * (len(KNOWN) + 2)
    again = KnownRows.read(tmp_path)
    assert again.rows_N.tolist() == KnownRows.of(KNOWN).rows_N.tolist()
    assert (again.find(KNOWN) == ALIKE).all()


@pytest.mark.parametrize("content", [b"", b"BWROWS1\n", b"x" * 24, b"BWROWS1\n" + bytes(15)])
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / KNOWN_ROWS).write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=r"training_rows.u64' is damaged: delete it"):
        KnownRows.read(tmp_path)


def test_of_many_rows_a_sample_is_kept_that_says_what_it_can_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(known_rows, "MOST_KNOWN", 100)
    rows = [Example(f"text {number}", "a", number) for number in range(400)]
    KnownRows.of(rows).write(tmp_path)
    sample = KnownRows.read(tmp_path)
    seen, new = sample.find(rows), sample.find([Example(f"other {number}", "a", 0) for number in range(400)])
    assert ((seen == ALIKE).sum(), (seen == UNCHECKED).sum()) == (100, 300)
    assert set(new.tolist()) == {NEW, UNCHECKED}
    assert 60 < (new == NEW).sum() < 140
    _, counts = compared(seen, rows, "keep")
    assert "100 of 400 rows (100 could be checked) are training rows" in counts.summary()
    both = sample | KnownRows.of(KNOWN)
    assert both.limit == sample.limit
    assert set(both.find(KNOWN).tolist()) <= {ALIKE, UNCHECKED}


def test_known_rows_are_kept_or_dropped():
    rows = [Example("new", "a", 0), Example("RAW", "a", 1), Example("several", ("z",), 2)]
    known_M = KnownRows.of(KNOWN).find(rows)
    kept, counts = compared(known_M, rows, "keep")
    assert kept == rows
    assert counts.summary().startswith("2 of 3 rows are training rows, 1 of them with another label: the metrics look")
    assert "--shared drop" in counts.summary()
    kept, counts = compared(known_M, rows, "drop")
    assert kept == rows[:1]
    assert counts.summary("validation rows") == (
        "Left out 2 of 3 validation rows: they are training rows, 1 of them with another label."
    )
    with pytest.raises(InvalidInput, match="all 2 validation rows are training rows: expected some that are not"):
        compared(known_M[1:], rows[1:], "drop", "validation rows")
    assert not compared(known_M[:1], rows[:1], "keep")[1].summary()


def test_half_a_surrogate_pair_has_a_checksum():
    row = Example("\ud800", "a", 1)
    assert KnownRows.of([row]).find([row]).tolist() == [ALIKE]
    assert KnownRows.of([row]).rows_N.dtype == np.uint64
