"""Files cut into blocks: wherever the cuts are, the rows are those of the whole file, with its lines."""

import csv
import gzip
import io
import json

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from job_cases import blocks_in, jsonl, read_in_blocks, read_whole, texts, written

from bothways.errors import InvalidInput
from bothways.jobs import cutting, reading

SIZES = st.integers(1, 90)
ENDS = st.sampled_from(["\n", "\r\n"])
WORDS = st.text(st.sampled_from("abäß€😀 '|;"), max_size=12)
FIELDS = st.text(st.sampled_from('ab,;\t"ä€ \n'), max_size=9)
MARK = b"\xef\xbb\xbf"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("blocks")


def same(path, size, **how):
    """Whether blocks give the rows of the file, and nothing else."""
    assert read_in_blocks(path, size=size, **how) == (read_whole(path, **how), [])


@given(st.lists(st.none() | WORDS, min_size=1), ENDS, st.booleans(), st.booleans(), SIZES)
@example(["a" * 500, "b"], "\n", False, True, 7)
def test_blocks_of_json_lines_have_the_rows_of_the_file(folder, values, end, marked, ended, size):
    lines = ["" if value is None else json.dumps({"text": value}, ensure_ascii=False) for value in [*values, "x"]]
    content = end.join(lines) + (end if ended else "")
    same(written(folder / "a.jsonl", MARK * marked + content.encode()), size)


@given(
    st.lists(WORDS, min_size=1), st.sampled_from(["\n", "\r\n", "\r", "\r\r\n"]), st.booleans(), st.booleans(), SIZES
)
def test_blocks_of_texts_have_the_lines_of_the_file(folder, values, end, marked, ended, size):
    content = end.join([*values, "x"]) + (end if ended else "")
    same(written(folder / "a.txt", MARK * marked + content.encode()), size, format="txt")


def table(rows, separator, end, named, ended):
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=separator, lineterminator=end).writerows(rows)
    content = (f"sep={separator}{end}" if named else "") + stream.getvalue()
    return content if ended else content.removesuffix(end)


@given(
    st.lists(st.tuples(FIELDS, FIELDS), min_size=1),
    st.sampled_from(["text", "two\nlines", 'quoted "', "a,b"]),
    st.sampled_from(",;\t|"),
    ENDS,
    st.booleans(),
    st.booleans(),
    SIZES,
)
def test_blocks_of_tables_have_the_records_of_the_file(folder, rows, name, separator, end, marked, ended, size):
    made = table([("id", name), *rows], separator, end, True, ended)
    same(written(folder / "a.csv", MARK * marked + made.encode()), size)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1), st.sampled_from(",;"), ENDS, st.integers(0, 3), SIZES)
def test_the_separator_is_that_of_the_whole_file(folder, rows, separator, end, blank, size):
    made = end * blank + table([("id", "text"), *rows], separator if not blank else ",", end, False, True)
    same(written(folder / "a.csv", made), size)
    same(written(folder / "cp.csv", made.replace("😀", "").encode("cp1252")), size, encoding="cp1252")


@given(st.lists(st.tuples(FIELDS, FIELDS), min_size=1), ENDS, st.booleans(), st.booleans(), SIZES)
def test_blocks_of_tables_with_tabs_have_the_records_of_the_file(folder, rows, end, named, ended, size):
    path = written(folder / "a.tsv", table([('"id"', "text"), *rows], "\t", end, named, ended))
    same(path, size)


@given(st.lists(st.sampled_from(["good", "[]", "{", "\xff", "", '{"a": 1, "a": 2}'])), ENDS, SIZES)
def test_lines_that_cannot_be_read_are_named_as_in_the_file(folder, kinds, end, size):
    lines = ['{"text": "w"}' if kind == "good" else kind for kind in kinds]
    path = written(folder / "bad.jsonl", end.join(lines).encode("latin-1"))
    rows, rejected = read_in_blocks(path, size=size)
    assert [line for line, _ in rows] == [n for n, kind in enumerate(kinds, 1) if kind == "good"]
    assert [line for line, _ in rejected] == [n for n, kind in enumerate(kinds, 1) if kind not in ("good", "")]
    for _, reason in rejected:
        assert str(path) not in reason
        assert "offset" not in reason
        assert any(said in reason for said in ("not valid JSON", "not a JSON object", "not UTF-8", "appears twice"))


@given(st.lists(st.sampled_from(['a,"b\nc"', "a,b", "only", "", 'x,"y"z'])), st.integers(1, 40))
def test_records_that_cannot_be_read_are_named_and_the_others_go_on(folder, kinds, size):
    path = written(folder / "bad.csv", "\n".join(["id,text", *kinds, "last,one"]))
    good, bad, line = [], [], 2
    for kind in [*kinds, "last,one"]:
        if kind:
            (bad if kind in ("only", 'x,"y"z') else good).append(line)
        line += 1 + kind.count("\n")
    rows, rejected = read_in_blocks(path, size=size)
    assert ([line for line, _ in rows], [line for line, _ in rejected]) == (good, bad)
    packed = written(folder / "bad.csv.gz", gzip.compress(path.read_bytes()))
    assert read_in_blocks(packed) == (rows, rejected)


@pytest.mark.parametrize("end", ["\r", "\r\n", "\r\r\n"])
def test_lines_with_carriage_returns_are_counted(tmp_path, end):
    path = written(tmp_path / "a.jsonl", end.join(['{"text": "a"}', "{", '{"text": "b"}', "", "["]))
    for size in range(1, 60):
        rows, rejected = read_in_blocks(path, size=size)
        assert ([line for line, _ in rows], [line for line, _ in rejected]) == ([1, 3], [2, 5])


def test_mixed_line_ends_are_counted(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"text": "a"}\r{\n{"text": "b"}\r\n\r["\n{"text": "c"}\n]')
    for size in range(1, 60):
        rows, rejected = read_in_blocks(path, size=size)
        assert ([line for line, _ in rows], [line for line, _ in rejected]) == ([1, 3, 6], [2, 5, 7])


def test_first_lines_of_blocks_are_no_first_lines_of_files(tmp_path):
    lines = ["w", "%PDF- is a beginning", "PK\x03\x04", "\ufeffmarked", "\0\0\0", "w"]
    for size in (1, 5, 9, 30):
        same(written(tmp_path / "a.txt", "\n".join(lines)), size, format="txt")
    path = written(tmp_path / "joined.jsonl", b"\n".join([b'{"text": "a"}', MARK + b'{"text": "b"}', b'{"text": "c"}']))
    for size in (1, 15, 100):
        rows, rejected = read_in_blocks(path, size=size)
        assert ([line for line, _ in rows], [line for line, _ in rejected]) == ([1, 3], [2])


@pytest.mark.parametrize("blank", [" ", "\xa0", "\u2003", "\t\t"])
def test_blank_lines_are_rows_where_the_format_says_so(tmp_path, blank):
    for size in (1, 4, 100):
        same(written(tmp_path / "a.jsonl", f'{{"text": "a"}}\n{blank}\n{{"text": "b"}}\n'), size)
        same(written(tmp_path / "a.csv", f"text\na\n{blank}\nb\n"), size)
        same(written(tmp_path / "a.txt", f"a\n{blank}\nb\n"), size)


@pytest.mark.filterwarnings("ignore::bothways.errors.EncodingDoubtful")
@pytest.mark.parametrize("size", [1, 20, 100, 10**6])
def test_an_encoding_with_shifts_is_not_cut(tmp_path, size):
    text = 'id,text\n1,"日本\nあいう"\n2,「」ｱ\n'
    for encoding in ("utf-16", "utf-32", "shift_jis", "gb18030", "utf-8-sig", "iso2022_jp", "hz", "utf-7"):
        made = text.replace("ｱ", "") if encoding in ("hz", "iso2022_jp") else text
        path = written(tmp_path / f"{encoding}.csv", made.encode(encoding))
        same(path, size, encoding=encoding)
    assert len(blocks_in(tmp_path / "utf-16.csv", size=4, encoding="utf-16")) == 1
    assert len(blocks_in(tmp_path / "hz.csv", size=4, encoding="hz")) == 1
    lines = "".join(f'{{"text": "ਊ{n}"}}\n' for n in range(50))  # its second byte is that of a line feed
    for encoding in ("utf-16", "utf-16-be"):
        same(written(tmp_path / "a.jsonl", lines.encode(encoding)), size, encoding=encoding)


def test_an_unknown_encoding_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="unknown encoding 'utf9'"):
        blocks_in(jsonl(tmp_path / "a.jsonl", texts(1)), encoding="utf9")


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(1, 40))
@settings(max_examples=30)
def test_blocks_of_parquet_are_rows_of_any_groups(folder, groups, most):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, number = folder / "a.parquet", 0
    with pq.ParquetWriter(path, pa.schema([("id", pa.int64()), ("text", pa.string())])) as writer:
        for count in groups:
            ids = list(range(number, number := number + count))
            writer.write_table(pa.table({"id": ids, "text": [f"w{n}" for n in ids]}, writer.schema))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bothways.jobs.blocks.BLOCK_ROWS", most)
        blocks = blocks_in(path)
        rows, rejected = read_in_blocks(path, columns=("text",))
    assert rejected == []
    assert rows == [(n + 1, {"id": n, "text": f"w{n}"}) for n in range(number)]
    assert len(blocks) == max(1, -(-number // most))


@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.txt.gz", "a.csv.gz", "a.tsv.gz", "a.json", "a.json.gz", "a.conll", "a.xlsx"]
)
def test_what_cannot_be_cut_is_one_block(tmp_path, name, monkeypatch):
    monkeypatch.setattr(reading, "ROWS_AT_ONCE", 3)
    rows, path = texts(8), tmp_path / name
    lines = {
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "txt": "".join(f"{row['text']}\n" for row in rows),
        "csv": table([("id", "two\nlines"), *((row["id"], row["text"]) for row in rows)], ";", "\r\n", False, True),
        "tsv": table([("id", "text"), *((row["id"], row["text"]) for row in rows)], "\t", "\n", False, True),
        "json": json.dumps(rows),
        "conll": "".join("".join(f"{word}\tO\n" for word in row["text"].split()) + "\n" for row in rows),
    }
    if name == "a.xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for row in [("id", "text"), *((row["id"], row["text"]) for row in rows)]:
            book.active.append(row)
        book.save(path)
    else:
        content = lines[name.removesuffix(".gz").partition(".")[2]].encode()
        written(path, gzip.compress(content) if name.endswith(".gz") else content)
    assert len(blocks_in(path, size=5)) == 1
    same(path, 5)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz", "a.txt.gz"])
def test_a_truncated_file_of_gzip_gives_the_rows_before(tmp_path, name):
    content = "text\n" * name.startswith("a.csv") + "".join(f'{{"text": "{n * 7919 % 10007}"}}\n' for n in range(9000))
    if "csv" in name:
        content = content.replace('{"', "").replace('": "', "").replace('"}', "")
    packed = gzip.compress(content.encode())
    half = len(packed) // 2
    rows, rejected = read_in_blocks(written(tmp_path / name, packed[:half]))
    assert "Fetch the file again" in rejected[-1][1]
    assert 1000 < len(rows) < 9000
    rows, rejected = read_in_blocks(written(tmp_path / name, packed[:half] + b"????" + packed[half + 4 :]))
    assert "Fetch the file again" in rejected[-1][1]
    assert len(rows) > 1000
    rows, rejected = read_in_blocks(written(tmp_path / name, packed[:9]))
    assert (rows, len(rejected)) == ([], 1)


def test_rows_before_the_damage_of_a_parquet_file_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("bothways.jobs.blocks.LEAST_ROWS", 10_000)
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table_ = pa.table({"text": [f"w{n}" for n in range(3000)]})
    pq.write_table(table_, path, row_group_size=1500, compression="gzip", use_dictionary=False)
    content = bytearray(path.read_bytes())
    place = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[place : place + 60] = b"?" * 60
    path.write_bytes(content)
    rows, [(line, reason)] = read_in_blocks(path)
    assert 1000 < len(rows) == line - 1 <= 1500
    assert "damaged" in reason
    path.write_bytes(content[:2000])  # half-written
    rows, [(line, reason)] = read_in_blocks(path)
    assert (rows, line) == ([], None)
    assert "is not a Parquet file, or is damaged" in reason


def test_damaged_documents_are_rejected_whole(tmp_path):
    rows, [(line, reason)] = read_in_blocks(written(tmp_path / "a.json", '[{"text": "a"}, {'))
    assert rows == []
    assert "JSON" in reason
    rows, [(line, _)] = read_in_blocks(written(tmp_path / "a.conll", "w5\tO\n\nw6\n\nw7\tO\n"))
    assert line is not None


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.csv", "a.tsv", "a.jsonl.gz", "a.csv.gz"])
def test_an_empty_file_has_no_rows(tmp_path, name):
    content = b"" if not name.endswith(".gz") else gzip.compress(b"")
    assert read_in_blocks(written(tmp_path / name, content)) == ([], [])
    if "csv" in name or "tsv" in name:
        header = b"id\ttext\n" if "tsv" in name else b"id,text\n"
        written(tmp_path / name, header if not name.endswith(".gz") else gzip.compress(header))
        assert read_in_blocks(tmp_path / name) == ([], [])


def test_a_table_with_carriage_returns_is_one_block(tmp_path):
    same(written(tmp_path / "a.csv", "id,text\r1,a\r2,b\r"), 4)
    same(written(tmp_path / "a.csv.gz", gzip.compress(b"id,text\r1,a\r2,b\r")), 4)


def test_a_line_that_is_too_long_is_rejected_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "LONGEST_LINE", cutting.LONGEST_LINE.__class__(100, "Check."))
    monkeypatch.setattr("bothways.data.lines.LONGEST_LINE", cutting.LONGEST_LINE)
    monkeypatch.setattr("bothways.data.sources.LONGEST_LINE", cutting.LONGEST_LINE)
    long = json.dumps({"text": "w" * 300})
    path = written(tmp_path / "a.jsonl", "\n".join(['{"text": "a"}', long, '{"text": "b"}', "{", long]))
    for size in (10, 50, 1000):
        rows, rejected = read_in_blocks(path, size=size)
        assert ([line for line, _ in rows], [line for line, _ in rejected]) == ([1, 3], [2, 4, 5])
    packed = written(tmp_path / "a.jsonl.gz", gzip.compress(path.read_bytes()))
    assert read_in_blocks(packed) == (rows, rejected)


def test_a_quote_that_is_not_closed_takes_what_follows(tmp_path):
    path = written(tmp_path / "a.csv", 'id,text\n1,a\n2,"b\n3,c\n4,"d"\n5,e\n')
    rows, rejected = read_in_blocks(path, size=1)
    assert rows[0] == (2, {"id": "1", "text": "a"})
    assert rows[-1] == (6, {"id": "5", "text": "e"})
    assert [line for line, _ in rejected] == [3]


def test_texts_that_are_words_with_tags_are_refused(tmp_path):
    path = written(tmp_path / "a.txt", "w5\tO\nw6\tB-PER\n\nw7\tO\n")
    with pytest.raises(InvalidInput, match="--format conll"):
        blocks_in(path)
    assert len(read_in_blocks(path, format="txt")[0]) == 4


def test_folders_patterns_and_files_are_read_in_order(tmp_path):
    for name in ("b/two.jsonl", "b/one.jsonl", "a.jsonl", "b/.hidden.jsonl", "b/notes.md", "b/deep/three.jsonl"):
        jsonl(tmp_path / name, [{"text": name}])
    empty = written(tmp_path / "b" / "empty.jsonl", "")

    def found(*paths):
        return [values["text"] for _, values in read_in_blocks(*paths)[0]]

    assert found(tmp_path / "b", tmp_path / "a.jsonl") == [
        "b/one.jsonl",
        "b/two.jsonl",
        "b/deep/three.jsonl",
        "a.jsonl",
    ]
    assert found(tmp_path / "b" / "*.jsonl") == ["b/one.jsonl", "b/two.jsonl"]
    assert found(tmp_path / "**" / "*.jsonl") == ["a.jsonl", "b/deep/three.jsonl", "b/one.jsonl", "b/two.jsonl"]
    assert found(empty, tmp_path / "a.jsonl") == ["a.jsonl"]
    written(tmp_path / "odd[1].jsonl", '{"text": "brackets"}')
    assert found(tmp_path / "odd[1].jsonl") == ["brackets"]
    assert found(f"file://{tmp_path}/a.jsonl") == ["a.jsonl"]
    for absent in (tmp_path / "*.csv", tmp_path / "absent.jsonl", tmp_path / "absent"):
        with pytest.raises(InvalidInput, match="there is n"):
            found(absent)


def test_blocks_have_numbers_over_all_files(tmp_path):
    for name in "ab":
        jsonl(tmp_path / f"{name}.jsonl", texts(9))
    blocks = blocks_in(tmp_path, size=50)
    assert [block.number for block in blocks] == list(range(len(blocks)))
    assert len(blocks) > 8
