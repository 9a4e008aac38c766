import csv
import errno
import gzip
import io
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bothways.data import label_set, read_rows, write_rows
from bothways.errors import InvalidInput, OutOfDisk, OutputExists

UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | UNICODE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(UNICODE, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def tables(draw):
    columns = draw(st.lists(UNICODE, min_size=1, max_size=4, unique=True))
    return draw(st.lists(st.fixed_dictionaries(dict.fromkeys(columns, UNICODE)), min_size=1, max_size=4))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.CSV.gz"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(rows=tables())
def test_any_unicode_strings_are_read_as_they_were_written(tmp_path, name, rows):
    assert write_rows(tmp_path / name, rows, overwrite=True) == len(rows)
    assert [row.values for row in read_rows(tmp_path / name)] == rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(rows=st.lists(st.dictionaries(UNICODE, JSON_VALUES, max_size=4), min_size=1, max_size=4))
def test_any_json_values_are_read_as_they_were_written(tmp_path, rows):
    write_rows(tmp_path / "a.jsonl.gz", rows, overwrite=True)
    assert [row.values for row in read_rows(tmp_path / "a.jsonl.gz")] == rows


def test_a_device_takes_rows_and_stays_a_device(terminal):
    device, received = terminal
    assert write_rows(device, [{"text": "a"}]) == 1
    assert received(15) == b'{"text": "a"}\r\n'
    assert write_rows(device, [{"text": "a"}], format="csv", overwrite=False) == 1
    assert received(13) == b'"text"\r\n"a"\r\n'
    assert Path(device).is_char_device()


def test_other_csv_readers_read_what_is_written(tmp_path):
    rows = [{"a": 'q"\r\n,', "b": "ü"}, {"a": "", "b": "\r"}]
    write_rows(tmp_path / "a.csv", rows)
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as stream:
        assert list(csv.DictReader(stream)) == rows


def test_csv_cells_hold_numbers_lists_objects_and_nothing(tmp_path):
    row = {"n": np.float64(0.5), "i": 3, "none": None, "labels": ["a", "b"], "no": [], "p": {"x": 0.25}, "v": [1, 2]}
    write_rows(tmp_path / "a.csv", [row])
    (read,) = read_rows(tmp_path / "a.csv")
    assert (read.values["n"], read.values["i"], read.values["none"]) == ("0.5", "3", "")
    assert [label_set(read.values[name]) for name in ("labels", "no")] == [("a", "b"), ()]
    assert [json.loads(read.values[name]) for name in ("p", "v")] == [row["p"], row["v"]]


def test_numpy_scalars_are_plain_numbers_in_json(tmp_path):
    write_rows(tmp_path / "a.jsonl", [{"n": np.float32(0.5), "i": np.int64(3), "b": np.bool_(True)}])
    assert (tmp_path / "a.jsonl").read_text() == '{"n": 0.5, "i": 3, "b": true}\n'


def test_the_same_rows_give_the_same_compressed_bytes_under_any_name_at_any_time(tmp_path, monkeypatch):
    for name, seconds in (("a.jsonl.gz", 1.0), ("b.jsonl.gz", 2e9)):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: seconds)
        write_rows(tmp_path / name, [{"text": "a"}])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()) == b'{"text": "a"}\n'


def broken_rows(error):
    yield {"text": "new"}
    raise error


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz"])
def test_a_failure_on_the_way_leaves_the_old_file_and_nothing_else(tmp_path, name):
    with pytest.raises(OutOfDisk):
        write_rows(tmp_path / name, broken_rows(OSError(errno.ENOSPC, "No space left on device")))
    assert list(tmp_path.iterdir()) == []
    write_rows(tmp_path / name, [{"text": "old"}])
    with pytest.raises(RuntimeError, match="the source broke"):
        write_rows(tmp_path / name, broken_rows(RuntimeError("the source broke")), overwrite=True)
    with pytest.raises(OutputExists):
        write_rows(tmp_path / name, [{"text": "new"}])
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert [row.values for row in read_rows(tmp_path / name)] == [{"text": "old"}]


def test_rows_are_asked_for_one_at_a_time_and_leave_standard_output_at_once(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    seen = []

    def rows():
        for text in ("é", "b"):
            seen.append(raw.getvalue())
            yield {"text": text}

    assert write_rows("-", rows()) == 2
    assert seen == [b"", '{"text": "é"}\n'.encode()]
    assert raw.getvalue() == '{"text": "é"}\n{"text": "b"}\n'.encode()
    assert not raw.closed


def test_standard_output_without_bytes_below_it_is_written_as_text(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    write_rows("-", [{"text": "é"}], format="csv")
    assert sys.stdout.getvalue() == '"text"\n"é"\n'


@pytest.mark.parametrize("name", ["a.parquet", "a.txt", "a.doc", "a"])
def test_a_format_that_is_not_written_is_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match=r"'?jsonl'?, '?csv'?, '?tsv'?, '?conll'?(\.$|, with|, got)"):
        write_rows(tmp_path / name, [{"text": "a"}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "row", "problem"),
    [
        ("a.jsonl", {"text": float("nan")}, "not JSON compliant"),
        ("a.jsonl", {"text": object()}, "type object"),
        ("a.jsonl", {"text": "\ud800"}, "half of a surrogate pair"),
        ("a.csv", {"text": "\ud800"}, "half of a surrogate pair"),
        ("a.csv.gz", {"text": "\ud800"}, "half of a surrogate pair"),
        ("a.csv", {"text": float("inf")}, "not finite"),
        ("a.csv", {"other": "a"}, "columns"),
        ("a.csv", {"text": "a", "other": "a"}, "columns"),
        ("a.csv", {"text": ["a|b"]}, "use jsonl"),
        ("a.csv", {"text": ["a", ""]}, "use jsonl"),
    ],
)
def test_a_row_that_cannot_be_written_is_refused_with_its_number_and_nothing_is_left(tmp_path, name, row, problem):
    with pytest.raises(InvalidInput, match=f"row 2 .*{problem}"):
        write_rows(tmp_path / name, [{"text": "a"}, row])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.conll", "a.conll.gz"])
def test_words_and_tags_are_read_as_they_were_written(tmp_path, name):
    rows = [{"tokens": ["EU", "a b", "ü"], "tags": ["B-ORG", "O", "O"]}, {"tokens": ["x"], "tags": ["S-PER"]}]
    assert write_rows(tmp_path / name, rows) == 2
    assert [row.values for row in read_rows(tmp_path / name)] == rows


@pytest.mark.parametrize(
    ("name", "row", "problem"),
    [
        ("a.csv", {}, ": it has no columns"),
        ("a.conll", {"text": "w5"}, ""),
        ("a.conll", {"tokens": ["w5"], "tags": []}, ""),
        ("a.conll", {"tokens": ["w5\tw6"], "tags": ["O"]}, ""),
        ("a.conll", {"tokens": ["w5"], "tags": [""]}, ""),
        ("a.conll", {"tokens": ["w5\n"], "tags": ["O"]}, ""),
    ],
)
def test_a_row_without_columns_or_words_and_tags_is_refused(tmp_path, name, row, problem):
    with pytest.raises(InvalidInput, match=f"row 1 cannot be written{problem}"):
        write_rows(tmp_path / name, [row])
    assert not list(tmp_path.iterdir())
