"""JSON documents as rows: arrays of objects, and the nested files of SQuAD."""

import gzip
import io
import json
from dataclasses import replace

import pytest

from bothways.data import read_rows, sources
from bothways.data.lines import LONGEST_IN_DOCUMENT, LONGEST_LINE
from bothways.errors import InvalidInput

ANSWER = {"text": "Broncos", "answer_start": 12}
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Bowl",
            "paragraphs": [
                {
                    "context": "In 2016 the Broncos won.",
                    "qas": [
                        {"id": "a", "question": "Who won?", "answers": [ANSWER], "is_impossible": False},
                        {"id": "b", "question": "Who lost?", "answers": [], "is_impossible": True},
                    ],
                },
                {"context": "Nothing.", "qas": [{"id": "c", "question": "What?"}]},
            ],
        },
        {"paragraphs": [{"context": "More.", "qas": [{"id": "d", "question": "When?", "answers": [ANSWER]}]}]},
    ],
}


def written(folder, content, name="a.json"):
    path = folder / name
    data = content.encode() if isinstance(content, str) else json.dumps(content, indent=1).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "A.JSON"])
def test_a_squad_file_is_one_row_a_question(tmp_path, name):
    rows = [row.values for row in read_rows(written(tmp_path, SQUAD, name))]
    context = "In 2016 the Broncos won."
    assert rows == [
        {"id": "a", "title": "Bowl", "context": context, "question": "Who won?", "answers": [ANSWER]},
        {"id": "b", "title": "Bowl", "context": context, "question": "Who lost?", "answers": []},
        {"id": "c", "title": "Bowl", "context": "Nothing.", "question": "What?"},
        {"id": "d", "context": "More.", "question": "When?", "answers": [ANSWER]},
    ]


def test_questions_are_named_by_their_id(tmp_path):
    path = written(tmp_path, SQUAD)
    assert [row.where for row in read_rows(path)][1] == f"question 'b' of {str(path)!r}"


def test_an_array_of_objects_is_one_row_an_object(tmp_path):
    rows = list(read_rows(written(tmp_path, [{"text": "one"}, {"text": "two"}])))
    assert [row.values for row in rows] == [{"text": "one"}, {"text": "two"}]
    assert rows[1].where.startswith("row 2 of ")


def changed(key, value, *place):
    document = json.loads(json.dumps(SQUAD))
    part = document
    for step in place:
        part = part[step]
    part[key] = value
    return document


FIRST = ("data", 0, "paragraphs", 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty: expected at least one row"),
        ("[]", "empty: expected at least one row"),
        ("[1]", "row 1 of .* is of type int"),
        ("{", r"not valid JSON: .* at column 2\. Expected an array of objects, or SQuAD"),
        ('{"a": 1}\n{"a": 2}\n', "for one object per line give --format jsonl"),
        ('[\n{"a": 1,}]', "line 2, column"),
        ('[{"a": 1, "a": 2}]', "the key 'a' appears twice"),
        ("3", "a JSON document of another form"),
        ({"rows": []}, "a JSON document of another form"),
        ({"data": [{"title": "x"}]}, r"'paragraphs' in data\[0\] of .* is missing"),
        (changed("context", None, *FIRST), r"'context' in paragraphs\[0\] of data\[0\] of .* is of type NoneType"),
        (changed("qas", {}, *FIRST), "'qas' in .* is of type dict"),
        (changed("question", 3, *FIRST, "qas", 1), r"'question' in qas\[1\] of .* is of type int"),
        (changed("is_impossible", True, *FIRST, "qas", 0), "both `is_impossible: true` and answers: drop one"),
    ],
    ids=str,
)
def test_another_document_is_refused_with_the_place(tmp_path, content, said):
    with pytest.raises(InvalidInput, match=said):
        list(read_rows(written(tmp_path, content)))


@pytest.mark.parametrize("as_text", [False, True])
def test_a_document_may_be_one_line_longer_than_a_row_may_be(tmp_path, monkeypatch, as_text):
    monkeypatch.setattr(sources, "LONGEST_LINE", replace(LONGEST_LINE, size=2**10))
    content = json.dumps([{"text": "a" * 2**11}])
    source = io.StringIO(content) if as_text else written(tmp_path, content)
    assert [row.values["text"] for row in read_rows(source, format="json")] == ["a" * 2**11]


def test_a_document_that_no_memory_holds_is_refused_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LONGEST_IN_DOCUMENT", replace(LONGEST_IN_DOCUMENT, size=2**20))
    with pytest.raises(InvalidInput, match=r"longer than 1 MiB. Save it as JSON Lines \(\.jsonl\)"):
        list(read_rows(written(tmp_path, json.dumps([{"text": "a" * 2**21}]))))
