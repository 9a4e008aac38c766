"""Line ends: CR, LF, CRLF and mixtures give the same rows in every format, and other separators stay in texts."""

import codecs
import gzip
import io
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_samples import refusal

from bothways.data import read_judgments, read_rows, sources
from bothways.data.corpus import read_documents
from bothways.data.lines import LineLimit, decoded_lines, text_lines

ODD = "a\x0bb\x0cc\x85d\u2028e\u2029f\x1cg"
CONTENT = {
    "txt": f"Rates rose.\n\n{ODD}\nLakers won.\n",
    "jsonl": f'{{"text": "Rates rose."}}\n\n{{"text": "{ODD}"}}\n'.replace("\x0b", "")
    .replace("\x0c", "")
    .replace("\x1c", ""),
    "json": '[{"text": "Rates rose."},\n{"text": "Lakers won."}]\n',
    "csv": f'text,label\nRates rose.,x\n\n{ODD},y\n"a, b",z\n',
    "tsv": f"text\tlabel\nRates rose.\tx\n{ODD}\ty\n",
    "conll": f"-DOCSTART- O\n\nPeter B-PER\nlikes O\n\n{ODD} O\nParis B-LOC\n",
    "conllu": "# text = Go on\n1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_\n2\ton\ton\tADV\t_\t_\t1\tadvmod\t_\t_\n\n"
    f"1\t{ODD}\tx\tX\t_\t_\t0\troot\t_\t_\n",
}
ENDS = {"cr": itertools.repeat("\r"), "crlf": itertools.repeat("\r\n"), "doubled": itertools.repeat("\r\r\n")}
ENDS["mixed"] = itertools.cycle(["\r\n", "\n", "\r", "\r"])


def ended(content, ends):
    return "".join(f"{line}{next(ends)}" for line in content.split("\n")[:-1]).encode()


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("kind", CONTENT)
def test_all_line_ends_give_the_same_rows_from_files_and_streams(tmp_path, monkeypatch, kind, ends):
    expected = list(read_rows(io.BytesIO(CONTENT[kind].encode()), format=kind))
    content = ended(CONTENT[kind], ENDS[ends])
    assert b"\r" in content
    (tmp_path / f"a.{kind}").write_bytes(b"\xef\xbb\xbf" + content)
    (tmp_path / f"a.{kind}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    sources = [tmp_path / f"a.{kind}", tmp_path / f"a.{kind}.gz", "-", io.BytesIO(content)]
    texts = [io.StringIO(content.decode(), newline=end) for end in ("", "\n") if (ends, end) != ("doubled", "")]
    for source in (*sources, *texts):
        assert list(read_rows(source, format=kind)) == expected


@pytest.mark.parametrize("ends", ["cr", "mixed"])
def test_documents_and_judgments_have_the_same_line_ends(tmp_path, ends):
    (tmp_path / "a.txt").write_bytes(ended("one\ntwo\n\nthree\n", ENDS[ends]))
    assert [each.text for each in read_documents(tmp_path / "a.txt")] == ["one\ntwo", "three"]
    (tmp_path / "qrels").write_bytes(ended("q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 2\n", ENDS[ends]))
    assert read_judgments(tmp_path / "qrels") == {"q1": {"d1": 1, "d2": 0}, "q2": {"d1": 2}}


@pytest.mark.parametrize("kind", ["csv", "tsv"])
@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_line_ends_in_quoted_cells_are_kept_as_they_are(end, kind):
    cells = ["a\rb", "c\nd", "e\r\nf", "g\r\r\nh", "\r", ODD]
    mark = {"csv": ",", "tsv": "\t"}[kind]
    content = f"text{mark}label{end}" + "".join(f'"{cell}"{mark}x{end}' for cell in cells)
    rows = list(read_rows(io.BytesIO(content.encode()), format=kind))
    assert [row.values for row in rows] == [{"text": cell, "label": "x"} for cell in cells]


def test_quotes_that_would_join_rows_are_refused_with_carriage_returns_too():
    content = b'text\tlabel\r"He said hi.\tpos\rThey left."\tneg\r'
    assert "hold tabs and line breaks" in refusal(io.BytesIO(content), format="tsv")


PIECES = ["", "a", "é", "\u2028", "\x85", "\x0b", "\r", "\n", "\r\n", "\r\r"]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
@settings(max_examples=300, deadline=None)
def test_lines_are_those_of_universal_newlines(text):
    text = re.sub("\r+\n", "\r\n", text)
    expected = list(io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", newline=""))
    for limit in (LineLimit(2**20, ""), LineLimit(max(map(len, text.encode().splitlines(True)), default=1) + 9, "")):
        assert list(decoded_lines(io.BytesIO(text.encode()), "x", limit)) == expected
        for newline in ("", "\n"):
            assert list(text_lines(io.StringIO(text, newline=newline), "x", limit)) == expected


@pytest.mark.parametrize("size", range(3, 12))
@pytest.mark.parametrize("end", ["\r", "\r\n", "\r\r\n", "\n"])
def test_a_line_end_is_one_wherever_the_data_are_cut(end, size):
    """Files without line feeds are read in pieces of at most the longest line."""
    lines = [f"{'a' * length}{end}" for length in [0, 1, 2, 3, 0, 0, 2, 1] if length + len(end) <= size] * 3
    content = "".join(lines)
    assert list(decoded_lines(io.BytesIO(content.encode()), "x", LineLimit(size, ""))) == lines
    assert list(text_lines(io.StringIO(content, newline="\n"), "x", LineLimit(size, ""))) == lines


def test_a_long_line_that_ends_with_a_carriage_return_is_refused(monkeypatch):
    monkeypatch.setattr(sources, "LONGEST_LINE", LineLimit(2**20, ""))
    content = b"a\rb\r" + b"c" * 20 + b"\rd\r"
    assert list(decoded_lines(io.BytesIO(content), "x", LineLimit(21, ""))) == ["a\r", "b\r", "c" * 20 + "\r", "d\r"]
    assert refusal(io.BytesIO(b"a\r" + bytes(2**20) + b"\r"), format="txt").startswith("line 2 of the given stream is")


@pytest.mark.parametrize("kind", ["txt", "conll", "conllu"])
@pytest.mark.parametrize(
    ("content", "ending"),
    [
        ("{0}\r\r\n{0}\n", "ends with 0x0a after"),
        ("{0}\r\n{0}\r\r\n", "ends with 0x0d 0x0d 0x0a after"),
        ("{0}\r\r\n{0}\r", "ends with 0x0d after"),
        ("{0}\r\r\n{0}\r\r\r\n", "ends with 0x0d after"),
    ],
)
def test_a_line_end_that_may_be_two_is_refused_with_its_bytes(kind, content, ending):
    line = {"txt": "é", "conll": "é O", "conllu": "# é"}[kind]
    message = refusal(io.BytesIO(content.format(line).encode()), format=kind)
    assert message.startswith(f"line 2 of the given stream {ending} {len(line.encode())} bytes, ")


def test_the_line_of_an_error_counts_every_line_end():
    assert "line 3 of the given stream is not UTF-8: byte 0xff at byte offset 5" in refusal(
        io.BytesIO(b"a\rb\r\n\xff\n"), format="txt"
    )
    assert "line 3 of" in refusal(io.BytesIO(b'{"a": 1}\r\r\r\n{\r'), format="jsonl")


def test_a_reader_that_splits_lines_elsewhere_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a\u2028b\n", encoding="utf-8")
    with codecs.open(str(tmp_path / "a.txt"), encoding="utf-8") as stream:
        assert "is a codecs.StreamReaderWriter: expected a file opened with open(path, 'rb')" in refusal(stream)
