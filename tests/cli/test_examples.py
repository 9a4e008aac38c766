"""The example files of the guides: written whole, the same each time, and right."""

import json
import re
from pathlib import Path

import pytest
from command_line import call

from bothways.data import read_judgments, read_rows
from bothways.demo.examples import write_examples
from bothways.errors import OutputExists

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("examples") / "examples"
    write_examples(made)
    return made


def rows(path):
    return [row.values for row in read_rows(path) if row.values.get("text") != ""]  # empty lines between paragraphs


def test_the_readme_lists_every_file_with_its_rows(folder):
    listed = re.findall(
        r"^\| `(\S+)` \| ([\d,]+) \| \S", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {name for name, _ in listed} == {path.name for path in folder.iterdir()} - {"README.md"}
    for name, count in listed:
        assert len(rows(folder / name)) == int(count.replace(",", "")), name


def test_every_file_is_in_a_guide(folder):
    texts = "".join(page.read_text(encoding="utf-8") for page in GUIDES.glob("*.md"))
    assert [path.name for path in folder.iterdir() if path.name not in texts] == []


def test_files_are_the_same_each_time(folder, tmp_path):
    write_examples(tmp_path / "again")
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_tests_share_no_rows_and_no_names_with_the_training(folder):
    for train in folder.glob("*.train.*"):
        held_out = rows(folder / train.name.replace(".train.", ".test."))
        assert [row for row in rows(train) if row in held_out] == [], train.name

    def names(split):
        return {
            word
            for row in rows(folder / f"names.{split}.jsonl")
            for word, tag in zip(row["tokens"], row["tags"], strict=True)
            if tag != "O"
        }

    assert len(names("train")) > 60
    assert not names("train") & names("test")


def test_answers_stand_where_they_are_said_to(folder):
    found = [answer for row in rows(folder / "questions.train.jsonl") for answer in row["answers"] or [None]]
    assert found.count(None) > 20
    for row in rows(folder / "questions.test.jsonl"):
        for answer in row["answers"]:
            assert row["context"][answer["start"] :].startswith(answer["text"])


def test_judgments_name_queries_and_documents_that_exist(folder):
    documents = {row["id"] for row in rows(folder / "corpus.jsonl")}
    judged = read_judgments(folder / "qrels.tsv")
    assert judged.keys() == {row["id"] for row in rows(folder / "queries.jsonl")}
    assert {document for of_query in judged.values() for document in of_query} <= documents
    assert not documents & {row["id"] for row in rows(folder / "more.jsonl")}


def test_labels_of_the_judge_are_of_rows_that_exist(folder):
    for label in rows(folder / "gold.jsonl"):
        assert label["id"] in {row["id"] for row in rows(folder / f"{label['system']}.jsonl")}


def test_the_command_writes_a_folder_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("examples", "here")
    assert done.code == 0
    assert "listed in here/README.md" in done.err
    before = sorted(path.name for path in Path("here").iterdir())
    again = call("examples", "here")
    assert again.code == 1
    assert "--overwrite" in again.err
    Path("here/news.train.csv").write_text("changed", encoding="utf-8")
    assert call("examples", "here", "--overwrite").code == 0
    assert Path("here/news.train.csv").read_text(encoding="utf-8") != "changed"
    Path("here/more.txt").write_text("mine", encoding="utf-8")
    assert "not replaced" in call("examples", "here", "--overwrite").err
    assert Path("here/more.txt").read_text(encoding="utf-8") == "mine"
    Path("here/more.txt").unlink()
    assert sorted(path.name for path in Path("here").iterdir()) == before
    with pytest.raises(OutputExists):
        write_examples(Path("here"))
    assert json.loads(Path("here/corpus.jsonl").read_text(encoding="utf-8").splitlines()[0]).keys() == {
        "id",
        "text",
        "category",
    }
