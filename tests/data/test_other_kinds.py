"""Files of another encoding, separator or format than their names say: the advice of each message works."""

import datetime
import io
import re
import sys
import warnings
import zipfile
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.data import read_documents, read_examples, read_judgments, read_rows
from bothways.data.lines import LineLimit
from bothways.errors import EncodingDoubtful, InvalidInput, MissingDependency, SheetsLeftOut

TABLE = "text,label\ncafé crème,a\nnaïf,b\n"
CONLL = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n"
CONLLU = "# text = The dog\n1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n2\tdog\tdog\tNOUN\tNN\t_\t0\troot\t_\t_\n"
OBJECTS = '{"text": "a", "label": "b"}\n{"text": "c", "label": "b"}\n'
READ = [{"text": "a", "label": "b"}, {"text": "c", "label": "b"}]


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def values(path, **options):
    return [row.values for row in read_rows(path, **options)]


def labelled(path, **options):
    return [{"text": each.text, "label": each.label} for each in read_examples(path, **options)]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", TABLE.encode("cp1252"), values(io.StringIO(TABLE), format="csv")),
        ("a.csv", TABLE.encode("utf-16"), values(io.StringIO(TABLE), format="csv")),
        ("a.csv", TABLE.encode("utf-16-le"), values(io.StringIO(TABLE), format="csv")),
        ("a.csv", TABLE.encode("utf-16-be"), values(io.StringIO(TABLE), format="csv")),
        ("a.csv", TABLE.encode("utf-32"), values(io.StringIO(TABLE), format="csv")),
        ("a.txt", "こんにちは世界\n".encode("shift_jis"), [{"text": "こんにちは世界"}]),
        ("a.txt", "你好世界今天天气很好\n".encode("gb18030"), [{"text": "你好世界今天天气很好"}]),
        ("a.txt", CONLL, values(io.StringIO(CONLL), format="conll")),
        ("a.txt", CONLLU, values(io.StringIO(CONLLU), format="conllu")),
        ("a.conll", CONLLU, values(io.StringIO(CONLLU), format="conllu")),
        ("a.conllu", CONLL, values(io.StringIO(CONLL), format="conll")),
        ("a.csv", OBJECTS, READ),
        ("a.tsv", OBJECTS, READ),
        ("a.conll", OBJECTS, READ),
        ("a.json", OBJECTS, READ),
        ("a.jsonl", f"[{OBJECTS.replace(chr(10), ',', 1)}]", READ),
        ("a.jsonl", "text,label\na,b\nc,b\n", READ),
        ("a.jsonl", "text\tlabel\na\tb\nc\tb\n", READ),
        ("a.txt", "text,label\na,b\nc,b\n", READ),
        ("a.txt", "text\tlabel\na b\tb\nc\tb\n", [{"text": "a b", "label": "b"}, READ[1]]),
        ("a.tsv", "text,label\na,b\nc,b\n", READ),
        ("a.tsv", "text;label\na;b\nc;b\n", READ),
    ],
)
def test_the_advice_for_a_file_of_another_kind_reads_it(tmp_path, name, content, rows):
    path, read = written(tmp_path, name, content), labelled if rows[-1] == READ[1] else values
    with pytest.raises(InvalidInput, match=r"--(format|encoding) ") as caught:
        read(path)
    option, value = re.search(r"read_rows\(path, (\w+)='([^']+)'\)", str(caught.value)).groups()
    assert f"--{option} {value} " in str(caught.value)
    assert read(path, **{option: value}) == rows


def test_lines_that_end_in_a_tag_by_chance_are_texts_if_told(tmp_path):
    assert values(written(tmp_path, "a.txt", "I take vitamin B-12\n")) == [{"text": "I take vitamin B-12"}]
    assert len(values(written(tmp_path, "a.txt", "I take vitamin B-12\nNothing else\n"))) == 2
    path = written(tmp_path, "a.txt", "Group O\nGroup O\n")
    with pytest.raises(InvalidInput, match="If its lines are texts, give --format txt"):
        values(path)
    assert len(values(path, format="txt")) == 2


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\n\0\x1a", exclude_categories=["Cs"]), min_size=1), min_size=1
    ),
    st.sampled_from(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "gb18030", "UTF8"]),
)
def test_lines_of_every_encoding_are_those_of_utf_8(lines, encoding):
    lines = [line.removeprefix("\ufeff") or "x" for line in lines]
    content = "\n".join([*lines, "é"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EncodingDoubtful)
        given_lines = values(io.BytesIO(content.encode(encoding)), format="txt", encoding=encoding)
    assert [each["text"] for each in given_lines] == [*lines, "é"]


def test_an_encoding_that_is_not_the_files_is_noted_or_refused(tmp_path):
    path = written(tmp_path, "a.csv", TABLE)
    with pytest.warns(EncodingDoubtful, match="line 2 of .* in UTF-8, where it reads 'café crème,a' and in cp1252"):
        values(path, encoding="cp1252")
    with pytest.raises(InvalidInput, match=r"unknown encoding 'cp125'.* Did you mean 'cp1252'"):
        values(path, encoding="cp125")
    for encoding in ("base64", "a\0b", ""):
        with pytest.raises(InvalidInput, match="unknown encoding"):
            values(path, encoding=encoding)
    with pytest.raises(InvalidInput, match=r"line 1 of .* is not utf-16: UTF-16 stream does not start with BOM"):
        values(path, encoding="utf-16")
    with pytest.raises(InvalidInput, match=r"line 1 of .*, or a line soon after it, is not ascii"):
        values(path, encoding="ascii")
    with pytest.raises(InvalidInput, match="decoded already"):
        values(io.StringIO(TABLE), format="csv", encoding="cp1252")
    with pytest.raises(InvalidInput, match="encoding: expected None for the given list"):
        values([{"text": "a"}], encoding="cp1252")
    damaged = written(tmp_path, "b.csv", TABLE.encode() + b"\xe9,c\n")
    with pytest.raises(InvalidInput, match=r"line 4 .* The text before it is UTF-8, so this byte is damaged"):
        values(damaged)


def test_a_stream_stays_open_after_its_text_was_decoded(tmp_path):
    with written(tmp_path, "a.txt", "é\nb\n".encode("cp1252")).open("rb") as stream:
        assert len(values(stream, encoding="cp1252")) == 2
        assert not stream.closed


def test_documents_and_judgments_are_read_in_an_encoding(tmp_path):
    (document,) = read_documents(written(tmp_path, "a.txt", "café\n".encode("cp1252")), encoding="cp1252")
    assert document.text == "café"
    judgments = written(tmp_path, "a.qrels", "é 0 d1 1\n".encode("cp1252"))
    assert read_judgments(judgments, encoding="cp1252") == {"é": {"d1": 1}}


# --- separators ---


@pytest.mark.parametrize(
    ("content", "header", "first", "line"),
    [
        ("sep=;\ntext;label\na,b;1\n", ["text", "label"], "a,b", 3),
        ("\ufeffsep=\t\r\ntext\tlabel\r\na,b\t1\r\n", ["text", "label"], "a,b", 3),
        ('"sep=:"\ntext:label\na,b:1\n', ["text", "label"], "a,b", 3),
        ("text, in full;label\na;1\nb;2\n", ["text, in full", "label"], "a", 2),
        ("text, in full\tlabel\na, b\t1\nb\t2\n", ["text, in full", "label"], "a, b", 2),
        ("text|x,label\na,1\nb,2\n", ["text|x", "label"], "a", 2),
        ("text;note,label\na;b,1\nd;c,2\n", ["text;note", "label"], "a;b", 2),
        ('text, in full;label\n"a\nb";1\nb;2\n', ["text, in full", "label"], "a\nb", 2),
        ("text, in full;label\n" + "a;1\n" * 18 + '"a\n\n\nb";1\n', ["text, in full", "label"], "a", 2),
    ],
)
def test_the_separator_is_named_or_found(tmp_path, content, header, first, line):
    row = next(read_rows(written(tmp_path, "a.csv", content)))
    assert (list(row.values), row.values[header[0]], row.number) == (header, first, line)


def test_a_separator_that_was_not_found_can_be_named_as_the_message_says(tmp_path):
    for content, mark in (("text:label\na:b\nc:b\n", ":"), ("text, x;label\na;b;\nc;b\n", ";")):
        with pytest.raises(InvalidInput, match=f"put the line sep={mark} ") as caught:
            labelled(written(tmp_path, "a.csv", content), text="text" if mark == ":" else "text, x")
        assert str(caught.value)
    assert labelled(written(tmp_path, "a.csv", "sep=:\ntext:label\na:b\nc:b\n")) == READ
    with pytest.raises(InvalidInput, match=r"line 3 of .* has 3 fields"):
        values(written(tmp_path, "a.csv", "sep=;\ntext;label\na;b;c\n"))


# --- workbooks ---


def zipped(path, size=1):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", b"0" * size)
    return path


def with_sheet(monkeypatch, rows, names=("Rows",)):
    """Install a module in place of openpyxl that reads these rows from every workbook."""
    sheet = Mock(title=names[0], iter_rows=Mock(return_value=iter(rows)))
    book = Mock(worksheets=[sheet], sheetnames=list(names))
    monkeypatch.setitem(sys.modules, "openpyxl", Mock(load_workbook=Mock(return_value=book)))


def test_cells_of_a_workbook_are_values(monkeypatch, tmp_path):
    moment = datetime.datetime(2026, 11, 27, 10, 30)
    rows = [
        ("text", "label", 2026, None),
        ("a", 1, 1.5),
        (None, None, None),
        ("b", moment, moment.combine(moment, datetime.time())),
    ]
    with_sheet(monkeypatch, rows, ("Rows", "Other"))
    with pytest.warns(SheetsLeftOut, match="the sheets 'Rows', 'Other': only 'Rows' is read"):
        read = list(read_rows(zipped(tmp_path / "a.xlsx")))
    assert [(row.number, row.values) for row in read] == [
        (2, {"text": "a", "label": 1, "2026": 1.5}),
        (4, {"text": "b", "label": "2026-11-27T10:30:00", "2026": "2026-11-27"}),
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "is empty"),
        ([("text", "label")], "a header but no rows"),
        ([("text", "text")], "column 'text' twice"),
        ([("text", None, "label"), ("a", "b", "c")], "row 2 of .* has a value in column 2, but the header"),
        ([("text",), ("a", "b")], "row 2 of .* has a value in column 2, but the header"),
    ],
)
def test_a_workbook_without_a_table_is_refused(monkeypatch, tmp_path, rows, said):
    with_sheet(monkeypatch, rows)
    with pytest.raises(InvalidInput, match=said):
        values(zipped(tmp_path / "a.xlsx"))


def test_what_is_no_workbook_is_refused_and_one_without_openpyxl_can_be_exported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingDependency, match=r"bothways\[excel\]'. Or save the sheet as CSV UTF-8"):
        values(zipped(tmp_path / "a.xlsx"))
    with pytest.raises(InvalidInput, match=r"is a zip archive, as Excel workbooks are: expected text.*--format xlsx"):
        values(zipped(tmp_path / "a.csv"))
    monkeypatch.setattr("bothways.data.documents.LONGEST_IN_DOCUMENT", LineLimit(10, ""))
    with pytest.raises(InvalidInput, match="more than 0 MiB unpacked"):
        values(zipped(tmp_path / "a.xlsx", 11))
    with pytest.raises(InvalidInput, match="not an Excel workbook"):
        values(written(tmp_path, "a.xlsx", "text\na\n"))
    with pytest.raises(InvalidInput, match="not text, gzip or a pipe"):
        values(io.StringIO("a"), format="xlsx")
    for name, said in (("a.xls", "as .xlsx or CSV"), ("a.zip", "Unpack it"), ("a.ods", "as .xlsx or CSV")):
        with pytest.raises(InvalidInput, match=said):
            values(written(tmp_path, name, "x"))


def test_a_workbook_of_openpyxl_is_read(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["text", "label", "day"], ["a", 1, datetime.date(2026, 11, 27)], ["b", 2.5, None]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    expected = [{"text": "a", "label": 1, "day": "2026-11-27"}, {"text": "b", "label": 2.5, "day": None}]
    assert values(tmp_path / "a.xlsx") == expected


@pytest.mark.parametrize("begin", [b"PAR1", b"%PDF-1.7", b"\xd0\xcf\x11\xe0", b"{\\rtf", b"BZh91AY&SY", b"\xfd7zXZ"])
def test_the_kind_of_a_file_that_is_no_text_is_said(tmp_path, begin):
    with pytest.raises(InvalidInput, match=r" is (a|an|compressed) .*: expected text\. [A-Z]"):
        values(written(tmp_path, "a.csv", begin + b"\x00\n"))
