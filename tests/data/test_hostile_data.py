"""Data that are made to cost much or to break: an error that names the place, in bounded time and memory."""

import gzip
import io
import itertools
import tracemalloc

import pytest
from table_samples import read_texts, refusal

from bothways.data import (
    as_batch,
    class_label,
    documents,
    labelled_rows,
    lines,
    number,
    read_examples,
    read_rows,
)
from bothways.data.columns import check_columns
from bothways.errors import InvalidInput
from bothways.tasks.columns import PairColumns, TextColumns, batch_of, input_of
from bothways.tasks.multiple_choice.spec import MULTIPLE_CHOICE
from bothways.tasks.question_answering.spec import QUESTION_ANSWERING
from bothways.tasks.tagging.spec import TAGGING
from bothways.text.windows import check_text


def nested(depth):
    value = "a"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "txt", "conll"])
def test_blank_lines_without_end_are_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(lines, "MAX_BLANK_LINES", 1_000)
    path = tmp_path / f"a.{kind}.gz"
    path.write_bytes(gzip.compress(b"\n" * 1_001))
    assert "1,000 lines" in refusal(path)
    # As many that do not follow one another are no reason.
    path.write_bytes(gzip.compress(b'{"text": "a"}\n\n' * 1_001))
    if kind == "jsonl":
        assert len(list(read_rows(path))) == 1_001
    text = io.StringIO("\n" * 1_001)
    assert "1,000 lines" in refusal(text, format=kind)


def test_a_document_has_a_most_however_many_lines_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST_IN_DOCUMENT", lines.LineLimit(2**20, "Save it otherwise."))
    (tmp_path / "a.json").write_text("[\n" + '{"text": "a"},\n' * 100_000 + "]")
    assert refusal(tmp_path / "a.json").endswith("is longer than 1 MiB. Save it otherwise.")


# Quadratic, each of these took minutes; the everyday time limit of a test ends them.
def test_a_name_that_comes_twice_among_many_is_found_at_once(tmp_path):
    names = [f"k{number}" for number in range(60_000)] + ["k59999"]
    (tmp_path / "a.jsonl").write_text("{" + ",".join(f'"{name}":1' for name in names) + "}")
    assert "the key 'k59999' appears twice" in refusal(tmp_path / "a.jsonl")
    (tmp_path / "a.csv").write_text(",".join(names) + "\n")
    assert "has the column 'k59999' twice" in refusal(tmp_path / "a.csv")
    with pytest.raises(InvalidInput, match="k59999"):
        check_columns(names, "the frame")


def test_of_a_wide_parquet_file_only_the_columns_that_are_needed_are_read(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {f"c{number}": pa.array([0.5] * 50) for number in range(1_000)}
    table = pa.table({**columns, "text": ["a"] * 50, "id": range(50), "label": ["x"] * 50})
    pq.write_table(table, tmp_path / "a.parquet")
    assert len(read_examples(tmp_path / "a.parquet")) == 50
    rows = list(read_rows(tmp_path / "a.parquet", columns=["text"]))
    assert rows[0].values == {"text": "a", "id": 0}
    # What is not there is asked for in vain, and the message says what there is.
    assert len(next(read_rows(tmp_path / "a.parquet", columns=["title"])).values) == 1_003
    tracemalloc.start()
    assert sum(1 for _ in itertools.islice(read_rows(tmp_path / "a.parquet"), 5)) == 5
    tracemalloc.stop()


@pytest.mark.parametrize("value", [10**5_000, -(10**5_000), 10**100], ids=["long", "negative", "hundred"])
def test_a_number_of_thousands_of_digits_is_no_label(value):
    with pytest.raises(InvalidInput, match="a very long integer"):
        class_label(value)
    with pytest.raises(InvalidInput, match="a very long integer"):
        number(value)
    with pytest.raises(InvalidInput, match="row 1 of the given list"):
        read_examples([{"text": "a", "label": value}])


HOSTILE = {"digits": 10**5_000, "list": [10**5_000], "nest": nested(50_000), "mapping": {"a": nested(50_000)}}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "columns",
    [TextColumns(), PairColumns(), QUESTION_ANSWERING.columns, MULTIPLE_CHOICE.columns, TAGGING.columns],
    ids=lambda each: type(each).__name__,
)
def test_numbers_of_thousands_of_digits_and_deep_nests_are_errors_of_the_tree(value, columns):
    with pytest.raises(InvalidInput):
        for place, each in enumerate(batch_of(columns, value)[0]):
            if isinstance(columns, TextColumns) and not isinstance(each, str):
                raise InvalidInput("texts are checked by the tokenizer")
            input_of(columns, place, each)
    with pytest.raises(InvalidInput):
        list(map(columns.read, read_rows([dict.fromkeys(columns.input_columns, value)])))
    with pytest.raises(InvalidInput):
        list(map(columns.read, labelled_rows(value, value, columns=columns.input_columns)))


@pytest.mark.parametrize("text", ["a" * 1_000_001, "b " + "é" * 1_000_001, "a b " * 5_000_001], ids=len)
def test_a_text_that_would_take_minutes_to_tokenise_is_refused_with_its_row(text):
    with pytest.raises(InvalidInput, match=r"row 2 of the given list: 'text' has .* characters"):
        read_texts([{"text": "b"}, {"text": text}])
    with pytest.raises(InvalidInput, match=r"text 3 has .* characters"):
        check_text(2, text)
    with pytest.raises(InvalidInput, match=r"text 3 has .* characters"):
        check_text(2, ("b", text))


def test_long_texts_of_words_are_no_reason():
    text = "a" * 1_000_000 + " b" * 600_000
    assert read_texts([{"text": text}]) == [text]


def test_a_nest_that_the_json_parser_refuses_names_its_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    assert refusal(tmp_path / "a.jsonl").startswith("line 2 of")
    assert "digits" in refusal(io.StringIO('{"text": ' + "1" * 5_000 + "}"), format="jsonl")
    assert as_batch([[["a"]]])[0] == [[["a"]]]
