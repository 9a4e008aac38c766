"""Documents of raw text: where they begin and end in each kind of file, and which files a corpus has."""

import gzip
import json

import pytest

from bothways.data import corpus_files, read_documents
from bothways.errors import InvalidInput


def texts(path, **options):
    return [document.text for document in read_documents(path, **options)]


def test_an_empty_line_ends_a_document(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo \n\n\n  \nthree\n\n")
    assert texts(path) == ["one\ntwo", "three"]
    assert [document.where for document in read_documents(path)] == [
        f"line 1 of {str(path)!r}",
        f"line 6 of {str(path)!r}",
    ]


def test_without_empty_lines_each_line_is_a_document(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\ntwo\nthree"))
    assert texts(tmp_path / "a.txt.gz") == ["one", "two", "three"]
    (tmp_path / "late.txt").write_text("line\n" * 10_000 + "\nlast\n")
    assert len(texts(tmp_path / "late.txt")) == 10_001
    (tmp_path / "empty.txt").touch()
    assert texts(tmp_path / "empty.txt") == []


def test_a_row_is_a_document_and_empty_ones_are_passed_over(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"body": each}) for each in ["one\n\ntwo", " ", "three"]))
    assert texts(path, text="body") == ["one\n\ntwo", "three"]


def test_files_of_folders_come_in_the_order_of_their_names(tmp_path):
    for name in ("b.txt", "a/2.jsonl", "a/1.txt.gz", "c.parquet", ".hidden.txt", "a/notes.md", "a/.git/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    found = [str(path.relative_to(tmp_path)) for path in corpus_files([tmp_path, tmp_path / "b.txt"])]
    assert found == ["b.txt", "c.parquet", "a/1.txt.gz", "a/2.jsonl", "b.txt"]


@pytest.mark.parametrize(("path", "words"), [("nowhere", "none at"), (".", r"no file of text in .*names that end in")])
def test_paths_without_texts_are_refused(tmp_path, path, words):
    with pytest.raises(InvalidInput, match=words):
        list(corpus_files([tmp_path / path]))


def test_a_row_without_text_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"body": "two"}\n')
    with pytest.raises(InvalidInput, match=r"line 2 of .*'text'"):
        texts(path)
