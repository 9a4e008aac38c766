import errno
import gzip
import io
import itertools
import json
import os
import re
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from table_samples import read_texts, refusal

from bothways.data import Example, label_set, number, read_examples, read_rows
from bothways.data import sources as sources_module
from bothways.data.formats import ROWS_AT_ONCE
from bothways.data.lines import LONGEST_LINE
from bothways.errors import InvalidInput, MissingDependency

TEXTS = ["first", 'second, "quoted"', "Łódź 🚲"]
JSONL = "".join(json.dumps({"text": text, "label": "x"}, ensure_ascii=False) + "\n" for text in TEXTS).encode()
CSV = 'text,label\nfirst,x\n"second, ""quoted""",x\nŁódź 🚲,x\n'.encode()
TSV = 'text\tlabel\nfirst\tx\n"second, ""quoted"""\tx\nŁódź 🚲\tx\n'.encode()
TXT = "\n".join(TEXTS).encode()
CONTENT = {"jsonl": JSONL, "csv": CSV, "tsv": TSV, "txt": TXT}


def written(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


class Standard:
    """A standard input that has bytes below it, as the real one has."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BufferedReader(io.BytesIO(content))


# What is read


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "A.JSONL", "a.csv", "a.tsv", "a.txt", "b.a.Csv"])
def test_a_file_gives_the_same_texts_plain_or_compressed_with_or_without_byte_order_mark(tmp_path, name):
    content = CONTENT[{"ndjson": "jsonl"}.get(name.lower().split(".")[-1], name.lower().split(".")[-1])]
    assert read_texts(written(tmp_path, name, content)) == TEXTS
    assert read_texts(written(tmp_path, name, b"\xef\xbb\xbf" + content)) == TEXTS
    for suffix in (".gz", ".GZ"):
        assert read_texts(written(tmp_path, name + suffix, gzip.compress(content))) == TEXTS


@pytest.mark.parametrize("content_format", ["jsonl", "csv", "tsv", "txt"])
def test_windows_line_ends_are_no_part_of_the_values(tmp_path, content_format):
    content = CONTENT[content_format].replace(b"\n", b"\r\n")
    assert read_texts(written(tmp_path, f"a.{content_format}", content)) == TEXTS


def test_gzip_is_read_whatever_the_name_and_to_the_end_of_several_members(tmp_path):
    assert read_texts(written(tmp_path, "a.jsonl", gzip.compress(JSONL))) == TEXTS
    path = written(tmp_path, "a.txt.gz", gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert read_texts(path) == ["one", "two"]


def test_the_format_that_is_given_wins_over_the_name(tmp_path):
    assert read_texts(written(tmp_path, "a.data", CSV), format="csv") == TEXTS
    assert [row.values for row in read_rows(written(tmp_path, "a.csv", b"x,y\n"), format="txt")] == [{"text": "x,y"}]


def test_csv_rows_carry_the_line_on_which_they_start(tmp_path):
    path = written(tmp_path, "a.csv", 'text,label\n"one\nstill one",x\n\ntwo,y\n')
    rows = list(read_rows(path))
    assert [(row.number, row.values["text"]) for row in rows] == [(2, "one\nstill one"), (5, "two")]
    assert rows[1].where == f"line 5 of {str(path)!r}"


def test_csv_fields_may_be_far_larger_than_the_csv_module_allows_by_itself(tmp_path):
    long = "word " * 200_000
    assert read_texts(written(tmp_path, "a.csv", f'text\n"{long}"\n')) == [long]


def test_jsonl_keeps_unicode_line_separators_inside_of_texts_and_passes_over_blank_lines(tmp_path):
    path = written(tmp_path, "a.jsonl", '{"text": "a\u2028b\x85c"}\n\n  \n{"text": "d"}\n')
    assert [(row.number, row.values["text"]) for row in read_rows(path)] == [(1, "a\u2028b\x85c"), (4, "d")]


def test_parquet_gives_rows_with_nulls_numbers_and_lists_beyond_one_batch(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"text": f"t{place}", "label": None, "n": place, "tags": ["a"]} for place in range(ROWS_AT_ONCE + 5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.PARQUET")
    read = list(read_rows(tmp_path / "a.PARQUET"))
    assert [row.values for row in read] == rows
    assert read[-1].where.startswith(f"row {ROWS_AT_ONCE + 5} of ")
    with (tmp_path / "a.PARQUET").open("rb") as stream:
        assert len(list(read_rows(io.BytesIO(stream.read()), format="parquet"))) == len(rows)


def test_parquet_without_pyarrow_names_the_line_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install 'bothways\[parquet\]'"):
        list(read_rows(written(tmp_path, "a.parquet", b"PAR1")))


@pytest.mark.parametrize("content", [JSONL, gzip.compress(JSONL, mtime=0)], ids=["plain", "gzip"])
def test_a_dash_reads_json_lines_from_standard_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", Standard(content))
    assert read_texts("-") == TEXTS


def test_standard_input_takes_the_format_that_is_given_and_is_named_in_errors(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Standard(CSV))
    assert read_texts(Path("-"), format="csv") == TEXTS
    monkeypatch.setattr(sys, "stdin", io.StringIO("[]\n"))
    assert refusal("-").startswith("line 1 of standard input is not a JSON object but an array.")


def test_open_streams_of_bytes_and_of_text_are_read_and_left_open(tmp_path):
    path = written(tmp_path, "a.csv", CSV)
    with path.open("rb") as stream:
        assert read_texts(stream) == TEXTS
        assert not stream.closed
    with path.open(encoding="utf-8", newline="") as stream:
        assert read_texts(stream) == TEXTS
        assert not stream.closed
    memory = io.BytesIO(gzip.compress(JSONL))
    assert read_texts(memory, format="jsonl") == TEXTS
    assert not memory.closed


def test_a_list_of_mappings_gets_the_same_checks_as_a_file():
    assert read_texts([{"text": text} for text in TEXTS]) == TEXTS
    assert refusal([{"text": "a"}, "b"]).startswith("row 2 of the given list is of type str.")
    with pytest.raises(InvalidInput, match=r"^row 2 of the given list: 'text' is null"):
        read_texts([{"text": "a"}, {"text": None}])


def test_rows_come_before_the_input_ends_and_memory_stays_flat():
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:] = (b'{"text": "' + b"a" * 88 + b'"}\n') * (len(buffer) // 101) + b" " * (len(buffer) % 101)
            return len(buffer)

    stream = io.BufferedReader(Endless(), buffer_size=101 * 64)
    rows = read_rows(stream, format="jsonl")
    list(itertools.islice(rows, 100))
    tracemalloc.start()
    try:
        for _ in itertools.islice(rows, 10_000):
            pass
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_texts_of_several_columns_are_joined_and_empty_parts_leave_no_gap():
    rows = [{"title": "A", "body": "b"}, {"title": "", "body": "c"}]
    assert read_texts(rows, text=("title", "body")) == ["A b", "c"]
    with pytest.raises(InvalidInput, match="row 1 of the given list: the text in 'title' and 'body' is empty"):
        read_texts([{"title": "", "body": ""}], text=("title", "body"))
    with pytest.raises(InvalidInput, match="no text column"):
        read_texts(rows, text=())


def test_examples_carry_converted_labels_and_line_numbers(tmp_path):
    path = written(tmp_path, "a.csv", "review,stars,tags\ngood,5,a|b\nbad,1,\n")
    assert read_examples(path, text="review", label="stars") == [Example("good", "5", 2), Example("bad", "1", 3)]
    assert [e.label for e in read_examples(path, text="review", label="stars", convert=number)] == [5.0, 1.0]
    assert [e.label for e in read_examples(path, text="review", label="tags", convert=label_set)] == [("a", "b"), ()]
    assert [e.text for e in read_examples(path, text=["review", "stars"], label="stars")] == ["good 5", "bad 1"]


@pytest.mark.parametrize("label", ["null", "NaN", '["a"]', '""'])
def test_an_unusable_label_is_refused_with_its_line(tmp_path, label):
    path = written(tmp_path, "a.jsonl", f'{{"text": "a", "label": "x"}}\n{{"text": "b", "label": {label}}}\n')
    said = ": expected a class name" if label == '["a"]' else " is missing, got"
    with pytest.raises(InvalidInput, match=rf"^line 2 of '.*a\.jsonl': the label in 'label'{said}"):
        read_examples(path)


# What is refused


REFUSED = [
    ("a.csv", "text,label\n", "has a header but no rows"),
    ("a.csv", "a,b,b\n1,2,3\n", "column 'b' twice"),
    ("a.csv", "text\na\n".encode("utf-16"), "looks like UTF-16"),
    (
        "a.csv",
        "text;label\nma\u00df;x\n".encode("latin-1"),
        "line 2 of .* not UTF-8: .* 'maß;x': .* --encoding cp1252",
    ),
    (
        "a.csv",
        "text;label\na;b;c\n",
        "line 2 of .* has 3 fields, but the header has 2, separated by ';'",
    ),
    ("a.csv", 'a,b\n"1\n1",2\n1\n', "^line 4 of .* has 1 fields, but the header has 2"),
    ("a.csv", 'a,b\n"1\n1",2\n1,2,3\n', "^line 4 of .* has 3 fields, but the header has 2"),
    ("a.csv", 'a,b\n1,2\n"never closed\n3,4\n', "^the row that starts on line 3 of "),
    ("a.csv", 'a,b\n1,2\n"a"b,c\n3,4\n', "^the row that starts on line 3 of "),
    ("a.txt", b"\xef\xbb\xbfa\xff\n", r"byte 0xff at byte offset 4 \(column 5 "),
    ("a.jsonl.gz", JSONL, "is not gzip data"),
    ("a.parquet.gz", gzip.compress(b"PAR1"), "cannot be read as Parquet"),
    ("a.jsonl", '{"a": 1}\n{"a": 1, "b": 2, "a": 3}', "^line 2 of .*the key 'a' appears twice"),
    ("a.jsonl", '{"a": 1}\n{"x": {"a": 1, "a": 1}}', "^line 2 of .*the key 'a' appears twice"),
    ("a.jsonl", "[1]", r"^line 1 of '.*a\.jsonl' is not a JSON object but an array\."),
    ("a.jsonl", '"a"', "but a string"),
    ("a.jsonl", "1.5", "but a number"),
    ("a.jsonl", "true", "but a boolean"),
    ("a.jsonl", "null", "but null"),
    *(
        ("a.jsonl", f'{{"text": "a"}}\n\n{line}\n', f"^line 3 of .*{problem}")
        for line, problem in [
            ('{"text": "a" "b"}', "is not valid JSON: Expecting ',' delimiter at column 14"),
            ('{"text":', r"is not valid JSON: Expecting value at column 9\. "),
            ('{"text":\r', r"is not valid JSON: Expecting value at column 9\. "),
            ("{'text': 1}", "is not valid JSON"),
            ("[" * 100_000, "nested too deeply"),
            ('{"n": ' + "9" * 5000 + "}", "is not usable JSON"),
        ]
    ),
]


@pytest.mark.parametrize(("name", "content", "problem"), REFUSED, ids=[problem for *_, problem in REFUSED])
def test_a_file_that_cannot_be_read_is_refused_with_the_place(tmp_path, name, content, problem):
    assert re.search(problem, refusal(written(tmp_path, name, content)))


def test_a_path_without_a_file_is_refused(tmp_path):
    assert "there is no file" in refusal(tmp_path / "absent.jsonl")
    assert "is a folder: expected a file" in refusal(tmp_path)
    assert "is not a path" in refusal("a\0b.csv")
    assert "could not be opened" in refusal(tmp_path / ("a" * 5000 + ".csv"))


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert refusal(tmp_path / "a.jsonl").startswith("permission denied: ")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.txt", "a.jsonl.gz"])
@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(tmp_path, name, content):
    if name.endswith(".gz") and content:
        content = gzip.compress(content)
    assert "is empty: expected at least one row" in refusal(written(tmp_path, name, content))


def test_an_empty_list_and_an_empty_parquet_file_are_refused(tmp_path):
    assert refusal([]) == "the given list is empty: expected at least one row."
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    assert "is empty" in refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.xml", "a", "a.gz", "a.jsonl.tar", "gz"])
def test_a_name_that_does_not_say_a_format_is_refused_with_the_formats_there_are(tmp_path, name):
    message = refusal(written(tmp_path, name, JSONL))
    assert repr(name) in message
    assert "jsonl, json, csv, tsv, parquet, xlsx, txt" in message


def test_an_unknown_format_or_one_for_a_list_or_none_for_a_nameless_stream_is_refused():
    assert "got 'xml'" in refusal("a.csv", format="xml")
    assert "format: expected None for the given list" in refusal([{"text": "a"}], format="csv")
    assert "a stream without a name" in refusal(io.BytesIO(b"x"))


def test_a_missing_column_is_refused_with_the_columns_there_are_and_the_nearest(tmp_path):
    path = written(tmp_path, "a.csv", "Text,label\na,x\n")
    with pytest.raises(
        InvalidInput,
        match=r"line 2 of .* has no column 'text'. It has: 'Text', 'label'. Did you mean text='Text' \(--text Text\)",
    ):
        read_texts(path)
    with pytest.raises(InvalidInput, match=r"no column 'zzz'. It has: 'Text', 'label'. Did you mean label='label'"):
        read_examples(path, text="Text", label="zzz")
    with pytest.raises(InvalidInput, match="no columns at all"):
        read_texts([{}])


def test_a_column_twice_in_a_parquet_file_is_refused(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet")
    assert "column 'a' twice" in refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize("compress", [False, True])
def test_invalid_utf8_is_refused_with_line_and_byte_offset(tmp_path, compress):
    content = "\ufeffŁ\n".encode() + b"caf\xe9 au lait\n"
    path = written(tmp_path, "a.txt.gz" if compress else "a.txt", gzip.compress(content) if compress else content)
    message = refusal(path)
    assert f"line 2 of {str(path)!r} is not UTF-8: byte 0xe9 at byte offset {content.index(0xE9)} " in message
    assert "(column 4 of the line)" in message


def test_a_text_stream_that_cannot_be_decoded_is_refused():
    stream = io.TextIOWrapper(io.BytesIO(b"a\xff\n"), encoding="utf-8")
    assert "is not utf-8" in refusal(stream, format="txt")


def test_truncated_gzip_is_refused_after_the_rows_that_are_whole(tmp_path):
    packed = gzip.compress(os.urandom(50_000).hex().encode() + b"\n")
    path = written(tmp_path, "a.txt.gz", gzip.compress(b"whole\n") + packed[: len(packed) // 2])
    rows = read_rows(path)
    assert next(rows).values == {"text": "whole"}
    with pytest.raises(InvalidInput, match="is truncated: the gzip data ends in line 2"):
        next(rows)


def test_broken_gzip_is_refused(tmp_path):
    packed = bytearray(gzip.compress(b"some words\n" * 1000))
    packed[-6] ^= 0xFF
    assert "is broken: its gzip data" in refusal(written(tmp_path, "a.txt.gz", bytes(packed)))
    packed = bytearray(gzip.compress(os.urandom(5000).hex().encode()))
    packed[12:60] = bytes(48)
    assert "is broken: its gzip data" in refusal(written(tmp_path, "a.txt.gz", bytes(packed)))


def test_what_is_no_parquet_file_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    for content in (b"", JSONL, b"PAR1" + bytes(100) + b"PAR1"):
        assert "is not a Parquet file, or is damaged" in refusal(written(tmp_path, "a.parquet", content))


def test_parquet_from_a_pipe_or_from_text_is_refused():
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert "cannot be read as Parquet" in refusal(pipe, format="parquet")
    assert "cannot be read as Parquet" in refusal(io.StringIO(""), format="parquet")


def test_a_stream_that_cannot_be_read_is_refused():
    class Unreadable(io.BytesIO):
        def peek(self, _):
            raise OSError(errno.EBADF, "Bad file descriptor")

    assert "could not be read: Bad file descriptor" in refusal(Unreadable(b"a\n"), format="txt")


def test_a_standard_input_that_is_closed_is_refused(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert "standard input is closed" in refusal("-")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(sources_module, "LONGEST_LINE", replace(LONGEST_LINE, size=2**20))
    path = written(tmp_path, "a.txt.gz", gzip.compress(b"a\n" + bytes(2**23)))
    assert "line 2 of" in refusal(path)
    assert "is longer than 1 MiB" in refusal(path)
    assert "is longer than 1 MiB" in refusal(io.StringIO("a" * 2**21), format="txt")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("null", "'text' is null"),
        ("3", "'text' is of type int"),
        ("true", "'text' is of type bool"),
        ('["a"]', "'text' is of type list"),
        ('{"a": 1}', "'text' is of type dict"),
        ('""', "the text in 'text' is empty"),
        ('" \\n\\t\\u00a0"', "the text in 'text' is only white space"),
        ('"a\\ud800"', "'text' holds half of a surrogate pair (U+D800) at character 2"),
    ],
)
def test_an_unusable_text_is_refused_with_its_line_and_what_it_is(tmp_path, value, problem):
    path = written(tmp_path, "a.jsonl", f'{{"text": "a"}}\n{{"text": {value}}}\n')
    with pytest.raises(InvalidInput) as caught:
        read_texts(path)
    assert str(caught.value).startswith(f"line 2 of {str(path)!r}: {problem}")


# Tables with tabs


def test_quotes_that_would_join_rows_of_a_table_with_tabs_are_refused(tmp_path):
    path = written(tmp_path, "a.tsv", 'text\tlabel\nfine\tpos\n"He said hi.\tpos\nThey left."\tneg\nok\tpos\n')
    message = refusal(path)
    assert message.startswith("line 3 of ")
    assert "'text' hold tabs and line breaks" in message
    assert "write the quote twice" in message
    assert ".csv" in message


def test_quotes_in_a_table_with_tabs_may_hold_a_tab_or_a_line_break(tmp_path):
    path = written(tmp_path, "a.tsv", 'text\tlabel\n"a\tb"\tx\n"a\nb"\ty\n"""Hi,"" she said."\tz\n')
    assert [row.values["text"] for row in read_rows(path)] == ["a\tb", "a\nb", '"Hi," she said.']


def test_quotes_may_hold_both_where_the_header_has_quotes_too(tmp_path):
    path = written(tmp_path, "a.tsv", '"text"\t"label"\n"a\tb\nc"\t"x"\n')
    assert [row.values for row in read_rows(path)] == [{"text": "a\tb\nc", "label": "x"}]


# Separators of csv files


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_header_of_a_csv_file_shows_its_separator(tmp_path, separator):
    content = separator.join(["text", '"a ""label"", quoted;"', "n"]) + "\n" + separator.join(['"x, y; z"', "b", "1"])
    (row,) = read_rows(written(tmp_path, "a.csv", b"\xef\xbb\xbf" + content.encode()))
    assert row.values == {"text": "x, y; z", 'a "label", quoted;': "b", "n": "1"}


def test_commas_in_texts_part_nothing_where_the_header_has_semicolons(tmp_path):
    rows = read_rows(written(tmp_path, "a.csv", "text;label\nfirst, second;x\nthird;y\n"))
    assert [row.values["text"] for row in rows] == ["first, second", "third"]


@pytest.mark.parametrize(
    ("header", "names"),
    [("text", ["text"]), ('"a;b"', ["a;b"]), ("text;", ["text;"]), ("a;b|c", ["a;b|c"]), ("a|b,c", ["a|b", "c"])],
)
def test_a_header_that_shows_no_other_separator_is_parted_by_commas(tmp_path, header, names):
    (row,) = read_rows(written(tmp_path, "a.csv", header + "\n" + ",".join("x" for _ in names) + "\n"))
    assert list(row.values) == names
